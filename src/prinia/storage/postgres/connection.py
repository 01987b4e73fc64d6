"""Connections to PostgreSQL, and the only place where the driver's errors become Prinia's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import psycopg
from psycopg import errors as pg

from prinia.errors import MigrationsPending, StorageError, StorageUnavailable
from prinia.storage.postgres.sql import Statement, migrate_command

#: A connection that the network swallowed is noticed after about half a minute, not after the kernel's two hours.
KEEPALIVE: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
#: What every statement of Prinia's may rely on, whatever the database, the role or the pooler has set.
BASE_SETTINGS = {
    "search_path": "pg_catalog",
    "timezone": "UTC",
    "datestyle": "ISO",
    "default_transaction_isolation": "read committed",
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    "idle_in_transaction_session_timeout": "60s",
}
#: Hot statements walk indexes, always: a plan must not flip with the table's statistics (see docs/architecture.md).
HOT_SETTINGS = BASE_SETTINGS | {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}

#: The server's side of `KEEPALIVE`: a session whose client's machine is gone may hold a bell or rows for half a minute,
#: not for two hours.
SERVER_KEEPALIVE = {"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3"}

_MISSING = {e.sqlstate for e in (pg.UndefinedTable, pg.UndefinedFunction, pg.InvalidSchemaName, pg.UndefinedColumn)}
#: SQLSTATE classes of trouble that passes by itself: connections, resources, shutdown, a standby that was promoted.
_PASSING_CLASSES = ("08", "53", "57")
_PASSING = {
    e.sqlstate for e in (pg.ReadOnlySqlTransaction, pg.SerializationFailure, pg.DeadlockDetected, pg.LockNotAvailable)
}
#: What any driver calls the errors that came from no statement.
_LOST = {"OperationalError", "InterfaceError", "OSError"}


def sqlstate(error: BaseException) -> str:
    """The server's code of an error, whatever driver it is of; empty when it did not come from the server."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""


def translate(error: Exception, *, schema: str = "prinia") -> StorageError:
    """The Prinia error for the error of a driver (of any, not only of ours), most specific first."""
    detail = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    state = sqlstate(error)
    if state in _MISSING:
        return MigrationsPending(
            f"Prinia's tables in schema {schema!r} are missing or older than this version ({detail});"
            f" run: {migrate_command(schema)}"
        )
    if state in _PASSING or state[:2] in _PASSING_CLASSES:
        return StorageUnavailable(f"the database cannot serve this now: {detail}")
    if not state and not _LOST.isdisjoint(kind.__name__ for kind in type(error).__mro__):
        return StorageUnavailable(f"no connection to the database: {detail}")
    return StorageError(f"the database refused: {detail}")


def lacks_leaf(error: StorageError) -> bool:
    """Whether an insert into the archive found no leaf for its time. The text of that depends on the server's language;
    what tells it from a CHECK is that it names no constraint."""
    cause = error.__cause__
    return isinstance(cause, pg.CheckViolation) and cause.diag.constraint_name is None


@contextlib.contextmanager
def translated(schema: str = "prinia") -> Iterator[None]:
    """Raise Prinia's errors for the driver's within the block; the driver's stays as the cause."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(error, schema=schema) from error


def array(items: Sequence[object]) -> str:
    """An array literal: psycopg spends about 3 µs on each element of a list, this much less."""
    return "{" + ",".join(map(str, items)) + "}"


def text_array(items: Sequence[str]) -> str:
    """An array literal of strings that may hold anything."""
    quoted = ('"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"' for item in items)
    return "{" + ",".join(quoted) + "}"


def assignments(settings: Mapping[str, str], *, local: bool) -> Statement:
    """A statement that makes these settings, for the session or with ``local`` for the transaction."""
    scope = "true" if local else "false"
    calls = (f"set_config('{name}', '{value}', {scope})" for name, value in settings.items())
    return ("select " + ", ".join(calls)).encode()


class AsyncLine:
    """One long-lived connection of a worker, for one statement at a time; it connects when used and after a loss.

    On a direct connection settings are made once and statements are prepared. Behind a transaction pooler, which
    shows by a backend that is not the one it was told, nothing may outlive a transaction: the settings go with each
    statement and nothing is prepared.
    """

    def __init__(self, dsn: Callable[[], str], *, name: str, schema: str, settings: Mapping[str, str]) -> None:
        self._dsn = dsn
        self._name = name
        self._schema = schema
        self._settings = settings
        self._connection: psycopg.AsyncConnection[tuple[Any, ...]] | None = None
        self.direct = True
        #: Two that need a connection at once must not both open one.
        self._connecting = asyncio.Lock()
        #: A pipeline and its transaction belong to one statement; one that is cancelled drops its own connection only.
        self._running = asyncio.Lock()
        #: How often it connected; who remembers things about a session compares.
        self.session = 0

    async def connect(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        """The connection, opened if there is none."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        async with self._connecting:
            return await self._connect()

    async def _connect(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        if self._connection is not None and not self._connection.closed:
            return self._connection
        await self.close()
        dsn = await asyncio.to_thread(self._dsn)  # of an embedded server it may have to start that first
        with translated(self._schema):
            connection = await psycopg.AsyncConnection.connect(
                dsn, autocommit=True, application_name=self._name, prepare_threshold=None, **KEEPALIVE
            )
            try:
                await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
                cursor = await connection.execute("select pg_backend_pid()")
                row = await cursor.fetchone()
                self.direct = row is not None and row[0] == connection.info.backend_pid
                if self.direct:
                    connection.prepare_threshold = 0
                    connection.prepared_max = 500
                    await connection.execute(assignments({**self._settings, **SERVER_KEEPALIVE}, local=False))
            except BaseException:
                await connection.close()
                raise
        self._connection = connection
        self.session += 1
        return connection

    async def run(self, sql: Statement, params: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run one statement, in a transaction of its own; a second caller waits. A call that is cancelled or fails
        drops the connection unless it is known to be in order."""
        async with self._running:
            return await self._run(sql, params)

    async def _run(self, sql: Statement, params: Mapping[str, Any] | None) -> list[tuple[Any, ...]]:
        connection = await self.connect()
        try:
            with translated(self._schema):
                if self.direct:
                    cursor = await connection.execute(sql, params, binary=True)
                    return await cursor.fetchall() if cursor.description else []
                return await self._run_pooled(connection, sql, params)
        except StorageUnavailable:
            await self.close()
            raise
        except StorageError:
            raise
        except BaseException:
            await self.close()
            raise

    async def _run_pooled(
        self, connection: psycopg.AsyncConnection[tuple[Any, ...]], sql: Statement, params: Mapping[str, Any] | None
    ) -> list[tuple[Any, ...]]:
        async with connection.pipeline(), connection.transaction():
            await connection.execute(assignments(self._settings, local=True))
            cursor = await connection.execute(sql, params, binary=True)
        return await cursor.fetchall() if cursor.description else []

    async def close(self) -> None:
        """Close the connection, if any. The next `run` connects again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


class SyncLine:
    """`AsyncLine` for a thread: the heartbeat's connection."""

    def __init__(self, dsn: Callable[[], str], *, name: str, schema: str, settings: Mapping[str, str]) -> None:
        self._dsn = dsn
        self._name = name
        self._schema = schema
        self._settings = settings
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """The connection, opened if there is none."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        with translated(self._schema):
            self._connection = psycopg.connect(
                self._dsn(), autocommit=True, application_name=self._name, prepare_threshold=None, **KEEPALIVE
            )
            self._connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        return self._connection

    def run(
        self, sql: Statement, params: Mapping[str, Any] | None = None, *, settings: Mapping[str, str] | None = None
    ) -> list[tuple[Any, ...]]:
        """Run one statement, in a transaction of its own, with these settings instead of the line's."""
        connection = self.connect()
        try:
            with translated(self._schema), connection.transaction():
                with connection.pipeline():
                    connection.execute(assignments(settings or self._settings, local=True))
                    cursor = connection.execute(sql, params)
                return cursor.fetchall() if cursor.description else []
        except StorageUnavailable:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, if any."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
