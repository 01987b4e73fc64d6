"""EVENTS: what is told of jobs and of the worker, with what belongs to it, and once each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from prinia import (
    INJECTED,
    Cancel,
    Context,
    Event,
    EventKind,
    Fail,
    Fixed,
    Snooze,
    StorageError,
    StorageUnavailable,
)
from prinia.job import JobState
from prinia.worker import Worker
from tests.engine.heard import OUTCOMES, Heard
from tests.engine.kit import AWAY, Shop, ghost_instance, until


@asynccontextmanager
async def told(shop: Shop, listener: Callable[[Event], object]) -> AsyncIterator[Worker]:
    async with shop.app.worker(on_event=listener) as worker:
        yield worker


async def test_each_way_to_end_is_told_with_what_belongs_to_it(shop: Shop, heard: Heard) -> None:
    @shop.app.task(name="end", max_attempts=2, retry=Fixed(0.01))
    async def end(how: str, ctx: Context = INJECTED) -> str:
        match how:
            case "fail":
                raise Fail("customer is gone")
            case "cancel":
                raise Cancel("withdrawn")
            case "retry":
                raise ValueError(f"attempt {ctx.attempt}")
            case "snooze" if not snoozed:
                snoozed.append(how)
                raise Snooze(0.02)
        return how

    snoozed: list[str] = []
    async with told(shop, heard) as worker:
        ids = {how: (await end.aenqueue(how)).id for how in ("well", "fail", "cancel", "retry", "snooze")}
        await until(lambda: len([kind for kind in heard.kinds() if kind in OUTCOMES]) == 7)
        instance = worker.instance.id
    kinds = {how: heard.kinds(id) for how, id in ids.items()}
    assert kinds == {
        "well": [EventKind.STARTED, EventKind.COMPLETED],
        "fail": [EventKind.STARTED, EventKind.FAILED],
        "cancel": [EventKind.STARTED, EventKind.CANCELLED],
        "retry": [EventKind.STARTED, EventKind.RETRYING, EventKind.STARTED, EventKind.FAILED],
        "snooze": [EventKind.STARTED, EventKind.SNOOZED, EventKind.STARTED, EventKind.COMPLETED],
    }
    by_job = {event.job.job_id: event for event in heard.events if event.job and event.kind in OUTCOMES}
    assert by_job[ids["cancel"]].reason == "withdrawn"
    failed = by_job[ids["retry"]]
    assert failed.job is not None
    assert failed.error is not None
    assert (failed.job.task, failed.job.attempt, failed.error.message) == ("end", 2, "attempt 2")
    retrying = heard.only(EventKind.RETRYING)
    assert retrying.error is not None
    assert (retrying.error.kind, retrying.delay) == ("ValueError", 0.01)
    assert heard.only(EventKind.SNOOZED).delay == 0.02
    assert {event.worker.instance for event in heard.events} == {instance}
    assert heard.kinds()[-1] is EventKind.STOPPED
    assert heard.only(EventKind.STOPPED).job is None


async def test_a_job_that_expired_before_its_start_is_told_as_cancelled(shop: Shop, heard: Heard) -> None:
    @shop.app.task(name="t")
    async def t() -> None: ...

    shop.faults.plan("before", "beat", *[AWAY] * 1000)  # so that it does not lead, and sweep the job away
    async with told(shop, heard):
        job = await t.options(expires=0.000001).aenqueue()
        await until(lambda: EventKind.CANCELLED in heard.kinds())
    assert heard.kinds(job.id) == [EventKind.CANCELLED]
    assert heard.only(EventKind.CANCELLED).reason == "expired"


async def test_an_outcome_is_told_once_it_is_recorded(shop: Shop) -> None:
    states: list[JobState] = []

    @shop.app.on_event(EventKind.COMPLETED)
    def look(event: Event) -> None:
        assert event.job is not None
        states.append(shop.state(event.job.job_id))

    @shop.app.task(name="t")
    async def t() -> None: ...

    async with shop.app.worker():
        await shop.app.aenqueue_many(t.job() for _ in range(50))
        await until(lambda: len(states) == 50)
    assert set(states) == {JobState.COMPLETED}


async def test_a_busy_row_an_outage_and_a_lost_reply_tell_nothing_twice(shop: Shop, heard: Heard) -> None:
    @shop.app.task(name="t")
    async def t() -> None: ...

    first = await t.aenqueue()
    shop.faults.busy[first.id] = 3
    shop.faults.plan("before", "ack", AWAY, StorageUnavailable("gone"))
    shop.faults.plan("after", "ack", AWAY)
    async with told(shop, heard) as worker:
        jobs = [first, *[await t.aenqueue() for _ in range(5)]]
        await until(lambda: worker.stats.completed == 6 and not worker.stats.unrecorded)
    for job in jobs:
        assert [kind for kind in heard.kinds(job.id) if kind in OUTCOMES] == [EventKind.COMPLETED]


async def test_a_lost_outcome_is_no_outcome(shop: Shop, heard: Heard) -> None:
    gate = asyncio.Event()

    @shop.app.task(name="t")
    async def t() -> None:
        await gate.wait()

    async with told(shop, heard) as worker:
        job = await t.aenqueue()
        await until(lambda: worker.stats.running == 1)
        with shop.storage.tables.lock:  # another has it by now
            shop.storage.tables.live[job.id].token = 77
        gate.set()
        await until(lambda: worker.stats.lost == 1)
    assert heard.kinds(job.id) == [EventKind.STARTED, EventKind.ERROR]
    assert "not this worker's" in str(heard.only(EventKind.ERROR).reason)


async def test_a_cancel_request_that_ended_a_retry_is_told_as_cancelled(shop: Shop, heard: Heard) -> None:
    gate = asyncio.Event()

    @shop.app.task(name="t")
    async def t() -> None:
        await gate.wait()
        raise ValueError("again")

    async with told(shop, heard) as worker:
        job = await t.aenqueue()
        await until(lambda: worker.stats.running == 1)
        with shop.storage.tables.lock:  # the worker does not hear of it in time
            shop.storage.tables.live[job.id].cancel_by = "Ada"
        gate.set()
        await until(lambda: worker.stats.cancelled == 1)
    assert heard.kinds(job.id) == [EventKind.STARTED, EventKind.CANCELLED]
    assert heard.only(EventKind.CANCELLED).error is None
    assert worker.stats.retried == 0


async def test_an_outage_is_told_once_for_each_part(shop: Shop, heard: Heard) -> None:
    @shop.app.task(name="t")
    async def t() -> None: ...

    shop.faults.plan("before", "claim", AWAY, AWAY, AWAY)
    async with told(shop, heard):
        job = await t.aenqueue()
        await shop.until(JobState.COMPLETED, job.id)
    error = heard.only(EventKind.ERROR)
    assert error.exception is AWAY
    assert error.reason == "it could not claim: connection refused"


async def test_a_refused_start_is_told(shop: Shop, heard: Heard) -> None:
    @shop.app.task(name="t")
    async def t() -> None: ...

    shop.faults.plan("before", "open", StorageError("no such table"))
    with pytest.raises(StorageError):
        await shop.app.worker(on_event=heard).run()
    assert heard.kinds() == [EventKind.ERROR, EventKind.STOPPED]


async def test_a_worker_that_was_stopped_before_it_began_says_that_it_has_stopped(shop: Shop, heard: Heard) -> None:
    @shop.app.task(name="t")
    async def t() -> None: ...

    worker = shop.app.worker(on_event=heard)
    for times in (1, 2):
        worker.stop()
        await asyncio.wait_for(worker.run(), 20)
        assert heard.kinds() == [EventKind.STOPPED] * times
        assert heard.events[-1].worker.instance == worker.instance.id
        assert heard.events[-1].worker.name == worker.name


async def test_an_unknown_task_is_told(shop: Shop, heard: Heard) -> None:
    @shop.app.task(name="t")
    async def t() -> None: ...

    async with told(shop, heard):
        [pushed] = await shop.storage.apush([t.job().spec.__class__(task="from.the.future", args=b"{}")])
        await until(lambda: EventKind.ERROR in heard.kinds())
    event = heard.only(EventKind.ERROR)
    assert event.job is not None
    assert event.job.job_id == pushed.id
    assert "from.the.future" in str(event.reason)


async def test_a_rescue_is_told_in_the_loop(shop: Shop, heard: Heard) -> None:
    threads: set[int] = set()

    @shop.app.task(name="t")
    async def t() -> None: ...

    def listen(event: Event) -> None:
        threads.add(threading.get_ident())
        heard(event)

    await shop.app.aenqueue_many(t.job() for _ in range(3))
    dead = ghost_instance()
    consumer = shop.storage.consumer(dead)
    await consumer.open()
    assert len((await consumer.claim(10, token=1)).jobs) == 3
    async with told(shop, listen) as worker:
        shop.storage.tables.register[dead.id].dead = True
        await until(lambda: EventKind.RESCUED in heard.kinds())
        await until(lambda: worker.stats.completed == 3)
    event = heard.only(EventKind.RESCUED)
    assert (event.count, event.instance, event.worker.instance) == (3, dead.id, worker.instance.id)
    assert threads == {threading.get_ident()}


async def test_jobs_that_came_back_from_no_owner_are_told_as_rescued(shop: Shop, heard: Heard) -> None:
    @shop.app.task(name="t")
    async def t() -> None: ...

    await shop.app.aenqueue_many(t.job() for _ in range(3))
    gone = ghost_instance()
    consumer = shop.storage.consumer(gone)
    await consumer.open()
    assert len((await consumer.claim(10, token=1)).jobs) == 3
    del shop.storage.tables.register[gone.id]
    async with told(shop, heard) as worker:
        await until(lambda: worker.stats.completed == 3)
    event = heard.only(EventKind.RESCUED)
    assert (event.count, event.instance, event.worker.instance) == (3, None, worker.instance.id)


async def test_being_declared_dead_is_told(shop: Shop, heard: Heard) -> None:
    @shop.app.task(name="t")
    async def t() -> None: ...

    async with shop.worker(on_event=heard, heartbeat=0.05, dead_after=0.2) as worker:
        first = worker.instance.id
        shop.kill_now(worker)
        await until(lambda: worker.instance.id != first)
    event = heard.only(EventKind.ERROR)
    assert "declared dead" in str(event.reason)
    assert event.worker.instance == first
    assert heard.only(EventKind.STOPPED).worker.instance == worker.instance.id
