"""A worker that listens for notifications, with a slow poll as a net below.

Twenty jobs, encoded already, are enqueued inside a transaction. None of them starts before the commit; then they start
at once, however slow the poll, the highest priority first. The last one stops the worker.
"""

from __future__ import annotations

import argparse
import asyncio

import msgspec
import psycopg

from prinia import INJECTED, Context, Prinia

app = Prinia()


@app.task(queue="my-queue")
async def send_reminder(item: int, ctx: Context = INJECTED) -> None:
    print(f"started {item}", flush=True)
    if item == 1:
        ctx.worker.stop()


async def enqueue_later() -> None:
    await asyncio.sleep(2)
    async with await psycopg.AsyncConnection.connect(app.dsn) as connection, connection.transaction():
        await app.within(connection).aenqueue_many(
            send_reminder.options(priority=item).job_encoded(msgspec.json.encode({"item": item}))
            for item in range(1, 21)
        )
        await asyncio.sleep(0.5)
        print("committing", flush=True)


async def main(poll: float) -> None:
    worker = app.worker(queues=["my-queue"], name="worker-2", claim_batch=5, poll=poll)
    async with app:
        await asyncio.gather(worker.run(), enqueue_later())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--poll", type=float, default=5, help="seconds; notifications wake the worker all the same")
    app.migrate()
    asyncio.run(main(parser.parse_args().poll))
