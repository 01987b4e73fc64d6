"""What the leader does, and the thread it does it on.

Any number of instances may lead by mistake for a moment: each duty is idempotent, so leadership saves work and does
not protect anything. Duties run on a thread and a connection of their own, because the heartbeat must not wait for
them, and an event loop may be blocked by a handler.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from prinia.errors import StorageError, StorageUnavailable
from prinia.storage.protocol import Pulse

log = logging.getLogger("prinia.maintenance")

#: Seconds from one run of a duty to the next.
SWEEP_EVERY = 15.0
STRAYS_EVERY = 60.0
KEYS_EVERY = 60.0
ARCHIVE_EVERY = 3600.0
RETENTION_EVERY = 60.0

#: How many rows one call of a batched duty handles at most; fewer means that nothing is left.
BATCH = 1000
#: How many steps of retention are made at most before the rest of the duties has its turn.
RETENTION_STEPS = 10


@dataclass(slots=True)
class _Periodic:
    name: str
    every: float
    run: Callable[[], object]
    due: float = 0.0


def _exhaust(batch: Callable[[], int]) -> None:
    while batch() >= BATCH:
        pass


def _sweep_archive(pulse: Pulse) -> None:
    for _ in range(RETENTION_STEPS):
        if not pulse.sweep_archive():
            break


@dataclass(slots=True)
class Duties:
    """The leader's work, one `step` at a time; no thread, no clock.

    Example::

        duties = Duties(storage.pulse(instance))
        duties.step(time.monotonic(), silent={}, dead=beat.dead)
    """

    pulse: Pulse
    #: Hears whose jobs came back or ended, None for those that had no owner, and how many.
    rescued: Callable[[UUID | None, int], None] = lambda instance, count: None
    _periodic: list[_Periodic] = field(init=False)

    def __post_init__(self) -> None:
        pulse = self.pulse
        self._periodic = [
            _Periodic("prepare_archive", ARCHIVE_EVERY, pulse.prepare_archive),
            _Periodic("sweep_expired", SWEEP_EVERY, lambda: _exhaust(pulse.sweep_expired)),
            _Periodic("sweep_keys", KEYS_EVERY, lambda: _exhaust(pulse.sweep_keys)),
            _Periodic("free_strays", STRAYS_EVERY, lambda: _exhaust(self._free_strays)),
            _Periodic("sweep_archive", RETENTION_EVERY, lambda: _sweep_archive(pulse)),
        ]

    def step(self, now: float, *, silent: Mapping[UUID, int], dead: frozenset[UUID]) -> None:
        """Declare ``silent`` dead, rescue the jobs of all dead, then do what is due at ``now``.

        Raises `StorageUnavailable`; a refusal of one duty is logged and stops none of the others.
        """
        for instance in self._declare(silent) | dead:
            self._try("rescue", lambda instance=instance: self._rescue(instance))  # type: ignore[misc]
        for periodic in self._periodic:
            if now >= periodic.due:
                periodic.due = now + periodic.every
                self._try(periodic.name, periodic.run)

    def _declare(self, silent: Mapping[UUID, int]) -> set[UUID]:
        return {instance for instance, counter in silent.items() if self.pulse.declare_dead(instance, counter)}

    def _rescue(self, instance: UUID) -> None:
        total = 0
        try:
            while rescued := self.pulse.rescue(instance):
                total += rescued
        finally:
            if total:
                self.rescued(instance, total)
        log.warning("worker instance %s died; %d of its jobs run again or ended", instance, total)

    def _free_strays(self) -> int:
        if freed := self.pulse.free_strays():
            self.rescued(None, freed)
            log.warning("%d jobs had no owner that knew of them; they are back in their queues", freed)
        return freed

    def _try(self, name: str, duty: Callable[[], object]) -> None:
        try:
            duty()
        except StorageUnavailable:
            raise
        except StorageError as error:
            log.error("maintenance (%s) failed, it is tried again later: %s", name, error)


class Leader:
    """Runs `Duties` on a daemon thread while this instance leads. `look` feeds it, `resign` and `close` end it.

    Example::

        leader = Leader(lambda: storage.pulse(instance))
        leader.look(silent=watch.feed(beat.counters, now), dead=beat.dead)
    """

    def __init__(
        self, connect: Callable[[], Pulse], rescued: Callable[[UUID | None, int], None] = lambda instance, count: None
    ) -> None:
        """``rescued`` hears, from the thread, whose jobs came back or ended (None: of no owner), and how many."""
        self._connect = connect
        self._rescued = rescued
        self._changed = threading.Condition()
        self._silent: dict[UUID, int] = {}
        self._dead: frozenset[UUID] = frozenset()
        self._looked = False
        self._leading = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def look(self, *, silent: Mapping[UUID, int], dead: frozenset[UUID]) -> None:
        """This instance leads, and its heartbeat has just seen this. Returns at once."""
        with self._changed:
            if not self._leading:
                self._leading = True
                log.info("this worker leads: it does the maintenance")
            self._silent = dict(silent)
            self._dead = dead
            self._looked = True
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="prinia-maintenance", daemon=True)
            self._thread.start()

    def resign(self) -> None:
        """Another instance leads, or nobody knows: do nothing until the next `look`."""
        with self._changed:
            self._leading = self._looked = False

    def close(self) -> None:
        """End the thread after the call it is in. Returns at once."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def join(self, seconds: float) -> bool:
        """Wait for the thread to end; False if it has not."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def _next(self) -> tuple[dict[UUID, int], frozenset[UUID]] | None:
        """What was seen last, once each time; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._looked or self._closed)
            self._looked = False
            return None if self._closed else (self._silent, self._dead)

    def _run(self) -> None:
        pulse = self._connect()
        duties = Duties(pulse, self._rescued)
        while (seen := self._next()) is not None:
            try:
                duties.step(time.monotonic(), silent=seen[0], dead=seen[1])
            except StorageUnavailable as error:
                log.debug("maintenance lost the database: %s", error)
            except Exception:  # the thread must outlive a bug, or nothing would be rescued any more
                log.exception("maintenance failed, it is tried again later")
        pulse.close()
