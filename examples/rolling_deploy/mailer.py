"""The app: e-mails of a fifth of a second, and a newsletter that takes long. Each delivery leaves a row of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg

from prinia import INJECTED, Context, Prinia

app = Prinia()

DELIVERIES = """
drop table if exists rolling_deploy_deliveries;
create table rolling_deploy_deliveries (
    id bigint generated always as identity primary key,
    job bigint not null,
    task text not null,
    process integer not null,
    started_at timestamptz not null default clock_timestamp(),
    finished_at timestamptz
)
"""


@asynccontextmanager
async def delivery(ctx: Context) -> AsyncIterator[None]:
    """A row that says who began to deliver and when, and whether it came to an end."""
    async with await psycopg.AsyncConnection.connect(app.dsn, autocommit=True) as connection:
        begin = "insert into rolling_deploy_deliveries (job, task, process) values (%s, %s, %s) returning id"
        row = await (await connection.execute(begin, (ctx.job_id, ctx.task, os.getpid()))).fetchone()
        yield
        end = "update rolling_deploy_deliveries set finished_at = clock_timestamp() where id = %s"
        await connection.execute(end, row)


@app.task(queue="email")
async def send_email(to: str, ctx: Context = INJECTED) -> None:
    async with delivery(ctx):
        await asyncio.sleep(0.2)


@app.task(queue="email", priority=10)
async def send_newsletter(seconds: float, ctx: Context = INJECTED) -> None:
    async with delivery(ctx):
        await asyncio.sleep(seconds)
