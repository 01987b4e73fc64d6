"""The worker's own clocks. What is due and who is dead is never read from them alone: database time rules."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time and a way to wait, replaceable in tests."""

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        ...

    async def sleep(self, seconds: float, /) -> None:
        """Wait, letting the event loop go on."""
        ...


class SystemClock:
    """The machine's clock.

    Example::

        clock = SystemClock()
        started = clock.monotonic()
    """

    def monotonic(self) -> float:
        """Seconds of ``time.monotonic``."""
        return time.monotonic()

    async def sleep(self, seconds: float, /) -> None:
        """``asyncio.sleep``."""
        await asyncio.sleep(seconds)
