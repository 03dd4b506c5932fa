"""The house rules that a machine can see. Each check is shown to find a bad example of its own."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MOST_FUNCTION_LINES = 50
MOST_MODULE_LINES = 400

# Only these may ask the machine for time, identity or chance.
CLOCKS = frozenset({"interlock.clock"})
CHANCE = frozenset({"time", "random", "secrets", "uuid"})
CHANCE_CALLS = frozenset(
    {"now", "utcnow", "today", "urandom", "getrandom", "monotonic", "perf_counter", "time", "time_ns"}
)

# Modules that nothing in the package imports, each with its reason.
STARTED_FROM_OUTSIDE = {
    "interlock": "the public names",
    "interlock.__main__": "python -m interlock",
    "interlock.cli": "the console script",
    "interlock.cli.demo.agent": "the demo's agent is found by its name",
    "interlock.drivers.shell": "found by its entry point",
    "interlock.runners.worker": "started as a process of its own",
}
SHIPPED_FOR_TESTS = "interlock.testing"  # kits that users' tests import

BARRED_NAMES = frozenset({"manager", "helper", "helpers", "util", "utils", "misc", "info", "handler", "processor"})
STATEMENT = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|CREATE|ALTER|DROP|BEGIN|COMMIT|SAVEPOINT|ROLLBACK|RELEASE)\s"
)
# What a test may call instead of asserting by itself: each of these asserts.
ASSERTING = ("assert", "check", "prove", "expect")
ASSERTING_CALLS = frozenset({"raises", "warns", "fail", "run_state_machine_as_test"})
STRANGERS = re.compile(
    "|".join(
        (
            *("cl" + "aude", "open" + "ai", "chat" + "gpt", "co" + "pilot", r"\bll" + r"m\b", r"\ba" + r"i assistant"),
            *("py" + r"pi\.org", "python" + "hosted", "np" + r"mjs\.org"),
            r"(?<![\w.~-])/(?:wo" + r"rk|ro" + r"ot|ho" + r"me)/",
        )
    ),
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Source:
    """One Python file: its dotted name and its text."""

    name: str
    text: str
    package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree))

    @cached_property
    def imports(self) -> frozenset[str]:
        """The dotted names of what is imported, at the top or anywhere else; `from a import b` may mean `a.b`."""
        found: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
        return frozenset(found)


Check = Callable[[Sequence[Source]], Iterable[str]]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def package() -> tuple[Source, ...]:
    return tuple(_sources(ROOT / "src", ROOT / "src"))


@cache
def suite() -> tuple[Source, ...]:
    return tuple(_sources(ROOT / "tests", ROOT))


def _sources(folder: Path, base: Path) -> Iterator[Source]:
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(base).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        yield Source(".".join(parts[:-1] if is_package else parts), path.read_text("utf-8"), is_package)


def functions(source: Source) -> Iterator[Function]:
    return (node for node in source.nodes if isinstance(node, Function))


def _lines(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def long_functions(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        for node in functions(source):
            if _lines(node) > MOST_FUNCTION_LINES:
                yield f"{source.name}:{node.lineno} {node.name} has {_lines(node)} lines"


def long_modules(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        lines = len(source.text.splitlines())
        if lines > MOST_MODULE_LINES:
            yield f"{source.name} has {lines} lines"


def machine_asked(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        if source.name in CLOCKS:
            continue
        for name in sorted(source.imports):
            if name.partition(".")[0] in CHANCE:
                yield f"{source.name} imports {name}: ask interlock.clock"
        for node in source.nodes:
            if _asks_a_module(node):
                yield f"{source.name}:{node.lineno} asks the machine: take a clock"  # type: ignore[attr-defined]


def _asks_a_module(node: ast.AST) -> bool:
    """Whether it is a call like `datetime.now()` or `os.urandom(8)`, of a name that is no clock of ours."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    of = node.func.value
    owner = of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else ""
    return node.func.attr in CHANCE_CALLS and owner in {"time", "datetime", "date", "os", "loop"}


def nowhere_imported(sources: Sequence[Source]) -> Iterator[str]:
    imported = {name for source in sources for name in source.imports}
    for source in sources:
        excused = source.name in STARTED_FROM_OUTSIDE or source.name.startswith(SHIPPED_FOR_TESTS)
        parent_of_one = source.package and any(name.startswith(f"{source.name}.") for name in imported)
        if not (excused or parent_of_one or source.name in imported):
            yield f"{source.name} is imported by nobody"


def needless_excuses(sources: Sequence[Source]) -> Iterator[str]:
    names = {source.name for source in sources}
    return (f"{name} is excused and is not there" for name in STARTED_FROM_OUTSIDE if name not in names)


def sql_in_f_strings(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.JoinedStr) and any(
                isinstance(part, ast.Constant) and STATEMENT.match(str(part.value)) for part in node.values
            ):
                yield f"{source.name}:{node.lineno} builds a statement in an f-string"


def barred_names(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        classes = (node.name for node in source.nodes if isinstance(node, ast.ClassDef))
        for name in (source.name.rpartition(".")[2], *classes):
            words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
            for word in sorted(words & BARRED_NAMES):
                yield f"{source.name}: {name} is named {word!r}: say what it is"


def shims(sources: Sequence[Source]) -> Iterator[str]:
    """Modules that only pass on what others define. The face of a package may, in its `__init__`."""
    for source in sources:
        if source.package:
            continue
        body = [node for node in source.tree.body if not _is_docstring(node) and not _is_future(node)]
        if body and all(isinstance(node, (ast.Import, ast.ImportFrom)) or _is_all(node) for node in body):
            yield f"{source.name} only passes on what others define"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _is_all(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)


def claimless_tests(sources: Sequence[Source]) -> Iterator[str]:
    """Tests that cannot fail: they neither assert nor call, by its plain name, a function of the suite that does."""
    asserting = {node.name for source in sources for node in functions(source) if any(map(_claims, ast.walk(node)))}
    for source in sources:
        for node in functions(source):
            inner = tuple(ast.walk(node))
            called = {each.func.id for each in inner if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)}
            if node.name.startswith("test_") and not (any(map(_claims, inner)) or called & asserting):
                yield f"{source.name}:{node.lineno} {node.name} asserts nothing"


def _claims(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return True
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in ASSERTING_CALLS or name.lstrip("_").startswith(ASSERTING)


def mocks_and_sleeps(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        for name in sorted(source.imports & {"unittest.mock", "mock", "pytest_mock", "time.sleep"}):
            yield f"{source.name} imports {name}"
        for node in source.nodes:
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "time.sleep":
                yield f"{source.name}:{node.lineno} sleeps: wait for what it waits for"


def bare_ignores(sources: Sequence[Source]) -> Iterator[str]:
    for source in sources:
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            if token.type != tokenize.COMMENT:
                continue
            if re.search(r"#\s*noqa(?!: [A-Z]+[0-9]+)", token.string) or re.search(
                r"#\s*type:\s*ignore(?!\[[a-z-]+)", token.string
            ):
                yield f"{source.name}:{token.start[0]} ignores without a code"


PACKAGE_CHECKS = (
    long_functions, long_modules, machine_asked, nowhere_imported, needless_excuses, sql_in_f_strings, barred_names,
    shims, bare_ignores,
)  # fmt: skip
TEST_CHECKS = (claimless_tests, mocks_and_sleeps, bare_ignores, barred_names)


@pytest.mark.parametrize("check", PACKAGE_CHECKS, ids=lambda check: check.__name__)
def test_the_package_keeps_to(check: Check) -> None:
    assert list(check(package())) == []


@pytest.mark.parametrize("check", TEST_CHECKS, ids=lambda check: check.__name__)
def test_the_tests_keep_to(check: Check) -> None:
    assert list(check(suite())) == []


LONG = "def f():\n" + "    x = 1\n" * MOST_FUNCTION_LINES
BAD: tuple[tuple[Check, str, str], ...] = (
    (long_functions, "some.module", LONG),
    (long_modules, "some.module", "x = 1\n" * (MOST_MODULE_LINES + 1)),
    (machine_asked, "some.module", "import time\n"),
    (machine_asked, "some.module", "def f():\n    from secrets import token_hex\n"),
    (machine_asked, "some.module", "from datetime import datetime\nx = datetime.now(None)\n"),
    (machine_asked, "some.module", "import os\nx = os.urandom(8)\n"),
    (nowhere_imported, "interlock.forgotten", "x = 1\n"),
    (needless_excuses, "interlock", "x = 1\n"),
    (sql_in_f_strings, "some.module", 'x = f"SELECT * FROM {table}"\n'),
    (sql_in_f_strings, "some.module", 'x = f"{y} UPDATE task"\nz = f"a{y}\\n DELETE FROM {x}"\n'),
    (barred_names, "some.module", "class LeaseManager: ...\n"),
    (barred_names, "some.string_utils", "x = 1\n"),
    (shims, "some.module", "from other import thing\n__all__ = ['thing']\n"),
    (claimless_tests, "tests.test_x", "def test_x():\n    call()\n"),
    (claimless_tests, "tests.test_x", "async def test_x():\n    await call()\n"),
    (mocks_and_sleeps, "tests.test_x", "from unittest.mock import Mock\n"),
    (mocks_and_sleeps, "tests.test_x", "import time\ntime.sleep(1)\n"),
    (mocks_and_sleeps, "tests.test_x", "from time import sleep\n"),
    (bare_ignores, "some.module", "x = 1  # " + "noqa\n"),
    (bare_ignores, "some.module", "x = 1  # " + "type: ignore\n"),
)
GOOD: tuple[tuple[Check, str, str], ...] = (
    (machine_asked, "some.module", "import asyncio\nasync def f(clock):\n    await asyncio.sleep(clock.now())\n"),
    (sql_in_f_strings, "some.module", 'x = f"{name} selects {what}; delete it with care"\n'),
    (claimless_tests, "tests.test_x", "def test_x():\n    with pytest.raises(ValueError):\n        call()\n"),
    (claimless_tests, "tests.test_x", "def test_x():\n    check_it(1)\n"),
    (claimless_tests, "tests.test_x", "def sound(x):\n    assert x\ndef test_x():\n    sound(1)\n"),
    (bare_ignores, "some.module", "x = 1  # " + "noqa: E501 - a reason\ny = 2  # " + "type: ignore[arg-type]\n"),
    (nowhere_imported, "interlock.testing.kit", "x = 1\n"),
)


@pytest.mark.parametrize(("check", "name", "text"), BAD)
def test_a_bad_example_is_found(check: Check, name: str, text: str) -> None:
    assert list(check([Source(name, text)])) != []


@pytest.mark.parametrize(("check", "name", "text"), GOOD)
def test_a_good_example_is_left_alone(check: Check, name: str, text: str) -> None:
    assert list(check([Source(name, text)])) == []


def _texts() -> Iterator[tuple[str, str]]:
    """Every file that we write by hand."""
    folders = ("src", "tests", "docs", "examples", "benchmarks", ".ci")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    paths += [
        path for path in ROOT.iterdir() if path.suffix in {".md", ".toml", ".yml", ".lock"} or path.name == "Makefile"
    ]
    for path in sorted(paths):
        if path.suffix not in {".pyc", ".png"}:
            yield str(path.relative_to(ROOT)), path.read_text("utf-8")


def strange_words(texts: Iterable[tuple[str, str]]) -> list[str]:
    """Words of somebody's tools, registries or machines."""
    return [
        f"{name}:{number} says {found.group()!r}"
        for name, text in texts
        for number, line in enumerate(text.splitlines(), 1)
        for found in STRANGERS.finditer(line)
    ]


def test_no_file_speaks_of_tools_registries_or_machines() -> None:
    assert strange_words(_texts()) == []
    assert strange_words([("x", "see /wo" + "rk/x and py" + "pi.org")]) == [
        "x:1 says '/wo" + "rk/'",
        "x:1 says 'py" + "pi.org'",
    ]


def faults_of_a_lock(text: str) -> list[str]:
    """What is wrong with a lock: it names places, or a package without a hash."""
    entries = text.replace("\\\n", " ").splitlines()
    pinned = [line for line in entries if line.strip() and not line.lstrip().startswith("#")]
    faults = ["it names a place"] if "://" in text or "index-url" in text else []
    return faults + [f"{line.split()[0]} has no hash" for line in pinned if "--hash=sha256:" not in line]


def test_locks_are_hashed_and_name_no_place() -> None:
    for lock in ("requirements.lock", "requirements-dev.lock"):
        assert faults_of_a_lock((ROOT / lock).read_text("utf-8")) == []
    assert faults_of_a_lock("a==1\n") == ["a==1 has no hash"]
    assert faults_of_a_lock("a @ https://x/a --hash=sha256:0\n") == ["it names a place"]


def repeated_numbers(text: str) -> list[str]:
    counted = Counter(re.findall(r"^- \*\*([A-Z]+-[0-9]+)\*\*", text, re.MULTILINE))
    return [number for number, times in counted.items() if times > 1]


def test_every_number_of_the_contract_is_given_once() -> None:
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("contract*.md"))]
    assert repeated_numbers("\n".join(texts)) == []
    assert repeated_numbers("- **F-01** a\n- **F-01** b\n") == ["F-01"]
