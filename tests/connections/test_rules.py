"""What holds on every kind of connection: the caller's transaction is the job's transaction.

Seen to fail with: a library's lazy beginning not gone along with; no savepoint, or one that is not undone; a
transaction of its own where the caller has one; each kind's look at autocommit left out; errors not translated, or not
down to the driver's; every transaction said to be over, or to be open.
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from prinia import (
    ConnectionUnusable,
    DuplicateJob,
    JobCancelled,
    JobNotCommitted,
    JobNotFound,
    NewJob,
    Prinia,
    ResultTimeout,
    StorageError,
    StorageUnavailable,
    SyncTask,
    UniqueBusy,
)

from . import users
from .conftest import CHUNK, Shop, connected, order
from .users import User

Send = SyncTask[[int], int]


def test_commit_keeps(user: User, shop: Shop, send: Send) -> None:
    user.begin()
    user.execute(order(1))
    job = user.enqueue(send, 1)
    if "pipeline" not in user.kind:
        assert shop.jobs == []
    user.commit()
    assert (shop.orders, shop.jobs) == ([1], [job.id])


def test_rollback_removes(user: User, shop: Shop, send: Send) -> None:
    user.begin()
    user.execute(order(1))
    user.enqueue(send, 1)
    user.rollback()
    assert (shop.orders, shop.jobs) == ([], [])


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("number", [1, CHUNK + 1])
def test_the_first_statement_of_a_transaction(
    user: User, shop: Shop, app: Prinia, send: Send, number: int, keep: bool
) -> None:
    """Libraries that begin lazily begin with the job."""
    user.begin()
    jobs = user.enqueue_many(app, [send.job(n) for n in range(number)])
    assert len(jobs) == number
    if keep:
        user.commit()
        assert shop.jobs == [job.id for job in jobs]
    else:
        user.rollback()
        assert shop.jobs == []


@pytest.mark.parametrize("number", [1, CHUNK + 1])
def test_a_savepoint_is_honoured(user: User, shop: Shop, app: Prinia, send: Send, number: int) -> None:
    user.begin()
    user.execute(order(1))
    kept = user.enqueue(send, 1)
    inner = user.savepoint()
    user.execute(order(2))
    user.enqueue_many(app, [send.job(2)] * number)
    user.undo(inner)
    again = user.savepoint()
    also = user.enqueue_many(app, [send.job(3)] * number)
    user.release(again)
    user.commit()
    assert (shop.orders, shop.jobs) == ([1], [kept.id, *(job.id for job in also)])


class Broken(Exception):
    pass


def breaking(send: Send, after: int) -> Iterator[NewJob[int]]:
    for number in range(after):
        yield send.job(number)
    raise Broken


@pytest.mark.parametrize("after", [0, 1, CHUNK * 2 + 1])
def test_what_a_generator_wrote_before_it_raised_is_undone(
    user: User, shop: Shop, app: Prinia, send: Send, after: int
) -> None:
    """However many jobs there were: the savepoint is begun before the first."""
    mine: Any = sa.text(order(2)) if "sqlalchemy" in user.kind else order(2)

    def jobs() -> Iterator[NewJob[int]]:
        yield from (send.job(number) for number in range(after))
        if isinstance(user, users.SQLAlchemyRunSync):
            user.within.execute(mine)  # it is inside already
        else:
            user.execute(order(2))
        raise Broken

    async def ajobs() -> AsyncIterator[NewJob[int]]:
        for number in range(after):
            yield send.job(number)
        await user.within.execute(mine)
        raise Broken

    user.begin()
    user.execute(order(1))
    with pytest.raises(Broken):
        user.enqueue_many(app, ajobs() if user.is_async else jobs())  # type: ignore[arg-type]
    user.commit()
    assert (shop.orders, shop.jobs) == ([1], [])


@pytest.mark.parametrize("after", [1, CHUNK * 2 + 1])
def test_a_generator_that_raises_leaves_nothing(user: User, shop: Shop, app: Prinia, send: Send, after: int) -> None:
    """And what the caller did before, and does after, counts."""
    user.begin()
    user.execute(order(1))
    before = user.enqueue(send, 1)
    with pytest.raises(Broken):
        user.enqueue_many(app, breaking(send, after))
    user.execute(order(2))
    later = user.enqueue(send, 2)
    user.commit()
    assert (shop.orders, shop.jobs) == ([1, 2], [before.id, later.id])


def test_a_generator_that_raises_first_of_all(user: User, shop: Shop, app: Prinia, send: Send) -> None:
    """Nothing was begun before it."""
    user.begin()
    with pytest.raises(Broken):
        user.enqueue_many(app, breaking(send, CHUNK * 2 + 1))
    user.execute(order(2))
    user.rollback()
    assert (shop.orders, shop.jobs) == ([], [])


def test_a_duplicate_leaves_the_transaction_usable(user: User, shop: Shop, app: Prinia, send: Send) -> None:
    holder = send.options(unique="k").enqueue(1)
    once = send.options(unique="k", on_conflict="raise")
    user.begin()
    user.execute(order(1))
    with pytest.raises(DuplicateJob) as one:
        user.enqueue(once, 1)
    with pytest.raises(DuplicateJob) as among_many:
        user.enqueue_many(app, [send.job(1), once.job(1), send.job(2)])
    assert one.value.job_id == among_many.value.job_id == holder.id
    later = user.enqueue(send, 2)
    user.commit()
    assert (shop.orders, shop.jobs) == ([1], [holder.id, later.id])


def test_a_held_key_has_its_holder(user: User, shop: Shop, send: Send) -> None:
    holder = send.options(unique="k").enqueue(1)
    user.begin()
    job = user.enqueue(send.options(unique="k"), 1)
    user.commit()
    assert (job.id, job.created, shop.jobs) == (holder.id, False, [holder.id])


def test_a_busy_key_says_so(user: User, app: Prinia, send: Send, shop: Shop) -> None:
    with connected(users.Psycopg, shop) as holder:
        holder.enqueue(send.options(unique="k"), 1)
        user.begin()
        user.execute("set local lock_timeout = '10ms'")
        with pytest.raises(UniqueBusy, match=r"is still open \(lock_timeout ran out\)$"):
            user.enqueue(send.options(unique="k"), 1)
        user.rollback()


def test_a_lock_that_is_no_keys_is_not_said_to_be_one(user: User, app: Prinia, send: Send, shop: Shop) -> None:
    with connected(users.Psycopg, shop) as holder:
        holder.execute("lock table prinia.jobs in share mode")
        user.begin()
        user.execute("set local lock_timeout = '10ms'")
        with pytest.raises(StorageUnavailable, match="lock timeout"):
            user.enqueue(send, 1)
        user.rollback()


# -- connections that commit at once ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, CHUNK + 1])
def test_a_connection_that_would_commit_at_once_is_warned_of(
    user: User, shop: Shop, app: Prinia, send: Send, number: int
) -> None:
    user.loosen()
    with pytest.warns(RuntimeWarning, match="that would commit at once") as one:
        job = user.enqueue(send, 1)
    with pytest.warns(RuntimeWarning, match="that would commit at once") as many:
        jobs = user.enqueue_many(app, [send.job(n) for n in range(number)])
    assert {str(warned[0].filename) for warned in (one, many)} == {inspect.getfile(User)}
    assert shop.jobs == [job.id, *(job.id for job in jobs)]


def test_all_or_none_where_nothing_is_begun(user: User, shop: Shop, app: Prinia, send: Send) -> None:
    user.loosen()
    with pytest.warns(RuntimeWarning), pytest.raises(Broken):
        user.enqueue_many(app, breaking(send, CHUNK * 2 + 1))
    assert shop.jobs == []
    user.execute(order(1))
    assert shop.orders == [1]


def test_strict_refuses_it(user: User, shop: Shop) -> None:
    strict = Prinia(shop.dsn, strict=True)
    send = strict.task(name="send")(lambda number: number)
    user.loosen()
    with pytest.raises(ConnectionUnusable, match="that would commit at once"):
        user.enqueue(send, 1)
    with pytest.raises(ConnectionUnusable, match="that would commit at once"):
        user.enqueue_many(strict, [send.job(1)])
    assert shop.jobs == []


def test_inside_a_transaction_nothing_is_warned_of(user: User, shop: Shop) -> None:
    strict = Prinia(shop.dsn, strict=True)
    send = strict.task(name="send")(lambda number: number)
    user.begin()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        user.enqueue(send, 1)
        user.enqueue_many(strict, [send.job(1)])
    user.commit()
    assert len(shop.jobs) == 2


# -- connections that carry nothing -----------------------------------------------------------------------------------


def test_a_failed_transaction_says_so(user: User, shop: Shop, app: Prinia, send: Send) -> None:
    user.begin()
    user.fail()
    for number in (1, CHUNK + 1):
        with pytest.raises(ConnectionUnusable, match=r"transaction has failed: (roll it back|leave)"):
            user.enqueue_many(app, [send.job(1)] * number)
    user.rollback()
    user.begin()
    job = user.enqueue(send, 1)
    user.commit()
    assert shop.jobs == [job.id]


def test_errors_of_the_server_are_told_in_our_words(user: User, shop: Shop) -> None:
    away = Prinia(shop.dsn, schema="my jobs")
    send = away.task(name="send")(lambda number: number)
    user.begin()
    with pytest.raises(StorageError, match="run: prinia migrate --schema 'my jobs'"):
        user.enqueue(send, 1)
    user.rollback()


def test_a_read_only_transaction_says_so(user: User, shop: Shop, app: Prinia, send: Send) -> None:
    for enqueue in (lambda: user.enqueue(send, 1), lambda: user.enqueue_many(app, [send.job(1)])):
        user.begin()
        user.execute("set transaction read only")
        with pytest.raises(ConnectionUnusable, match="transaction is read-only"):
            enqueue()
        user.rollback()
    assert shop.jobs == []


# -- waiting inside the transaction -----------------------------------------------------------------------------------


def test_waiting_before_the_commit_says_so(user: User, shop: Shop, send: Send) -> None:
    user.begin()
    job = user.enqueue(send, 1)
    for ask in (lambda: job.result(timeout=30), job.info):
        with pytest.raises(JobNotCommitted, match="Commit first, then wait") as raised:
            ask()
        assert raised.value.job_id == job.id
    for awaitable in (job.aresult(timeout=30), job.ainfo()):
        with pytest.raises(JobNotCommitted, match="Commit first, then wait"):
            asyncio.run(awaitable)
    user.commit()
    assert job.info().id == asyncio.run(job.ainfo()).id == job.id


@pytest.mark.parametrize("key", [{"unique": "k"}, {"unique": "k", "unique_for": 60}], ids=["live", "window"])
@pytest.mark.parametrize("nested", [False, True])
def test_waiting_for_a_job_that_is_not_replaced_yet_says_so(
    user: User, shop: Shop, send: Send, nested: bool, key: dict[str, Any]
) -> None:
    """What is seen of it from outside is the old job, which the transaction has locked."""
    once = send.options(**key)
    once.enqueue(1)
    user.begin()
    inner = user.savepoint() if nested else None
    job = user.enqueue(once.options(on_conflict="replace"), 2)
    again = user.enqueue(once, 3)
    if nested:
        user.release(inner)
    for handle in (job, again):
        for ask in (partial(handle.result, timeout=30), handle.info):
            with pytest.raises(JobNotCommitted, match="enqueued or replaced it is still open"):
                ask()
        for awaitable in (handle.aresult(timeout=30), handle.aresult(timeout=0), handle.ainfo()):
            with pytest.raises(JobNotCommitted, match="enqueued or replaced it is still open"):
                asyncio.run(awaitable)
    user.commit()
    assert job.info().args == asyncio.run(job.ainfo()).args == b'{"order":2}'


def test_a_job_that_was_left_alone_can_be_waited_for(user: User, shop: Shop, send: Send) -> None:
    """Whatever else its transaction has written."""
    holder = send.options(unique="k").enqueue(1)
    send.options(unique="other").enqueue(1)
    user.begin()
    user.enqueue(send.options(unique="other", on_conflict="replace"), 2)
    job = user.enqueue(send.options(unique="k"), 2)
    with pytest.raises(ResultTimeout, match="still ready"):
        job.result(timeout=0)
    with pytest.raises(ResultTimeout, match="still ready"):
        asyncio.run(job.aresult(timeout=0))
    assert job.info().state == asyncio.run(job.ainfo()).state == "ready"

    async def ended() -> None:
        waiting = asyncio.create_task(job.aresult(timeout=30))
        await holder.acancel()
        with pytest.raises(JobCancelled):
            await waiting

    asyncio.run(ended())
    user.rollback()


def test_after_a_rollback_a_job_is_the_old_one(user: User, shop: Shop, send: Send) -> None:
    send.options(unique="k").enqueue(1)
    user.begin()
    job = user.enqueue(send.options(unique="k", on_conflict="replace"), 2)
    user.rollback()
    assert job.info().args == b'{"order":1}'
    with pytest.raises(ResultTimeout):
        job.result(timeout=0)


def test_after_a_rollback_there_is_no_job(user: User, shop: Shop, send: Send) -> None:
    user.begin()
    job = user.enqueue(send, 1)
    user.rollback()
    with pytest.raises(JobNotFound, match="rolled back") as raised:
        job.result(timeout=30)
    assert not isinstance(raised.value, JobNotCommitted)


# -- the same, set up in another way ----------------------------------------------------------------------------------


def test_however_a_connection_is_set_up(flavour: User, shop: Shop, app: Prinia, send: Send) -> None:
    flavour.begin()
    flavour.enqueue(send, 1)
    flavour.rollback()
    flavour.begin()
    kept = flavour.enqueue(send, 2)
    inner = flavour.savepoint()
    flavour.enqueue_many(app, [send.job(n) for n in range(CHUNK + 1)])
    flavour.undo(inner)
    with pytest.raises(Broken):
        flavour.enqueue_many(app, breaking(send, CHUNK * 2 + 1))
    with pytest.raises(JobNotCommitted):
        kept.result(timeout=30)
    many = flavour.enqueue_many(app, [send.job(n) for n in range(CHUNK + 1)])
    assert shop.jobs == []
    flavour.commit()
    assert shop.jobs == [kept.id, *(job.id for job in many)]
    flavour.loosen()
    with pytest.warns(RuntimeWarning, match="commit at once"):
        late = flavour.enqueue_many(app, [send.job(n) for n in range(CHUNK + 1)])
    assert shop.jobs[-1] == late[-1].id
