"""CANCEL from outside, of jobs that this worker has: running in the loop or in a thread, or waiting for their turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest

from prinia import INJECTED, Cancel, Context, Fail, Fixed, JobCancelled, Retry, Snooze, StorageError
from prinia.changes import SOMEBODY
from prinia.job import JobState
from prinia.worker import run as run_module
from tests.engine.kit import AWAY, Shop, until


async def test_a_running_job_is_cancelled(shop: Shop) -> None:
    seen: list[bool] = []

    @shop.app.task(name="long")
    async def long(ctx: Context = INJECTED) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(ctx.cancel_requested and ctx.stopping)
            raise

    told: list[str | None] = []
    async with shop.worker(on_event=lambda event: told.append(event.reason)) as worker:
        job = await long.aenqueue()
        await until(lambda: worker.stats.running == 1)
        assert await job.acancel(by="Ada")
        assert not await job.acancel(by="Bob")
        with pytest.raises(JobCancelled, match="cancelled by Ada"):
            await job.aresult(timeout=10)
        await until(lambda: worker.stats.cancelled == 1)
    record = shop.record(job.id)
    assert (record.reason, record.attempt, record.errors) == ("cancelled by Ada", 1, ())
    assert seen == [True]
    assert told == [None, "cancelled by Ada", None]  # of its start, its end, and the worker's


async def test_a_waiting_job_ends_at_once(shop: Shop) -> None:
    @shop.app.task(name="t")
    async def t() -> None: ...

    job = await t.options(delay=600).aenqueue()
    assert await job.acancel()
    assert not await job.acancel()
    assert shop.record(job.id).reason == f"cancelled by {SOMEBODY}"
    other = await t.aenqueue()
    assert await asyncio.to_thread(other.cancel, by="a thread")
    assert shop.record(other.id).reason == "cancelled by a thread"


async def test_who_cancels_must_be_a_text(shop: Shop) -> None:
    @shop.app.task(name="t")
    async def t() -> None: ...

    job = await t.aenqueue()
    for wrong in ("", 7, None):
        with pytest.raises(TypeError, match="who cancels"):
            await job.acancel(by=wrong)  # type: ignore[arg-type]
    assert shop.state(job.id) is JobState.READY


def _raises(error: Exception) -> Callable[[], object]:
    def ends() -> object:
        raise error

    return ends


@pytest.mark.parametrize(
    ("ends", "attempts", "state", "reason"),
    [
        (lambda: "in time", 2, JobState.COMPLETED, None),
        (_raises(Fail("gave up")), 2, JobState.FAILED, None),
        (_raises(Cancel("by myself")), 2, JobState.CANCELLED, "by myself"),
        (_raises(Snooze(1)), 2, JobState.CANCELLED, "cancelled by Ada"),
        (_raises(Retry()), 2, JobState.CANCELLED, "cancelled by Ada"),
        (_raises(ValueError("cleaning up went wrong")), 1, JobState.CANCELLED, "cancelled by Ada"),
    ],
    ids=["returns", "fails", "cancels", "snoozes", "retries", "raises"],
)
async def test_what_a_cancelled_handler_says_at_its_end(
    shop: Shop, ends: Callable[[], object], attempts: int, state: JobState, reason: str | None
) -> None:
    @shop.app.task(name="long", max_attempts=attempts)
    async def long() -> object:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return ends()

    async with shop.worker() as worker:
        job = await long.aenqueue()
        await until(lambda: worker.stats.running == 1)
        await job.acancel(by="Ada")
        await shop.until(state, job.id)
        await until(lambda: not worker.stats.unrecorded)
        stats = worker.stats
    assert shop.record(job.id).reason == reason
    assert (stats.completed, stats.failed, stats.cancelled) == tuple(
        int(state is one) for one in (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
    )


async def test_a_handler_that_ignores_it_is_asked_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run_module, "CLEANUP", 0.05)
    asked = 0

    @shop.app.task(name="stubborn", timeout=600)
    async def stubborn() -> None:
        nonlocal asked
        while asked < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                asked += 1
        await asyncio.Event().wait()

    async with shop.worker() as worker:
        job = await stubborn.aenqueue()
        await until(lambda: worker.stats.running == 1)
        await job.acancel(by="Ada")
        await shop.until(JobState.CANCELLED, job.id)
    assert asked == 3
    assert "was cancelled and ignores cancellation" in caplog.text


async def test_a_thread_is_asked_and_goes_on_until_it_ends(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    asked, go = threading.Event(), threading.Event()

    @shop.app.task(name="dig")
    def dig(well: bool, ctx: Context = INJECTED) -> str:
        while not (ctx.cancel_requested and ctx.stopping):
            go.wait(0.01)
        asked.set()
        go.wait(20)
        if not well:
            raise InterruptedError
        return "dug"

    async with shop.worker() as worker:
        for well, state in ((True, JobState.COMPLETED), (False, JobState.CANCELLED)):
            asked.clear()
            go.clear()
            job = await dig.aenqueue(well)
            await until(lambda: worker.stats.running == 1)
            await job.acancel(by="Ada")
            await until(asked.is_set)
            assert shop.state(job.id) is JobState.RUNNING
            go.set()
            await shop.until(state, job.id)
    assert "a thread can only be asked to end" in caplog.text


async def test_a_job_that_waits_for_its_turn_never_starts(shop: Shop) -> None:
    started: list[str] = []
    gate, go = asyncio.Event(), threading.Event()

    @shop.app.task(name="in_loop")
    async def in_loop(name: str) -> None:
        started.append(name)
        await gate.wait()

    @shop.app.task(name="in_thread")
    def in_thread(name: str) -> None:
        started.append(name)
        go.wait(20)

    # Of the first two one runs and one waits for a thread; claims look for no more than there are slots.
    async with shop.worker(concurrency=3, threads=1) as worker:
        first, parked = await in_thread.aenqueue("thread"), await in_thread.aenqueue("parked")
        await until(lambda: worker.stats.waiting == 1)
        assert await parked.acancel(by="Ada")
        await shop.until(JobState.CANCELLED, parked.id)
        await until(lambda: worker.stats.cancelled == 1)
        go.set()
        gate.set()
        await shop.until(JobState.COMPLETED, first.id)
    assert started == ["thread"]
    assert shop.record(parked.id).reason == "cancelled by Ada"


async def test_the_jobs_of_others_go_on(shop: Shop) -> None:
    gate = asyncio.Event()

    @shop.app.task(name="wait")
    async def wait() -> None:
        await gate.wait()

    async with shop.worker() as one, shop.worker() as two:
        jobs = [await wait.aenqueue() for _ in range(6)]
        await until(lambda: one.stats.running + two.stats.running == 6)
        await jobs[2].acancel()
        await shop.until(JobState.CANCELLED, jobs[2].id)
        gate.set()
        await shop.until(JobState.COMPLETED, *(job.id for job in jobs if job is not jobs[2]))
        await until(lambda: one.stats.cancelled + two.stats.cancelled == 1)


async def test_it_is_cancelled_while_the_worker_stops(shop: Shop) -> None:
    @shop.app.task(name="long")
    async def long() -> None:
        await asyncio.Event().wait()

    worker = shop.worker(stop_timeout=60)
    running = asyncio.create_task(worker.run())
    job = await long.aenqueue()
    await until(lambda: worker.stats.running == 1)
    worker.stop()
    await job.acancel(by="Ada")
    await asyncio.wait_for(running, 20)
    assert shop.record(job.id).reason == "cancelled by Ada"


async def test_looking_survives_an_outage_and_costs_nothing_when_idle(shop: Shop) -> None:
    looks = 0
    gate = asyncio.Event()
    errors = [AWAY, StorageError("refused")]

    @shop.app.task(name="wait", retry=Fixed(0))
    async def wait() -> None:
        await gate.wait()

    async with shop.worker() as worker:
        consumer = worker._life._consumer  # type: ignore[union-attr]
        inner = consumer.cancel_requests

        async def cancel_requests() -> object:
            nonlocal looks
            looks += 1
            if errors:
                raise errors.pop(0)
            return await inner()

        consumer.cancel_requests = cancel_requests  # type: ignore[method-assign]
        await worker._life._orders.look()  # type: ignore[union-attr]
        assert looks == 0
        job = await wait.aenqueue()
        await until(lambda: worker.stats.running == 1)
        await job.acancel(by="Ada")
        await shop.until(JobState.CANCELLED, job.id)
    assert looks == 3
