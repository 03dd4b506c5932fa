"""Where a PostgreSQL database is, and the schema that is brought up to this program when it is opened."""

from __future__ import annotations

import psycopg
from psycopg.conninfo import conninfo_to_dict

from interlock.errors import InvalidInput, StoreHeld, Unavailable
from interlock.stores.postgres_transaction import Connection, PostgresTransaction
from interlock.stores.sqlfile import migrations
from interlock.stores.transaction import number

_OLDEST = 130_000
_MIGRATE = """
BEGIN;
SET LOCAL lock_timeout = '30s';
SET LOCAL statement_timeout = '600s';
"""


def place_of(url: str) -> str:
    """Where a database is, without its password. Raises `InvalidInput`."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.Error:
        message = "that is no address of a database: write postgresql://USER@HOST:PORT/NAME"
        raise InvalidInput(message) from None
    return f"{parts.get('host', 'localhost')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"


def as_refused(error: psycopg.Error, place: str) -> Exception:
    """What a database that cannot be opened means to a person."""
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return StoreHeld(f"another program has been migrating {place} for half a minute: look at it, and try again")
    if isinstance(error, psycopg.OperationalError):
        return Unavailable(f"the database at {place} cannot be reached: is it running, and is the address right?")
    return Unavailable(f"the database at {place} cannot be used ({type(error).__name__})")


def migrate(connection: Connection) -> None:
    """Bring the schema up to this program, one program at a time; refuse a database that a newer program made."""
    if connection.info.server_version < _OLDEST:
        message = "the database's server is older than PostgreSQL 13: use a newer one"
        raise InvalidInput(message)
    tx = PostgresTransaction(connection, 0)
    connection.execute(_MIGRATE)
    try:
        tx.lock("lock_schema")
        there = tx.row("schema_there")
        if there is not None and not there["there"]:
            tx.write("make_schema")
        known = tx.row("schema")
        _apply(connection, tx, 0 if known is None else number(known, "version"))
        connection.execute("COMMIT")
    except BaseException:
        tx.rollback()
        raise


def _apply(connection: Connection, tx: PostgresTransaction, version: int) -> None:
    newest = migrations("postgres")[-1][0]
    if version > newest:
        message = f"the database has schema {version}, this program knows {newest}: use the newer program"
        raise StoreHeld(message)
    for each, script in migrations("postgres"):
        if each > version:
            connection.execute(script.encode())
            tx.write("keep_schema", version=each)
