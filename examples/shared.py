"""Two workers of one app: two queues with different arguments, woken over one shared LISTEN connection.

Each handler stops its own worker; when both have ended, so does the program.
"""

from __future__ import annotations

import asyncio

from prinia import INJECTED, Context, Prinia

app = Prinia()


@app.task(queue="maps")
async def remind_map(settings: dict[str, str], ctx: Context = INJECTED) -> None:
    await asyncio.sleep(2)
    print(f"{ctx.worker.name} got a dict: {settings}", flush=True)
    ctx.worker.stop()


@app.task(queue="numbers")
async def remind_number(number: int, ctx: Context = INJECTED) -> None:
    await asyncio.sleep(2)
    print(f"{ctx.worker.name} got a number: {number}", flush=True)
    ctx.worker.stop()


async def main() -> None:
    async with app:
        await app.aenqueue_many([remind_map.job({})])
        await remind_number.aenqueue(99)
        await asyncio.gather(
            app.worker(queues=["numbers"], name="rango-tango-2").run(),
            app.worker(queues=["maps"], name="rango-tango-1").run(),
        )
    print("both workers have stopped", flush=True)


if __name__ == "__main__":
    app.migrate()
    asyncio.run(main())
