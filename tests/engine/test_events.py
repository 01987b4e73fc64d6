"""EVENTS: what listeners are told, in which order, once each; and that none of them harms anything."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from prinia import (
    INJECTED,
    AttemptError,
    Cancel,
    ConfigurationError,
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
from prinia.worker import Worker, listeners
from tests.engine.kit import AWAY, Shop, ghost_instance, until

OUTCOMES = (
    EventKind.COMPLETED,
    EventKind.FAILED,
    EventKind.RETRYING,
    EventKind.SNOOZED,
    EventKind.CANCELLED,
)


class Heard:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def kinds(self, job: int | None = None) -> list[EventKind]:
        """What it was told, of one job or of all."""
        return [event.kind for event in self.events if job is None or (event.job and event.job.job_id == job)]

    def only(self, kind: EventKind) -> Event:
        """The one event of this kind."""
        [event] = [event for event in self.events if event.kind is kind]
        return event


@pytest.fixture
def heard() -> Heard:
    return Heard()


def worker_of(shop: Shop, **options: Any) -> Worker:
    return shop.app.worker(**options)


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

    async with worker_of(shop):
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


async def test_only_the_kinds_asked_for(shop: Shop) -> None:
    seen: list[EventKind] = []

    @shop.app.on_event(EventKind.STARTED, EventKind.STOPPED)
    async def some(event: Event) -> None:
        seen.append(event.kind)

    @shop.app.task(name="t")
    async def t() -> None: ...

    async with worker_of(shop) as worker:
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

    async with worker_of(shop, concurrency=1):
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
        async with worker_of(shop) as worker:
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

    async with worker_of(shop):
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

    async with asyncio.timeout(20), worker_of(shop) as worker:
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

    worker = worker_of(shop)
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

    async with worker_of(shop, concurrency=1):
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

    async with worker_of(shop):
        pass
    assert sorted(seen) == ["method", "object", "partial"]
    assert "make it an 'async def'" in caplog.text


def test_what_is_no_listener_is_refused(shop: Shop) -> None:
    for wrong in (3, None, "completed"):
        with pytest.raises(ConfigurationError, match="must be a function"):
            shop.app.on_event(wrong)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match=r"'failed' is no kind of event; there are: EventKind.STARTED"):
        shop.app.on_event(EventKind.STARTED, "failed")(print)  # type: ignore[call-overload]

    @shop.app.task(name="t")
    async def t() -> None: ...

    with pytest.raises(ConfigurationError, match="must be a function"):
        shop.app.worker(on_event=7)  # type: ignore[arg-type]


async def test_a_handler_stops_its_worker(shop: Shop) -> None:
    @shop.app.task(name="stop")
    async def stop(ctx: Context = INJECTED) -> str:
        ctx.worker.stop()
        ctx.worker.stop()  # no hurry: the handler still has its word
        await asyncio.sleep(0.05)
        return "done"

    job = await stop.aenqueue()
    await asyncio.wait_for(worker_of(shop).run(), 20)
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
    await asyncio.wait_for(worker_of(shop).run(), 20)
    assert shop.record(job.id).result == b"true"


async def test_a_listener_stops_the_worker(shop: Shop) -> None:
    @shop.app.on_event(EventKind.FAILED)
    async def stop(event: Event) -> None:
        event.worker.stop()

    @shop.app.task(name="bad", max_attempts=1)
    async def bad() -> None:
        raise ValueError

    job = await bad.aenqueue()
    await asyncio.wait_for(worker_of(shop).run(), 20)
    assert shop.state(job.id) is JobState.FAILED


async def test_a_detached_context_stops_nothing() -> None:
    Context().worker.stop()


async def test_on_success_gets_the_result_and_on_failure_the_error(shop: Shop) -> None:
    calls: list[tuple[Any, ...]] = []

    def succeeded(ctx: Context, result: list[int]) -> None:
        calls.append(("success", ctx.job_id, shop.state(ctx.job_id), result))

    async def failed(ctx: Context, error: AttemptError) -> None:
        calls.append(("failure", ctx.job_id, shop.state(ctx.job_id), error.message, ctx.attempt))

    @shop.app.task(name="t", aliases=["old"], max_attempts=2, retry=Fixed(0), on_success=succeeded, on_failure=failed)
    async def t(well: bool) -> tuple[int, ...]:
        if not well:
            raise ValueError("no")
        return (1, 2)

    async with worker_of(shop) as worker:
        well, bad = await t.aenqueue(True), await t.aenqueue(False)
        await until(lambda: worker.stats.completed + worker.stats.failed == 2)
        [old] = await shop.storage.apush([t.job(True).spec.__class__(task="old", args=b'{"well":true}')])
        await until(lambda: len(calls) == 3)
    assert sorted(calls, key=lambda call: int(call[1])) == [
        ("success", well.id, JobState.COMPLETED, (1, 2)),
        ("failure", bad.id, JobState.FAILED, "no", 2),
        ("success", old.id, JobState.COMPLETED, (1, 2)),
    ]


async def test_no_callback_where_a_job_ended_otherwise(shop: Shop) -> None:
    calls: list[object] = []

    def note(ctx: Context, what: object) -> None:
        calls.append(what)

    @shop.app.task(name="t", on_success=note, on_failure=note)
    async def t() -> None:
        raise Cancel

    async with worker_of(shop):
        await shop.until(JobState.CANCELLED, (await t.aenqueue()).id)
    assert calls == []


async def test_callbacks_harm_no_job(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    async def bad(ctx: Context, result: object) -> None:
        raise SystemExit(1)

    @shop.app.task(name="t", on_success=bad)
    async def t() -> int:
        return 1

    @shop.app.task(name="liar", on_success=bad)
    async def liar() -> int:
        return "one"  # type: ignore[return-value]

    async with worker_of(shop) as worker:
        await t.aenqueue()
        await liar.aenqueue()
        await until(lambda: worker.stats.completed == 2)
    assert "told of the success of task t, raised" in caplog.text
    assert "on_success is not called: the result cannot be read back" in caplog.text


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
async def test_a_result_that_raises_anything_when_it_is_read_back_ends_no_worker(
    shop: Shop, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    class Shell(msgspec.Struct):
        armed: bool = False

        def __post_init__(self) -> None:
            if self.armed:
                raise error

    @shop.app.task(name="t", on_success=lambda ctx, result: None)
    async def t() -> Shell:
        shell = Shell()
        shell.armed = True
        return shell

    async with worker_of(shop) as worker:
        await t.aenqueue()
        await until(lambda: "the result cannot be read back" in caplog.text)
        await t.aenqueue()
        await until(lambda: worker.stats.completed == 2)
