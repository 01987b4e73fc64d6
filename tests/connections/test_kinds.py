"""What is a connection, of which colour, and what is none: told before anything is stored.

Seen to fail with: a hint left out; a wrapper judged by its own class alone; the colours not told apart.
"""

from __future__ import annotations

import ast
import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg  # type: ignore[import-untyped, unused-ignore]
import psycopg
import psycopg2.pool  # type: ignore[import-untyped, unused-ignore]
import psycopg_pool
import pytest
import sqlalchemy as sa
from asgiref.sync import sync_to_async
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from prinia import (
    AppAWithin,
    AppWithin,
    AWithin,
    ColourError,
    ConnectionKindError,
    ConnectionUnusable,
    Job,
    Prinia,
    StorageUnavailable,
    SyncTask,
    Within,
)
from prinia.testing.conformance.bench import job as spec
from tests.postgres.kit import terminate

from . import users
from .conftest import Shop, order
from .users import User

Send = SyncTask[[int], int]


def test_each_kind_has_its_colour(user: User, app: Prinia, send: Send) -> None:
    assert type(send.within(user.within)) is (AWithin if user.is_async else Within)
    assert type(app.within(user.within)) is (AppAWithin if user.is_async else AppWithin)


def test_a_call_of_the_other_colour_is_refused(user: User, app: Prinia, send: Send, shop: Shop) -> None:
    """At once, not when it is awaited: it stores nothing."""
    one: Any = send.within(user.within)
    many: Any = app.within(user.within)
    wrong, right = ("", "a") if user.is_async else ("a", "")
    with pytest.raises(ConnectionKindError, match=rf"write (await )?within\(...\).{right}enqueue\(...\)"):
        getattr(one, f"{wrong}enqueue")(1)
    with pytest.raises(ConnectionKindError, match=rf"write (await )?within\(...\).{right}enqueue_many\(...\)"):
        getattr(many, f"{wrong}enqueue_many")([send.job(1)])
    assert shop.jobs == []


def test_the_storage_refuses_the_other_colour_too(user: User, app: Prinia, shop: Shop) -> None:
    instance = app.storage
    if user.is_async:
        with pytest.raises(ConnectionKindError, match="a blocking call on an async connection"):
            instance.push_within(user.within, [spec()])
    else:
        with pytest.raises(ConnectionKindError, match="an awaited call on a blocking connection"):
            asyncio.run(instance.apush_within(user.within, [spec()]))
    assert shop.jobs == []


# -- what is none -----------------------------------------------------------------------------------------------------


def psycopg_cursor(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn) as connection:
        yield connection.cursor()


def psycopg2_cursor(dsn: str) -> Iterator[Any]:
    connection = psycopg2.connect(dsn)
    yield connection.cursor()
    connection.close()


def psycopg2_pool(dsn: str) -> Iterator[Any]:
    pool = psycopg2.pool.SimpleConnectionPool(0, 1, dsn)
    yield pool
    pool.closeall()


def async_pool(dsn: str) -> Iterator[Any]:
    async def make() -> Any:
        return psycopg_pool.AsyncConnectionPool(dsn, open=False)

    yield asyncio.run(make())


def asyncpg_pool(dsn: str) -> Iterator[Any]:
    async def make() -> Any:
        return asyncpg.create_pool(dsn)

    yield asyncio.run(make())


def acquired(dsn: str) -> Iterator[Any]:
    yield from (pool.acquire() for pool in asyncpg_pool(dsn))


def not_awaited(dsn: str) -> Iterator[Any]:
    coroutine = psycopg.AsyncConnection.connect(dsn)
    yield coroutine
    coroutine.close()


def django_cursor(dsn: str) -> Iterator[Any]:
    user = users.Django(dsn)
    yield user.within.cursor()
    user.close()


def django_connections(dsn: str) -> Iterator[Any]:
    users.Django(dsn)
    from django.db import connections  # type: ignore[import-untyped, unused-ignore]

    yield connections


NONE: dict[str, tuple[Callable[[str], Any], str]] = {
    "url": (lambda dsn: "postgresql://", "builtins.str"),
    "None": (lambda dsn: None, "builtins.NoneType"),
    "class": (lambda dsn: psycopg.Connection, "builtins.type; give an object"),
    "coroutine": (not_awaited, "builtins.coroutine; await it first"),
    "psycopg-pool": (lambda dsn: psycopg_pool.ConnectionPool(dsn, open=False), "with pool.connection"),
    "psycopg-pool-lends": (
        lambda dsn: psycopg_pool.ConnectionPool(dsn, open=False).connection(), "take the connection first: with ..."
    ),
    "psycopg-async-pool": (async_pool, "async with pool.connection"),
    "psycopg-cursor": (psycopg_cursor, "cursor.connection"),
    "psycopg2-cursor": (psycopg2_cursor, "cursor.connection"),
    "psycopg2-pool": (psycopg2_pool, "pool.getconn"),
    "asyncpg-pool": (asyncpg_pool, "take a connection first: async with pool.acquire"),
    "asyncpg-acquire": (acquired, "take the connection first: async with pool.acquire"),
    "engine": (lambda dsn: sa.create_engine("postgresql+psycopg://"), "with engine.begin"),
    "async-engine": (lambda dsn: create_async_engine("postgresql+asyncpg://"), "async with engine.begin"),
    "sessionmaker": (lambda dsn: sessionmaker(), "with Session.begin"),
    "async-sessionmaker": (lambda dsn: async_sessionmaker(), "async with Session.begin"),
    "django-cursor": (django_cursor, "django.db.connection"),
    "django-connections": (django_connections, "connections['default']"),
}  # fmt: skip


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_connection_is_refused_with_the_way_to_one(shop: Shop, app: Prinia, send: Send, name: str) -> None:
    make, hint = NONE[name]
    made = make(shop.dsn)
    things = made if isinstance(made, Iterator) else iter([made])
    for thing in things:
        for within in (send.within, app.within):
            with pytest.raises(ConnectionKindError, match="an open connection or session is needed") as raised:
                within(thing)
            assert hint in str(raised.value)
            assert isinstance(raised.value, TypeError)


class Posing:
    """A wrapper as tracing tools make them."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._wrapped)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


def test_a_wrapper_that_poses_as_a_connection_is_one(shop: Shop, send: Send) -> None:
    for user in (users.Psycopg(shop.dsn), users.SQLAlchemy(shop.dsn)):
        send.within(Posing(user.within)).enqueue(1)  # type: ignore[call-overload, unused-ignore]
        user.commit()
        user.close()
    assert len(shop.jobs) == 2


def test_a_subclass_is_of_its_kind(shop: Shop, send: Send) -> None:
    class Mine(Session):
        pass

    class Connection(psycopg.Connection[Any]):
        pass

    with Mine(users.SQLAlchemy.engine(users.SQLAlchemySession(shop.dsn))) as session:
        send.within(session).enqueue(1)
        session.commit()
    with Connection.connect(shop.dsn) as connection:
        send.within(connection).enqueue(1)
    assert len(shop.jobs) == 2


def test_another_database_is_no_place_for_jobs(send: Send, tmp_path: Any) -> None:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection, Session(engine) as session:
        for given in (connection, session):
            with pytest.raises(ConnectionKindError, match="leads to sqlite, and jobs live in PostgreSQL"):
                send.within(given).enqueue(1)
    engine.dispose()
    from django.db.backends.sqlite3.base import DatabaseWrapper  # type: ignore[import-untyped, unused-ignore]

    lite = DatabaseWrapper({"NAME": str(tmp_path / "lite"), "AUTOCOMMIT": True}, "lite")
    with pytest.raises(ConnectionKindError, match="Django's connection 'lite' leads to sqlite"):
        send.within(lite).enqueue(1)


# -- closed, lost, busy -----------------------------------------------------------------------------------------------

CLOSED = [
    users.Psycopg, users.PsycopgAsync, users.Psycopg2, users.Asyncpg, users.AsyncpgPool, users.SQLAlchemy,
    users.SQLAlchemyAsync,
]  # fmt: skip


@pytest.mark.parametrize("kind", CLOSED, ids=lambda kind: kind.kind)
def test_a_closed_connection_says_so(kind: type[User], shop: Shop, app: Prinia, send: Send) -> None:
    user = kind(shop.dsn)
    user.close()
    with pytest.raises(ConnectionUnusable, match=r"the connection (is closed|was given back to its pool)"):
        user.enqueue(send, 1)
    with pytest.raises(ConnectionUnusable, match=r"the connection (is closed|was given back to its pool)"):
        user.enqueue_many(app, [send.job(1)])
    if isinstance(user, users.AsyncUser):
        user.shut()


def test_a_connection_of_django_closed_in_a_transaction_says_so(shop: Shop, send: Send) -> None:
    user = users.Django(shop.dsn)
    user.begin()
    user.execute(order(1))
    user.close()
    with pytest.raises(ConnectionUnusable, match="closed within its atomic block"):
        user.enqueue(send, 1)
    user.rollback()
    with pytest.warns(RuntimeWarning, match="commit at once"):
        user.enqueue(send, 1)  # it connects anew
    user.close()
    assert len(shop.jobs) == 1


def test_a_connection_that_was_lost_says_so(user: User, shop: Shop, send: Send) -> None:
    user.begin()
    user.execute(order(1))
    terminate(shop.dsn, "true")
    with pytest.raises((StorageUnavailable, ConnectionUnusable)):
        user.enqueue(send, 1)
    with pytest.raises((StorageUnavailable, ConnectionUnusable)):
        user.enqueue(send, 1)
    assert shop.jobs == []


def test_a_busy_connection_of_asyncpg_says_so(shop: Shop, send: Send) -> None:
    user = users.Asyncpg(shop.dsn)
    user.begin()

    async def twice() -> list[Any]:
        both = (send.within(user.within).aenqueue(n) for n in (1, 2))
        return await asyncio.gather(*both, return_exceptions=True)

    results = user.run(twice())
    assert [type(one) for one in results if isinstance(one, Exception)] == [ConnectionUnusable]
    assert "another operation is in progress" in str(results[1])
    user.rollback()
    user.close()
    user.shut()


@pytest.mark.parametrize(
    ("session", "text"),
    [
        (lambda: Session(), "not bound to a single Engine"),
        (lambda: Session(sa.create_engine("postgresql+psycopg://"), autobegin=False), "Autobegin is disabled"),
    ],
)
def test_a_session_that_leads_nowhere_says_so(send: Send, session: Callable[[], Session], text: str) -> None:
    with session() as opened, pytest.raises(ConnectionUnusable, match=text):
        send.within(opened).enqueue(1)


def test_an_async_connection_that_was_not_started_says_so(send: Send) -> None:
    connection = create_async_engine("postgresql+asyncpg://").connect()
    with pytest.raises(ConnectionUnusable, match=r"cannot be used: .*not been started"):
        asyncio.run(send.within(connection).aenqueue(1))


# -- Django in async code ---------------------------------------------------------------------------------------------


def test_django_in_async_code_says_what_to_write(shop: Shop, app: Prinia, send: Send) -> None:
    user = users.DjangoProxy(shop.dsn)

    async def handler() -> None:
        with pytest.raises(ColourError, match=r"Write: await sync_to_async\(function\)"):
            send.within(user.within).enqueue(1)
        with pytest.raises(ColourError, match=r"Write: await sync_to_async\(function\)"):
            app.within(user.within).enqueue_many([send.job(1)])

        def function() -> int:
            from django.db import transaction  # type: ignore[import-untyped, unused-ignore]

            with transaction.atomic(using=user.alias):
                job: Job[int] = send.within(user.within).enqueue(2)
            user.within.close()
            return job.id

        assert shop.jobs == []
        assert [await sync_to_async(function)()] == shop.jobs

    asyncio.run(handler())
    assert len(shop.jobs) == 1


def test_django_may_be_told_to_block(shop: Shop, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """As notebooks do, where a loop always runs."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
    user = users.DjangoProxy(shop.dsn)

    async def cell() -> None:
        user.begin()
        user.enqueue(send, 1)
        user.commit()
        user.close()

    asyncio.run(cell())
    assert len(shop.jobs) == 1


# -- nothing is imported ----------------------------------------------------------------------------------------------


def test_no_library_is_imported_to_ask() -> None:
    program = (
        "import sys; from prinia import ConnectionKindError, Prinia\n"
        "try: Prinia().within(object())\n"
        "except ConnectionKindError: pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}"
        " & {'psycopg', 'psycopg2', 'asyncpg', 'sqlalchemy', 'django'}))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ast.literal_eval(ran.stdout) == []
