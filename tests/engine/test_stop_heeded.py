"""A handler that heeds ``ctx.stopping``, as one in a thread has to: ``Snooze(0)`` ends it without a mark."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from prinia import INJECTED, Context, Job, Prinia, Snooze
from prinia.job import JobState
from prinia.worker import Worker
from tests.engine.kit import Shop, until


class Heeds:
    """A task that goes on until it is to stop, and its running job."""

    def __init__(self, app: Prinia, *, threaded: bool, end: Callable[[], BaseException]) -> None:
        self.begun = begun = threading.Event()

        if threaded:

            @app.task(name="export")
            def export(ctx: Context = INJECTED) -> None:
                begun.set()
                while not ctx.stopping:
                    time.sleep(0.001)
                raise end()
        else:

            @app.task(name="export")
            async def export(ctx: Context = INJECTED) -> None:
                begun.set()
                while not ctx.stopping:
                    await asyncio.sleep(0.001)
                raise end()

        self.export = export

    @asynccontextmanager
    async def running(self, worker: Worker, **options: float) -> AsyncIterator[Job[None]]:
        """The worker runs the job, which has begun; at the end both have ended."""
        job = await self.export.options(**options).aenqueue()  # type: ignore[arg-type]
        running = asyncio.ensure_future(worker.run())
        await until(self.begun.is_set)
        yield job
        await asyncio.wait_for(running, 20)


@pytest.mark.parametrize("threaded", [True, False])
async def test_at_a_stop_the_job_goes_back_uncounted(shop: Shop, threaded: bool) -> None:
    heeds = Heeds(shop.app, threaded=threaded, end=lambda: Snooze(0))
    worker = shop.worker(stop_timeout=3600)
    async with heeds.running(worker) as job:
        worker.stop()
    record = shop.record(job.id)
    assert (record.state, record.attempt, record.errors) == (JobState.READY, 0, ())


async def test_another_worker_takes_it_at_once(migrated: str) -> None:
    app = Prinia(migrated)
    heeds = Heeds(app, threaded=True, end=lambda: Snooze(0))
    async with app:
        worker, other = app.worker(), app.worker()
        async with heeds.running(worker, max_attempts=1) as job:
            worker.stop()
        heeds.begun.clear()
        rerunning = asyncio.ensure_future(other.run())
        await until(heeds.begun.is_set)
        other.stop()
        await rerunning
        record = await job.ainfo()
    assert (record.state, record.attempt, record.errors) == (JobState.READY, 0, ())


async def test_another_exception_is_a_failed_attempt(shop: Shop) -> None:
    heeds = Heeds(shop.app, threaded=True, end=lambda: InterruptedError("stopping"))
    worker = shop.worker(stop_timeout=3600)
    async with heeds.running(worker) as job:
        worker.stop()
    assert [error.kind for error in shop.record(job.id).errors] == ["InterruptedError"]


@pytest.mark.parametrize("threaded", [True, False])
async def test_past_its_time_limit_it_has_timed_out_all_the_same(shop: Shop, threaded: bool) -> None:
    heeds = Heeds(shop.app, threaded=threaded, end=lambda: Snooze(0))
    worker = shop.worker()
    async with heeds.running(worker, timeout=0.01, max_attempts=1) as job:
        await shop.until(JobState.FAILED, job.id)
        worker.stop()
    assert shop.record(job.id).errors[0].kind == "Timeout"


@pytest.mark.parametrize("threaded", [True, False])
async def test_of_a_cancelled_job_the_cancellation_counts(shop: Shop, threaded: bool) -> None:
    heeds = Heeds(shop.app, threaded=threaded, end=lambda: Snooze(0))
    worker = shop.worker()
    async with heeds.running(worker) as job:
        await job.acancel()
        await shop.until(JobState.CANCELLED, job.id)
        worker.stop()
