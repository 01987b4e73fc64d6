"""Help for testing code that uses Prinia, and the suite that says whether a storage keeps its promises.

`prinia.testing.conformance` is imported on its own: only authors of storages need it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

__all__ = ["ManualClock"]


class ManualClock:
    """Time that stands still until it is moved, for `prinia.storage.memory.MemoryStorage`.

    Example::

        clock = ManualClock()
        storage = MemoryStorage(clock=clock)
        clock.advance(3600)
        storage.wake()
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        """The time, aware."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the time ahead; a negative number steps back."""
        self._now += timedelta(seconds=seconds)
