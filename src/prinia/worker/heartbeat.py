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
from contextlib import suppress
from uuid import UUID

from prinia.errors import StorageError
from prinia.job import ClaimedJob
from prinia.maintenance import Leader, Watch
from prinia.storage.protocol import Beat, Pulse
from prinia.worker.outage import Backoff, Outage

log = logging.getLogger("prinia.worker")


class LoopWatch:
    """Says when a handler blocks the event loop, and which. Used from the heartbeat's thread.

    Example::

        watch = LoopWatch(loop, runner.current)
        watch.look(time.monotonic())     # at each beat
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, current: Callable[[], ClaimedJob | None]) -> None:
        self._loop = loop
        self._current = current
        self._asked_at: float | None = None
        self._warned = False

    def look(self, now: float) -> None:
        """Ask the loop to answer; warn, once each time, if it has not answered since the last look."""
        if self._asked_at is None:
            self._asked_at = now
            with suppress(RuntimeError):  # the loop is closed: the worker ended without its stop
                self._loop.call_soon_threadsafe(self._answer)
        elif not self._warned:
            self._warned = True
            job = self._current()
            culprit = f"by job {job.id} ({job.task})" if job is not None else "not by a job"
            log.warning(
                "the event loop has been blocked for %.1f s, %s; make the handler a plain function, "
                "which runs in a thread",
                now - self._asked_at, culprit,
            )  # fmt: skip

    def _answer(self) -> None:
        self._asked_at = None
        self._warned = False


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
            answer = pulse.beat(self._tokens(), self._started())
            if not answer.alive:
                self._stopped.set()
                self._leader.close()
                self._declared_dead()
                return self._every
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
        while not self._stopped.wait(wait):
            try:
                wait = self.beat(pulse, time.monotonic())
            except Exception:  # a worker without a heartbeat would be declared dead: whatever it was, go on
                log.exception("a heartbeat went wrong; the next one is due in %.1f s", self._every)
                wait = self._every
        pulse.close()

    def _join(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        self._thread.join(seconds)
        left = max(0.0, until - time.monotonic())
        return self._leader.join(left) and not self._thread.is_alive()
