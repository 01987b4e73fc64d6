"""Jobs whose effects are counted in a side table, for workers that are killed."""

from __future__ import annotations

import asyncio
import os
import signal

import psycopg

from prinia import INJECTED, Context, Prinia

app = Prinia()

_effects: dict[asyncio.AbstractEventLoop, psycopg.AsyncConnection[object]] = {}


async def effect(job_id: int) -> None:
    """Leave a trace that survives this process."""
    loop = asyncio.get_running_loop()
    if loop not in _effects:
        _effects[loop] = await psycopg.AsyncConnection.connect(app.dsn, autocommit=True)
    await _effects[loop].execute("insert into effects (job_id) values (%s)", (job_id,))


@app.task(name="quick", max_attempts=1)
async def quick() -> None:
    """Nothing: with such jobs a worker learns to claim ahead."""


@app.task(name="hold", max_attempts=1)
async def hold(ctx: Context = INJECTED) -> None:
    """In a worker that is to be killed, never end."""
    await effect(ctx.job_id)
    if os.environ.get("HOLD"):
        await asyncio.sleep(3600)


@app.task(name="poison", max_attempts=1)
async def poison() -> None:
    """Kill the worker, once the innocents beside it have started."""
    await asyncio.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="innocent", max_attempts=1)
async def innocent(ctx: Context = INJECTED) -> None:
    """Take long enough to be hit."""
    await asyncio.sleep(0.3)
    await effect(ctx.job_id)
