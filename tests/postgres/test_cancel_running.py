"""CANCEL from outside on PostgreSQL: the worker hears of it whether it listens or not, and between its other calls."""

from __future__ import annotations

import asyncio

import pytest

from prinia import JobCancelled, JobState, Prinia
from prinia.storage.postgres.connection import AsyncLine
from tests.engine.kit import until


@pytest.mark.parametrize("listen", [True, False])
async def test_running_jobs_are_cancelled(migrated: str, listen: bool) -> None:
    app = Prinia(migrated)

    @app.task(name="long")
    async def long() -> None:
        await asyncio.Event().wait()

    async with app, app.worker(listen=listen) as worker:
        jobs = [await long.aenqueue() for _ in range(3)]
        await until(lambda: worker.stats.running == 3)
        assert await jobs[1].acancel(by="Ada")
        with pytest.raises(JobCancelled, match="cancelled by Ada"):
            await jobs[1].aresult(timeout=20)
        await until(lambda: worker.stats.cancelled == 1)
        assert [(await job.ainfo()).state for job in jobs] == [JobState.RUNNING, JobState.CANCELLED, JobState.RUNNING]
        for job in jobs:
            await job.acancel()
        await until(lambda: worker.stats.cancelled == 3)


async def test_looking_disturbs_no_flush(migrated: str) -> None:
    """A look that is given up drops its own connection at most, never that of an ack that waits behind it."""
    line = AsyncLine(lambda: migrated, name="test", schema="prinia", settings={})
    await line.run(b"select 1")
    look = asyncio.create_task(line.run(b"select pg_sleep(60)"))
    await asyncio.sleep(0)
    flush = asyncio.create_task(line.run(b"select 'recorded'"))
    await until(lambda: line._running.locked())
    look.cancel()
    assert await asyncio.wait_for(flush, 20) == [("recorded",)]
    flush = asyncio.create_task(line.run(b"select 'recorded' from pg_sleep(0.05)"))
    await asyncio.sleep(0)
    look = asyncio.create_task(line.run(b"select 1"))
    await asyncio.sleep(0)
    look.cancel()
    assert await flush == [("recorded",)]
    assert line.session == 2
    await line.close()
