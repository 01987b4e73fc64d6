"""Who is dead, as seen by this process alone: pure, fed with beat counters and with this process's own clock.

The rule: an instance is dead once its counter was *seen* standing still for the whole dead time, by one observer
that was itself looking all the while. A pause of the database, of this process or of the whole machine leaves a gap
between two looks; what was watched before the gap proves nothing and is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID


class Watch:
    """Watches beat counters stand still.

    Example::

        watch = Watch(dead_after=12.0)
        watch.feed({instance: 7}, now=0.0)     # {}
        ...
        watch.feed({instance: 7}, now=12.0)    # {instance: 7}: dead
    """

    def __init__(self, *, dead_after: float) -> None:
        self._dead_after = dead_after
        #: The longest time between two looks (seconds) that still counts as looking all the while.
        self._longest_gap = dead_after / 2
        self._seen: dict[UUID, tuple[int, float]] = {}
        self._looked_at: float | None = None

    def feed(self, counters: Mapping[UUID, int], now: float) -> dict[UUID, int]:
        """Look once, at ``now`` (monotonic seconds); returns who is dead, with the counter that stood still."""
        if self._looked_at is None or now - self._looked_at > self._longest_gap:
            self.reset()
        self._looked_at = now
        before = self._seen
        self._seen = {}
        dead = {}
        for instance, counter in counters.items():
            last, since = before.get(instance, (counter, now))
            if last != counter:
                since = now
            self._seen[instance] = (counter, since)
            if now - since >= self._dead_after:
                dead[instance] = counter
        return dead

    def next_verdict(self, now: float) -> float | None:
        """In how many seconds somebody else can be found dead at the earliest; None when nobody can."""
        verdicts = (since + self._dead_after - now for _, since in self._seen.values())
        return min((verdict for verdict in verdicts if verdict > 0), default=None)

    def reset(self) -> None:
        """Forget everything: the connection was lost, so nothing was watched."""
        self._seen = {}
        self._looked_at = None
