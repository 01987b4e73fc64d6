"""What this instance has claimed and not yet accounted for: tokens in flight, and the numbers of `Worker.stats`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

#: How often what happened; the keys are fields of `WorkerStats`.
Counts: TypeAlias = Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """Counts since the worker started, over all its instances.

    Every claimed job is, in the end, in one of ``completed failed retried cancelled snoozed handed_back lost
    left_behind``; ``running`` and ``waiting`` (claimed, not started) and ``unrecorded`` are of this moment.
    ``left_behind`` could not be recorded before a bounded stop ended: those jobs are rescued by other workers.
    ``abandoned`` handlers ignored their cancellation and may still run. ``events_dropped`` were not told to a listener
    that was too slow.
    """

    claimed: int = 0
    started: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    cancelled: int = 0
    snoozed: int = 0
    handed_back: int = 0
    lost: int = 0
    left_behind: int = 0
    abandoned: int = 0
    events_dropped: int = 0
    running: int = 0
    waiting: int = 0
    unrecorded: int = 0


class Ledger:
    """Tokens, from before a claim is sent until each of its jobs is recorded or known to be lost.

    The event loop writes it. The heartbeat's thread reads `tokens`, which is one atomic step of the interpreter.
    """

    def __init__(self) -> None:
        #: The connection was lost: whether running jobs are still owned must be asked before claiming goes on.
        self.recheck = False
        self._last = 0
        self._open: dict[int, int] = {}
        self._doubtful: set[int] = set()

    def new_token(self) -> int:
        """The next token, in flight from now on."""
        self._last += 1
        self._open[self._last] = 0
        return self._last

    def answered(self, token: int, jobs: int) -> None:
        """The claim with this token got so many jobs."""
        if jobs:
            self._open[token] = jobs
        else:
            del self._open[token]

    def doubt(self, token: int) -> None:
        """The claim's answer was not heard: it may have got jobs."""
        self._doubtful.add(token)

    @property
    def doubtful(self) -> list[int]:
        """Tokens of claims whose answer was not heard."""
        return sorted(self._doubtful)

    def cleared(self, tokens: Iterable[int]) -> None:
        """What those claims got has been handed back."""
        for token in tokens:
            self._doubtful.discard(token)
            self._open.pop(token, None)

    def settled(self, jobs: Mapping[int, int]) -> None:
        """So many jobs of each token are accounted for."""
        for token, count in jobs.items():
            left = self._open[token] - count
            if left:
                self._open[token] = left
            else:
                del self._open[token]

    def tokens(self) -> list[int]:
        """All tokens in flight. Safe from any thread."""
        return list(self._open)
