"""What is each library's own: state that has to stay true, names that have to be quoted its way.

Seen to fail with: a Session's savepoint made on its connection; colons and percent signs left as they are; errors of
the caller's own translated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from prinia import ConnectionUnusable, NewJob, Prinia, StorageError, SyncTask
from prinia.storage.postgres.migrate import migrate
from tests.conftest import Databases

from . import users
from .conftest import CHUNK, Shop, connected, order
from .users import FLAVOURS, KINDS, User

Send = SyncTask[[int], int]

ODD = "a%s %% %(x)s :p ::q \\:r \"s\" 't' $1"


# -- odd names --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def odd_dsn(databases: Databases) -> Iterator[str]:
    dsn = databases.empty()
    migrate(dsn, schema=ODD)
    yield dsn
    databases.drop(dsn)


@pytest.mark.parametrize("kind", [*KINDS, *FLAVOURS], ids=lambda kind: kind.kind)
def test_a_schema_may_have_any_name(odd_dsn: str, shop: Shop, kind: type[User]) -> None:
    app = Prinia(odd_dsn, schema=ODD)
    send = app.task(name="send")(lambda number: number)
    with connected(kind, Shop(odd_dsn)) as user:
        user.begin()
        one = user.enqueue(send, 1)
        many = user.enqueue_many(app, [send.job(n) for n in range(CHUNK + 1)])
        user.commit()
    assert [record.id for record in app.storage.find([one.id, *(job.id for job in many)])] == [
        one.id, *(job.id for job in many)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [*KINDS, *FLAVOURS], ids=lambda kind: kind.kind)
def test_arguments_may_hold_anything(shop: Shop, kind: type[User]) -> None:
    app = Prinia(shop.dsn)
    text = "%s %% %(x)s :p ::q \\:r 's' \"t\" $1 {text} é \u2028 \U0001f980 \ud7ff \\u0000"

    @app.task(name="say")
    def say(text: str) -> str:
        return text

    with connected(kind, shop) as user:
        user.begin()
        job: Any = user.enqueue(say, text)  # type: ignore[arg-type]
        user.commit()
    assert say.decode("json", job.info().args) == {"text": text}


# -- SQLAlchemy -------------------------------------------------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    metadata = sa.MetaData(schema="public")
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


@pytest.fixture
def session(shop: Shop) -> Iterator[Session]:
    user = users.SQLAlchemySession(shop.dsn)
    yield user.within
    user.close()


def test_a_session_is_not_flushed(session: Session, shop: Shop, app: Prinia, send: Send) -> None:
    session.add(Order(id=1))
    send.within(session).enqueue(1)
    app.within(session).enqueue_many([send.job(n) for n in range(CHUNK - 1)])
    assert len(session.new) == 1
    session.commit()
    assert (shop.orders, len(shop.jobs)) == ([1], CHUNK)


def test_what_a_generator_did_with_the_session_is_undone_in_the_session_too(
    session: Session, shop: Shop, app: Prinia, send: Send
) -> None:
    """A savepoint that the session does not know of would take its flushed rows away behind its back."""
    mine, its = Order(id=1), Order(id=2)

    def jobs() -> Iterator[NewJob[int]]:
        yield from (send.job(n) for n in range(CHUNK * 2 + 1))
        session.add(its)
        session.flush()
        raise OSError

    session.add(mine)
    with pytest.raises(OSError):  # noqa: PT011
        app.within(session).enqueue_many(jobs())
    assert (mine in session, its in session) == (True, False)
    session.commit()
    assert (shop.orders, shop.jobs) == ([1], [])


def test_a_session_whose_flush_failed_says_so(session: Session, shop: Shop, app: Prinia, send: Send) -> None:
    session.add_all([Order(id=1), Order(id=2)])
    session.commit()
    session.add(Order(id=1))
    with pytest.raises(sa.exc.IntegrityError):
        session.flush()
    for number in (1, CHUNK + 1):
        with pytest.raises(ConnectionUnusable, match=r"cannot be used: .*rolled back due to a previous exception"):
            app.within(session).enqueue_many([send.job(1)] * number)
    session.rollback()
    send.within(session).enqueue(1)
    session.commit()
    assert (shop.orders, len(shop.jobs)) == ([1, 2], 1)


def test_a_session_inside_its_begin_blocks(session: Session, shop: Shop, app: Prinia, send: Send) -> None:
    with session.begin():
        send.within(session).enqueue(1)
        with pytest.raises(OSError), session.begin_nested():  # noqa: PT011, PT012
            send.within(session).enqueue(2)
            app.within(session).enqueue_many([send.job(n) for n in range(CHUNK + 1)])
            raise OSError
    assert len(shop.jobs) == 1


@pytest.mark.parametrize("kind", [users.SQLAlchemy, users.SQLAlchemyPsycopg2, users.SQLAlchemyAsync])
def test_an_engine_in_autocommit(kind: type[User], shop: Shop) -> None:
    """The level may be the engine's; and somebody may begin by a statement all the same."""
    strict = Prinia(shop.dsn, strict=True)
    app = Prinia(shop.dsn)
    send = app.task(name="send")(lambda number: number)
    with connected(kind, shop) as user:
        user.within.dialect._on_connect_isolation_level = "AUTOCOMMIT"
        with pytest.raises(Exception, match="the job would commit at once"):
            user.enqueue(strict.task(name="send")(lambda number: number), 1)
        user.within.dialect._on_connect_isolation_level = None
        user.loosen()
        user.execute("begin")
        user.execute(order(1))
        with pytest.warns(RuntimeWarning):
            user.enqueue_many(app, [send.job(n) for n in range(CHUNK + 1)])
        assert shop.jobs == []
        user.execute("rollback")
    assert (shop.orders, shop.jobs) == ([], [])


# -- state after an error ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [users.Django, users.DjangoPsycopg2], ids=lambda kind: kind.kind)
def test_djangos_state_is_as_after_its_own_failing_statement(kind: type[User], shop: Shop) -> None:
    states = []
    away = Prinia(shop.dsn, schema="nowhere")
    send = away.task(name="send")(lambda number: number)
    for failing in ("select x from nowhere.enqueue('')", None):
        with connected(kind, shop) as user:
            user.begin()
            if failing:
                with pytest.raises(Exception, match="nowhere"):
                    user.execute(failing)
            else:
                with pytest.raises(StorageError) as raised:
                    user.enqueue(send, 1)
                assert type(raised.value.__cause__).__module__ == "django.db.utils"
            django = user.within
            states.append((django.needs_rollback, django.errors_occurred, django.in_atomic_block))
            user.rollback()
    assert states[0] == states[1]


def test_a_savepoint_of_django_after_an_error_of_the_orm(shop: Shop, app: Prinia, send: Send) -> None:
    """Its atomic block forgives what happened within."""
    from django.db import transaction  # type: ignore[import-untyped, unused-ignore]

    with connected(users.Django, shop) as user:

        def jobs() -> Iterator[NewJob[int]]:
            yield from (send.job(n) for n in range(CHUNK * 2 + 1))
            with transaction.mark_for_rollback_on_error(using=user.alias):  # type: ignore[attr-defined]
                user.execute(users.BAD)

        user.begin()
        user.execute(order(1))
        with pytest.raises(Exception, match="division by zero") as raised:
            user.enqueue_many(app, jobs())
        assert type(raised.value).__module__ == "django.db.utils"
        job = user.enqueue(send, 1)
        user.commit()
    assert (shop.orders, shop.jobs) == ([1], [job.id])


def test_errors_of_the_callers_own_statements_stay_theirs(user: User, shop: Shop, app: Prinia, send: Send) -> None:
    """A generator may use the connection that its jobs go to."""

    def jobs() -> Iterator[NewJob[int]]:
        yield from (send.job(n) for n in range(CHUNK * 2 + 1))
        raise psycopg.OperationalError("mine")

    user.begin()
    user.execute(order(1))
    with pytest.raises(psycopg.OperationalError, match="mine"):
        user.enqueue_many(app, jobs())
    user.commit()
    assert (shop.orders, shop.jobs) == ([1], [])


@pytest.mark.parametrize(
    "kind",
    [users.Psycopg, users.Psycopg2, users.SQLAlchemy, users.SQLAlchemySession, users.Django],
    ids=lambda kind: kind.kind,
)
def test_a_generator_that_spoils_the_transaction_in_silence(kind: type[User], shop: Shop) -> None:
    app = Prinia(shop.dsn)
    send = app.task(name="send")(lambda number: number)
    with connected(kind, shop) as user:

        def jobs() -> Iterator[NewJob[int]]:
            yield from (send.job(n) for n in range(CHUNK * 3))
            user.fail()

        user.begin()
        with pytest.raises(ConnectionUnusable, match="transaction has failed"):
            user.enqueue_many(app, jobs())
        user.rollback()
    assert shop.jobs == []


def test_the_cause_of_an_error_is_the_librarys(user: User, shop: Shop) -> None:
    away = Prinia(shop.dsn, schema="nowhere")
    send = away.task(name="send")(lambda number: number)
    user.begin()
    with pytest.raises(StorageError) as raised:
        user.enqueue(send, 1)
    library = user.kind.partition("-")[0]
    assert type(raised.value.__cause__).__module__.partition(".")[0] == library
    user.rollback()


def test_a_connection_that_streams(shop: Shop, send: Send) -> None:
    """The option is for results of the caller's."""
    with connected(users.SQLAlchemy, shop) as user:
        user.within.execution_options(stream_results=True)
        user.enqueue(send, 1)
        user.commit()
    assert len(shop.jobs) == 1


def test_rows_of_a_query_of_sqlalchemy_as_jobs(shop: Shop, app: Prinia, send: Send) -> None:
    """Read and pushed on the same connection, by turns."""
    with connected(users.SQLAlchemy, shop) as user:
        user.execute(f"insert into public.orders select generate_series(1, {CHUNK * 3})")
        query = sa.text("select id from public.orders order by 1").execution_options(yield_per=CHUNK)
        rows = user.within.execute(query)
        jobs = user.enqueue_many(app, (send.job(id) for (id,) in rows))
        user.commit()
    assert len(jobs) == len(shop.jobs) == CHUNK * 3
