"""Listeners: in which order they are told, and that none of them harms anything."""

from __future__ import annotations

import asyncio
import functools
import logging

import pytest

from prinia import (
    Event,
    EventKind,
)
from prinia.job import JobState
from prinia.worker import listeners
from tests.engine.heard import Heard
from tests.engine.kit import Shop, until


async def test_only_the_kinds_asked_for(shop: Shop) -> None:
    seen: list[EventKind] = []

    @shop.app.on_event(EventKind.STARTED, EventKind.STOPPED)
    async def some(event: Event) -> None:
        seen.append(event.kind)

    @shop.app.task(name="t")
    async def t() -> None: ...

    async with shop.app.worker() as worker:
        await t.aenqueue()
        await until(lambda: worker.stats.completed == 1)
    assert seen == [EventKind.STARTED, EventKind.STOPPED]


async def test_coroutine_functions_are_told_one_after_the_other_in_order(shop: Shop) -> None:
    seen: list[tuple[int, str]] = []
    inside = 0

    @shop.app.on_event
    async def slow(event: Event) -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        await asyncio.sleep(0)
        inside -= 1
        if event.job is not None:
            seen.append((event.job.job_id, event.kind))

    @shop.app.task(name="t")
    async def t() -> None: ...

    async with shop.app.worker(concurrency=1):
        jobs = [await t.aenqueue() for _ in range(20)]
        await shop.until(JobState.COMPLETED, *(job.id for job in jobs))
    assert [kind for _, kind in seen].count(EventKind.STARTED) == 20
    for job in jobs:
        assert [kind for id, kind in seen if id == job.id] == [EventKind.STARTED, EventKind.COMPLETED]
    assert [id for id, kind in seen if kind == EventKind.STARTED] == [job.id for job in jobs]


class Evil(BaseException):
    """Nothing that anybody expects."""


@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), Evil()], ids=repr
)
@pytest.mark.parametrize("colour", ["plain", "async"])
async def test_whatever_a_listener_raises_harms_nothing(
    shop: Shop, heard: Heard, caplog: pytest.LogCaptureFixture, error: BaseException, colour: str
) -> None:
    calls: list[EventKind] = []

    def plain(event: Event) -> None:
        calls.append(event.kind)
        raise error

    async def coroutine(event: Event) -> None:
        calls.append(event.kind)
        raise error

    @shop.app.task(name="t")
    async def t() -> None: ...

    shop.app.on_event(plain if colour == "plain" else coroutine)
    shop.app.on_event(heard)
    with caplog.at_level(logging.ERROR, "prinia.worker"):
        async with shop.app.worker() as worker:
            jobs = [await t.aenqueue() for _ in range(3)]
            await until(lambda: worker.stats.completed == 3)
    assert shop.state(jobs[2].id) is JobState.COMPLETED
    assert heard.kinds() == calls
    assert sorted(calls) == sorted([EventKind.STARTED, EventKind.COMPLETED] * 3 + [EventKind.STOPPED])
    told_of = sorted(str(record.args[1]) for record in caplog.records if isinstance(record.args, tuple))
    assert told_of == ["completed", "started", "stopped"]  # once each, however often


async def test_a_listener_that_cancels_its_own_task_is_told_on(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[EventKind] = []

    @shop.app.on_event
    async def suicidal(event: Event) -> None:
        seen.append(event.kind)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    @shop.app.task(name="t")
    async def t() -> None: ...

    async with shop.app.worker():
        await (await t.aenqueue()).aresult(timeout=10)
        await until(lambda: len(seen) == 2)
        await (await t.aenqueue()).aresult(timeout=10)
    assert seen == [EventKind.STARTED, EventKind.COMPLETED] * 2 + [EventKind.STOPPED]
    assert "told of started, raised" in caplog.text


async def test_a_listener_that_hangs_holds_up_nobody_but_itself(
    shop: Shop, heard: Heard, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "FAREWELL", 0.05)
    monkeypatch.setattr(listeners, "LONGEST_QUEUE", 3)
    cancelled: list[str] = []

    @shop.app.on_event
    async def hang(event: Event) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(event.kind)
            raise

    @shop.app.on_event
    async def well(event: Event) -> None:
        heard(event)

    @shop.app.task(name="t")
    async def t() -> None: ...

    async with asyncio.timeout(20), shop.app.worker() as worker:
        for _ in range(4):
            await (await t.aenqueue()).aresult(timeout=10)
        await until(lambda: len(heard.events) == 8)
    assert heard.kinds()[-1] is EventKind.STOPPED
    assert cancelled == ["started"]
    assert worker.stats.events_dropped == 8  # nine in all, and the first is what it hangs in
    assert "3 events wait for it: more are dropped" in caplog.text
    assert "did not end in time" in caplog.text


async def test_what_is_queued_is_told_before_the_worker_ends(shop: Shop) -> None:
    seen: list[EventKind] = []
    gate = asyncio.Event()

    @shop.app.on_event
    async def slow(event: Event) -> None:
        await gate.wait()
        seen.append(event.kind)

    @shop.app.task(name="t")
    async def t() -> None: ...

    worker = shop.app.worker()
    running = asyncio.create_task(worker.run())
    job = await t.aenqueue()
    await shop.until(JobState.COMPLETED, job.id)
    worker.stop()
    assert seen == []
    gate.set()
    await running
    assert seen == [EventKind.STARTED, EventKind.COMPLETED, EventKind.STOPPED]


async def test_a_listener_does_not_see_the_variables_of_jobs(shop: Shop) -> None:
    from tests.engine.test_run import TENANT

    seen: list[str] = []

    @shop.app.on_event
    def look(event: Event) -> None:
        seen.append(TENANT.get())
        TENANT.set("the listener's")

    @shop.app.task(name="t")
    async def t() -> str:
        before = TENANT.get()
        TENANT.set("a job's")
        return before

    async with shop.app.worker(concurrency=1):
        jobs = [await t.aenqueue() for _ in range(10)]
        assert {await job.aresult(timeout=10) for job in jobs} == {"nobody"}
    assert set(seen) == {"nobody"}


async def test_kinds_of_listeners(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    class Object:
        async def __call__(self, event: Event) -> None:
            seen.append("object")

        async def method(self, event: Event) -> None:
            seen.append("method")

    async def two(name: str, event: Event) -> None:
        seen.append(name)

    for listener in (Object(), Object().method, functools.partial(two, "partial")):
        shop.app.on_event(EventKind.STOPPED)(listener)
    shop.app.on_event(EventKind.STOPPED)(lambda event: two("lambda", event))

    @shop.app.task(name="t")
    async def t() -> None: ...

    async with shop.app.worker():
        pass
    assert sorted(seen) == ["method", "object", "partial"]
    assert "make it an 'async def'" in caplog.text
