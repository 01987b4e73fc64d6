"""How many jobs to claim: the free slots, and ahead of them only what can start within about a second. Pure."""

from __future__ import annotations

import math

#: The most one claim asks for, and the most that may wait, claimed but not started.
LARGEST_CLAIM = 500
LARGEST_LEAD = 1000

#: The observed rate of starts follows a change within about this many seconds; it is not sampled more often than...
_MEMORY = 0.1
_SHORTEST_SAMPLE = 0.02


class Pace:
    """Learns how fast jobs start, from the count of started ones.

    Handlers that take longer than a second each are never claimed ahead of free slots: they start at fewer than
    ``concurrency`` per second. ``largest`` is the most that one claim asks for.

    Example::

        pace = Pace(concurrency=100)
        pace.sample(started=0, now=0.0)
        pace.sample(started=900, now=0.1)
        pace.room(running=100, waiting=0)    # more than the free slots (none), 500 at most
    """

    def __init__(self, *, concurrency: int, largest: int = LARGEST_CLAIM) -> None:
        self._concurrency = concurrency
        self._largest = largest
        self._rate = 0.0
        self._started = 0
        self._sampled_at: float | None = None

    @property
    def lead(self) -> int:
        """How many jobs may wait beyond the free slots."""
        return min(LARGEST_LEAD, int(self._rate)) if self._rate > self._concurrency else 0

    def sample(self, *, started: int, now: float) -> None:
        """So many jobs were started in all, until ``now`` (monotonic seconds)."""
        if self._sampled_at is None:
            self._started, self._sampled_at = started, now
            return
        elapsed = now - self._sampled_at
        if elapsed >= _SHORTEST_SAMPLE:
            weight = 1 - math.exp(-elapsed / _MEMORY)
            self._rate += ((started - self._started) / elapsed - self._rate) * weight
            self._started, self._sampled_at = started, now

    def stalled(self) -> None:
        """Nothing starts any more: claim nothing ahead until it does."""
        self._rate = 0.0

    def room(self, *, running: int, waiting: int) -> int:
        """How many to ask for now; 0 to wait. Without a free slot only a claim worth its round trip is made."""
        lead = self.lead
        busy = running + waiting
        room = self._concurrency + lead - busy
        if busy < self._concurrency or (room > 0 and room >= min(self._largest, lead // 2)):
            return min(self._largest, room)
        return 0
