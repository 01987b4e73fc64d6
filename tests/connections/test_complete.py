"""A job's completion in its handler's own transaction, on every kind of connection.

Seen to fail with: owner or token left out of the fence; the error history left behind; no leaf made; EXECUTE left to
PUBLIC; a search_path that is not pinned; a snapshot older than the claim taken for a job that is lost.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

import psycopg
import pytest

from prinia import ConnectionUnusable, JobState, MigrationsPending
from prinia.job import JobRecord
from prinia.outcome import AckKind
from prinia.storage.postgres import PostgresStorage
from prinia.storage.protocol import Receipt
from prinia.testing.conformance.bench import StandIn, ack, job
from tests.postgres.kit import Lab

from . import users
from .conftest import Shop, connected, order
from .users import FLAVOURS, User


class Run:
    """One claimed job of a worker, and what became of it. The worker is asked from a loop of its own."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.runner = asyncio.Runner()
        self.storage = PostgresStorage(dsn)
        self.id, self.token, self.instance, self.claimed = self.go(self._claim())

    def go(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(coroutine)

    async def _claim(self) -> tuple[int, int, UUID, Any]:
        self.lab = Lab(self.dsn)
        await self.lab.__aenter__()
        self.worker: StandIn = await self.lab.worker()
        await self.lab.push_one()
        claimed = await self.worker.one()
        await self.worker.recorded(ack(claimed, AckKind.RETRY, delay=0.0))
        claimed = await self.worker.one()
        return claimed.id, claimed.token, self.worker.id, claimed

    def ack(self, kind: AckKind = AckKind.COMPLETE) -> Receipt:
        receipt: Receipt = self.go(self.worker.ack(ack(self.claimed, kind)))
        return receipt

    @property
    def record(self) -> JobRecord:
        record: JobRecord = self.go(self.lab.find(self.id))
        return record

    def rescue(self) -> None:
        async def bury() -> None:
            await (await self.lab.worker()).bury(self.worker)

        self.go(bury())

    def close(self) -> None:
        self.go(self.lab.__aexit__(None, None, None))
        self.runner.close()


@pytest.fixture
def run(shop: Shop) -> Any:
    run = Run(shop.dsn)
    yield run
    run.close()


def complete(user: User, run: Run, result: bytes | None = b'{"a": 1}') -> bool:
    return user.complete(run.storage, run.instance, run.id, run.token, result)


def test_a_committed_completion(user: User, run: Run, shop: Shop) -> None:
    user.begin()
    user.execute(order(1))
    assert complete(user, run)
    assert run.record.state is JobState.RUNNING
    assert run.ack().busy == {run.id}
    user.commit()
    record = run.record
    assert (record.state, record.result, record.owner) == (JobState.COMPLETED, b'{"a": 1}', run.instance)
    assert [error.kind for error in record.errors] == ["ValueError"]
    receipt = run.ack()
    assert not receipt.lost and not receipt.busy
    assert run.record == record
    assert shop.orders == [1]
    assert shop.ids("select id from prinia.archive") == [run.id]
    assert shop.ids("select job_id from prinia.attempts") == []


def test_a_completion_that_is_rolled_back(user: User, run: Run, shop: Shop) -> None:
    user.begin()
    user.execute(order(1))
    assert complete(user, run)
    user.rollback()
    assert (run.record.state, run.record.owner, shop.orders) == (JobState.RUNNING, run.instance, [])
    assert run.ack() == Receipt()
    assert (run.record.state, run.record.result) == (JobState.COMPLETED, None)


def test_a_completion_that_a_savepoint_takes_back(user: User, run: Run, shop: Shop) -> None:
    user.begin()
    inner = user.savepoint()
    assert complete(user, run)
    user.undo(inner)
    user.execute(order(1))
    user.commit()
    assert (run.record.state, shop.orders) == (JobState.RUNNING, [1])


def test_a_completion_of_a_rescued_job(user: User, run: Run, shop: Shop) -> None:
    """The handler is told no, and its transaction goes on."""
    user.begin()
    user.execute(order(1))
    run.rescue()
    assert not complete(user, run)
    user.commit()
    assert (run.record.state, shop.orders) == (JobState.READY, [1])
    assert shop.ids("select id from prinia.archive") == []


def test_a_second_completion(user: User, run: Run) -> None:
    user.begin()
    assert complete(user, run, b"1")
    assert complete(user, run, b"2")
    user.commit()
    assert run.record.result == b"1"


def test_a_completion_on_a_connection_that_commits_at_once(user: User, run: Run) -> None:
    """That it is no good is for the worker to say; done it is."""
    user.loosen()
    assert complete(user, run)
    assert run.record.state is JobState.COMPLETED


def test_a_completion_in_a_failed_transaction(user: User, run: Run) -> None:
    user.begin()
    user.fail()
    with pytest.raises(ConnectionUnusable, match="transaction has failed"):
        complete(user, run)
    user.rollback()
    assert run.record.state is JobState.RUNNING


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("pushed_before", [True, False])
@pytest.mark.parametrize("kind", [users.Psycopg, users.PsycopgAsync, users.Psycopg2], ids=lambda kind: kind.kind)
def test_a_transaction_that_began_before_the_claim(
    kind: type[User], run: Run, shop: Shop, level: str, pushed_before: bool
) -> None:
    """What it does not see is no proof that the job is another's; its own work is not lost by asking."""
    with connected(kind, shop) as user:
        if pushed_before:
            run.go(run.lab.push(job()))
        user.execute(f"set transaction isolation level {level}")
        user.execute(order(1))
        if not pushed_before:
            run.go(run.lab.push(job()))
        claimed = run.go(run.worker.one())
        with pytest.raises(ConnectionUnusable, match=r"it began before that.*Begin the transaction in the handler"):
            user.complete(run.storage, run.instance, claimed.id, claimed.token)
        user.commit()
    assert (run.go(run.lab.find(claimed.id)).state, shop.orders) == (JobState.RUNNING, [1])


@pytest.mark.parametrize("level", ["read uncommitted", "repeatable read", "serializable"])
def test_any_level_of_isolation_will_do_in_a_transaction_of_the_handlers(run: Run, shop: Shop, level: str) -> None:
    with connected(users.Psycopg, shop) as user:
        user.execute(f"set transaction isolation level {level}")
        user.execute(order(1))
        assert complete(user, run)
        user.commit()
    assert (run.record.state, shop.orders) == (JobState.COMPLETED, [1])


def test_read_uncommitted_sees_that_a_job_is_lost(run: Run, shop: Shop) -> None:
    with connected(users.Psycopg, shop) as user:
        user.execute("set transaction isolation level read uncommitted")
        user.execute(order(1))
        run.rescue()
        assert not complete(user, run)


@pytest.mark.parametrize("kind", FLAVOURS, ids=lambda kind: kind.kind)
def test_however_the_connection_is_set_up(kind: type[User], run: Run, shop: Shop) -> None:
    with connected(kind, shop) as user:
        user.begin()
        assert complete(user, run)
        user.commit()
    assert run.record.state is JobState.COMPLETED


# -- the function -----------------------------------------------------------------------------------------------------


def test_a_result_may_be_any_bytes_or_none(run: Run, shop: Shop) -> None:
    for result in (b"\x00\xff'\"\\", b"", None):
        with connected(users.Psycopg, shop) as user:
            complete(user, run, result)
            [(kept,)] = user.within.execute("select result from prinia.archive").fetchall()
            assert kept == result
            user.rollback()


def test_a_job_that_is_not_claimed_any_more(run: Run, shop: Shop) -> None:
    """A retry leaves owner and token behind; they own nothing."""
    run.go(run.worker.recorded(ack(run.claimed, AckKind.RETRY, delay=60.0)))
    with connected(users.Psycopg, shop) as user:
        assert not complete(user, run)
        user.commit()
    assert run.record.state is JobState.RETRYING


def test_a_job_whose_claim_ended_it_otherwise(run: Run, shop: Shop) -> None:
    assert run.ack(AckKind.FAIL) == Receipt()
    with connected(users.Psycopg, shop) as user:
        assert not complete(user, run)
    assert run.record.state is JobState.FAILED


def test_retention_is_the_queues(run: Run, shop: Shop) -> None:
    """A leaf that is missing is made, in the caller's transaction."""
    with connected(users.Psycopg, shop) as user:
        user.execute("insert into prinia.queues (name, keep_completed) values ('default', '400 days')")
        user.commit()
        try:
            assert complete(user, run)
            days = "select extract(day from drop_at - now())::integer from prinia.archive"
            [(kept,)] = user.within.execute(days).fetchall()
            assert 398 <= kept <= 400
            user.rollback()
            assert run.record.state is JobState.RUNNING
        finally:
            user.execute("delete from prinia.queues")
            user.commit()


def test_big_arguments_are_not_kept(run: Run, shop: Shop) -> None:
    [big] = run.go(run.lab.push(job(args=b'"' + b"x" * 3000 + b'"')))
    claimed = run.go(run.worker.one())
    with connected(users.Psycopg, shop) as user:
        assert user.complete(run.storage, run.instance, big, claimed.token)
        user.commit()
    assert run.go(run.lab.find(big)).args is None
    with connected(users.Psycopg, shop) as user:
        complete(user, run)
        user.commit()
    assert run.record.args == b"{}"


def test_execute_is_enough_and_public_has_none(run: Run, shop: Shop) -> None:
    with connected(users.Psycopg, shop) as user:
        role = f"completer_{os.getpid()}"
        user.execute(f"create role {role} login")
        user.execute(f"grant usage on schema prinia to {role}")
        user.execute(f"set local role {role}")
        user.execute("savepoint mine")
        with pytest.raises(Exception, match="permission denied for function complete"):
            complete(user, run)
        user.execute("rollback to mine")
        user.execute("reset role")
        user.execute(f"grant execute on function prinia.complete to {role}")
        user.execute("create schema evil")
        user.execute(
            "create function evil.statement_timestamp() returns timestamptz language sql as 'select null::timestamptz'"
        )
        user.execute(f"grant usage on schema evil to {role}")
        user.execute(f"set local role {role}")
        user.execute("set local search_path = evil, pg_catalog")
        assert complete(user, run)
        user.execute("reset role")
        assert user.within.execute("select id from prinia.archive").fetchall() == [(run.id,)]
        user.rollback()


def test_a_schema_that_is_older_says_so(run: Run, shop: Shop) -> None:
    with psycopg.connect(shop.dsn) as connection:
        connection.execute("alter function prinia.complete rename to complete_later")
    try:
        with connected(users.Psycopg, shop) as user, pytest.raises(MigrationsPending, match="prinia migrate"):
            complete(user, run)
    finally:
        with psycopg.connect(shop.dsn) as connection:
            connection.execute("alter function prinia.complete_later rename to complete")
