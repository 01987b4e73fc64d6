"""When to look at which job that is awaited: pure, without I/O or a clock of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

#: Seconds between the first two looks at a job; each pause is twice the one before, up to the longest, which is another
#: one where its end would be announced.
FIRST, LONGEST, LONGEST_HEARD = 0.005, 0.5, 5.0
#: A job that has not ended when the pause has grown to so many seconds is worth an announcement.
EXPECT_FROM = 0.08
#: Announcements of a job are asked for anew after so many seconds; a storage forgets after twice as long.
RENEW = 30.0
#: How many jobs one statement looks for.
MOST_IDS = 1000


@dataclass(slots=True, order=True)
class _Look:
    at: float
    id: int
    pause: float = field(compare=False)


class Agenda:
    """The looks that are ahead, one for each job. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._heap: list[_Look] = []
        self._looks: dict[int, _Look] = {}
        self._expected: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._looks)

    def add(self, id: int, now: float) -> None:
        """Look at this job at once, and often to begin with."""
        self._set(_Look(now, id, FIRST / 2))

    def drop(self, id: int) -> None:
        """Look at it no more."""
        self._looks.pop(id, None)
        self._expected.pop(id, None)

    def heard(self, ids: Iterable[int] | None, now: float) -> bool:
        """The end of these jobs, or perhaps of any, was announced: look at once. Whether one of them is awaited."""
        known = [self._looks[id] for id in (self._looks if ids is None else ids) if id in self._looks]
        for look in known:
            self._set(_Look(now, look.id, look.pause))
        return bool(known)

    def due(self, now: float) -> list[int]:
        """The jobs to look at now, in the order of their ids."""
        ids = []
        while self._heap and self._heap[0].at <= now:
            look = heappop(self._heap)
            if self._looks.get(look.id) is look:
                ids.append(look.id)
        return sorted(ids)

    def put_off(self, ids: Iterable[int], now: float, *, listening: bool) -> None:
        """These were looked at and have not ended; ``listening``: an announcement would be heard."""
        for id in ids:
            if (look := self._looks.get(id)) is not None:
                longest = LONGEST_HEARD if listening and id in self._expected else LONGEST
                pause = min(look.pause * 2, longest)
                self._set(_Look(now + pause, id, pause))

    def to_expect(self, ids: Sequence[int], now: float) -> list[int]:
        """Those of these jobs for whose end an announcement is to be asked now."""
        return [
            id
            for id in ids
            if id in self._looks
            and self._looks[id].pause >= EXPECT_FROM
            and self._expected.get(id, -inf) <= now - RENEW
        ]

    def expecting(self, ids: Iterable[int], now: float) -> None:
        """It was asked for."""
        self._expected.update(dict.fromkeys(ids, now))

    def next(self) -> float | None:
        """When to look next; None with nothing to look at."""
        while self._heap and self._looks.get(self._heap[0].id) is not self._heap[0]:
            heappop(self._heap)
        return self._heap[0].at if self._heap else None

    def _set(self, look: _Look) -> None:
        self._looks[look.id] = look
        heappush(self._heap, look)
