"""Takes guards out, one at a time, each in a copy of the tree, and says which of them no test has missed.

A guard is given in `mutants.toml` by its exact text, what stands in its place, and the tests that must go red. Exit
code 1 where one of them stays green, or where the text is not there exactly once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LIST = Path(__file__).with_name("mutants.toml")
SECONDS = 240
_COPIED = ("src", "tests", "docs", "pyproject.toml")
_TESTS_FAILED = 1  # pytest's own code; any other one means that they did not really run


class Verdict(Enum):
    """What became of a mutant, or of the unchanged tree."""

    KILLED = "killed"
    SURVIVED = "SURVIVED: no test misses it"
    NOT_FOUND = "NOT FOUND: its text is not there exactly once"
    NOT_RUN = "NOT RUN: the tests did not get as far as a verdict"


@dataclass(frozen=True)
class Edit:
    """One text of one file, and what stands in its place."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Mutant:
    """Edits that take a guard out, and the tests that must notice."""

    name: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    fence: bool = False
    test_seconds: float | None = None
    """For a guard without which a test does not end: how long one may take. Such a test is as red as any other."""


def mutants() -> tuple[Mutant, ...]:
    """The committed list."""
    entries = tomllib.loads(LIST.read_text("utf-8"))["mutant"]
    return tuple(
        Mutant(
            entry["name"],
            tuple(Edit(each["file"], each["old"], each["new"]) for each in (entry, *entry.get("also", ()))),
            tuple(entry["tests"]),
            entry.get("fence", False),
            entry.get("test_seconds"),
        )
        for entry in entries
    )


def judge(mutant: Mutant) -> Verdict:
    """Make the edits in a copy and run the tests there."""
    with _copy() as copy:
        for edit in mutant.edits:
            path = copy / edit.file
            text = path.read_text("utf-8")
            if text.count(edit.old) != 1:
                return Verdict.NOT_FOUND
            path.write_text(text.replace(edit.old, edit.new), "utf-8")
        limit = () if mutant.test_seconds is None else (f"--test-seconds={mutant.test_seconds}",)
        return _tested(copy, (*limit, *mutant.tests))


@contextmanager
def _copy() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="interlock-mutant-") as folder:
        copy = Path(folder)
        for name in _COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, copy / name)  # with the bytecode of what is not edited
            else:
                shutil.copy(ROOT / name, copy / name)
        yield copy


def _tested(copy: Path, arguments: Sequence[str]) -> Verdict:
    # What the copy's own source is told by its path: the tests must not run against the tree that it was copied from.
    probe = f"import interlock, sys; sys.exit(not interlock.__file__.startswith({str(copy)!r}))"
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    pytest = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *arguments]
    try:
        subprocess.run([sys.executable, "-c", probe], cwd=copy, env=environment, check=True)
        done = subprocess.run(
            [sys.executable, *pytest], cwd=copy, env=environment, capture_output=True, timeout=SECONDS, check=False
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return Verdict.NOT_RUN
    if done.returncode == 0:
        return Verdict.SURVIVED
    return Verdict.KILLED if done.returncode == _TESTS_FAILED else Verdict.NOT_RUN


def main() -> int:
    """Judge every mutant, and first the unchanged tree: red tests kill nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose name has this text in it")
    asked = parser.parse_args()
    listed = [mutant for mutant in mutants() if asked.only in mutant.name]
    selected = sorted({test for mutant in listed for test in mutant.tests})
    if judge(Mutant("unchanged", (), tuple(selected))) is not Verdict.SURVIVED:
        sys.stdout.write("the tests are red without any mutant: mend them first\n")
        return 1
    faults = 0
    with ThreadPoolExecutor(asked.jobs) as pool:
        for mutant, verdict in zip(listed, pool.map(judge, listed), strict=True):
            faults += verdict is not Verdict.KILLED
            sys.stdout.write(f"{mutant.name}: {verdict.value}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(listed) - faults} of {len(listed)} mutants were killed\n")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
