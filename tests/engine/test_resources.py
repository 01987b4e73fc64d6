"""Resources of scope app and worker: how long each lives, and what becomes of a worker when one fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import psycopg
import pytest

from prinia import INJECTED, Prinia, ResourceError, WorkerContext
from prinia.job import JobState
from prinia.storage.memory import MemoryStorage
from prinia.worker import opened as opened_module
from tests.engine.kit import Shop, until
from tests.engine.things import BASE_ERRORS, Pool, Session, Settings, failing, kind

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


class TestShapes:
    @pytest.mark.parametrize("scope", ["app", "worker", "job"])
    @pytest.mark.parametrize("threaded", [False, True])
    async def test_all_open_before_the_handler_and_close_after_it(self, shop: Shop, scope: Any, threaded: bool) -> None:
        class A(Pool): ...

        class B(Pool): ...

        class C(Pool): ...

        class D(Pool): ...

        app, closed = shop.app, list[str]()

        @app.provide(scope=scope)
        def function() -> A:
            return A("function")

        @app.provide(scope=scope)
        async def coroutine_function() -> B:
            return B("coroutine function")

        @app.provide(scope=scope)
        def generator() -> Iterator[C]:
            yield C("generator")
            closed.append("generator")

        @app.provide(scope=scope)
        async def async_generator() -> AsyncIterator[D]:
            yield D("async generator")
            closed.append("async generator")

        if threaded:

            @app.task(name="use")
            def use(a: A = INJECTED, b: B = INJECTED, c: C = INJECTED, *, d: D = INJECTED) -> list[str]:
                return [each.name for each in (a, b, c, d)] + closed
        else:

            @app.task(name="use")
            async def use(a: A = INJECTED, b: B = INJECTED, c: C = INJECTED, *, d: D = INJECTED) -> list[str]:
                return [each.name for each in (a, b, c, d)] + closed

        async with shop.worker():
            result = await (await use.aenqueue()).aresult(timeout=10)
        assert result == ["function", "coroutine function", "generator", "async generator"]
        # Of a threaded handler, the plain ones open in the thread, so inside of the async ones.
        assert sorted(closed) == ["async generator", "generator"]
        assert closed[0] == ("generator" if threaded and scope == "job" else "async generator")

    async def test_a_value_is_provided_as_it_is(self, shop: Shop) -> None:
        settings, session = Settings("given"), Session("given too")
        shop.app.provide(value=settings)
        shop.app.provide(value=session, type=Pool)
        seen: list[object] = []

        @shop.app.task(name="use")
        async def use(settings: Settings = INJECTED, pool: Pool = INJECTED) -> None:
            seen.extend((settings, pool))

        async with shop.worker():
            await (await use.aenqueue()).aresult(timeout=10)
        assert seen == [settings, session]

    async def test_type_says_what_it_is_for(self, shop: Shop) -> None:
        @shop.app.provide(type=Pool)
        def session():  # type: ignore[no-untyped-def]
            return Session("as a pool")

        @shop.app.task(name="use")
        async def use(pool: Pool = INJECTED) -> str:
            return pool.name

        async with shop.worker():
            assert await (await use.aenqueue()).aresult(timeout=10) == "as a pool"

    async def test_a_bound_method_makes_one(self, shop: Shop) -> None:
        class Maker:
            def make(self) -> Pool:
                return Pool("made")

        shop.app.provide(Maker().make)

        @shop.app.task(name="use")
        async def use(pool: Pool = INJECTED) -> str:
            return pool.name

        async with shop.worker():
            assert await (await use.aenqueue()).aresult(timeout=10) == "made"

    async def test_a_task_may_want_its_worker(self, shop: Shop) -> None:
        @shop.app.task(name="stop")
        async def stop(times: int, worker: WorkerContext = INJECTED) -> str:
            worker.stop()
            return worker.name * times

        job = await stop.aenqueue(2)
        await asyncio.wait_for(shop.worker(name="w").run(), 20)
        assert shop.record(job.id).result == b'"ww"'

    async def test_a_direct_call_needs_them_given(self) -> None:
        app = Prinia(storage=MemoryStorage())

        @app.task(name="use")
        async def use(number: int, pool: Pool = INJECTED, worker: WorkerContext = INJECTED) -> str:
            return f"{number} {pool.name} {worker.instance}"

        assert await use(1, pool=Pool("mine")) == "1 mine None"
        with pytest.raises(TypeError, match="pool is injected in a worker only; give it in a direct call"):
            await use(1)


class TestApp:
    async def test_is_opened_by_the_first_worker_and_closed_by_the_last(self, shop: Shop) -> None:
        steps: list[str] = []

        @shop.app.provide(scope="app")
        async def pool() -> AsyncIterator[Pool]:
            steps.append("open")
            yield Pool()
            steps.append("close")

        seen: list[Pool] = []

        @shop.app.task(name="use")
        async def use(pool: Pool = INJECTED) -> None:
            seen.append(pool)

        async with shop.worker():
            async with shop.worker():
                for _ in range(3):
                    await (await use.aenqueue()).aresult(timeout=10)
            assert steps == ["open"]
            await (await use.aenqueue()).aresult(timeout=10)
        assert steps == ["open", "close"]
        assert len(seen) == 4
        assert len(set(map(id, seen))) == 1
        async with shop.worker():
            assert steps == ["open", "close", "open"]
        assert not shop.app.surroundings.shared

    async def test_workers_that_start_and_stop_at_once_agree(self, shop: Shop) -> None:
        standing, most, gate = 0, 0, asyncio.Event()

        @shop.app.provide(scope="app")
        async def pool() -> AsyncIterator[Pool]:
            nonlocal standing, most
            standing += 1
            most = max(most, standing)
            await gate.wait()
            yield Pool()
            await asyncio.sleep(0)
            standing -= 1

        @shop.app.task(name="use")
        async def use(pool: Pool = INJECTED) -> None: ...

        workers = [shop.worker() for _ in range(5)]
        entering = asyncio.gather(*(worker.__aenter__() for worker in workers))
        await until(lambda: standing)
        gate.set()
        await entering
        leaving = asyncio.gather(*(worker.__aexit__(None, None, None) for worker in workers))
        async with shop.worker():
            await leaving
            assert standing == 1
        assert (standing, most) == (0, 1)

    async def test_is_each_event_loops_own(self, shop: Shop) -> None:
        made: list[threading.Thread] = []

        @shop.app.provide(scope="app")
        async def pool() -> Pool:
            made.append(threading.current_thread())
            return Pool()

        @shop.app.task(name="use")
        async def use(pool: Pool = INJECTED) -> None: ...

        async def elsewhere() -> None:
            async with shop.worker():
                assert len(shop.app.surroundings.shared) == 2

        async with shop.worker():
            await asyncio.to_thread(asyncio.run, elsewhere())
        assert len(set(made)) == 2

    async def test_a_worker_that_cannot_open_one_leaves_the_others_in_peace(self, shop: Shop) -> None:
        steps: list[str] = []

        @shop.app.provide(scope="app")
        async def pool() -> AsyncIterator[Pool]:
            yield Pool()
            steps.append("pool closed")

        @shop.app.task(name="use", queue="a")
        async def use(pool: Pool = INJECTED) -> str:
            return "used"

        async with shop.worker(queues=["a"]):

            @shop.app.provide(scope="app")
            async def session(pool: Pool = INJECTED) -> Session:
                raise OSError("no route")

            @shop.app.task(name="late", queue="b")
            async def late(session: Session = INJECTED) -> None: ...

            with pytest.raises(ResourceError, match="no route"):
                await shop.worker(queues=["b"]).run()
            assert await (await use.aenqueue()).aresult(timeout=10) == "used"
            assert steps == []
        assert steps == ["pool closed"]

    async def test_a_stop_does_not_wait_for_what_another_worker_opens(self, shop: Shop) -> None:
        opening, cancelled = asyncio.Event(), asyncio.Event()

        @shop.app.provide(scope="app")
        async def pool() -> Pool:
            return Pool()

        @shop.app.task(name="use", queue="a")
        async def use(pool: Pool = INJECTED) -> None: ...

        async with asyncio.timeout(20), shop.worker(queues=["a"]):

            @shop.app.provide(scope="app")
            async def session(pool: Pool = INJECTED) -> Session:
                opening.set()
                try:
                    await asyncio.sleep(3600)
                finally:
                    cancelled.set()
                return Session()

            @shop.app.task(name="late", queue="b")
            async def late(session: Session = INJECTED) -> None: ...

            other = shop.worker(queues=["b"])
            running = asyncio.ensure_future(other.run())
            await opening.wait()
        assert not running.done()
        other.stop()
        await asyncio.wait_for(running, 20)
        assert cancelled.is_set()


class TestWorkerScope:
    async def test_is_opened_before_anything_is_claimed_and_closed_after_the_last_job(self, shop: Shop) -> None:
        steps: list[str] = []

        @shop.app.provide
        async def pool(worker: WorkerContext = INJECTED) -> AsyncIterator[Pool]:
            steps.append(f"open {shop.state(1)} {len(shop.storage.tables.register)}")
            yield Pool(worker.name)
            steps.append(f"close {shop.state(1)} {len(shop.storage.tables.register)}")

        @shop.app.task(name="use")
        async def use(pool: Pool = INJECTED) -> str:
            return pool.name

        job = await use.aenqueue()
        async with shop.worker(name="w"):
            assert await job.aresult(timeout=10) == "w"
        assert steps == ["open ready 1", "close completed 0"]

    async def test_lives_through_all_lives_of_its_worker(self, shop: Shop) -> None:
        steps: list[str] = []

        @shop.app.provide
        async def pool() -> AsyncIterator[Pool]:
            steps.append("open")
            yield Pool()
            steps.append("close")

        @shop.app.task(name="use")
        async def use(pool: Pool = INJECTED) -> None: ...

        async with shop.worker(heartbeat=0.02, dead_after=5) as worker:
            await (await use.aenqueue()).aresult(timeout=10)
            before = worker.instance.id
            shop.kill_now(worker)
            await until(lambda: worker.instance.id != before)
            await (await use.aenqueue()).aresult(timeout=10)
        assert steps == ["open", "close"]

    async def test_opens_and_closes_in_one_task(self, shop: Shop) -> None:
        tasks: list[object] = []

        @shop.app.provide
        async def pool() -> AsyncIterator[Pool]:
            tasks.append(asyncio.current_task())
            async with asyncio.TaskGroup() as group:
                ticking = group.create_task(asyncio.sleep(3600))
                yield Pool()
                ticking.cancel()
            tasks.append(asyncio.current_task())

        @shop.app.task(name="use")
        async def use(pool: Pool = INJECTED) -> None: ...

        async with shop.worker():
            await (await use.aenqueue()).aresult(timeout=10)
        assert len(tasks) == 2
        assert len(set(tasks)) == 1

    async def test_jobs_see_its_context_variables(self, shop: Shop) -> None:
        @shop.app.provide
        async def pool() -> Pool:
            TENANT.set("set by the pool")
            return Pool()

        @shop.app.task(name="look")
        async def look(pool: Pool = INJECTED) -> str:
            return TENANT.get()

        async with shop.worker():
            assert await (await look.aenqueue()).aresult(timeout=10) == "set by the pool"
        assert TENANT.get() == "nobody"

    async def test_only_what_something_wants_is_opened_and_in_order(self, shop: Shop) -> None:
        steps: list[str] = []

        def provide(made: type[Pool], **needs: type[Pool]) -> None:
            async def factory(**given: Pool) -> AsyncIterator[Pool]:
                steps.append(f"+{made.__name__}")
                yield made()
                steps.append(f"-{made.__name__}")

            factory.__name__ = factory.__qualname__ = made.__name__.lower()
            shop.app.provide(with_signature(factory, needs), type=made)

        class Unwanted(Pool): ...

        provide(Unwanted)
        provide(Session, pool=Pool, settings=Settings)
        provide(Pool, settings=Settings)
        provide(Settings)

        @shop.app.task(name="use")
        async def use(session: Session = INJECTED) -> None: ...

        async with shop.worker():
            pass
        assert steps == ["+Settings", "+Pool", "+Session", "-Session", "-Pool", "-Settings"]

    @pytest.mark.parametrize("error", BASE_ERRORS)
    @pytest.mark.parametrize("shape", ["function", "coroutine", "generator", "async generator"])
    async def test_one_that_does_not_open_ends_the_start(
        self, shop: Shop, error: type[BaseException], shape: str
    ) -> None:
        steps: list[str] = []

        @shop.app.provide(scope="app")
        async def settings() -> AsyncIterator[Settings]:
            yield Settings()
            steps.append("settings closed")

        @shop.app.provide
        def session(settings: Settings = INJECTED) -> Iterator[Session]:
            yield Session()
            steps.append("session closed")

        @shop.app.on_stop
        def stop() -> None:
            steps.append("a stop hook, though no start hook was due")

        shop.app.provide(failing(shape, error("no route to host")), type=Pool)

        @shop.app.task(name="use")
        async def use(session: Session = INJECTED, pool: Pool = INJECTED) -> None: ...

        job = await use.aenqueue()
        worker = shop.worker()
        with pytest.raises(ResourceError) as caught:
            await worker.run()
        assert str(caught.value) == (
            f"{failing.__module__}.failing.<locals>.broken, a resource of scope worker, could not be opened: "
            f"{kind(error)}: no route to host"
        )
        assert type(caught.value.__cause__) is error
        with pytest.raises(ResourceError):
            async with worker:
                raise AssertionError("it started")
        assert steps == ["session closed", "settings closed"] * 2
        assert not shop.storage.tables.register
        assert shop.faults.claims == []
        assert shop.state(job.id) is JobState.READY

    async def test_an_outage_is_waited_out_before_it_opens(self, shop: Shop) -> None:
        opened: list[bool] = []

        @shop.app.provide
        async def pool() -> Pool:
            opened.append(shop.faults.away)
            return Pool()

        @shop.app.task(name="use")
        async def use(pool: Pool = INJECTED) -> None: ...

        shop.faults.away = True
        async with shop.worker():
            await until(lambda: shop.faults.refused > 1)
            assert opened == []
            shop.faults.away = False
            await (await use.aenqueue()).aresult(timeout=10)
        assert opened == [False]

    async def test_the_worker_beats_while_it_opens(self, shop: Shop) -> None:
        @shop.app.provide
        async def pool() -> Pool:
            await until(lambda: shop.faults.beats > 2, "for beats")
            return Pool()

        @shop.app.task(name="use")
        async def use(pool: Pool = INJECTED) -> None: ...

        async with shop.worker(heartbeat=0.01, dead_after=5):
            await (await use.aenqueue()).aresult(timeout=10)

    async def test_a_stop_ends_an_opening_that_hangs(self, shop: Shop) -> None:
        steps: list[str] = []

        @shop.app.provide(scope="app")
        async def settings() -> AsyncIterator[Settings]:
            yield Settings()
            steps.append("settings closed")

        @shop.app.provide
        async def pool(settings: Settings = INJECTED) -> Pool:
            steps.append("opening")
            try:
                await asyncio.sleep(3600)
            finally:
                steps.append("cancelled")
            return Pool()

        @shop.app.task(name="use")
        async def use(pool: Pool = INJECTED) -> None: ...

        worker = shop.worker()
        running = asyncio.ensure_future(worker.run())
        await until(lambda: steps)
        worker.stop()
        await asyncio.wait_for(running, 20)
        assert steps == ["opening", "cancelled", "settings closed"]
        assert not shop.storage.tables.register
        assert shop.faults.claims == []

    @pytest.mark.parametrize("fault", ["raises", "hangs", "ignores its cancellation"])
    async def test_one_that_does_not_close_is_logged_and_left(
        self, shop: Shop, fault: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(opened_module, "CLOSING", 0.05)
        monkeypatch.setattr(opened_module, "GRACE", 0.05)
        steps: list[str] = []
        gate = asyncio.Event()

        @shop.app.provide
        async def settings() -> AsyncIterator[Settings]:
            yield Settings()
            steps.append("settings closed")

        @shop.app.provide
        async def pool(settings: Settings = INJECTED) -> AsyncIterator[Pool]:
            yield Pool()
            steps.append("closing")
            if fault == "raises":
                raise KeyboardInterrupt("in the wrong place")
            if fault == "hangs":
                await asyncio.sleep(3600)
            while not gate.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await gate.wait()

        @shop.app.task(name="use")
        async def use(pool: Pool = INJECTED) -> None: ...

        with caplog.at_level(logging.ERROR, "prinia"):
            await asyncio.wait_for(start_and_stop(shop), 20)
        assert steps == ["closing", "settings closed"]
        [said] = [record.getMessage() for record in caplog.records]
        assert "pool" in said
        assert ("could not be closed: KeyboardInterrupt" if fault == "raises" else "took too long to close") in said
        gate.set()
        await asyncio.sleep(0)

    async def test_a_start_that_fails_leaves_no_row(self, migrated: str) -> None:
        app = Prinia(migrated)

        @app.provide
        async def pool() -> Pool:
            raise OSError("no route to host")

        @app.task(name="use")
        async def use(pool: Pool = INJECTED) -> None: ...

        job = await use.aenqueue()
        with pytest.raises(ResourceError, match="no route to host"):
            await app.worker().run()
        async with await psycopg.AsyncConnection.connect(migrated) as connection:
            rows = await (await connection.execute("select count(*) from prinia.workers")).fetchone()
            state = await (await connection.execute("select state, attempt from prinia.all_jobs")).fetchone()
        assert rows == (0,)
        assert state == ("ready", 0)
        assert job.id


def with_signature(function: Callable[..., Any], needs: dict[str, type[Pool]]) -> Any:
    """The function as if it had been written with these injected parameters."""
    import inspect

    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=INJECTED) for name in needs]
    )
    function.__annotations__ = dict(needs)
    return function


async def start_and_stop(shop: Shop) -> None:
    async with shop.worker():
        pass
