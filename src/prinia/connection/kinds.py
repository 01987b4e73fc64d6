"""Which kind of connection something is."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple, cast

from prinia.connection.carrier import AwaitedCarrier, BlockingCarrier, Carrier
from prinia.errors import ConnectionKindError


class _Kind(NamedTuple):
    """Module and class of the carrier, and the colour."""

    module: str
    carrier: str
    awaited: bool


#: By the top module and the name of a class, which may be any that the connection's class inherits from.
_KINDS = {
    ("psycopg", "Connection"): _Kind("psycopg", "Blocking", False),
    ("psycopg", "AsyncConnection"): _Kind("psycopg", "Awaited", True),
    ("psycopg2", "connection"): _Kind("psycopg2", "Blocking", False),
    ("asyncpg", "Connection"): _Kind("asyncpg", "Awaited", True),
    ("asyncpg", "PoolConnectionProxy"): _Kind("asyncpg", "Awaited", True),
    ("sqlalchemy", "Connection"): _Kind("sqlalchemy", "OnConnection", False),
    ("sqlalchemy", "Session"): _Kind("sqlalchemy", "OnSession", False),
    ("sqlalchemy", "scoped_session"): _Kind("sqlalchemy", "on_scoped", False),
    ("sqlalchemy", "AsyncConnection"): _Kind("sqlalchemy", "OnAsyncConnection", True),
    ("sqlalchemy", "AsyncSession"): _Kind("sqlalchemy", "OnAsyncSession", True),
    ("sqlalchemy", "async_scoped_session"): _Kind("sqlalchemy", "on_async_scoped", True),
    ("django", "BaseDatabaseWrapper"): _Kind("django", "Blocking", False),
    ("django", "ConnectionProxy"): _Kind("django", "Blocking", False),
}

#: What is taken for a connection, and how one is had from it.
_TAKE_FIRST = {
    ("psycopg_pool", "ConnectionPool"): "take a connection first: with pool.connection() as conn",
    ("psycopg_pool", "AsyncConnectionPool"): "take a connection first: async with pool.connection() as conn",
    ("psycopg", "BaseCursor"): "take its connection: cursor.connection",
    ("psycopg2", "AbstractConnectionPool"): "take a connection first: pool.getconn()",
    ("psycopg2", "cursor"): "take its connection: cursor.connection",
    ("asyncpg", "Pool"): "take a connection first: async with pool.acquire() as conn",
    ("asyncpg", "PoolAcquireContext"): "take the connection first: async with pool.acquire() as conn",
    ("sqlalchemy", "Engine"): "take a connection first: with engine.begin() as conn",
    ("sqlalchemy", "AsyncEngine"): "take a connection first: async with engine.begin() as conn",
    ("sqlalchemy", "sessionmaker"): "take a session first: with Session.begin() as session",
    ("sqlalchemy", "async_sessionmaker"): "take a session first: async with Session.begin() as session",
    ("django", "CursorWrapper"): "take its connection: django.db.connection",
    ("django", "BaseConnectionHandler"): "take a connection of it: connections['default']",
    ("contextlib", "_GeneratorContextManager"): "take the connection first: with ... as conn",
    ("contextlib", "_AsyncGeneratorContextManager"): "take the connection first: async with ... as conn",
    ("builtins", "coroutine"): "await it first",
    ("builtins", "type"): "give an object of that class",
}


def is_async(connection: object) -> bool:
    """Whether jobs on this connection are awaited. Raises `ConnectionKindError` for what is no connection."""
    return _kind(connection).awaited


def carrier_of(connection: object) -> Carrier:
    """The connection as Prinia uses it. Raises `ConnectionKindError`."""
    return cast("Carrier", _load(_kind(connection))(connection))


def blocking(connection: object) -> BlockingCarrier:
    """The carrier of a blocking connection. Raises `ConnectionKindError` for an async one too."""
    kind = _kind(connection)
    if kind.awaited:
        raise ConnectionKindError(
            f"a blocking call on an async connection ({_name(connection)}): await the call whose name begins with an "
            "a, such as aenqueue"
        )
    return cast("BlockingCarrier", _load(kind)(connection))


def awaited(connection: object) -> AwaitedCarrier:
    """The carrier of an async connection. Raises `ConnectionKindError` for a blocking one too."""
    kind = _kind(connection)
    if not kind.awaited:
        raise ConnectionKindError(
            f"an awaited call on a blocking connection ({_name(connection)}): make the call whose name does not begin "
            "with an a, such as enqueue, without await"
        )
    return cast("AwaitedCarrier", _load(kind)(connection))


@cache
def _load(kind: _Kind) -> Any:
    return getattr(import_module(f"prinia.connection.{kind.module}"), kind.carrier)


def _kind(connection: object) -> _Kind:
    # The classes that it is of, and then those that it says it is of: wrappers pose as what they wrap.
    classes = (type(connection), connection.__class__)
    for names in _names(*classes):
        if kind := _KINDS.get(names):
            return kind
    hints = (hint for names in _names(*classes) if (hint := _TAKE_FIRST.get(names)))
    raise ConnectionKindError(
        "an open connection or session is needed, of psycopg, psycopg2, asyncpg, SQLAlchemy or Django, not "
        f"{_name(connection)}" + "".join(f"; {hint}" for hint in dict.fromkeys(hints))
    )


def _names(*classes: type) -> Iterator[tuple[str, str]]:
    for kind in classes:
        for base in kind.__mro__:
            yield base.__module__.partition(".")[0], base.__name__


def _name(connection: object) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"
