"""Resources of scope job: opened and closed around each attempt, in the right place, and what their failing means."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from prinia import INJECTED, Cancel, Context, Fixed, Snooze, WorkerContext
from prinia.job import JobState
from prinia.worker import run as run_module
from tests.engine.kit import Shop, until
from tests.engine.things import BASE_ERRORS, Pool, Session, failing, kind

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


async def test_a_thread_whose_waiting_is_cancelled_does_not_run_beside_itself(shop: Shop) -> None:
    """What stands around a plain function may give up waiting; the thread, its resources and its slot go on."""
    ends, closed_under_it, runs = threading.Event(), [], []
    limits: list[asyncio.Timeout] = []

    @shop.app.provide(scope="job")
    async def session() -> AsyncIterator[Session]:
        opened = Session("open")
        async with asyncio.timeout(0.01) as limit:
            limits.append(limit)
            try:
                yield opened
            finally:
                opened.name = "closed"

    @shop.app.task(name="slow", retry=Fixed(0.001))
    def slow(session: Session = INJECTED) -> None:
        runs.append(1)
        if len(runs) == 1:
            ends.wait(20)
        closed_under_it.append(session.name == "closed")

    async with shop.worker() as worker:
        job = await slow.options(max_attempts=1).aenqueue()
        await until(lambda: runs and limits[0].expired())
        assert (shop.state(job.id), worker.stats.running, runs) == (JobState.RUNNING, 1, [1])
        ends.set()
        await until(lambda: shop.state(job.id).final)
    assert (shop.state(job.id), closed_under_it) == (JobState.FAILED, [False])


class TestJobScope:
    async def test_is_each_attempts_own_and_closed_before_it_is_recorded(self, shop: Shop) -> None:
        steps: list[str] = []

        @shop.app.provide(scope="job")
        async def session(ctx: Context = INJECTED, worker: WorkerContext = INJECTED) -> AsyncIterator[Session]:
            steps.append(f"open {ctx.attempt} on {worker.name}")
            try:
                yield Session(str(ctx.job_id))
            except LookupError as error:
                steps.append(f"sees {error}")
                raise
            steps.append(f"close, {shop.state(ctx.job_id)}")

        @shop.app.task(name="use", retry=Fixed(0.001))
        async def use(ctx: Context = INJECTED, session: Session = INJECTED) -> None:
            assert session.name == str(ctx.job_id)
            if ctx.attempt == 1:
                raise LookupError("nothing there")

        async with shop.worker(name="w"):
            await (await use.aenqueue()).aresult(timeout=10)
        assert steps == ["open 1 on w", "sees nothing there", "open 2 on w", "close, running"]

    @pytest.mark.parametrize("threaded", [False, True])
    async def test_the_handler_sees_its_context_variables_and_other_jobs_do_not(
        self, shop: Shop, threaded: bool
    ) -> None:
        @shop.app.provide(scope="job")
        async def session(ctx: Context = INJECTED) -> Session:
            TENANT.set(f"of job {ctx.job_id}")
            return Session()

        if threaded:

            @shop.app.task(name="look")
            def look(session: Session = INJECTED) -> str:
                return TENANT.get()
        else:

            @shop.app.task(name="look")
            async def look(session: Session = INJECTED) -> str:
                return TENANT.get()

        @shop.app.task(name="other")
        async def other() -> str:
            return TENANT.get()

        async with shop.worker(concurrency=1):
            job = await look.aenqueue()
            assert await job.aresult(timeout=10) == f"of job {job.id}"
            assert await (await other.aenqueue()).aresult(timeout=10) == "nobody"

    async def test_is_opened_for_those_that_want_it_only(self, shop: Shop) -> None:
        opened: list[str] = []

        @shop.app.provide(scope="job")
        async def session(ctx: Context = INJECTED) -> Session:
            opened.append(ctx.task)
            return Session()

        @shop.app.task(name="wants")
        async def wants(session: Session = INJECTED) -> None: ...

        @shop.app.task(name="does_not")
        async def does_not() -> None: ...

        async with shop.worker():
            await (await does_not.aenqueue()).aresult(timeout=10)
            await (await wants.aenqueue()).aresult(timeout=10)
        assert opened == ["wants"]

    async def test_of_a_plain_function_lives_in_the_handlers_thread(self, shop: Shop, tmp_path: Path) -> None:
        @shop.app.provide(scope="job")
        def database() -> Iterator[sqlite3.Connection]:
            connection = sqlite3.connect(tmp_path / "shop.db")  # refuses every thread but this one
            with contextlib.closing(connection), connection:
                yield connection

        @shop.app.task(name="book", max_attempts=1)
        def book(order: int, fail: bool, db: sqlite3.Connection = INJECTED) -> None:
            db.execute("create table if not exists orders (id integer)")
            db.execute("insert into orders values (?)", (order,))
            if fail:
                raise ValueError("sold out")

        async with shop.worker(threads=3):
            job = await book.aenqueue(1, fail=False)
            failing = await book.aenqueue(2, fail=True)
            await shop.until(JobState.COMPLETED, job.id)
            await shop.until(JobState.FAILED, failing.id)
        with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
            assert connection.execute("select id from orders").fetchall() == [(1,)]

    @pytest.mark.parametrize("threaded", [False, True])
    async def test_it_cannot_swallow_the_handlers_error(self, shop: Shop, threaded: bool) -> None:
        @shop.app.provide(scope="job")
        async def pool() -> AsyncIterator[Pool]:
            with contextlib.suppress(ValueError):
                yield Pool()

        @shop.app.provide(scope="job")
        def session() -> Iterator[Session]:
            with contextlib.suppress(ValueError):
                yield Session()

        assert await failure_of_use(shop, threaded, ValueError("sold out")) == "ValueError: sold out"

    @pytest.mark.parametrize("threaded", [False, True])
    async def test_an_error_of_closing_fails_the_attempt(self, shop: Shop, threaded: bool) -> None:
        @shop.app.provide(scope="job")
        def session() -> Iterator[Session]:
            yield Session()
            raise OSError("commit failed")

        shop.app.provide(value=Pool())
        assert await failure_of_use(shop, threaded, None) == (
            f"prinia.errors.ResourceError: {__name__}.TestJobScope.test_an_error_of_closing_fails_the_attempt.<locals>"
            f".session, a resource of scope job, could not be closed: OSError: commit failed"
        )

    @pytest.mark.parametrize("threaded", [False, True])
    @pytest.mark.parametrize("error", BASE_ERRORS)
    @pytest.mark.parametrize("shape", ["function", "coroutine", "generator", "async generator"])
    async def test_one_that_does_not_open_fails_the_attempt_of_that_job_alone(
        self, shop: Shop, error: type[BaseException], shape: str, threaded: bool
    ) -> None:
        closed: list[str] = []

        @shop.app.provide(scope="job")
        async def pool() -> AsyncIterator[Pool]:
            try:
                yield Pool()
            finally:
                closed.append("pool")

        shop.app.provide(failing(shape, error("too many connections")), type=Session, scope="job")

        @shop.app.task(name="other")
        async def other(pool: Pool = INJECTED) -> str:
            return "unharmed"

        assert await failure_of_use(shop, threaded, None) == (
            f"prinia.errors.ResourceError: {failing.__module__}.failing.<locals>.broken, a resource of scope job, "
            f"could not be opened: {kind(error)}: too many connections"
        )
        assert closed == ["pool"]
        async with shop.worker():
            assert await (await other.aenqueue()).aresult(timeout=10) == "unharmed"

    async def test_a_failed_opening_is_retried_by_the_policy(self, shop: Shop) -> None:
        @shop.app.provide(scope="job")
        async def session(ctx: Context = INJECTED) -> Session:
            if ctx.attempt < 3:
                raise OSError("not yet")
            return Session()

        @shop.app.task(name="use", retry=Fixed(0.001))
        async def use(ctx: Context = INJECTED, session: Session = INJECTED) -> int:
            return ctx.attempt

        async with shop.worker():
            assert await (await use.aenqueue()).aresult(timeout=10) == 3

    @pytest.mark.parametrize("when", ["opening", "closing"])
    async def test_it_may_steer(self, shop: Shop, when: str) -> None:
        @shop.app.provide(scope="job")
        async def session() -> AsyncIterator[Session]:
            if when == "opening":
                raise Snooze(600)
            yield Session()
            raise Cancel("too late")

        @shop.app.task(name="use")
        async def use(session: Session = INJECTED) -> None: ...

        async with shop.worker():
            job = await use.aenqueue()
            await shop.until(JobState.SCHEDULED if when == "opening" else JobState.CANCELLED, job.id)

    @pytest.mark.parametrize("threaded", [False, True])
    async def test_a_result_that_cannot_be_stored_is_seen_while_it_is_open(self, shop: Shop, threaded: bool) -> None:
        seen: list[str] = []

        @shop.app.provide(scope="job")
        def session() -> Iterator[Session]:
            try:
                yield Session()
                seen.append("committed")
            except Exception as error:
                seen.append(type(error).__name__)
                raise

        shop.app.provide(value=Pool())
        said = await failure_of_use(shop, threaded, None, result=object())
        assert "result not storable" in said
        assert seen == ["NotStorable"]

    @pytest.mark.parametrize("where", ["opening", "handler", "closing"])
    @pytest.mark.parametrize("threaded", [False, True])
    async def test_the_time_limit_covers_it_and_it_is_closed(self, shop: Shop, where: str, threaded: bool) -> None:
        steps: list[str] = []

        async def reach(what: str) -> None:
            if what == where:
                await asyncio.sleep(3600)

        @shop.app.provide(scope="job")
        async def pool() -> AsyncIterator[Pool]:
            try:
                yield Pool()
            finally:
                steps.append("pool closed")

        @shop.app.provide(scope="job")
        async def session(pool: Pool = INJECTED) -> AsyncIterator[Session]:
            await reach("opening")
            try:
                yield Session()
                await reach("closing")
            except asyncio.CancelledError:
                steps.append("session cancelled")
                raise

        if threaded:

            @shop.app.task(name="use", timeout=0.05, max_attempts=1)
            def use(session: Session = INJECTED, ctx: Context = INJECTED) -> None:
                while where == "handler" and not ctx.stopping:
                    threading.Event().wait(0.001)
        else:

            @shop.app.task(name="use", timeout=0.05, max_attempts=1)
            async def use(session: Session = INJECTED, ctx: Context = INJECTED) -> None:
                await reach("handler")

        async with shop.worker():
            job = await use.aenqueue()
            await shop.until(JobState.FAILED, job.id)
        assert shop.record(job.id).errors[0].message == "timeout after 0.05 s"
        # A thread ends by itself: nothing is cancelled then.
        cancelled = where == "closing" or (where == "handler" and not threaded)
        assert steps == ["session cancelled"] * cancelled + ["pool closed"]

    async def test_past_the_limit_its_closing_is_bounded_after_a_thread_too(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(run_module, "CLEANUP", 0.05)

        @shop.app.provide(scope="job")
        async def session() -> AsyncIterator[Session]:
            yield Session()
            await asyncio.sleep(3600)

        @shop.app.task(name="use", timeout=0.02, max_attempts=1)
        def use(session: Session = INJECTED, ctx: Context = INJECTED) -> None:
            while not ctx.stopping:
                threading.Event().wait(0.001)

        async with shop.worker():
            job = await use.aenqueue()
            await shop.until(JobState.FAILED, job.id)
        assert shop.record(job.id).errors[0].message == "timeout after 0.02 s"

    @pytest.mark.parametrize("where", ["opening", "handler", "closing"])
    async def test_a_stop_closes_it_and_gives_the_job_back(self, shop: Shop, where: str) -> None:
        steps: list[str] = []

        async def reach(what: str) -> None:
            if what == where:
                steps.append(what)
                await asyncio.sleep(3600)

        @shop.app.provide(scope="job")
        async def pool() -> AsyncIterator[Pool]:
            try:
                yield Pool()
            finally:
                steps.append("pool closed")

        @shop.app.provide(scope="job")
        async def session(pool: Pool = INJECTED) -> AsyncIterator[Session]:
            await reach("opening")
            yield Session()
            await reach("closing")

        @shop.app.task(name="use")
        async def use(session: Session = INJECTED) -> None:
            await reach("handler")

        job = await use.aenqueue()
        worker = shop.worker(stop_timeout=0)
        running = asyncio.ensure_future(worker.run())
        await until(lambda: steps)
        worker.stop()
        await asyncio.wait_for(running, 20)
        assert steps == [where, "pool closed"]
        assert (shop.state(job.id), shop.record(job.id).attempt) == (JobState.READY, 0)


async def failure_of_use(shop: Shop, threaded: bool, error: Exception | None, result: object = None) -> str:
    """What a job failed of that wants a pool and a session, and then raises or returns."""

    def run() -> Any:
        if error is not None:
            raise error
        return result

    if threaded:

        @shop.app.task(name="use", max_attempts=1)
        def use(pool: Pool = INJECTED, session: Session = INJECTED) -> Any:
            return run()
    else:

        @shop.app.task(name="use", max_attempts=1)
        async def use(pool: Pool = INJECTED, session: Session = INJECTED) -> Any:
            return run()

    async with shop.worker():
        job = await use.aenqueue()
        await shop.until(JobState.FAILED, job.id)
    [failure] = shop.record(job.id).errors
    return f"{failure.kind}: {failure.message}"
