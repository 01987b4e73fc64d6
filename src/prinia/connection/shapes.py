"""Connections as type checkers see them: by what they have, so that no library needs to be installed."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Protocol


class SyncConn(Protocol):
    """A blocking connection: of psycopg, psycopg2, SQLAlchemy (Connection, Session, scoped_session) or Django."""

    def commit(self) -> None:
        """End the transaction."""
        ...


class AsyncConn(Protocol):
    """An async connection: of psycopg or SQLAlchemy (AsyncConnection, AsyncSession, async_scoped_session)."""

    def commit(self) -> Coroutine[Any, Any, None]:
        """End the transaction."""
        ...


class AsyncpgConn(Protocol):
    """A connection of asyncpg. (Its pool has ``fetchval`` too, and no transaction.)"""

    def fetchval(self, query: str, /, *args: Any) -> Coroutine[Any, Any, Any]:
        """One value of one row."""
        ...

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...


class AsyncpgProxy(Protocol):
    """What ``pool.acquire()`` of asyncpg gives. Its methods exist at run time only, so this is what can be typed."""

    _holder: Any


AnyAsync = AsyncConn | AsyncpgConn | AsyncpgProxy
