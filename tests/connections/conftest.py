"""A migrated database with a table of the user's own, and a user of each kind on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from prinia import Prinia, SyncTask
from prinia.storage.postgres import specs
from tests.conftest import Databases

from .users import FLAVOURS, KINDS, AsyncUser, User

#: So many jobs go in one statement here.
CHUNK = 5

#: What a test may leave something in.
TABLES = ("jobs", "unique_keys", "attempts", "archive", "workers")


class Shop:
    """The database seen from outside: what is committed."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def ids(self, statement: str) -> list[int]:
        with psycopg.connect(self.dsn) as connection:
            return [id for (id,) in connection.execute(statement.encode()).fetchall()]

    @property
    def jobs(self) -> list[int]:
        """The ids of the live jobs."""
        return self.ids("select id from prinia.jobs order by id")

    @property
    def orders(self) -> list[int]:
        return self.ids("select id from public.orders order by id")


@pytest.fixture(scope="module")
def shop_dsn(databases: Databases) -> Iterator[str]:
    """One database for all of a module's tests: there are many of them, and they are short."""
    dsn = databases.migrated()
    with psycopg.connect(dsn) as connection:
        connection.execute("create table public.orders (id integer primary key)")
    yield dsn
    databases.drop(dsn)


@pytest.fixture
def shop(shop_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(specs, "CHUNK_JOBS", CHUNK)
    with psycopg.connect(shop_dsn, autocommit=True) as connection:
        for table in ("public.orders", *(f"prinia.{name}" for name in TABLES)):
            connection.execute(f"delete from {table}".encode())
    return Shop(shop_dsn)


@pytest.fixture
def app(shop: Shop) -> Prinia:
    return Prinia(shop.dsn)


@pytest.fixture
def send(app: Prinia) -> SyncTask[[int], int]:
    @app.task(name="send")
    def send(order: int) -> int:
        return order

    return send


@contextmanager
def connected(kind: type[User], shop: Shop) -> Iterator[User]:
    user = kind(shop.dsn)
    try:
        yield user
    finally:
        user.close()
        if isinstance(user, AsyncUser):
            user.shut()


@pytest.fixture(params=KINDS, ids=lambda kind: kind.kind)
def user(request: pytest.FixtureRequest, shop: Shop) -> Iterator[User]:
    """A user of each kind of connection."""
    with connected(request.param, shop) as user:
        yield user


@pytest.fixture(params=FLAVOURS, ids=lambda kind: kind.kind)
def flavour(request: pytest.FixtureRequest, shop: Shop) -> Iterator[User]:
    """A user whose connection is set up in another way."""
    with connected(request.param, shop) as user:
        yield user


def order(number: int) -> str:
    """The user's own statement."""
    return f"insert into public.orders (id) values ({number})"
