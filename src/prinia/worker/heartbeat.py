"""I am alive: beats on a thread and a connection of its own, because an event loop may be blocked by a handler.

The same thread watches the others' beats and, when there is no leader, tries to lead; the leader's duties run on a
further thread (`prinia.maintenance.Leader`), because a slow one must not delay a beat.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from uuid import UUID

from prinia.errors import StorageError
from prinia.maintenance import Leader, Watch
from prinia.storage.protocol import Beat, Pulse, Vitals
from prinia.worker.loopwatch import LoopWatch
from prinia.worker.outage import Backoff, Outage

log = logging.getLogger("prinia.worker")


#: Seconds between two looks at the event loop, where beats are further apart.
LOOK_EVERY = 1.0


class Heartbeat:
    """The thread. ``declared_dead`` is called from it, once, when a beat says that this instance counts as dead."""

    def __init__(
        self,
        connect: Callable[[], Pulse],
        instance: UUID,
        outage: Outage,
        *,
        every: float,
        dead_after: float,
        tokens: Callable[[], Sequence[int]],
        started: Callable[[], Sequence[int]],
        vitals: Callable[[], Vitals],
        declared_dead: Callable[[], None],
        rescued: Callable[[UUID | None, int], None],
        loop_watch: LoopWatch,
        random: Callable[[], float],
    ) -> None:
        self._connect = connect
        self._instance = instance
        self._outage = outage
        self._every = every
        self._tokens = tokens
        self._started = started
        self._vitals = vitals
        #: Seconds that the last beat took to the database and back, and when (monotonic) that was.
        self.lag: float | None = None
        self.beaten_at: float | None = None
        self._declared_dead = declared_dead
        self._loop_watch = loop_watch
        self._backoff = Backoff(random, longest=every)
        self._watch = Watch(dead_after=dead_after)
        self._leader = Leader(connect, rescued)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prinia-heartbeat", daemon=True)

    def start(self) -> None:
        """Beat for the first time at once, then regularly."""
        self._thread.start()

    async def stop(self, seconds: float) -> bool:
        """End after the call it is in; False if that took longer than ``seconds``."""
        self._stopped.set()
        self._leader.close()
        return await asyncio.to_thread(self._join, seconds)

    def beat(self, pulse: Pulse, now: float) -> float:
        """Beat once, at ``now`` (monotonic); returns in how many seconds to beat again."""
        self._loop_watch.look(now)
        try:
            sent_at = time.monotonic()
            answer = pulse.beat(self._tokens(), self._started(), self._vitals())
            if not answer.alive:
                self._stopped.set()
                self._leader.close()
                self._declared_dead()
                return self._every
            self.beaten_at = time.monotonic()
            self.lag = self.beaten_at - sent_at
            self._follow(pulse, answer, time.monotonic())
        except StorageError as error:
            self._watch.reset()
            self._leader.resign()
            self._outage.began("send a heartbeat", error)
            return self._backoff.next()
        self._outage.ended("send a heartbeat")
        self._backoff.reset()
        after = time.monotonic()
        verdict = self._watch.next_verdict(after)
        until_next = max(0.0, self._every - (after - now))
        return until_next if verdict is None else min(until_next, verdict)

    def _follow(self, pulse: Pulse, beat: Beat, now: float) -> None:
        dead = self._watch.feed(beat.counters, now)
        dead.pop(self._instance, None)
        leads = beat.leader == self._instance
        if not leads and (beat.leader is None or beat.leader in dead or beat.leader not in beat.counters):
            leads = pulse.lead(beat.leader, beat.term)
        if leads:
            self._leader.look(silent=dead, dead=beat.dead)
        else:
            self._leader.resign()

    def _run(self) -> None:
        pulse = self._connect()
        wait = 0.0
        while not self._pause(wait):
            try:
                wait = self.beat(pulse, time.monotonic())
            except Exception:  # a worker without a heartbeat would be declared dead: whatever it was, go on
                log.exception("a heartbeat went wrong; the next one is due in %.1f s", self._every)
                wait = self._every
        pulse.close()

    def _pause(self, seconds: float) -> bool:
        """Wait until the next beat, with an eye on the event loop; True when it is time to end."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > LOOK_EVERY:
            if self._stopped.wait(LOOK_EVERY):
                return True
            self._loop_watch.look(time.monotonic())
        return self._stopped.wait(max(0.0, left))

    def _join(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        self._thread.join(seconds)
        left = max(0.0, until - time.monotonic())
        return self._leader.join(left) and not self._thread.is_alive()
