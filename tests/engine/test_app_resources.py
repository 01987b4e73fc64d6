"""Resources of scope app: opened by the first worker that needs them, closed by the last."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextvars import copy_context
from typing import Any

import pytest

from prinia import INJECTED, Prinia, ResourceError, WorkerContext
from prinia.resources import Plan
from prinia.worker.opened import Opened
from tests.engine.kit import Shop, until
from tests.engine.things import Pool, Session, provide_pool


class TestApp:
    async def test_is_opened_by_the_first_worker_and_closed_by_the_last(self, shop: Shop) -> None:
        steps: list[str] = []
        provide_pool(shop.app, "app", steps)

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


class TestTurns:
    """Who opens and who closes when workers come and go at the same time."""

    @pytest.fixture
    def make(self, shop: Shop) -> Callable[[type[Pool]], Opened]:
        """What stands around the jobs of a worker whose only task wants one thing."""

        deaths: list[ResourceError] = []

        def make(wanted: type[Pool]) -> Opened:
            async def use(thing: Any = INJECTED) -> None: ...

            use.__annotations__["thing"] = wanted
            task = Prinia(storage=shop.storage).task(name="use")(use)
            plan = Plan([task], shop.app.surroundings.providers)
            return Opened(plan, shop.app.surroundings.shared, copy_context(), died=deaths.append)

        return make

    async def test_one_that_did_not_open_is_tried_anew(self, shop: Shop, make: Callable[[type[Pool]], Opened]) -> None:
        tries: list[int] = []

        @shop.app.provide(scope="app")
        async def pool() -> Pool:
            tries.append(1)
            if len(tries) == 1:
                raise OSError("no route")
            return Pool("second try")

        one, two = make(Pool), make(Pool)
        with pytest.raises(ResourceError, match="no route"):
            await one.open(WorkerContext())
        await two.open(WorkerContext())
        assert two.values[Pool].name == "second try"
        for opened in (one, two):
            await opened.close(asyncio.Event())
        assert not shop.app.surroundings.shared

    async def test_those_that_wait_for_one_opening_share_its_error(
        self, shop: Shop, make: Callable[[type[Pool]], Opened]
    ) -> None:
        gate, tries = asyncio.Event(), list[int]()

        @shop.app.provide(scope="app")
        async def pool() -> Pool:
            tries.append(1)
            await gate.wait()
            raise OSError("no route")

        both = [make(Pool), make(Pool)]
        opening = asyncio.gather(*(one.open(WorkerContext()) for one in both), return_exceptions=True)
        await until(lambda: tries)
        gate.set()
        assert [type(error) for error in await opening] == [ResourceError] * 2
        assert tries == [1]
        for one in both:
            await one.close(asyncio.Event())
        assert not shop.app.surroundings.shared

    async def test_whoever_wants_what_is_being_closed_waits_and_opens_it_anew(
        self, shop: Shop, make: Callable[[type[Pool]], Opened]
    ) -> None:
        steps: list[str] = []
        gate = asyncio.Event()

        @shop.app.provide(scope="app")
        async def pool() -> AsyncIterator[Pool]:
            steps.append("open")
            yield Pool(str(len(steps)))
            steps.append("closing")
            await gate.wait()
            steps.append("closed")

        one, two = make(Pool), make(Pool)
        await one.open(WorkerContext())
        closing = asyncio.ensure_future(one.close(asyncio.Event()))
        await until(lambda: "closing" in steps)
        opening = asyncio.ensure_future(two.open(WorkerContext()))
        for _ in range(20):
            await asyncio.sleep(0)
        assert steps == ["open", "closing"]
        gate.set()
        await opening
        assert steps == ["open", "closing", "closed", "open"]
        assert two.values[Pool].name == "4"
        await closing
        await two.close(asyncio.Event())

    async def test_nothing_is_closed_before_what_stands_on_it(
        self, shop: Shop, make: Callable[[type[Pool]], Opened]
    ) -> None:
        steps: list[str] = []
        gate = asyncio.Event()

        @shop.app.provide(scope="app")
        async def pool() -> AsyncIterator[Pool]:
            yield Pool()
            steps.append("pool closed")

        @shop.app.provide(scope="app")
        async def session(pool: Pool = INJECTED) -> AsyncIterator[Session]:
            yield Session()
            steps.append("session closing")
            await gate.wait()
            steps.append("session closed")

        one, two = make(Session), make(Pool)
        await one.open(WorkerContext())
        await two.open(WorkerContext())
        closing = [asyncio.ensure_future(one.close(asyncio.Event()))]
        await until(lambda: steps)
        closing.append(asyncio.ensure_future(two.close(asyncio.Event())))
        for _ in range(20):
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(*closing)
        assert steps == ["session closing", "session closed", "pool closed"]

    async def test_whoever_has_nothing_to_close_waits_for_nobody(
        self, shop: Shop, make: Callable[[type[Pool]], Opened]
    ) -> None:
        gate = asyncio.Event()

        @shop.app.provide(scope="app")
        async def pool() -> Pool:
            return Pool()

        @shop.app.provide(scope="app")
        async def session() -> AsyncIterator[Session]:
            yield Session()
            await gate.wait()

        slow, one, two = make(Session), make(Pool), make(Pool)
        for opened in (slow, one, two):
            await opened.open(WorkerContext())
        closing = asyncio.ensure_future(slow.close(asyncio.Event()))
        await asyncio.sleep(0)
        await one.close(asyncio.Event())
        assert not closing.done()
        gate.set()
        await closing
        await two.close(asyncio.Event())
