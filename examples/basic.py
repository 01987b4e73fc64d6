"""Ten reminders, enqueued as a stream of jobs that are due a second later, and one worker that sends them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from prinia import INJECTED, Context, NewJob, Prinia

app = Prinia()


@app.task(queue="reminders")
async def send_reminder(item: int, ctx: Context = INJECTED) -> str:
    return f"reminder {item} was sent by {ctx.worker.name}"


def reminders() -> Iterator[NewJob[str]]:
    in_a_second = send_reminder.options(delay=1, priority=2)
    for item in range(1, 11):
        yield in_a_second.job(item)


async def main() -> None:
    async with app:
        jobs = await app.aenqueue_many(reminders())
        print(f"{len(jobs)} jobs are enqueued")
        async with app.worker(name="worker-1"):
            for job in jobs:
                print(await job.aresult(timeout=30))


if __name__ == "__main__":
    app.migrate()
    asyncio.run(main())
