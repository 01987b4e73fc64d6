"""Waiting for a database that is away: one log line when it goes, one when it is back, back-off with full jitter."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from prinia.errors import StorageUnavailable

log = logging.getLogger("prinia.worker")

#: The longest wait between two tries, in seconds.
LONGEST_WAIT = 10.0
_FIRST_WAIT = 0.1


class Backoff:
    """Growing waits: doubling from ``first`` to ``longest`` seconds, each anything between half a ``first`` and that.

    Example::

        backoff = Backoff(random.random)
        await asyncio.sleep(backoff.next())
    """

    def __init__(
        self, random: Callable[[], float], *, first: float = _FIRST_WAIT, longest: float = LONGEST_WAIT
    ) -> None:
        self._random = random
        self._first = first
        self._longest = longest
        self._tries = 0

    def next(self) -> float:
        """Seconds to wait before the next try."""
        longest = min(self._longest, self._first * 2.0 ** min(self._tries, 30))
        self._tries += 1
        return max(self._first / 2, longest * self._random())

    def reset(self) -> None:
        """It went well."""
        self._tries = 0


class Outage:
    """What the parts of a worker (claim, ack, heartbeat) know together of the database being away. Thread-safe.

    Example::

        outage = Outage("web-1")
        outage.began("claim", error)    # logs once, however many parts and tries
        outage.ended("claim")           # logs once all parts are well again
    """

    def __init__(self, worker: str, told: Callable[[str, Exception], None] | None = None) -> None:
        """``told`` hears of each part's trouble once an outage, from whatever thread."""
        self._worker = worker
        self._told = told
        self._parts: set[str] = set()
        self._lock = threading.Lock()

    def began(self, part: str, error: Exception) -> None:
        """This part could not reach the database, or was refused."""
        with self._lock:
            first, new = not self._parts, part not in self._parts
            self._parts.add(part)
        if new and self._told is not None:
            self._told(f"it could not {part}: {error}", error)
        if first and isinstance(error, StorageUnavailable):
            log.warning("worker %s: database unreachable: %s; trying again", self._worker, error)
        elif first:
            log.error("worker %s: the database refused to %s: %s; trying again", self._worker, part, error)

    def ended(self, part: str) -> None:
        """This part works."""
        if not self._parts:
            return
        with self._lock:
            was_away = part in self._parts
            self._parts.discard(part)
            over = was_away and not self._parts
        if over:
            log.info("worker %s: the database is back", self._worker)
