"""The durable stores: one suite over both."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actions.killed_run import store_of
from actions.stage import COMMITTED, FAILED, RUN, TOOL, Stage, effect, finished, limits, read, state_words
from interlock.actions import (
    ActionNode,
    ActionScheduler,
    ActionState,
    FileCheckpoints,
    RunId,
    ScheduledAction,
    SchedulerCheckpoint,
    SchedulerError,
    SchedulerLimits,
    SqliteCheckpoints,
    StopReason,
)
from interlock.actions.stores import lock
from interlock.errors import Conflict, StoreHeld

Store = SqliteCheckpoints | FileCheckpoints
KINDS = ("sqlite", "file")
DIAMOND = [effect("a"), read("b", "a"), read("c", "a"), effect("d", "b", "c")]
GRAPH_OF_TWO = [effect("a"), effect("b", "a")]
HOLD = """
import sys, pathlib
from actions.killed_run import store_of
from interlock.actions import RunId
saves = store_of(sys.argv[1], pathlib.Path(sys.argv[2])).claim(RunId.parse(sys.argv[3]))
print("claimed", flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, tmp_path: Path) -> Store:
    return store_of(kind, tmp_path)


def environment() -> dict[str, str]:
    tests = str(Path(__file__).parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join((tests, os.environ.get("PYTHONPATH", "")))}


@pytest.mark.contract("A-95", "A-90")
async def test_the_last_snapshot_of_a_run_is_loaded_as_it_was_saved(store: Store) -> None:
    assert store.load(RUN) is None
    with store.claim(RUN) as saves:
        assert saves.checkpoint is None
        assert store.load(RUN) is None
        last = await finished(GRAPH_OF_TWO, limits(), Stage(otherwise=COMMITTED), saves)
        assert saves.checkpoint == last
        assert store.load(RUN) == last
    assert store.load(RUN) == last
    assert store.load(RunId.generate()) is None


@pytest.mark.contract("A-95", "A-86")
@pytest.mark.parametrize("stop_at", [1, 2, 3, 4, 5])
async def test_every_saved_boundary_loads_and_is_resumed_or_reviewed(store: Store, stop_at: int) -> None:
    stage = Stage(otherwise=COMMITTED)
    with store.claim(RUN) as saves:
        kept: list[SchedulerCheckpoint] = []

        def save(checkpoint: SchedulerCheckpoint) -> None:
            if len(kept) == stop_at:
                raise OSError
            saves(checkpoint)
            kept.append(checkpoint)

        await finished(GRAPH_OF_TWO, limits(), stage, save)
    with store.claim(RUN) as saves:
        assert saves.checkpoint == kept[-1]
        fresh = Stage(otherwise=COMMITTED)
        last = await finished(GRAPH_OF_TWO, limits(), fresh, saves, checkpoint=saves.checkpoint)
        before = state_words(kept[-1])
        assert last.stop_reason is (StopReason.REVIEW_REQUIRED if "r" in before else StopReason.COMPLETED)
        assert fresh.invoked == ([] if "r" in before else ["a", "b"][before.count("c") :])
    assert store.load(RUN) == last


@pytest.mark.contract("A-95")
@pytest.mark.parametrize("kind", [SqliteCheckpoints, FileCheckpoints])
def test_a_store_is_named_by_a_string_as_well_and_nobody_else_reads_it(kind: Any, tmp_path: Path) -> None:
    store = kind(str(tmp_path / "runs" / "here"))
    assert store == kind(tmp_path / "runs" / "here")
    with store.claim(RUN):
        assert store.load(RUN) is None
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert files
        assert [path for path in files if path.stat().st_mode & 0o077] == []


@pytest.mark.contract("A-91")
def test_r56_one_run_has_one_owner_at_a_time(store: Store) -> None:
    with store.claim(RUN), store.claim(RunId.generate()), pytest.raises(StoreHeld):
        store.claim(RUN)
    store.claim(RUN).close()


@pytest.mark.contract("A-91")
def test_r56_a_run_that_another_process_claimed_is_free_when_that_process_dies(
    store: Store, kind: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", HOLD, kind, str(tmp_path), RUN.serialize()]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment(), **pipes) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"claimed\n"
        with pytest.raises(StoreHeld):
            store.claim(RUN)
        holder.kill()
        holder.wait()
        store.claim(RUN).close()


@pytest.mark.contract("A-91")
def test_many_threads_that_claim_one_run_get_it_one_after_another(store: Store) -> None:
    owners: list[int] = []
    most: list[int] = []

    def contend() -> None:
        for _ in range(30):
            try:
                saves = store.claim(RUN)
            except StoreHeld:
                continue
            owners.append(1)
            most.append(len(owners))
            owners.pop()
            saves.close()

    threads = [threading.Thread(target=contend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    store.claim(RUN).close()


@pytest.mark.contract("A-94")
async def test_a_save_that_does_not_go_on_from_the_last_one_is_refused(store: Store) -> None:
    kept: list[SchedulerCheckpoint] = []
    with store.claim(RUN) as saves:

        def save(checkpoint: SchedulerCheckpoint) -> None:
            if len(kept) < 3:
                saves(checkpoint)
                kept.append(checkpoint)

        await finished(GRAPH_OF_TWO, limits(), Stage(otherwise=COMMITTED), save)
        states = kept[2].states
        for wrong in (
            kept[0],
            kept[1],
            replace(kept[2], run_id=RunId.generate()),
            replace(kept[2], plan_digest="sha256:" + "0" * 64),
            replace(kept[2], states=states[:1]),
            replace(kept[2], admitted_actions=1),
            replace(kept[2], reserved_units=1),
            replace(kept[2], elapsed_ns=0),
            replace(kept[2], states=(states[0], ("b", ActionState.PENDING))),
            replace(kept[2], states=(("a", ActionState.FAILED), states[1])),
        ):
            with pytest.raises(Conflict):
                saves(wrong)
        assert saves.checkpoint == kept[2]
        saves(replace(kept[2], stop_reason=StopReason.CANCELLED))
        with pytest.raises(Conflict):
            saves(replace(kept[2], stop_reason=StopReason.CANCELLED))
    with pytest.raises(Conflict):
        saves(kept[2])


@pytest.mark.contract("A-91", "A-94")
def test_a_claim_that_was_given_up_saves_nothing(store: Store) -> None:
    checkpoint = SchedulerCheckpoint(RUN, "sha256:" + "0" * 64, (), 0, 0, 0)
    with store.claim(RUN) as saves:
        saves(checkpoint)
    for save in (saves, saves.restate):
        with pytest.raises(Conflict):
            save(replace(checkpoint, elapsed_ns=1))
    assert store.load(RUN) == checkpoint


@pytest.mark.contract("A-92")
def test_a_record_that_stood_in_the_same_place_of_another_history_is_refused(tmp_path: Path) -> None:
    checkpoint = SchedulerCheckpoint(RUN, "sha256:" + "0" * 64, (), 0, 0, 0)
    lines = []
    for history in (1, 2):
        with FileCheckpoints(tmp_path / str(history)).claim(RUN) as saves:
            for number in range(4):
                saves(replace(checkpoint, elapsed_ns=history * number))
        path = tmp_path / str(history) / f"{RUN.serialize()}.jsonl"
        lines.append(path.read_bytes().splitlines(keepends=True))
    first, second = lines
    path.write_bytes(b"".join([*second[:2], first[2], second[3]]))
    assert refused(FileCheckpoints(tmp_path / "2"))


@pytest.mark.contract("A-94", "A-71")
async def test_r18_r49_a_second_resume_from_the_same_checkpoint_gets_no_further_than_its_first_save(
    store: Store,
) -> None:
    clean: list[SchedulerCheckpoint] = []
    with store.claim(RUN) as saves:

        def save(checkpoint: SchedulerCheckpoint) -> None:
            if clean:
                raise OSError
            saves(checkpoint)
            if state_words(checkpoint) == "cp":
                clean.append(checkpoint)

        await finished(GRAPH_OF_TWO, limits(), Stage(otherwise=COMMITTED), save)
    (checkpoint,) = clean
    with store.claim(RUN) as saves:
        await finished(GRAPH_OF_TWO, limits(), Stage({"b": FAILED}), saves, checkpoint=checkpoint)
    with store.claim(RUN) as saves:
        stage = Stage(otherwise=COMMITTED)
        last = await finished(GRAPH_OF_TWO, limits(), stage, saves, checkpoint=checkpoint)
    assert (last.stop_reason, stage.invoked) == (StopReason.CHECKPOINT_FAILED, [])


@pytest.mark.contract("A-99")
async def test_what_a_host_prepared_after_a_review_is_restated_and_resumed(store: Store) -> None:
    with store.claim(RUN) as saves:
        stopped = await finished(GRAPH_OF_TWO, limits(), Stage({"a": "unknown"}), saves)
        reviewed = replace(stopped, states=(("a", ActionState.COMMITTED), stopped.states[1]), stop_reason=None)
        for refund in (
            replace(reviewed, admitted_actions=0),
            replace(reviewed, elapsed_ns=0),
            replace(reviewed, run_id=RunId.generate()),
        ):
            with pytest.raises(Conflict):
                saves.restate(refund)
        saves.restate(reviewed)
    with store.claim(RUN) as saves:
        assert saves.checkpoint == reviewed
        stage = Stage(otherwise=COMMITTED)
        last = await finished(GRAPH_OF_TWO, limits(), stage, saves, checkpoint=saves.checkpoint)
    assert (last.stop_reason, stage.invoked) == (StopReason.COMPLETED, ["b"])
    assert store.load(RUN) == last


@pytest.mark.contract("A-99")
def test_there_is_nothing_to_restate_before_the_first_save(store: Store) -> None:
    with store.claim(RUN) as saves, pytest.raises(Conflict):
        saves.restate(SchedulerCheckpoint(RUN, "sha256:" + "0" * 64, (), 0, 0, 0))


async def filled(tmp_path: Path, kind: str, run_id: RunId = RUN) -> Store:
    store = store_of(kind, tmp_path)
    with store.claim(run_id) as saves:
        await ActionScheduler(DIAMOND, limits(), Stage(otherwise=COMMITTED), saves).run(run_id)
    return store


def refused(store: Store) -> bool:
    """Whether neither `load` nor `claim` takes what is stored, and the claim is given up again."""
    for attempt in (store.load, store.claim, store.load):
        with pytest.raises(SchedulerError) as caught:
            attempt(RUN)
        assert str(caught.value) == "invalid_checkpoint"
        assert caught.value.__context__ is None
    return True


@pytest.mark.contract("A-92")
async def test_a_file_whose_records_were_altered_moved_or_left_out_is_refused(tmp_path: Path) -> None:
    store = await filled(tmp_path, "file")
    path = tmp_path / "checkpoints" / f"{RUN.serialize()}.jsonl"
    good = path.read_bytes()
    lines = good.splitlines(keepends=True)
    altered = [
        good.replace(b"committed", b"committee", 1),
        b"".join(lines[1:]),
        b"".join(lines[:2] + lines[3:]),
        b"".join([lines[0], lines[2], lines[1], *lines[3:]]),
        good + lines[-1],
        good + b"\n",
        good + b"{}\n",
        good + b"\x00" * 20 + b"\n",
        good[:-20] + b"\n",
        good[:-1] + b"x",
        good + b"\xff\xfe",
        b"\xff\xfe\x00",
        b"\x00" * len(good),
        b"\xff" + good,
    ]
    for wrong in altered:
        path.write_bytes(wrong)
        assert refused(store)
    path.write_bytes(good)
    store.claim(RUN).close()
    other = RunId.generate()
    path.rename(path.with_name(f"{other.serialize()}.jsonl"))
    with pytest.raises(SchedulerError, match="invalid_checkpoint"):
        store.load(other)


@pytest.mark.contract("A-92")
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE saves SET body = replace(body, 'running', 'pending') WHERE sequence = 3",
        "DELETE FROM saves WHERE sequence = 1",
        "DELETE FROM saves WHERE sequence = 4",
        "UPDATE saves SET sequence = 100 - sequence WHERE sequence IN (3, 4)",
        "UPDATE saves SET seal = 'x' WHERE sequence = 9",
    ],
)
async def test_a_database_whose_rows_were_altered_is_refused(tmp_path: Path, change: str) -> None:
    store = await filled(tmp_path, "sqlite")
    connection = sqlite3.connect(tmp_path / "checkpoints.db", isolation_level=None)
    connection.execute(change)
    connection.close()
    assert refused(store)


@pytest.mark.contract("A-93", "A-95")
async def test_a_torn_last_line_is_cut_off_wherever_it_was_torn(tmp_path: Path) -> None:
    store = await filled(tmp_path, "file")
    path = tmp_path / "checkpoints" / f"{RUN.serialize()}.jsonl"
    good = path.read_bytes()
    lines = good.splitlines(keepends=True)
    whole = b"".join(lines[:-1])
    path.write_bytes(whole)
    expected = store.load(RUN)
    for length in (1, 64, 65, len(lines[-1]) - 1):
        path.write_bytes(whole + lines[-1][:length])
        assert store.load(RUN) == expected
        with store.claim(RUN) as saves:
            assert saves.checkpoint == expected
        assert path.read_bytes() == whole
    path.write_bytes(whole + b"\x00" * 4096)
    with store.claim(RUN) as saves:
        assert expected is not None
        saves(replace(expected, stop_reason=StopReason.COMPLETED))
    assert store.load(RUN) == replace(expected, stop_reason=StopReason.COMPLETED)
    path.write_bytes(lines[0][:50])
    assert store.load(RUN) is None
    with store.claim(RUN) as saves:
        assert saves.checkpoint is None


@pytest.mark.contract("A-98")
@pytest.mark.parametrize("size", [10, 10_000])
async def test_r52_a_move_costs_less_than_1_000_bytes_however_large_the_graph_is(
    store: Store, tmp_path: Path, size: int
) -> None:
    keys = [f"action-{number:05}" for number in range(size)]
    graph = [ScheduledAction(ActionNode(key, TOOL), read_only=True) for key in keys]
    bounds = SchedulerLimits(1, 20, 1, 10_000, 10**15)
    sizes: list[int] = []
    with store.claim(RUN) as saves:

        def save(checkpoint: SchedulerCheckpoint) -> None:
            saves(checkpoint)
            sizes.append(sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()))

        await finished(graph, bounds, Stage(otherwise=COMMITTED), save)
    per_move = (sizes[-1] - sizes[0]) / (len(sizes) - 1)
    # SQLite writes whole pages, so its log grows by a page a save; what is kept of each is counted in the rows.
    if isinstance(store, SqliteCheckpoints):
        connection = sqlite3.connect(store.path)
        (per_move,) = connection.execute(
            "SELECT max(length(seal) + length(body)) FROM saves WHERE sequence > 1"
        ).fetchone()
        connection.close()
    assert per_move < 1_000


@pytest.mark.contract("A-96", "A-73")
async def test_r44_the_loop_goes_on_while_an_awaited_save_is_in_its_thread(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    stalled: list[int] = []
    with store.claim(RUN) as saves:
        append: Callable[..., None] = saves._log.append

        loop, begun = asyncio.get_running_loop(), asyncio.Event()

        def slow(*arguments: Any) -> None:
            stalled.append(threading.get_ident())
            loop.call_soon_threadsafe(begun.set)
            assert let_go.wait(10)
            append(*arguments)

        monkeypatch.setattr(saves._log, "append", slow)
        stage = Stage(otherwise=COMMITTED)
        run = asyncio.create_task(finished([effect("a")], limits(), stage, saves.awaited))
        async with asyncio.timeout(10):
            await begun.wait()
        before = loop.time()
        for _ in range(100):
            await asyncio.sleep(0)
        assert loop.time() - before < 5
        assert (run.done(), stage.invoked) == (False, [])
        let_go.set()
        last = await run
        assert threading.get_ident() not in stalled
    assert last.stop_reason is StopReason.COMPLETED
    assert store.load(RUN) == last


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The order of what reaches the disk: writes and syncs of files and of directories."""
    order: list[str] = []

    def noted(name: str) -> None:
        real = getattr(os, name)

        def call(descriptor: int, *arguments: Any) -> Any:
            kind = "directory" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file"  # noqa: PTH112 - a descriptor
            order.append(f"{name} {kind}")
            return real(descriptor, *arguments)

        monkeypatch.setattr(os, name, call)

    for name in ("write", "fdatasync", "fsync"):
        noted(name)
    return order


@pytest.mark.contract("A-90")
async def test_r47_a_line_is_synced_before_its_action_is_dispatched(calls: list[str], tmp_path: Path) -> None:
    store = FileCheckpoints(tmp_path / "new" / "deep")
    stage = Stage(otherwise=COMMITTED)
    with store.claim(RUN) as saves:
        assert calls == ["fsync directory"] * 3
        calls.clear()
        stage.log = calls
        await finished([effect("a")], limits(), stage, saves)
    line = ["write file", "fdatasync file"]
    assert calls == [*line, "dispatch a", *line, *line]


@pytest.mark.contract("A-90")
def test_the_database_is_at_full_synchrony_and_commits_each_statement(tmp_path: Path) -> None:
    with SqliteCheckpoints(tmp_path / "new" / "checkpoints.db").claim(RUN) as saves:
        log: Any = saves._log
        connection = log._connection
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert connection.isolation_level is None
        assert not connection.in_transaction


@pytest.mark.contract("A-71", "A-90")
async def test_after_a_write_that_failed_the_run_must_be_claimed_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.claim(RUN) as saves:

        def full(*_: object) -> None:
            raise OSError(28, "canary")

        monkeypatch.setattr(saves._log, "append", full)
        last = await finished([effect("a")], limits(), Stage(), saves)
        assert last.stop_reason is StopReason.CHECKPOINT_FAILED
        monkeypatch.undo()
        with pytest.raises(Conflict):
            saves(replace(last, stop_reason=None))
    with store.claim(RUN) as saves:
        again = await finished([effect("a")], limits(), Stage(otherwise=COMMITTED), saves)
        assert again.stop_reason is StopReason.COMPLETED


@pytest.mark.contract("A-94")
def test_a_first_save_is_of_the_run_that_was_claimed(store: Store) -> None:
    with store.claim(RUN) as saves:
        with pytest.raises(Conflict):
            saves(SchedulerCheckpoint(RunId.generate(), "sha256:" + "0" * 64, (), 0, 0, 0))
        assert saves.checkpoint is None
    assert store.load(RUN) is None


@pytest.mark.contract("A-96", "A-91")
async def test_r72_closing_waits_for_the_write_in_the_thread_and_ends_the_thread(store: Store) -> None:
    threads = threading.active_count()
    saves = store.claim(RUN)
    checkpoint = SchedulerCheckpoint(RUN, "sha256:" + "0" * 64, (), 0, 0, 0)
    write = asyncio.ensure_future(saves.awaited(checkpoint))
    saves.close()
    assert threading.active_count() == threads
    await write
    assert store.load(RUN) == checkpoint


@pytest.mark.contract("A-91")
def test_a_lock_file_that_its_owner_removed_meanwhile_is_not_taken_for_the_present_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.lock"
    owners = [lock.open_marker(path)]
    real = lock.open_locked

    def late(locked: Path) -> int:
        """Open the file while the owner has it, and lock it when the owner has gone."""
        if not owners:
            return real(locked)
        descriptor = os.open(locked, os.O_RDWR)
        lock.close_marker(locked, owners.pop())
        return descriptor

    monkeypatch.setattr(lock, "open_locked", late)
    second = lock.open_marker(path)
    assert os.path.samestat(os.fstat(second), path.stat())
    with pytest.raises(StoreHeld):
        lock.open_marker(path)
    lock.close_marker(path, second)
    assert not path.exists()
