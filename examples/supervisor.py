"""Two workers under one supervisor. One of them fails twice at its start, and is started anew; SIGTERM stops both."""

from __future__ import annotations

import asyncio
import sys

from prinia import INJECTED, Context, Event, EventKind, Prinia, WorkerContext
from prinia.supervisor import Supervisor
from prinia.worker import Worker

app = Prinia()


@app.task(queue="mail")
async def send(order: int, ctx: Context = INJECTED) -> str:
    return f"order {order} was sent by {ctx.worker.name}, run {ctx.worker.run}"


@app.on_start
def connect(worker: WorkerContext) -> None:
    if worker.name == "shaky" and worker.run < 2:
        raise ConnectionError("no route to the mail server")


def tell(event: Event) -> None:
    if event.kind is EventKind.ERROR:
        print(f"{event.worker.name}, run {event.worker.run}, has failed", flush=True)
    elif event.kind is EventKind.STOPPED and event.worker.name == "steady":
        print("steady has stopped", flush=True)


supervisor = Supervisor(on_event=tell, stop_timeout=10, restart_delay=0.2)


@supervisor.register
def shaky(run: int) -> Worker:
    return app.worker(name="shaky", queues=["mail"])


@supervisor.register
def steady(run: int) -> Worker:
    return app.worker(name="steady", queues=["other"])


async def main() -> int:
    async with app:
        job = await send.aenqueue(9)
        running = asyncio.ensure_future(supervisor.run())  # handles SIGTERM and SIGINT itself
        print(await job.aresult(timeout=30), flush=True)
        return await running


if __name__ == "__main__":
    app.migrate()
    sys.exit(asyncio.run(main()))
