"""Waiting for the first of several things, with a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


async def first(*things: Awaitable[Any], seconds: float | None = None) -> None:
    """Return when one of them is done or ``seconds`` have passed.

    Coroutines that are not done are cancelled; tasks and futures are left alone. What they return or raise is
    theirs: ask them.

    Example::

        await first(event.wait(), task, seconds=30)
    """
    own = [asyncio.ensure_future(thing) for thing in things if not isinstance(thing, asyncio.Future)]
    given = [thing for thing in things if isinstance(thing, asyncio.Future)]
    try:
        await asyncio.wait([*own, *given], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in own:
            task.cancel()
        # A coroutine that will not be cancelled must not hold up a bounded stop: it is not waited for.
        await asyncio.wait(own, timeout=1.0) if own else None
        for task in own:
            if task.done() and not task.cancelled():
                task.exception()


async def give_up(*tasks: asyncio.Task[Any], grace: float) -> None:
    """Cancel them, twice if need be, and do not wait for ever: ``grace`` seconds each time."""
    for _ in range(2):
        left = [task for task in tasks if not task.done()]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=grace)
