"""Damage of each kind, at random places, to both durable stores."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actions.killed_run import store_of
from actions.stage import COMMITTED, RUN, ManualClock, Stage, effect, finished, limits, read
from interlock.actions import FileCheckpoints, SchedulerCheckpoint, SchedulerError, SqliteCheckpoints

Store = SqliteCheckpoints | FileCheckpoints
KINDS = ("sqlite", "file")
GRAPH = [effect("a"), read("b", "a"), read("c", "a"), effect("d", "b", "c"), effect("e", "d", units=3)]
DATABASE, DIRECTORY = "checkpoints.db", "checkpoints"


@dataclass(frozen=True)
class Whole:
    """A sound store in a folder of its own, and every snapshot that was saved in it."""

    folder: Path
    kept: tuple[SchedulerCheckpoint, ...]


@pytest.fixture(scope="module", params=KINDS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return saved(str(request.param), tmp_path_factory.mktemp("whole"))


def saved(kind: str, folder: Path) -> Whole:
    kept: list[SchedulerCheckpoint] = []
    with store_of(kind, folder).claim(RUN) as saves:

        def save(checkpoint: SchedulerCheckpoint) -> None:
            saves(checkpoint)
            kept.append(checkpoint)

        asyncio.run(finished(GRAPH, limits(), Stage(otherwise=COMMITTED), save, clock=ManualClock()))
    return Whole(folder, tuple(kept))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A database as a process leaves it that never closed it."""
    folder, left = tmp_path_factory.mktemp("running"), tmp_path_factory.mktemp("killed")
    keeper = sqlite3.connect(folder / DATABASE)
    keeper.execute("PRAGMA journal_mode = WAL")
    keeper.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    whole = saved("sqlite", folder)
    for name in (DATABASE, f"{DATABASE}-wal"):
        shutil.copy(folder / name, left / name)
    keeper.close()
    return Whole(left, whole.kept)


@contextmanager
def copied(whole: Whole) -> Iterator[tuple[Store, Path]]:
    """A copy to damage: the store, and the one file that it has."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path) / "copy"
        shutil.copytree(whole.folder, folder)
        database = folder / DATABASE
        if database.exists():
            yield SqliteCheckpoints(database), database
        else:
            yield FileCheckpoints(folder / DIRECTORY), folder / DIRECTORY / f"{RUN.serialize()}.jsonl"


def refused(store: Store) -> bool:
    """Whether what is stored is refused, by `load` and by `claim`; both must agree."""
    verdicts = set()
    for attempt in (store.load, store.claim):
        try:
            found: Any = attempt(RUN)
            if attempt == store.claim:
                found.close()
            verdicts.add("taken")
        except SchedulerError as error:
            assert str(error) == "invalid_checkpoint"
            assert error.__context__ is None
            verdicts.add("refused")
    assert len(verdicts) == 1
    return verdicts == {"refused"}


def rearranged(records: Sequence[Any], data: st.DataObject) -> list[Any]:
    """The records with some of them swapped, dropped, repeated or put where others were. Never a shorter beginning."""
    places = st.integers(0, len(records) - 1)
    damage = data.draw(st.sampled_from(["swap", "drop", "repeat", "replay"]))
    first, second = sorted(data.draw(st.lists(places, min_size=2, max_size=2, unique=True)))
    changed = list(records)
    if damage == "swap":
        changed[first], changed[second] = changed[second], changed[first]
    elif damage == "drop":
        del changed[first:second]
    elif damage == "repeat":
        changed[second:second] = [records[data.draw(places)]]
    else:
        changed[second] = records[first]
    return changed


@pytest.mark.contract("A-92")
@given(data=st.data())
def test_records_that_were_swapped_dropped_repeated_or_replayed_are_refused(whole: Whole, data: st.DataObject) -> None:
    with copied(whole) as (store, path):
        if isinstance(store, FileCheckpoints):
            lines = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join(rearranged(lines, data)))
        else:
            connection = sqlite3.connect(path, isolation_level=None)
            rows = connection.execute("SELECT seal, body FROM saves ORDER BY sequence").fetchall()
            rows = rearranged(rows, data)
            connection.execute("DELETE FROM saves")
            renumbered = [(RUN.serialize(), number, *row) for number, row in enumerate(rows, 1)]
            connection.executemany("INSERT INTO saves VALUES (?, ?, ?, ?)", renumbered)
            connection.close()
        assert refused(store)


@pytest.mark.contract("A-92")
@settings(max_examples=2 * settings().max_examples)
@given(data=st.data())
def test_a_bit_that_was_flipped_in_a_record_is_refused(whole: Whole, data: st.DataObject) -> None:
    with copied(whole) as (store, path):
        content = bytearray(path.read_bytes())
        place = data.draw(st.sampled_from(places_of_records(whole, bytes(content))))
        content[place] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        assert refused(store)


def places_of_records(whole: Whole, content: bytes) -> range | list[int]:
    """Where the bytes of the records are: all of the file; in the database, the seals and bodies."""
    if not (whole.folder / DATABASE).exists():
        return range(len(content))
    connection = sqlite3.connect(whole.folder / DATABASE)
    rows = connection.execute("SELECT seal || body FROM saves").fetchall()
    connection.close()
    starts = [(content.index(text.encode()), len(text)) for (text,) in rows]
    return [place for start, length in starts for place in range(start, start + length)]


@pytest.mark.contract("A-92", "A-95")
@settings(max_examples=3 * settings().max_examples)
@given(data=st.data())
def test_a_bit_that_was_flipped_anywhere_gives_no_snapshot_that_was_never_saved(
    whole: Whole, data: st.DataObject
) -> None:
    with copied(whole) as (store, path):
        content = bytearray(path.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        assert refused(store) or store.load(RUN) == whole.kept[-1]


@pytest.mark.contract("A-92")
@pytest.mark.parametrize("left", [0, 1, 6])
def test_a_database_whose_last_rows_are_gone_is_refused(tmp_path: Path, left: int) -> None:
    with copied(saved("sqlite", tmp_path)) as (store, path):
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("DELETE FROM saves WHERE sequence > ?", (left,))
        connection.close()
        assert refused(store)


@pytest.mark.contract("A-92")
def test_a_database_that_cannot_be_opened_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError, match="open"):
        SqliteCheckpoints(tmp_path).load(RUN)


@pytest.mark.contract("A-92")
@given(data=st.data())
def test_a_bit_that_was_flipped_in_the_log_of_a_killed_process_gives_no_snapshot_that_was_never_saved(
    killed: Whole, data: st.DataObject
) -> None:
    with copied(killed) as (store, path):
        log = path.with_name(f"{DATABASE}-wal")
        content = bytearray(log.read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        log.write_bytes(content)
        assert refused(store) or store.load(RUN) in (None, *killed.kept)


@pytest.mark.contract("A-92", "A-93")
@given(data=st.data())
def test_a_file_that_was_cut_short_gives_its_last_whole_line(tmp_path_factory: Any, data: st.DataObject) -> None:
    whole = saved("file", tmp_path_factory.mktemp("whole"))
    with copied(whole) as (store, path):
        content = path.read_bytes()
        left = content[: data.draw(st.integers(0, len(content) - 1))]
        path.write_bytes(left)
        expected = [None, *whole.kept][left.count(b"\n")]
        assert store.load(RUN) == expected
        with store.claim(RUN) as saves:
            assert saves.checkpoint == expected
