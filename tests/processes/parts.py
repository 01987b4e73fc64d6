"""A task that knows nothing of the app that includes it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from prinia import Tasks

tasks = Tasks()


@dataclass(frozen=True)
class Order:
    id: int
    cents: Decimal


@tasks.task(process=True)
def total(orders: list[Order]) -> Order:
    return Order(0, sum((order.cents for order in orders), Decimal(0)))
