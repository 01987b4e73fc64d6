"""Waiting for jobs: for one, for many as they end, for all, and only for so long."""

from __future__ import annotations

import asyncio
import logging

from prinia import JobFailed, Prinia, ResultTimeout

app = Prinia()


@app.task
async def cook(dish: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    return f"{dish} is served"


@app.task(max_attempts=1)
async def burn(dish: str) -> str:
    raise ValueError(f"the {dish} burnt")


async def main() -> None:
    logging.getLogger("prinia").setLevel(logging.ERROR)  # one failure is meant to be
    async with app, app.worker():
        soup = await cook.aenqueue("soup", 0.1)
        print(await soup.aresult(timeout=30))

        slow, fast = await cook.aenqueue("roast", 2.0), await cook.aenqueue("salad", 0.2)
        async for done in app.wait([slow, fast], timeout=30):  # as they end
            print(done.result())

        jobs = await app.aenqueue_many(cook.job(f"egg {number}", 0.0) for number in range(1000))
        print(f"{len(await app.wait(jobs, timeout=60).aresults())} eggs")  # all, in the order of the jobs

        try:
            await (await burn.aenqueue("pie")).aresult(timeout=30)
        except JobFailed as error:
            print(error)

        stew = await cook.aenqueue("stew", 600)
        try:
            await stew.aresult(timeout=0.5)
        except ResultTimeout as error:
            print(error)
            await stew.acancel(by="a hungry guest")


if __name__ == "__main__":
    app.migrate()
    asyncio.run(main())
