"""A worker is stopped from inside: by a handler or a listener."""

from __future__ import annotations

import asyncio
import threading

from prinia import (
    INJECTED,
    Context,
    Event,
    EventKind,
)
from prinia.job import JobState
from tests.engine.kit import Shop


async def test_a_handler_stops_its_worker(shop: Shop) -> None:
    @shop.app.task(name="stop")
    async def stop(ctx: Context = INJECTED) -> str:
        ctx.worker.stop()
        ctx.worker.stop()  # no hurry: the handler still has its word
        while not ctx.stopping:
            await asyncio.sleep(0)
        return "done"

    job = await stop.aenqueue()
    await asyncio.wait_for(shop.app.worker().run(), 20)
    assert shop.record(job.id).result == b'"done"'


async def test_a_handler_stops_its_worker_from_a_thread(shop: Shop) -> None:
    @shop.app.task(name="stop")
    def stop(ctx: Context = INJECTED) -> bool:
        ctx.worker.stop()
        ctx.worker.stop()
        for _ in range(1000):
            if ctx.stopping:
                return True
            threading.Event().wait(0.01)
        return False

    job = await stop.aenqueue()
    await asyncio.wait_for(shop.app.worker().run(), 20)
    assert shop.record(job.id).result == b"true"


async def test_a_listener_stops_the_worker(shop: Shop) -> None:
    @shop.app.on_event(EventKind.FAILED)
    async def stop(event: Event) -> None:
        event.worker.stop()

    @shop.app.task(name="bad", max_attempts=1)
    async def bad() -> None:
        raise ValueError

    job = await bad.aenqueue()
    await asyncio.wait_for(shop.app.worker().run(), 20)
    assert shop.state(job.id) is JobState.FAILED


async def test_a_detached_context_stops_nothing() -> None:
    Context().worker.stop()
