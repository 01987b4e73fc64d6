"""Orders. Each is confirmed by mail, so it needs `mail`, which needs it."""

from __future__ import annotations

from circular_imports import mail
from prinia import Tasks

tasks = Tasks()


@tasks.task(queue="orders")
async def place(order: int) -> int:
    print(f"orders: {order} is placed")
    job = await mail.send.options(tags=[f"order:{order}"]).aenqueue(order, f"thank you for order {order}")
    return job.id


@tasks.task(queue="orders")
async def confirm(order: int) -> str:
    return f"orders: {order} is confirmed"
