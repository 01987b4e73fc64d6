"""Shapes of resources: functions, coroutine functions, generators, values, and what a task gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from prinia import INJECTED, Prinia, WorkerContext
from prinia.storage.memory import MemoryStorage
from tests.engine.kit import Shop
from tests.engine.things import Pool, Session, Settings


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
