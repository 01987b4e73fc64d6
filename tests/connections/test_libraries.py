"""What is each library's own: state that has to stay true, names that have to be quoted its way.

Seen to fail with: a Session's savepoint made on its connection; colons and percent signs left as they are; errors of
the caller's own translated.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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


SESSIONS = [
    users.SQLAlchemySession, users.SQLAlchemyScoped, users.SQLAlchemyAsyncSession, users.SQLAlchemyAsyncScoped,
    users.SQLAlchemyRunSync,
]  # fmt: skip


@pytest.fixture
def session(shop: Shop) -> Iterator[Session]:
    user = users.SQLAlchemySession(shop.dsn)
    yield user.within
    user.close()


def test_a_session_is_flushed_by_the_savepoint_of_many_only(
    session: Session, shop: Shop, app: Prinia, send: Send
) -> None:
    session.add(Order(id=1))
    send.within(session).enqueue(1)
    assert len(session.new) == 1
    app.within(session).enqueue_many([send.job(1)])
    assert len(session.new) == 0
    session.commit()
    assert (shop.orders, len(shop.jobs)) == ([1], 2)


def _orders(session: Any) -> Any:
    """What adds to a session of either colour."""
    return getattr(session, "sync_session", session)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("kind", SESSIONS, ids=lambda kind: kind.kind)
def test_an_error_of_the_flush_is_the_callers(kind: type[User], shop: Shop, app: Prinia, send: Send, when: str) -> None:
    """Of what was pending before the savepoint, and of what a generator left pending at its end."""
    with connected(kind, shop) as user:
        user.execute(order(1))
        user.commit()

        def jobs() -> Iterator[NewJob[int]]:
            yield send.job(1)
            if when == "meanwhile":
                _orders(user.within).add(Order(id=1))

        if when == "before":
            _orders(user.within).add(Order(id=1))
        with pytest.raises(sa.exc.IntegrityError, match="orders_pkey"):
            user.enqueue_many(app, jobs())
        user.rollback()
    assert (shop.orders, shop.jobs) == ([1], [])


@pytest.mark.parametrize("kind", [kind for kind in SESSIONS if kind is not users.SQLAlchemyRunSync])
def test_a_session_whose_flush_has_failed_says_so(kind: type[User], shop: Shop, app: Prinia, send: Send) -> None:
    """Also when something is pending that would be flushed."""
    with connected(kind, shop) as user:
        user.execute(order(1))
        _orders(user.within).add(Order(id=1))
        with pytest.raises(sa.exc.IntegrityError):
            user.enqueue_many(app, [send.job(1)])
        _orders(user.within).add(Order(id=2))
        with pytest.raises(ConnectionUnusable, match="rolled back due to a previous exception"):
            user.enqueue_many(app, [send.job(1)])
        with pytest.warns(sa.exc.SAWarning, match="will be discarded"):
            user.rollback()
    assert (shop.orders, shop.jobs) == ([], [])


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
        with pytest.raises(Exception, match="that would commit at once"):
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


@pytest.mark.parametrize("kind", SESSIONS, ids=lambda kind: kind.kind)
def test_a_session_whose_connection_is_in_autocommit(kind: type[User], shop: Shop) -> None:
    """Its engine is not."""
    strict = Prinia(shop.dsn, strict=True)
    send = strict.task(name="send")(lambda number: number)
    with connected(kind, shop) as user:
        session = user.session if isinstance(user, users.SQLAlchemyRunSync) else user.within
        connecting = session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        if isinstance(user, users.AsyncUser):
            user.run(connecting)
        for enqueue in (lambda: user.enqueue(send, 1), lambda: user.enqueue_many(strict, [send.job(1)])):
            with pytest.raises(ConnectionUnusable, match="that would commit at once"):
                enqueue()
        user.rollback()
    assert shop.jobs == []


@pytest.mark.parametrize(
    "kind",
    [users.SQLAlchemy, users.SQLAlchemyAsyncPsycopg, users.SQLAlchemySession, users.SQLAlchemyAsyncSessionPsycopg],
    ids=lambda kind: kind.kind,
)
def test_a_driver_that_was_given_in_autocommit(kind: type[User], shop: Shop) -> None:
    """SQLAlchemy does not know; a session has a connection from its first statement on."""
    strict = Prinia(shop.dsn, strict=True)
    app = Prinia(shop.dsn)
    send = strict.task(name="send")(lambda number: number)

    class Loose(kind):  # type: ignore[misc, valid-type]
        def open(self) -> None:
            self.parts["autocommit"] = True
            super().open()

    with connected(Loose, shop) as user:
        user.execute("select 1")
        with pytest.raises(ConnectionUnusable, match="that would commit at once"):
            user.enqueue(send, 1)
        with pytest.warns(RuntimeWarning, match="commit at once"):
            user.enqueue_many(app, [send.job(1)])
        assert len(shop.jobs) == 1


# -- Django -----------------------------------------------------------------------------------------------------------


def test_another_threads_connection_of_django_says_so(shop: Shop, app: Prinia, send: Send) -> None:
    with connected(users.Django, shop) as user, ThreadPoolExecutor(1) as thread:
        assert isinstance(user, users.Django)
        user.begin()
        for enqueue in (lambda: user.enqueue(send, 1), lambda: user.enqueue_many(app, [send.job(1)])):
            with pytest.raises(ConnectionUnusable, match=f"'{user.alias}' is another thread's"):
                thread.submit(enqueue).result()
        user.within.inc_thread_sharing()
        job = thread.submit(user.enqueue, send, 1).result()
        user.within.dec_thread_sharing()
        user.commit()
    assert shop.jobs == [job.id]


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
