"""Kinds of connection that a job can be enqueued on, told apart by shape: no driver is imported to ask."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine
from typing import Any, Protocol

from prinia.errors import ConnectionKindError


class SyncConn(Protocol):
    """A blocking connection: of psycopg, SQLAlchemy (Connection, Session, scoped_session) or Django."""

    def commit(self) -> None:
        """End the transaction."""
        ...


class AsyncConn(Protocol):
    """An async connection: of psycopg or SQLAlchemy (AsyncConnection, AsyncSession)."""

    def commit(self) -> Coroutine[Any, Any, None]:
        """End the transaction."""
        ...


class AsyncpgConn(Protocol):
    """A connection of asyncpg."""

    def fetchval(self, query: str, /, *args: Any) -> Coroutine[Any, Any, Any]:
        """One value of one row."""
        ...


class AsyncpgProxy(Protocol):
    """What ``pool.acquire()`` of asyncpg gives. Its methods exist at run time only, so this is what can be typed."""

    _holder: Any


AnyAsync = AsyncConn | AsyncpgConn | AsyncpgProxy


def is_async(connection: object) -> bool:
    """Whether jobs on this connection are awaited. Raises `ConnectionKindError` for what is no connection."""
    commit = getattr(connection, "commit", None)
    if callable(commit):
        return inspect.iscoroutinefunction(commit)
    if hasattr(type(connection), "fetchval") or hasattr(type(connection), "_holder"):
        return True
    kind = type(connection)
    raise ConnectionKindError(
        f"within() takes an open connection or session, not {kind.__module__}.{kind.__qualname__}; "
        f"from a pool, take a connection first"
    )


def commits_at_once(connection: Any) -> bool:
    """Whether a psycopg connection would commit a job as soon as it is enqueued: autocommit, and no transaction."""
    top_modules = {kind.__module__.partition(".")[0] for kind in type(connection).__mro__}
    if "psycopg" not in top_modules or not getattr(connection, "autocommit", False):
        return False
    idle = 0  # TransactionStatus.IDLE
    return bool(connection.info.transaction_status == idle)
