"""Each test gets a system of its own, which is ended with everything that it started."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from integration.system import System

MakeSystem = Callable[..., System]


@pytest.fixture
def make_system(tmp_path: Path) -> Iterator[MakeSystem]:
    made: list[System] = []

    def make(*devices: str, name: str = "data", prefix: tuple[str, ...] = ()) -> System:
        made.append(System(tmp_path / name, devices or ("d1:shell:linux",), prefix))
        return made[-1]

    yield make
    for system in made:
        if system.process is not None:
            system.process.kill()
            system.process.communicate(timeout=60)


@pytest.fixture
def system(make_system: MakeSystem) -> System:
    found = make_system()
    found.up()
    return found


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Write a workflow to a file and give its path."""

    def write(text: str) -> str:
        path = tmp_path / "workflow.yaml"
        path.write_text(text, "utf-8")
        return str(path)

    return write
