"""Middleware around runs: its order, all that it may do, and that it hurts nobody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from prinia import (
    INJECTED,
    CallNext,
    Cancel,
    Context,
    Fail,
    Middleware,
    Prinia,
    Retry,
    Snooze,
)
from prinia.job import JobState
from prinia.worker import call as call_module
from prinia.worker.threads import Threads
from tests.engine.kit import Shop, until
from tests.engine.layers import TENANT, Layer, OnlyEnqueue

R = TypeVar("R")
Run = Callable[[Context, CallNext], Any]


class Runs(Middleware):
    """Wraps runs with a function."""

    def __init__(self, function: Run) -> None:
        self.function = function

    async def run(self, ctx: Context, call_next: CallNext) -> Any:
        return await self.function(ctx, call_next)


async def run_with(shop: Shop, function: Run) -> str:
    """Run a job inside such middleware and return its result."""
    shop.app.add_middleware(Runs(function))

    @shop.app.task(name="work", max_attempts=1)
    async def work() -> str:
        return "worked"

    async with shop.worker():
        return await (await work.aenqueue()).aresult(timeout=10)


async def failure_with(shop: Shop, function: Run) -> str:
    """Run a job inside such middleware and return what it failed of; another job is not harmed."""

    async def only_one(ctx: Context, call_next: CallNext) -> Any:
        return await (function(ctx, call_next) if ctx.task == "work" else call_next())

    shop.app.add_middleware(Runs(only_one))

    @shop.app.task(name="work", max_attempts=1)
    async def work() -> None: ...

    @shop.app.task(name="other")
    async def other() -> str:
        return "unharmed"

    async with shop.worker():
        job = await work.aenqueue()
        await shop.until(JobState.FAILED, job.id)
        assert await (await other.aenqueue()).aresult(timeout=10) == "unharmed"
    [error] = shop.record(job.id).errors
    return f"{error.kind}: {error.message}"


@pytest.mark.parametrize("threaded", [False, True])
async def test_the_onion(threaded: bool) -> None:
    steps: list[str] = []
    where: dict[str, int] = {}

    def step(what: str) -> None:
        steps.append(what)
        where[what] = threading.get_ident()

    @dataclass
    class Order:
        id: int

        def __post_init__(self) -> None:
            step("the arguments are decoded")

    class Pool: ...

    class Session: ...

    order = Order(9)
    shop = Shop()
    shop.app = app = Prinia(storage=shop.storage, middleware=[Layer("outer", steps)])
    app.add_middleware(Layer("inner", steps))

    @app.provide(scope="job")
    async def pool(ctx: Context = INJECTED) -> AsyncIterator[Pool]:
        step("the async resource opens")
        yield Pool()
        step("the async resource closes")

    @app.provide(scope="job")
    def session(pool: Pool = INJECTED) -> Iterator[Session]:
        step("the plain resource opens")
        yield Session()
        step("the plain resource closes")

    if threaded:

        @app.task(name="book")
        def book(order: Order, session: Session = INJECTED) -> None:
            step("the handler runs")
    else:

        @app.task(name="book")
        async def book(order: Order, session: Session = INJECTED) -> None:
            step("the handler runs")

    new = book.job(order)
    steps.clear()
    [job] = await app.aenqueue_many([new])
    print(*steps, sep="\n")
    assert steps == [
        "outer begins to enqueue",
        "inner begins to enqueue",
        "outer prepares book",
        "inner prepares book",
        "inner has enqueued",
        "outer has enqueued",
    ]
    steps.clear()
    async with shop.worker():
        await shop.until(JobState.COMPLETED, job.id)
    print(*steps, sep="\n")
    assert steps == [
        "outer begins to run",
        "inner begins to run",
        "the arguments are decoded",
        "the async resource opens",
        "the plain resource opens",
        "the handler runs",
        "the plain resource closes",
        "the async resource closes",
        "inner has run",
        "outer has run",
    ]
    here = threading.get_ident()
    in_handler = {where[f"the {what}"] for what in ("plain resource opens", "handler runs", "plain resource closes")}
    assert len(in_handler) == 1
    assert (in_handler == {here}) is not threaded
    assert where["the async resource opens"] == where["the async resource closes"] == here


class TestRun:
    async def test_may_return_another_result(self, shop: Shop) -> None:
        async def shout(ctx: Context, call_next: CallNext) -> str:
            return f"{await call_next()} on attempt {ctx.attempt}"

        assert await run_with(shop, shout) == "worked on attempt 1"

    async def test_may_leave_the_handler_out(self, shop: Shop) -> None:
        async def cached(ctx: Context, call_next: CallNext) -> str:
            return "from the cache"

        assert await run_with(shop, cached) == "from the cache"

    async def test_may_turn_an_error_into_a_result(self, shop: Shop) -> None:
        async def forgive(ctx: Context, call_next: CallNext) -> str:
            try:
                return str(await call_next())
            except LookupError as error:
                return f"forgiven: {error}"

        shop.app.add_middleware(Runs(forgive))

        @shop.app.task(name="lost")
        async def lost() -> str:
            raise LookupError("no such order")

        async with shop.worker():
            assert await (await lost.aenqueue()).aresult(timeout=10) == "forgiven: no such order"

    @pytest.mark.parametrize(
        ("steering", "state"),
        [
            (Retry("later", delay=600), JobState.RETRYING),
            (Snooze(600), JobState.SCHEDULED),
            (Fail("gone"), JobState.FAILED),
            (Cancel("withdrawn"), JobState.CANCELLED),
        ],
    )
    async def test_steers(self, shop: Shop, steering: Exception, state: JobState) -> None:
        async def steer(ctx: Context, call_next: CallNext) -> Any:
            raise steering

        shop.app.add_middleware(Runs(steer))

        @shop.app.task(name="work")
        async def work() -> None: ...

        async with shop.worker():
            await shop.until(state, (await work.aenqueue()).id)

    @pytest.mark.parametrize("kind", [ValueError, asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit])
    async def test_what_it_raises_hurts_that_job_alone(self, shop: Shop, kind: type[BaseException]) -> None:
        async def burst(ctx: Context, call_next: CallNext) -> Any:
            raise kind("out of order")

        assert await failure_with(shop, burst) == f"{kind.__qualname__}: out of order".replace(
            "CancelledError", "asyncio.exceptions.CancelledError"
        )

    async def test_a_second_call_next_is_refused(self, shop: Shop) -> None:
        async def twice(ctx: Context, call_next: CallNext) -> Any:
            await call_next()
            return await call_next()

        assert await failure_with(shop, twice) == (
            "RuntimeError: Runs.run called call_next() twice: a handler runs once per attempt; raise Retry(...) to "
            "have it run again"
        )

    async def test_a_result_of_it_that_cannot_be_stored_is_a_clear_error(self, shop: Shop) -> None:
        async def odd(ctx: Context, call_next: CallNext) -> Any:
            return object()

        assert (await failure_with(shop, odd)).startswith("prinia.outcome.Fail: result not storable: $: ")

    async def test_sees_what_the_arguments_fail_of(self, shop: Shop) -> None:
        seen: list[str] = []

        async def watch(ctx: Context, call_next: CallNext) -> Any:
            try:
                return await call_next()
            except Exception as error:
                seen.append(type(error).__name__)
                raise

        @shop.app.task(name="number", max_attempts=1)
        async def number(of: int) -> None: ...

        job = await number.aenqueue(1)
        shop.app = app = Prinia(storage=shop.storage, middleware=[Runs(watch)])

        @app.task(name="number")
        async def renamed(count: str) -> None: ...

        async with shop.worker():
            await shop.until(JobState.FAILED, job.id)
        assert seen == ["DecodeError"]

    @pytest.mark.parametrize("threaded", [False, True])
    async def test_handlers_see_its_context_variables_and_other_jobs_do_not(self, shop: Shop, threaded: bool) -> None:
        async def tenant(ctx: Context, call_next: CallNext) -> Any:
            if "tenant" in ctx.meta:
                TENANT.set(ctx.meta["tenant"])
            return await call_next()

        shop.app.add_middleware(Runs(tenant))
        if threaded:

            @shop.app.task(name="look")
            def look() -> str:
                return TENANT.get()
        else:

            @shop.app.task(name="look")
            async def look() -> str:
                return TENANT.get()

        async with shop.worker(concurrency=1):
            jobs = [await look.options(meta=meta).aenqueue() for meta in ({"tenant": "acme"}, {}, {"tenant": "ajax"})]
            assert [await job.aresult(timeout=10) for job in jobs] == ["acme", "nobody", "ajax"]

    @pytest.mark.parametrize("threaded", [False, True])
    async def test_the_time_limit_covers_it(self, shop: Shop, threaded: bool) -> None:
        ended: list[str] = []

        async def slow(ctx: Context, call_next: CallNext) -> Any:
            try:
                await asyncio.sleep(3600)
            finally:
                ended.append("cancelled")

        shop.app.add_middleware(Runs(slow))
        if threaded:

            @shop.app.task(name="work", timeout=0.02, max_attempts=1)
            def work() -> None: ...
        else:

            @shop.app.task(name="work", timeout=0.02, max_attempts=1)
            async def work() -> None: ...

        async with shop.worker():
            job = await work.aenqueue()
            await shop.until(JobState.FAILED, job.id)
        assert ended == ["cancelled"]
        assert shop.record(job.id).errors[0].message == "timeout after 0.02 s"

    async def test_a_thread_is_kept_for_the_handler_and_is_free_again(self, shop: Shop) -> None:
        gate = asyncio.Event()
        inside: list[int] = []

        async def wait(ctx: Context, call_next: CallNext) -> Any:
            inside.append(ctx.job_id)
            await gate.wait()
            return await call_next() if ctx.job_id % 2 else "left out"

        shop.app.add_middleware(Runs(wait))

        @shop.app.task(name="work")
        def work() -> str:
            return "worked"

        async with shop.worker(threads=2) as worker:
            jobs = await shop.app.aenqueue_many(work.job() for _ in range(20))
            await until(lambda: len(inside) == 2)
            await until(lambda: worker.stats.waiting == 18, "for the others, without a thread, to be parked")
            gate.set()
            assert {await job.aresult(timeout=10) for job in jobs} == {"worked", "left out"}

    async def test_what_a_thread_cannot_end_is_waited_for(self, shop: Shop) -> None:
        gate = threading.Event()
        ended: list[bool] = []

        async def watch(ctx: Context, call_next: CallNext) -> Any:
            try:
                return await call_next()
            finally:
                ended.append(gate.is_set())

        shop.app.add_middleware(Runs(watch))

        @shop.app.task(name="hold", timeout=0.02, max_attempts=1)
        def hold(ctx: Context = INJECTED) -> None:
            while not ctx.stopping:
                gate.wait(0.001)
            gate.set()

        async with shop.worker():
            job = await hold.aenqueue()
            await shop.until(JobState.FAILED, job.id)
        assert shop.record(job.id).errors[0].message == "timeout after 0.02 s"
        assert ended == [True]

    async def test_costs_nothing_where_there_is_none(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*args: object) -> None:
            raise AssertionError("the long way was taken")

        monkeypatch.setattr(call_module.Surrounded, "run", fail)
        monkeypatch.setattr(Threads, "reserve", fail)
        shop.app.add_middleware(OnlyEnqueue())

        @shop.app.task(name="quick")
        async def quick(ctx: Context = INJECTED) -> str:
            return "quick"

        @shop.app.task(name="plain")
        def plain(ctx: Context = INJECTED) -> str:
            return "plain"

        async with shop.worker(queues=["default-eu"]):
            assert await (await quick.aenqueue()).aresult(timeout=10) == "quick"
            assert await (await plain.aenqueue()).aresult(timeout=10) == "plain"
