"""Mail. What is sent is recorded with the order, so it needs `orders`, which needs it."""

from __future__ import annotations

from circular_imports import orders
from prinia import Tasks

tasks = Tasks()


@tasks.task(queue="mail")
async def send(order: int, text: str) -> int:
    print(f"mail: {text}")
    job = await orders.confirm.aenqueue(order)
    return job.id
