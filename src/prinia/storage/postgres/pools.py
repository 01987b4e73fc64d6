"""The callers' connections: a pool while the app is open, one connection per call otherwise.

A blocking pool belongs to a process, an async one to an event loop of a process: after a fork, or in another loop,
nothing of them is used, not even to close it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import psycopg
import psycopg_pool

from prinia.errors import StorageUnavailable
from prinia.storage.postgres.connection import KEEPALIVE, translated
from prinia.storage.postgres.sql import Statement

Rows = list[tuple[Any, ...]]
SyncPool = psycopg_pool.ConnectionPool[psycopg.Connection[tuple[Any, ...]]]
AsyncPool = psycopg_pool.AsyncConnectionPool[psycopg.AsyncConnection[tuple[Any, ...]]]

MAX_SIZE = 10
OPEN_TIMEOUT = 10.0


class _Opened:
    """A pool and how many opens it has had."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.opens = 1


class Pools:
    """Where a caller's statement gets its connection from."""

    def __init__(self, dsn: Callable[[], str], *, schema: str) -> None:
        self._dsn = dsn
        self._schema = schema
        self._lock = threading.Lock()
        #: By process and event loop (None for blocking calls).
        self._opened: dict[tuple[int, asyncio.AbstractEventLoop | None], _Opened] = {}

    def _kwargs(self) -> dict[str, Any]:
        return {"autocommit": True, "application_name": "prinia client", "prepare_threshold": None, **KEEPALIVE}

    def open(self) -> None:
        """Open the blocking pool, or count one more opener."""
        key = (os.getpid(), None)
        with self._lock:
            if key in self._opened:
                self._opened[key].opens += 1
                return
        pool: SyncPool = psycopg_pool.ConnectionPool(
            self._dsn(), kwargs=self._kwargs(), min_size=1, max_size=MAX_SIZE, open=False, timeout=OPEN_TIMEOUT
        )
        pool.open()
        if not self._keep(key, pool):
            pool.close()

    def close(self) -> None:
        """Undo one `open`; the last closes the pool."""
        opened = self._released((os.getpid(), None))
        if opened is not None:
            opened.pool.close()

    async def aopen(self) -> None:
        """Open the pool of the running loop, or count one more opener."""
        key = (os.getpid(), asyncio.get_running_loop())
        with self._lock:
            if key in self._opened:
                self._opened[key].opens += 1
                return
        pool: AsyncPool = psycopg_pool.AsyncConnectionPool(
            await asyncio.to_thread(self._dsn),
            kwargs=self._kwargs(),
            min_size=1,
            max_size=MAX_SIZE,
            open=False,
            timeout=OPEN_TIMEOUT,
        )
        await pool.open()
        if not self._keep(key, pool):
            await pool.close()

    @property
    def aopened(self) -> bool:
        """Whether the pool of the running loop is open."""
        return (os.getpid(), asyncio.get_running_loop()) in self._opened

    async def aclose(self) -> None:
        """Undo one `aopen`; the last closes the pool."""
        opened = self._released((os.getpid(), asyncio.get_running_loop()))
        if opened is not None:
            await opened.pool.close()

    def _keep(self, key: tuple[int, asyncio.AbstractEventLoop | None], pool: Any) -> bool:
        """Whether this pool is the one; another caller may have opened one meanwhile."""
        with self._lock:
            if key in self._opened:
                self._opened[key].opens += 1
                return False
            self._opened[key] = _Opened(pool)
            return True

    def _released(self, key: tuple[int, asyncio.AbstractEventLoop | None]) -> _Opened | None:
        with self._lock:
            opened = self._opened.get(key)
            if opened is None:
                return None
            opened.opens -= 1
            return self._opened.pop(key) if opened.opens == 0 else None

    @contextlib.contextmanager
    def connection(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        """A connection in autocommit mode."""
        opened = self._opened.get((os.getpid(), None))
        with translated(self._schema), _no_waiting_room():
            if opened is not None:
                with _lent(opened.pool) as connection:
                    yield connection
            else:
                with psycopg.connect(self._dsn(), **self._kwargs()) as connection:
                    yield connection

    @contextlib.asynccontextmanager
    async def aconnection(self) -> AsyncIterator[psycopg.AsyncConnection[tuple[Any, ...]]]:
        """A connection in autocommit mode, for the running loop."""
        opened = self._opened.get((os.getpid(), asyncio.get_running_loop()))
        with translated(self._schema), _no_waiting_room():
            if opened is not None:
                async with _alent(opened.pool) as connection:
                    yield connection
            else:
                dsn = await asyncio.to_thread(self._dsn)
                async with await psycopg.AsyncConnection.connect(dsn, **self._kwargs()) as connection:
                    yield connection

    def run(self, sql: Statement, params: Mapping[str, Any]) -> Rows:
        """One statement of its own. Answers are binary: the text of a time depends on the role's settings."""
        with self.connection() as connection:
            cursor = connection.execute(sql, params, binary=True)
            return cursor.fetchall() if cursor.description else []

    async def arun(self, sql: Statement, params: Mapping[str, Any]) -> Rows:
        """`run`, awaited."""
        async with self.aconnection() as connection:
            cursor = await connection.execute(sql, params, binary=True)
            return await cursor.fetchall() if cursor.description else []


@contextlib.contextmanager
def _lent(pool: SyncPool) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection of the pool, one that was not lost while it was idle.

    Not the pool's ``check``: it pauses longer and longer between the connections that it finds lost.
    """
    while _readable((connection := pool.getconn()).fileno()):
        connection.close()
        pool.putconn(connection)
    try:
        with connection:
            yield connection
    finally:
        pool.putconn(connection)


@contextlib.asynccontextmanager
async def _alent(pool: AsyncPool) -> AsyncIterator[psycopg.AsyncConnection[tuple[Any, ...]]]:
    """`_lent`, awaited."""
    while _readable((connection := await pool.getconn()).fileno()):
        await connection.close()
        await pool.putconn(connection)
    try:
        async with connection:
            yield connection
    finally:
        await pool.putconn(connection)


def _readable(descriptor: int) -> bool:
    """Whether the server has sent something: to an idle session it sends nothing but its end. Looking costs no round
    trip, and as nothing was sent by us yet, a push on another connection cannot be a second one."""
    if not hasattr(select, "poll"):  # Windows
        return bool(select.select([descriptor], [], [], 0)[0])
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


@contextlib.contextmanager
def _no_waiting_room() -> Iterator[None]:
    """A pool that gives no connection in time is a database that cannot be reached, or too many callers."""
    try:
        yield
    except psycopg_pool.PoolTimeout as error:
        raise StorageUnavailable(
            f"no connection to the database within {OPEN_TIMEOUT:.0f} s: it cannot be reached, or all"
            f" {MAX_SIZE} connections of the pool are in use"
        ) from error
