"""A task with long arguments, which a codec of the application's own compresses."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

from compressed import CompressedJson

from prinia import Prinia

app = Prinia(codec=CompressedJson())


@dataclass
class Line:
    sold_at: datetime
    cents: int


@app.task(queue="reports")
async def total(lines: list[Line]) -> int:
    return sum(line.cents for line in lines if line.sold_at.year == 2030)


async def main() -> None:
    lines = [Line(datetime(2030, 1, 1 + day % 28, tzinfo=UTC), 10) for day in range(1000)]
    async with app, app.worker():
        job = await total.aenqueue(lines)
        print(f"{await job.aresult(timeout=30)} cents")
        record = await job.ainfo()
        print(f"codec {record.codec}, the result is {len(record.result or b'')} bytes")


if __name__ == "__main__":
    app.migrate()
    asyncio.run(main())
