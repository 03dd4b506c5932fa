"""Hypothesis profiles, the contract and skips.

A number of the documents without a test that ran fails the full run; with `CI` set, so does a test that was skipped.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from databases import (
    DatabaseClock,
    Databases,
    PostgresDatabases,
    PostgresServer,
    SqliteDatabases,
    postgres_or_say_so,
)

DOCUMENTS = Path(__file__).parent.parent / "docs"
_NUMBER = re.compile(r"^- \*\*([A-Z]+-[0-9]+)\*\* ", re.MULTILINE)

settings.register_profile("default", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("proof", max_examples=1_000, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def stated_numbers() -> set[str]:
    texts = [path.read_text("utf-8") for path in sorted(DOCUMENTS.glob("contract*.md"))]
    return {number for text in texts for number in _NUMBER.findall(text)}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-contract", action="store_true", help="fail where a number of the contract has no test that ran"
    )
    parser.addoption("--test-seconds", type=float, help="fail a test that takes longer, and go on")


class EveryContract:
    """Counts, in the process that hears of every test, which numbers were proven by a test that passed."""

    def __init__(self) -> None:
        self.proven: set[str] = set()
        self.fault: tuple[set[str], set[str]] = (set(), set())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.proven.update(str(value) for name, value in report.user_properties if name == "contract")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.fault = (stated_numbers() - self.proven, self.proven - stated_numbers())
        if any(self.fault):
            fail(session)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        unproven, unknown = self.fault
        for number in sorted(unproven):
            terminalreporter.write_line(f"CONTRACT {number} is stated and no test that ran has proven it", red=True)
        for number in sorted(unknown):
            terminalreporter.write_line(f"CONTRACT {number} is claimed by a test and stated nowhere", red=True)


class EveryTestEnds:
    """Fails what does not end, again and again until it does: what is stuck may swallow the first word."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        signal.signal(signal.SIGALRM, self._ring)

    def _ring(self, *_: object) -> None:
        pytest.fail(f"it has not ended after {self._seconds} s")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        signal.setitimer(signal.ITIMER_REAL, self._seconds, 0.5)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    pytest_runtest_teardown = pytest_runtest_call


class NothingSkipped:
    """Says aloud which tests were skipped, and fails the run for it where `CI` is set."""

    def __init__(self) -> None:
        self.skipped: list[str] = []

    def _note(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            self.skipped.append(report.nodeid)

    pytest_runtest_logreport = _note
    pytest_collectreport = _note

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skipped and os.environ.get("CI"):
            fail(session)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        verdict = "and that fails the run" if os.environ.get("CI") else "and so proves nothing here"
        for node in self.skipped:
            terminalreporter.write_line(f"SKIPPED {node} did not run, {verdict}", red=True)


def fail(session: pytest.Session) -> None:
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(NothingSkipped(), "nothing-skipped")
    if seconds := config.getoption("--test-seconds"):
        config.pluginmanager.register(EveryTestEnds(seconds), "every-test-ends")
    if config.getoption("--every-contract") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(EveryContract(), "every-contract")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for every test of this process."""
    server = postgres_or_say_so()
    yield server
    server.remove()


@pytest.fixture
def clock() -> Iterator[DatabaseClock]:
    clock = DatabaseClock()
    yield clock
    clock.close()


@pytest.fixture(params=["sqlite", "postgres"])
def databases(request: pytest.FixtureRequest, tmp_path: Path, clock: DatabaseClock) -> Databases:
    if request.param == "sqlite":
        return SqliteDatabases(tmp_path, clock)
    return PostgresDatabases(request.getfixturevalue("postgres"), clock)


@pytest.fixture(autouse=True)
def _contract_numbers(request: pytest.FixtureRequest) -> None:
    for marker in request.node.iter_markers("contract"):
        request.node.user_properties.extend(("contract", number) for number in marker.args)
