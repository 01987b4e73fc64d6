"""``ctx.complete`` through a worker: the handler's rows and its job's completion in one transaction, or neither."""

from __future__ import annotations

import asyncio
import gc
import linecache
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import psycopg
import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool

from prinia import INJECTED, CompletionRolledBack, Context, Event, EventKind, Fixed, Job, JobLost, Prinia
from prinia.job import JobRecord
from prinia.worker import Worker
from tests.engine.kit import until

WRITE = "insert into book (id) values (1)"


class Kind(Protocol):
    """One kind of connection, driven by a script in a handler of its colour."""

    def task(self, shop: Shop) -> Any:
        """A task that runs the script given to its first attempt; any later attempt returns "again"."""
        ...


@dataclass
class Shop:
    """An app, and what its handlers and listeners leave behind."""

    app: Prinia
    dsn: str
    kind: Kind
    connections: list[Any] = field(default_factory=list)
    contexts: list[Context] = field(default_factory=list)
    events: list[EventKind] = field(default_factory=list)
    successes: list[object] = field(default_factory=list)

    def worker(self) -> Worker:
        """A worker whose outcomes are remembered."""
        return self.app.worker(on_event=self._listen)

    def _listen(self, event: Event) -> None:
        if event.kind is not EventKind.STARTED and event.job is not None:
            self.events.append(event.kind)

    def written(self) -> int:
        """How many rows handlers have committed."""
        return len(self.execute("select id from book"))

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run it elsewhere, committed at once."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    async def ended(self, job: Job[Any]) -> JobRecord:
        """The job once it has ended."""
        record = await job.ainfo()
        while not record.state.final:
            await asyncio.sleep(0.005)
            record = await job.ainfo()
        return record


class InThread:
    """psycopg, blocking, in a thread."""

    def task(self, shop: Shop) -> Any:
        @shop.app.task(name="t", retry=Fixed(0.01), on_success=lambda ctx, result: shop.successes.append(result))
        def t(script: list[str], ctx: Context = INJECTED) -> str:
            if ctx.attempt > 1:
                return "again"
            shop.contexts.append(ctx)
            connection = psycopg.connect(shop.dsn)
            shop.connections.append(connection)
            try:
                for step in script:
                    self._step(step, connection, ctx, shop)
            finally:
                if "leave open" not in script:
                    connection.close()  # which rolls back
            return "ignored"

        return t

    def _step(self, step: str, connection: psycopg.Connection[Any], ctx: Context, shop: Shop) -> None:
        match step:
            case "write":
                connection.execute(WRITE)
            case "complete":
                ctx.complete(connection, result="mine")
            case "loosen":
                connection.autocommit = True
            case "complete badly":
                ctx.complete(connection, result=object())
            case "commit":
                connection.commit()
            case "rollback":
                connection.rollback()
            case "lose":
                shop.execute("update prinia.jobs set token = 99")
            case "raise":
                raise ValueError("afterwards")


class Awaited:
    """psycopg, async."""

    async def connect(self, shop: Shop) -> Any:
        """What the handler completes on."""
        return await psycopg.AsyncConnection.connect(shop.dsn)

    async def write(self, connection: Any) -> None:
        """The handler's own row."""
        await connection.execute(WRITE)

    async def loosen(self, connection: Any) -> None:
        """Let each statement commit at once."""
        await connection.set_autocommit(True)

    def task(self, shop: Shop) -> Any:
        @shop.app.task(name="t", retry=Fixed(0.01), on_success=lambda ctx, result: shop.successes.append(result))
        async def t(script: list[str], ctx: Context = INJECTED) -> str:
            if ctx.attempt > 1:
                return "again"
            shop.contexts.append(ctx)
            connection = await self.connect(shop)
            shop.connections.append(connection)
            try:
                for step in script:
                    await self._step(step, connection, ctx, shop)
            finally:
                if "leave open" not in script:
                    await connection.close()
            return "ignored"

        return t

    async def _step(self, step: str, connection: Any, ctx: Context, shop: Shop) -> None:
        match step:
            case "write":
                await self.write(connection)
            case "complete":
                await ctx.acomplete(connection, result="mine")
            case "loosen":
                await self.loosen(connection)
            case "complete badly":
                await ctx.acomplete(connection, result=object())
            case "commit":
                await connection.commit()
            case "rollback":
                await connection.rollback()
            case "lose":
                await asyncio.to_thread(shop.execute, "update prinia.jobs set token = 99")
            case "raise":
                raise ValueError("afterwards")


class Session(Awaited):
    """SQLAlchemy's AsyncSession over psycopg."""

    async def connect(self, shop: Shop) -> Any:
        """A session of an engine of its own."""
        engine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=lambda: psycopg.AsyncConnection.connect(shop.dsn),
            poolclass=NullPool,
        )
        return AsyncSession(engine)

    async def write(self, connection: Any) -> None:
        """The handler's own row."""
        await connection.execute(text(WRITE))

    async def loosen(self, connection: Any) -> None:
        """Let each statement commit at once."""
        session = connection.sync_session
        session.bind = session.bind.execution_options(isolation_level="AUTOCOMMIT")


@pytest.fixture(params=[InThread, Awaited, Session])
async def shop(request: pytest.FixtureRequest, migrated: str) -> AsyncIterator[Shop]:
    shop = Shop(Prinia(migrated), migrated, request.param())
    shop.execute("create table book (id int)")
    async with shop.app:
        yield shop


async def test_committed_the_job_has_completed(shop: Shop) -> None:
    t = shop.kind.task(shop)
    async with shop.worker() as worker:
        job = await t.aenqueue(["write", "complete", "commit"])
        assert await job.aresult(timeout=20) == "mine"
        await until(lambda: worker.stats.completed == 1)
    record = await job.ainfo()
    assert (record.attempt, record.errors, shop.written()) == (1, (), 1)
    assert (shop.events, shop.successes) == ([EventKind.COMPLETED], ["mine"])


@pytest.mark.parametrize(
    ("end", "error"), [("raise", "ValueError"), ("rollback", "CompletionRolledBack")], ids=["raises", "swallows"]
)
async def test_rolled_back_the_job_runs_again(shop: Shop, end: str, error: str) -> None:
    t = shop.kind.task(shop)
    async with shop.worker() as worker:
        job = await t.aenqueue(["write", "complete", end])
        assert await job.aresult(timeout=20) == "again"
        await until(lambda: worker.stats.completed == 1)
    record = await job.ainfo()
    assert (record.attempt, shop.written()) == (2, 0)
    assert [one.kind.rpartition(".")[2] for one in record.errors] == [error]
    assert (shop.events, shop.successes) == ([EventKind.RETRYING, EventKind.COMPLETED], ["again"])
    assert (worker.stats.retried, worker.stats.completed, worker.stats.lost) == (1, 1, 0)


async def test_raised_after_the_commit_it_stays_completed(shop: Shop) -> None:
    t = shop.kind.task(shop)
    async with shop.worker() as worker:
        job = await t.aenqueue(["write", "complete", "commit", "raise"])
        await until(lambda: worker.stats.completed == 1)
    record = await job.ainfo()
    assert (record.state, record.result, record.attempt, record.errors) == ("completed", b'"mine"', 1, ())
    assert (shop.written(), shop.events, shop.successes) == (1, [EventKind.COMPLETED], ["mine"])
    assert (worker.stats.failed, worker.stats.retried) == (0, 0)


async def test_a_lost_job_is_not_completed(shop: Shop) -> None:
    t = shop.kind.task(shop)
    async with shop.worker() as worker:
        job = await t.aenqueue(["write", "lose", "complete", "commit"])
        await until(lambda: worker.stats.lost == 1)
        record = await job.ainfo()
        assert (record.state, record.attempt, shop.written()) == ("running", 1, 0)
        [ctx] = shop.contexts
        assert (ctx.lost, ctx.stopping) == (True, True)
        assert (shop.events, shop.successes) == ([EventKind.ERROR], [])


async def test_to_complete_twice_fails_the_attempt(shop: Shop) -> None:
    t = shop.kind.task(shop)
    async with shop.worker():
        job = await t.aenqueue(["write", "complete", "complete", "commit"])
        assert await job.aresult(timeout=20) == "again"
    record = await job.ainfo()
    assert [error.kind for error in record.errors] == ["prinia.errors.CompletedTwice"]
    assert shop.written() == 0


async def test_a_result_that_cannot_be_stored_is_told_to_the_handler(shop: Shop) -> None:
    t = shop.kind.task(shop)
    async with shop.worker():
        record = await shop.ended(await t.aenqueue(["write", "complete badly", "commit"]))
    assert record.state == "failed"
    assert "result not storable" in record.errors[0].message
    assert shop.written() == 0


async def test_a_connection_that_would_commit_at_once_is_warned_of(shop: Shop) -> None:
    """At the handler's line; the job is completed all the same."""
    job = await shop.kind.task(shop).aenqueue(["loosen", "complete"])
    worker = shop.worker()
    with pytest.warns(RuntimeWarning, match=r"job \d+ \(t\): complete\(\) .*that would commit at once") as warned:
        async with worker:
            await until(lambda: worker.stats.completed == 1)
    assert await job.aresult(timeout=0) == "mine"
    [warning] = warned
    assert warning.filename == __file__
    assert "complete(connection, result=" in linecache.getline(warning.filename, warning.lineno)


async def test_strict_refuses_it(shop: Shop) -> None:
    shop.app = Prinia(shop.dsn, strict=True)
    t = shop.kind.task(shop)
    async with shop.app, shop.worker():
        job = await t.aenqueue(["loosen", "complete"])
        assert await job.aresult(timeout=20) == "again"
        inside = await t.aenqueue(["write", "complete", "commit"])
        assert await inside.aresult(timeout=20) == "mine"
    [error] = (await job.ainfo()).errors
    assert error.kind == "prinia.errors.ConnectionUnusable"
    assert "Open a transaction around it (" in error.message
    assert (await inside.ainfo()).errors == ()


async def commit_elsewhere(connection: Any, verb: str) -> None:
    """End a transaction that the handler left open."""
    if isinstance(connection, psycopg.Connection):
        await asyncio.to_thread(getattr(connection, verb))
        connection.close()
    else:
        await getattr(connection, verb)()
        await connection.close()


@pytest.mark.parametrize(("verb", "result"), [("commit", "mine"), ("rollback", "again")])
async def test_a_transaction_that_ends_after_the_handler_is_waited_for(shop: Shop, verb: str, result: str) -> None:
    t = shop.kind.task(shop)
    async with shop.worker() as worker:
        job = await t.aenqueue(["write", "complete", "leave open"])
        # Acked, and found busy: the row is locked by that transaction.
        await until(lambda: worker._life is not None and worker._life._flusher._busy)
        assert (await job.ainfo()).state == "running"
        await commit_elsewhere(shop.connections[0], verb)
        assert await job.aresult(timeout=20) == result
        await until(lambda: worker.stats.completed == 1)
    assert shop.successes == [result]
    assert shop.written() == int(verb == "commit")


async def test_a_task_may_tell_a_rolled_back_completion_apart(migrated: str) -> None:
    shop = Shop(Prinia(migrated), migrated, Awaited())
    shop.execute("create table book (id int)")

    @shop.app.task(name="t", retry={CompletionRolledBack: False})
    async def t(ctx: Context = INJECTED) -> None:
        async with await psycopg.AsyncConnection.connect(shop.dsn) as connection:
            await ctx.acomplete(connection)
            await connection.rollback()

    async with shop.app, shop.worker():
        record = await shop.ended(await t.aenqueue())
    assert (record.state, record.attempt) == ("failed", 1)


async def test_a_recheck_after_a_lost_connection_leaves_a_completed_job_alone(migrated: str) -> None:
    shop = Shop(Prinia(migrated), migrated, Awaited())
    committed, go = asyncio.Event(), asyncio.Event()

    @shop.app.task(name="t")
    async def t(ctx: Context = INJECTED) -> None:
        async with await psycopg.AsyncConnection.connect(shop.dsn) as connection:
            await ctx.acomplete(connection)
        committed.set()
        await go.wait()

    async with shop.app, shop.worker() as worker:
        await t.aenqueue()
        await asyncio.wait_for(committed.wait(), 20)
        assert worker._life is not None
        await worker._life._claimer.recover()
        go.set()
        await until(lambda: worker.stats.completed == 1)
    assert worker.stats.lost == 0


async def test_a_transaction_that_began_before_the_claim_fails_the_attempt(migrated: str) -> None:
    """By the rules for any error: the job is not lost, and its next attempt may begin a transaction of its own."""
    shop = Shop(Prinia(migrated), migrated, Awaited())
    connection = await psycopg.AsyncConnection.connect(shop.dsn)
    await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)

    @shop.app.task(name="t", retry=Fixed(0.01))
    async def t(ctx: Context = INJECTED) -> None:
        shop.contexts.append(ctx)
        try:
            await ctx.acomplete(connection)
        finally:
            await connection.commit()

    async with shop.app, connection:
        job = await t.aenqueue()
        await connection.execute("select count(*) from prinia.jobs")
        async with shop.worker() as worker:
            record = await shop.ended(job)
    [error] = record.errors
    assert (record.state, record.attempt, error.kind) == ("completed", 2, "prinia.errors.ConnectionUnusable")
    assert "Begin the transaction in the handler" in error.message
    assert (shop.contexts[0].lost, worker.stats.lost) == (False, 0)


async def test_the_other_colour_is_refused(migrated: str) -> None:
    shop = Shop(Prinia(migrated), migrated, Awaited())

    @shop.app.task(name="t", max_attempts=1)
    async def t(awaited: bool, ctx: Context = INJECTED) -> None:
        if awaited:
            with psycopg.connect(shop.dsn) as blocking:
                await ctx.acomplete(blocking)  # type: ignore[arg-type]
        else:
            async with await psycopg.AsyncConnection.connect(shop.dsn) as connection:
                ctx.complete(connection)  # type: ignore[arg-type]

    async with shop.app, shop.worker():
        for awaited in (True, False):
            record = await shop.ended(await t.aenqueue(awaited))
            assert [error.kind for error in record.errors] == ["prinia.errors.ConnectionKindError"]


async def test_lost_is_raised_as_such(migrated: str) -> None:
    shop = Shop(Prinia(migrated), migrated, Awaited())
    raised: list[Exception] = []

    @shop.app.task(name="t")
    async def t(ctx: Context = INJECTED) -> None:
        await asyncio.to_thread(shop.execute, "update prinia.jobs set token = 99")
        async with await psycopg.AsyncConnection.connect(shop.dsn) as connection:
            try:
                await ctx.acomplete(connection)
            except JobLost as error:
                raised.append(error)

    async with shop.app, shop.worker() as worker:
        await t.aenqueue()
        await until(lambda: worker.stats.lost == 1)
    assert "let your transaction roll back" in str(raised[0])


async def test_a_dropped_acomplete_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def forget(drop: Callable[[], object]) -> None:
        drop()

    with caplog.at_level(logging.ERROR, "prinia"):
        forget(lambda: Context().acomplete(None))  # type: ignore[arg-type]
        gc.collect()
    assert "ctx.acomplete(...) was never awaited, so the job was not completed there. It was called at" in caplog.text
    assert "test_complete.py" in caplog.text


async def test_a_detached_context_completes_nothing() -> None:
    await Context().acomplete(None)  # type: ignore[arg-type]
    Context().complete(None)  # type: ignore[arg-type]
