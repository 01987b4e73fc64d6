"""Resources of scope worker: how long each lives, and what becomes of a worker when one fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import psycopg
import pytest

from prinia import INJECTED, Prinia, ResourceError, WorkerContext
from prinia.job import JobState
from prinia.worker import opened as opened_module
from tests.engine.kit import Shop, until
from tests.engine.things import BASE_ERRORS, Pool, Session, Settings, failing, kind, provide_pool

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


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
        provide_pool(shop.app, "worker", steps)

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
