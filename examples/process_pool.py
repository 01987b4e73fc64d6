"""Work on the processor, in processes of its own: one is set up once, one is too slow and killed, one dies."""

from __future__ import annotations

import asyncio
import logging
import os
import signal

from prinia import JobFailed, Prinia

app = Prinia()

primes: list[int] = []


@app.on_process_start
def find_primes() -> None:
    """Once in each process, before its first job."""
    for number in range(2, 1000):
        if all(number % prime for prime in primes):
            primes.append(number)


@app.task(process=True, memory_limit=256)
def factors(number: int) -> list[int]:
    found = []
    for prime in primes:
        while number % prime == 0:
            found.append(prime)
            number //= prime
    return found


@app.task(process=True, timeout=1, max_attempts=1)
def never_ends() -> None:
    while True:
        pass


@app.task(process=True, max_attempts=1)
def crashes() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


async def main() -> None:
    logging.getLogger("prinia").setLevel(logging.ERROR)  # two failures are meant to be
    async with app, app.worker(pool=2):
        jobs = [await factors.aenqueue(number) for number in (360, 997, 123456)]
        for job in jobs:
            print(await job.aresult(timeout=60))
        for failing in (never_ends, crashes):
            try:
                await (await failing.aenqueue()).aresult(timeout=60)
            except JobFailed as error:
                print(f"{failing.name}: {error}")


if __name__ == "__main__":
    app.migrate()
    asyncio.run(main())
