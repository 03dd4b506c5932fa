"""What the documents say is so: diagrams come from the tables, examples are sound, links lead somewhere."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import pytest

from interlock.app import InstalledDefinitions
from interlock.drivers.shell import ShellDriver
from interlock.drivers.shell_files import Why
from interlock.fleet.transitions import DEVICE_MOVES, TASK_MOVES

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")

State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)


def diagram(moves: Mapping[tuple[State, Event], State], first: State) -> str:
    """A table of moves as the text of a Mermaid state diagram. States that nothing leaves are ends."""
    left = {state for state, _ in moves}
    ends = dict.fromkeys(state for state in moves.values() if state not in left)
    lines = ["stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {state} --> {following}: {event}" for (state, event), following in moves.items()]
    return "\n".join([*lines, *(f"    {state} --> [*]" for state in ends)]) + "\n"


def blocks(page: Path, language: str) -> list[str]:
    found = _BLOCK.finditer(page.read_text("utf-8"))
    return [block["text"] for block in found if block["language"] == language]


def test_the_diagrams_of_the_fleet_are_drawn_from_its_tables() -> None:
    tasks, devices = blocks(ROOT / "docs" / "fleet.md", "mermaid")
    assert tasks == diagram(TASK_MOVES, next(iter(TASK_MOVES))[0])
    assert devices == diagram(DEVICE_MOVES, next(iter(DEVICE_MOVES))[0])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = _LINK.findall(page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_example_in_python_can_be_parsed(page: Path) -> None:
    assert all(ast.parse(text) for text in blocks(page, "python"))


def test_the_page_of_tools_has_each_tool_of_the_shell_with_each_argument() -> None:
    page = (ROOT / "docs" / "tools.md").read_text("utf-8")
    sections = {part.split("`", 1)[0]: part for part in page.split("\n## `")[1:]}
    assert sections.keys() == set(ShellDriver.contracts)
    for tool_id, contract in ShellDriver.contracts.items():
        assert f"`: {'a read' if contract.is_read else 'an effect'}\n" in sections[tool_id]
        rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*) \|$", sections[tool_id], re.MULTILINE)
        said = [(name, kind, not why.startswith("optional")) for name, kind, why in rows]
        assert said == [(each.name, each.type.value, each.required) for each in contract.parameters]
    assert all(f"`{why.value}`" in page for why in Why)


def _workflows() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for number, text in enumerate(blocks(page, "yaml"), 1):
            if "steps:" in text:
                yield f"{page.relative_to(ROOT)}, {number}", text
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        yield str(path.relative_to(ROOT)), path.read_text("utf-8")


@pytest.mark.parametrize(("where", "text"), list(_workflows()), ids=lambda value: value[:40].strip())
def test_every_workflow_that_is_shown_is_accepted(where: str, text: str) -> None:
    assert InstalledDefinitions().check(text).digest, where


_CASE = re.compile(r"^\| (?P<number>[A-Z][0-9]+) \| [^|]+ \| (?P<shown>[^|]+) \|$", re.MULTILINE)
_TEST = re.compile(r"`(?P<file>[\w/]+\.py)::(?P<name>test_\w+)`")


def faults_of_cases(text: str, folder: Path) -> list[str]:
    """Cases that are there twice, or whose test is not there or does not carry their number."""
    cases = [(case["number"], case["shown"]) for case in _CASE.finditer(text)]
    faults = [f"{number} twice" for number, times in Counter(number for number, _ in cases).items() if times > 1]
    for number, shown in cases:
        for test in _TEST.finditer(shown):
            path = folder / test["file"]
            there = path.is_file() and re.search(rf"def {test['name']}\(", path.read_text("utf-8"))
            if not there or f"_{number.lower()}_" not in test["name"]:
                faults.append(f"{number}: {test['name']}")
        if len(shown.split()) == 0 or ("`" in shown and not _TEST.search(shown)):
            faults.append(f"{number}: {shown}")
    return faults


def test_every_case_is_shown_by_a_test_of_its_number_or_says_why_not() -> None:
    text = (ROOT / "docs" / "cases.md").read_text("utf-8")
    assert text.count("\n| R") == len(_CASE.findall(text)) > 60
    assert faults_of_cases(text, ROOT / "tests") == []
    here = "`test_documents.py::test_every_link_leads_to_a_file`"
    assert faults_of_cases(f"| R1 | a | {here} |\n", ROOT / "tests") == ["R1: test_every_link_leads_to_a_file"]
    assert faults_of_cases("| R1 | a | `gone.py::test_r1_x` |\n", ROOT / "tests") == ["R1: test_r1_x"]
    assert faults_of_cases("| R1 | a | b |\n| R1 | a | b |\n", ROOT / "tests") == ["R1 twice"]
