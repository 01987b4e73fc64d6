"""The low-water marks of one instance: where its next claims start in each lane, so that they need not step over the
dead rows of finished jobs. A mark is a hint: a row below it is late, never lost.

A lane is a queue and a priority. Its *tip* is the furthest position handed out; claims start above it. Its *floor* is
a position below which nothing can appear any more: a push whose transaction was open when the tip passed may commit
below the tip, and a claim passes rows that another one has locked, which may roll back. So the tips that earlier claims
left (less a second) are *noted* with the transaction id of the next one: whoever could still do that has an earlier id.
Once all those are over, one *catch-up* scan from the old floor picks up what came late, and only then the floor moves
there. (The end of a snapshot would not do: transactions with later ids may be under way already.)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from prinia.job import MAX_PRIORITY, MIN_PRIORITY

LaneKey = tuple[str, int]
#: (scheduled_at, id); None is the start of the lane.
Position = tuple[datetime, int] | None

#: A push reads the clock a moment before its row gets its transaction: that moment, generously.
SLACK = timedelta(seconds=1)
#: Catching up may take this part of the time: it reads again all rows of the last second, dead and running ones too.
CATCH_UP_SHARE = 0.05
#: A scan of whole lanes at least this often, in seconds, and in at most this part of the time.
FULL_SCAN_EVERY = 30.0
FULL_SCAN_SHARE = 0.01


def _later(one: Position, other: Position) -> Position:
    if one is None or other is None:
        return one or other
    return max(one, other)


@dataclass(slots=True)
class Lane:
    """Marks of one lane. While ``catching`` its next scan starts at ``scan_from`` and then sets the floor."""

    tip: Position = None
    floor: Position = None
    catching: bool = False
    scan_from: Position = None
    floor_after: Position = None

    @property
    def start(self) -> Position:
        """Where the next claim looks from."""
        return self.scan_from if self.catching else self.tip

    def catch_up(self, scan_from: Position, floor_after: Position) -> None:
        """Scan from there next, unless such a scan is under way already."""
        if not self.catching:
            self.catching, self.scan_from, self.floor_after = True, scan_from, floor_after

    def caught_up(self) -> None:
        """The scan is through: the floor may move."""
        if self.catching:
            self.catching, self.floor = False, self.floor_after


@dataclass(slots=True)
class Marks:
    """All lanes of the queues that one instance serves."""

    queues: Sequence[str]
    lanes: dict[LaneKey, Lane] = field(default_factory=dict)
    _turn: int = 0
    _noted_xid: int | None = None
    _noted: dict[LaneKey, Position] = field(default_factory=dict)
    _note_at: float = 0.0
    _full_scan_at: float | None = None
    _server_now: float = 0.0

    def drop(self) -> None:
        """Forget everything: the session was lost, or the order of jobs changed behind the marks."""
        self.lanes.clear()
        self._noted.clear()
        self._noted_xid = None
        self._full_scan_at = None

    @property
    def catching(self) -> bool:
        """Whether the next claim moves floors, by a scan from the old ones."""
        return any(lane.catching and lane.floor_after != lane.floor for lane in self.lanes.values())

    def turns(self) -> list[str]:
        """The queues, starting with another one at each call."""
        self._turn = (self._turn + 1) % len(self.queues)
        return [*self.queues[self._turn :], *self.queues[: self._turn]]

    def in_order(self, turns: Sequence[str]) -> list[tuple[LaneKey, Lane]]:
        """The known lanes as a claim visits them: queues in turn, highest priority first."""
        place = {queue: nr for nr, queue in enumerate(turns)}
        return sorted(self.lanes.items(), key=lambda item: (place[item[0][0]], -item[0][1]))

    def gaps(self) -> list[tuple[str, int, int]]:
        """The open intervals of priorities, per queue, in which no lane is known."""
        found = []
        for queue in self.queues:
            known = sorted(priority for lane_queue, priority in self.lanes if lane_queue == queue)
            edges = [MIN_PRIORITY - 1, *known, MAX_PRIORITY + 1]
            found += [(queue, low, high) for low, high in itertools.pairwise(edges) if high - low > 1]
        return found

    def add(self, keys: Iterable[LaneKey]) -> None:
        """Lanes that a probe found: they are claimed from their start."""
        for key in keys:
            self.lanes.setdefault(key, Lane())

    def advance(self, visited: Sequence[LaneKey], tips: dict[LaneKey, Position], *, short: bool) -> None:
        """A claim visited these lanes in this order and took up to these positions; short of its limit or not.

        A lane was scanned to its end of before (caught up) when the claim came out short, when a later lane gave
        something too, or when the lane itself gave something from above its tip.
        """
        reached = max((nr for nr, key in enumerate(visited) if key in tips), default=-1)
        for nr, key in enumerate(visited):
            lane, taken = self.lanes[key], tips.get(key)
            passed_tip = taken is not None and (lane.tip is None or taken > lane.tip)
            if short or nr < reached or passed_tip:
                lane.caught_up()
            lane.tip = _later(lane.tip, taken)

    def jump(self, positions: dict[LaneKey, Position]) -> None:
        """A look found nothing to claim up to these positions: tips may go there, floors may not."""
        for key, position in positions.items():
            self.lanes[key].tip = _later(self.lanes[key].tip, position)

    def note(self, *, xid: int | None, now: float) -> None:
        """Before a claim moves the tips: note them with its transaction id, if it has one and it is time."""
        if self._noted_xid is None and xid is not None and now >= self._note_at:
            self._noted = {key: (lane.tip[0] - SLACK, 0) for key, lane in self.lanes.items() if lane.tip is not None}
            self._noted_xid = xid if self._noted else None

    def observe(self, *, server_now: float, xmin: int, now: float) -> None:
        """After a claim: plan catch-ups by what its snapshot said, and notice a clock that stepped back."""
        if server_now < self._server_now:
            self.drop()
        self._server_now = server_now
        if self._noted_xid is not None and xmin > self._noted_xid:
            for key, position in self._noted.items():
                self.lanes[key].catch_up(self.lanes[key].floor, position)
            self._noted_xid = None
            self._noted = {}
        if self._full_scan_at is None:
            self._full_scan_at = now + FULL_SCAN_EVERY

    def caught_up(self, now: float, took: float) -> None:
        """A claim that caught up took so long: plan when to note again."""
        self._note_at = now + took / CATCH_UP_SHARE

    def scan_floors(self) -> None:
        """Let the next claim look from every floor: a short claim alone does not mean that nothing is there."""
        for lane in self.lanes.values():
            lane.catch_up(lane.floor, lane.floor)

    def scan_all_if_due(self, now: float) -> bool:
        """Let the next claim look from the start of every lane, if the last such scan is long enough ago."""
        if self._full_scan_at is None or now < self._full_scan_at:
            return False
        for lane in self.lanes.values():
            lane.catch_up(None, lane.floor)
        return True

    def scanned_all(self, now: float, took: float) -> None:
        """The scan of whole lanes took so long: plan the next."""
        self._full_scan_at = now + max(FULL_SCAN_EVERY, took / FULL_SCAN_SHARE)
