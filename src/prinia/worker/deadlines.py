"""Time limits of all running jobs from one timer: `asyncio.timeout` per job would cost as much as the job itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")

#: So many ended entries may wait in the heap for their time before it is cleaned.
_CLEAN_ABOVE = 1000


class Deadline(Generic[T]):
    """One time limit. ``holder`` is None once it was dropped."""

    __slots__ = ("holder", "when")

    def __init__(self, when: float, holder: T) -> None:
        self.when = when
        self.holder: T | None = holder

    def __lt__(self, other: Deadline[T]) -> bool:
        return self.when < other.when


class Deadlines(Generic[T]):
    """A heap of deadlines and one ``call_at`` for the earliest.

    Example::

        deadlines = Deadlines(loop, expire)
        deadline = deadlines.add(run, 30.0)   # expire(run) in 30 s
        deadlines.drop(deadline)              # it ended in time
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[T], None]) -> None:
        self._loop = loop
        self._expire = expire
        self._heap: list[Deadline[T]] = []
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, holder: T, seconds: float) -> Deadline[T]:
        """Call ``expire(holder)`` after so many seconds, unless dropped before."""
        deadline = Deadline(self._loop.time() + seconds, holder)
        heappush(self._heap, deadline)
        if self._heap[0] is deadline:
            self._arm()
        return deadline

    def drop(self, deadline: Deadline[T]) -> None:
        """Forget it. It stays in the heap for a while, its holder does not."""
        if deadline.holder is None:
            return
        deadline.holder = None
        self._dropped += 1
        if self._dropped > _CLEAN_ABOVE and self._dropped * 2 > len(self._heap):
            self._heap = [kept for kept in self._heap if kept.holder is not None]
            heapify(self._heap)
            self._dropped = 0

    def close(self) -> None:
        """No deadline expires any more."""
        self._heap.clear()
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._heap[0].when, self._fire) if self._heap else None

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._heap and self._heap[0].when <= now:
            deadline = heappop(self._heap)
            holder, deadline.holder = deadline.holder, None
            if holder is None:
                self._dropped -= 1
            else:
                self._expire(holder)
        self._arm()
