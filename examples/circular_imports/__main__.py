"""An order, from its placing to its confirmation: three jobs, each enqueued by the one before."""

from __future__ import annotations

import asyncio

from circular_imports import mail, orders
from circular_imports.app import app


async def main() -> None:
    async with app, app.worker():
        placed = await orders.place.aenqueue(7)
        sent = mail.send.get_job(await placed.aresult(timeout=30))
        confirmed = orders.confirm.get_job(await sent.aresult(timeout=30))
        print(await confirmed.aresult(timeout=30))


if __name__ == "__main__":
    app.migrate()
    asyncio.run(main())
