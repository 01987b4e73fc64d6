"""Enqueueing on a connection that the caller brings: what kinds there are, and how a statement runs on each."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from prinia.errors import ConnectionKindError

Rows = tuple[Any, ...]


def _sync(connection: Any) -> psycopg.Connection[Any]:
    if isinstance(connection, psycopg.Connection):
        return connection
    raise ConnectionKindError(
        f"cannot enqueue on {_kind(connection)}: a blocking call takes a psycopg.Connection"
        + (" (for an AsyncConnection use aenqueue)" if isinstance(connection, psycopg.AsyncConnection) else "")
    )


def _async(connection: Any) -> psycopg.AsyncConnection[Any]:
    if isinstance(connection, psycopg.AsyncConnection):
        return connection
    raise ConnectionKindError(
        f"cannot enqueue on {_kind(connection)}: an awaited call takes a psycopg.AsyncConnection"
        + (" (for a Connection use enqueue)" if isinstance(connection, psycopg.Connection) else "")
    )


def _kind(connection: Any) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


def cursor(connection: Any) -> psycopg.Cursor[Rows]:
    """A cursor of our own class: the caller's may be a server-side one, return dicts, or read other placeholders."""
    return psycopg.Cursor(_sync(connection), row_factory=tuple_row)


def acursor(connection: Any) -> psycopg.AsyncCursor[Rows]:
    """`cursor` on an async connection."""
    return psycopg.AsyncCursor(_async(connection), row_factory=tuple_row)


def savepoint(connection: Any) -> AbstractContextManager[Any]:
    """All or nothing within the caller's transaction."""
    conn = _sync(connection)
    if not conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        # transaction() would begin a transaction of its own here, and commit it: begin the caller's first.
        cursor(conn).execute("select 1")
    return conn.transaction()


async def asavepoint(connection: Any) -> AbstractAsyncContextManager[Any]:
    """`savepoint` on an async connection."""
    conn = _async(connection)
    if not conn.autocommit and conn.info.transaction_status == TransactionStatus.IDLE:
        await acursor(conn).execute("select 1")
    return conn.transaction()
