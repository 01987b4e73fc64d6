"""A queue with jobs in many states, for commands to look at."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from prinia import Fixed, Job, MessagePackCodec, Prinia


@dataclass
class Stock:
    """Jobs by what became of them."""

    app: Prinia
    completed: Job[Any]
    failed: Job[Any]
    cancelled: Job[Any]
    retrying: Job[Any]
    packed: Job[Any]
    scheduled: Job[Any]
    ready: Job[Any]

    @property
    def ids(self) -> list[int]:
        """All of them, newest first."""
        jobs = vars(self).values()
        return sorted((job.id for job in jobs if isinstance(job, Job)), reverse=True)


def make_stock(dsn: str) -> Stock:
    """One job in each state that a stopped worker leaves behind."""
    app = Prinia(dsn)

    @app.task(name="send", queue="email")
    async def send(to: str) -> dict[str, str]:
        if to == "nobody":
            raise ValueError("no such\x1b[31m address")
        return {"to": to}

    @app.task(name="pack", queue="bulk", codec=MessagePackCodec())
    async def pack(secret: str) -> None: ...

    completed = send.options(tags=["vip", "trial"]).enqueue("ada")
    failed = send.options(max_attempts=1, meta={"tenant": "acme"}).enqueue("nobody")
    retrying = send.options(retry=Fixed(3600)).enqueue("nobody")
    packed = pack.enqueue("swordfish")
    cancelled = send.enqueue("bob")
    cancelled.cancel(by="ada")
    asyncio.run(app.worker(name="till empty", until_empty=True).run())
    scheduled = send.options(delay=3600, priority=5).enqueue("eve")
    ready = send.enqueue("joe")
    return Stock(app, completed, failed, cancelled, retrying, packed, scheduled, ready)
