"""CLAIM: one claim in flight at a time, while jobs run and the last outcomes are recorded.

Dry, the worker looks every 2 ms for a while, then arms its bell, looks once more and sleeps until it is rung, until
the next job is due, or until it is time to look anyway (`waking`). Jobs that have been in too many crashes are claimed
alone, with nothing running beside them, so that they take no innocents with them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from prinia.clock import Clock
from prinia.errors import DecodeError, StorageError
from prinia.job import ClaimedJob
from prinia.outcome import Expired, HandedBack
from prinia.storage.protocol import Claim, Consumer
from prinia.task import Task
from prinia.worker.ack import Flusher
from prinia.worker.announce import Announcer
from prinia.worker.failure import failed
from prinia.worker.ledger import Counts, Ledger
from prinia.worker.orders import Hold
from prinia.worker.outage import Backoff, Outage
from prinia.worker.pace import Pace
from prinia.worker.run import Runner
from prinia.worker.waiting import first
from prinia.worker.waking import Waking

log = logging.getLogger("prinia.worker")

#: All in seconds. A dry worker looks every `LOOK` for `LINGER` before it sleeps.
LOOK = 0.002
LINGER = 0.02
#: A worker that ends when nothing is due looks so often while its last jobs run.
LOOK_WHILE_ENDING = 0.25
#: So long may it take until nothing runs beside a suspect; else it is tried again after...
PATIENCE = 10.0
SUSPECTS_AGAIN = 60.0
#: Jobs that waited so long while none started are handed back: somebody else may have a free slot.
STALLED = 2.0
#: A worker that may not claim looks so often whether it has lost its jobs.
STAND_BY = 1.0
#: An unknown task or codec is warned about once in so long.
WARN_AGAIN = 60.0
#: A job of an unknown codec is due again after about so long. Its task is not left alone: others are readable.
CODEC_AGAIN = 3.0
#: A worker that met work for others leaves the bells to them for so long, and looks now and then.
ASIDE = 3.0


class Claimer:
    """Keeps the runner supplied until `stop`, or until the event of that name is set."""

    def __init__(
        self,
        consumer: Consumer,
        runner: Runner,
        flusher: Flusher,
        ledger: Ledger,
        counts: Counts,
        outage: Outage,
        *,
        known: Mapping[str, Task[Any, Any]],
        concurrency: int,
        claim_batch: int,
        waking: Waking,
        changed: asyncio.Event,
        hold: Hold,
        stop: asyncio.Event,
        clock: Clock,
        random: Callable[[], float],
        announcer: Announcer,
        when_empty: Callable[[], None] | None = None,
    ) -> None:
        """``when_empty`` is called once nothing is due and nothing runs here: a worker that ends then."""
        self._consumer = consumer
        self._runner = runner
        self._flusher = flusher
        self._ledger = ledger
        self._counts = counts
        self._outage = outage
        self._known = known
        self._waking = waking
        self._changed = changed
        self._clock = clock
        self._random = random
        self._announcer = announcer
        self._when_empty = when_empty
        self._pace = Pace(concurrency=concurrency, largest=claim_batch)
        self._backoff = Backoff(random)
        self._hold = hold
        self._stop = stop
        self._found_at = clock.monotonic()
        self._started, self._started_at = 0, self._found_at
        self._suspects_from = 0.0
        #: What was met that this worker does not know, and when that was last told.
        self._warned: dict[str, float] = {}
        #: Whether the last claim brought jobs that this worker cannot run.
        self._met_others = False
        self._aside_until = 0.0

    def stop(self) -> None:
        """Claim nothing any more. What a claim in flight brings is handed back."""
        self._stop.set()
        self._changed.set()

    async def run(self) -> None:
        """Claim until `stop`; survives every error of the storage."""
        while not self._stop.is_set():
            try:
                if self._ledger.recheck:
                    await self.recover()
                if self._hold.held:
                    await self._stand_by()
                else:
                    await self.step()
            except StorageError as error:
                self._outage.began("claim", error)
                self._ledger.recheck = True
                await self._unless_stopped(self._clock.sleep(self._backoff.next()))

    async def step(self) -> None:
        """One claim and what follows from it, or a wait for room to claim."""
        room = self._room()
        if not room:
            await self._wait_for_room()
            return
        claim = await self._claim(room)
        if not _plenty(claim, room) and not self._wants_alone(claim):
            if self._clock.monotonic() - self._found_at < LINGER:
                await self._clock.sleep(LOOK)
                return
            claim = await self._sleep()
        if self._wants_alone(claim):
            await self._run_alone()

    async def _stand_by(self) -> None:
        """Told to claim nothing: what would have woken this worker is for others."""
        await self._pass_on()
        while self._hold.held and not self._stop.is_set() and not self._ledger.recheck:
            await first(self._hold.lifted(), self._stop.wait(), seconds=STAND_BY)

    async def recover(self) -> None:
        """After a lost connection: hand back what unheard answers held, and drop what others own by now."""
        tokens = self._ledger.doubtful
        self._ledger.recheck = False
        lost = await self._consumer.recover(tokens, self._runner.claimed())
        self._ledger.cleared(tokens)
        if lost and (count := self._runner.lose(lost)):
            log.warning("%d running jobs were taken by others while the database was away; they are cancelled", count)

    def _heard(self) -> None:
        self._outage.ended("claim")
        self._backoff.reset()

    async def _claim(self, limit: int, *, alone: bool = False, thorough: bool = False) -> Claim:
        token = self._ledger.new_token()
        try:
            claim = await self._consumer.claim(limit, token=token, alone=alone, thorough=thorough)
        except BaseException:
            self._ledger.doubt(token)
            raise
        self._ledger.answered(token, len(claim.jobs))
        if claim.jobs:
            self._counts["claimed"] += len(claim.jobs)
            self._found_at = self._clock.monotonic()
            self._waking.found()
        self._heard()
        known, stopped = self._known, self._stop.is_set()
        self._runner.add(
            [
                job
                for job in claim.jobs
                if (job.extras is None and not stopped and job.task in known) or self._accepts(job)
            ]
        )
        if self._met_others:
            await self._stand_aside()
        return claim

    def _accepts(self, job: ClaimedJob) -> bool:
        """Whether to run it; otherwise it is dealt with."""
        if self._stop.is_set():
            self._runner.finish(job, HandedBack())
        elif job.task not in self._known:
            self._consumer.exclude(job.task)
            self._leave_to_others(job, f"task {job.task!r}", 0.0)
        elif job.extras is not None and job.extras.expired:
            self._runner.finish(job, Expired())
        elif job.extras is not None and job.extras.broken is not None:
            self._runner.finish(job, failed(DecodeError(job.extras.broken)))
        elif job.extras is not None and self._known[job.task].definition.coder(job.extras.codec) is None:
            self._leave_to_others(job, f"codec {job.extras.codec!r}", CODEC_AGAIN * (0.5 + self._random()))
        else:
            return True
        return False

    def _leave_to_others(self, job: ClaimedJob, what: str, delay: float) -> None:
        """The job stays for a worker that knows ``what`` it needs; in a rolling deploy there soon is one."""
        now = self._clock.monotonic()
        if now - self._warned.get(what, -WARN_AGAIN) >= WARN_AGAIN:
            self._warned[what] = now
            log.warning("job %d needs %s, which this worker does not know; such jobs are left to others", job.id, what)
            self._announcer.unknown(job, what)
        self._met_others = True
        self._runner.finish(job, HandedBack(delay))

    async def _stand_aside(self) -> None:
        """Let somebody be rung who can do what this worker cannot: in a rolling deploy the old ones hold the bells."""
        self._met_others = False
        self._aside_until = self._clock.monotonic() + ASIDE
        await self._pass_on()

    def _room(self) -> int:
        runner, now = self._runner, self._clock.monotonic()
        self._pace.sample(started=runner.started, now=now)
        self._hand_back_stalled(now)
        if self._flusher.full or runner.short_of_threads:
            return 0
        return self._pace.room(running=len(runner.running), waiting=runner.waiting)

    def _hand_back_stalled(self, now: float) -> None:
        runner = self._runner
        if not runner.waiting or runner.short_of_threads or runner.started != self._started:
            self._started, self._started_at = runner.started, now
        elif now - self._started_at >= STALLED:
            self._pace.stalled()
            runner.hand_back_waiting()

    async def _wait_for_room(self) -> None:
        await self._pass_on()
        runner = self._runner
        runner.low = max(0, min(self._pace.lead // 2, runner.waiting - 1))
        self._changed.clear()
        timer = asyncio.get_running_loop().call_later(STALLED, self._changed.set) if runner.waiting else None
        await self._changed.wait()
        runner.low = -1
        if timer is not None:
            timer.cancel()

    def _wants_alone(self, claim: Claim) -> bool:
        return claim.suspects and self._clock.monotonic() >= self._suspects_from

    async def _run_alone(self) -> None:
        """Wait until nothing runs, then run one suspect with nothing beside it."""
        await self._until_quiet(at_most=PATIENCE)
        if self._stop.is_set():
            return
        if not self._quiet():
            self._suspects_from = self._clock.monotonic() + SUSPECTS_AGAIN
            return
        claim = await self._claim(1, alone=True, thorough=True)
        if claim.jobs:
            await self._until_quiet(at_most=None)
        else:
            self._suspects_from = self._clock.monotonic() + 1.0

    def _quiet(self) -> bool:
        """Nothing would be lost if this process died now: nothing runs, and all outcomes are recorded."""
        return not (self._runner.running or self._runner.waiting or self._flusher.unrecorded)

    async def _until_quiet(self, *, at_most: float | None) -> None:
        async def wait() -> None:
            while not self._quiet():
                await self._runner.until_idle()
                await self._flusher.until_empty()

        await first(wait(), self._stop.wait(), seconds=at_most)

    async def _sleep(self) -> Claim:
        """Dry for a while: sleep until a claim finds something, which is on its way then. Returns that claim."""
        unarmed = Backoff(self._random, first=0.01, longest=0.25)
        claim = Claim(())
        try:
            while not self._stop.is_set() and not self._hold.held:
                armed = await self._arm()
                claim, room = await self._look(thorough=True)
                if not room or claim.jobs or self._wants_alone(claim):
                    break
                if self._when_empty is not None and not _more_is_due(claim):
                    if self._quiet():
                        self._when_empty()
                    await self._until_quiet(at_most=LOOK_WHILE_ENDING)
                    continue
                woken = await self._rest(claim, armed=armed, brief=unarmed.next())
                if armed:
                    unarmed.reset()
                # What rang is above the marks: a quick look finds it. The next round looks thoroughly.
                claim, room = await self._look(thorough=False)
                if woken and claim.jobs and _plenty(claim, room):
                    await self._pass_on()
                elif woken and not claim.jobs and self._warned:
                    await self._stand_aside()
                if not room or claim.jobs:
                    break
        finally:
            await self._disarm()
        return claim

    async def _look(self, *, thorough: bool) -> tuple[Claim, int]:
        room = self._room()
        if not room or self._stop.is_set():
            return Claim(()), 0
        return await self._claim(room, thorough=thorough), room

    async def _rest(self, claim: Claim, *, armed: bool, brief: float) -> bool:
        """Sleep until rung or told to look (True), until something is due, or until it is time to look anyway."""
        seconds = longest = self._waking.seconds() if armed else brief
        if claim.next_due is not None:
            seconds = min(seconds, claim.next_due + 0.001 if claim.next_due > 0 else brief)
        if self._runner.waiting:
            seconds = min(seconds, STALLED)
        if claim.suspects:
            seconds = min(seconds, max(LOOK, self._suspects_from - self._clock.monotonic()))
        bell = asyncio.ensure_future(self._consumer.bell.wait(seconds))
        await first(bell, self._waking.item(), self._hold.imposed(), self._stop.wait())
        told = self._waking.taken()
        if not bell.done():
            bell.cancel()
            await asyncio.wait([bell], timeout=1.0)
            return told
        try:
            rung = bell.result()
        except StorageError as error:
            self._outage.began("listen", error)
            await self._unless_stopped(self._clock.sleep(brief))
            return told
        if armed and seconds == longest and not (rung or told):
            self._waking.ran_out()
        return rung or told

    async def _arm(self) -> bool:
        """A bell that cannot be had is no reason not to claim: then the worker looks often."""
        if self._clock.monotonic() < self._aside_until:
            return False
        try:
            armed = await self._consumer.bell.arm()
        except StorageError as error:
            self._outage.began("listen", error)
            return False
        self._outage.ended("listen")
        return armed

    async def _disarm(self) -> None:
        try:
            await self._consumer.bell.disarm()
        except StorageError as error:
            self._outage.began("listen", error)

    async def _pass_on(self) -> None:
        try:
            await self._consumer.bell.pass_on()
        except StorageError as error:
            self._outage.began("listen", error)

    async def _unless_stopped(self, thing: Awaitable[Any]) -> None:
        await first(thing, self._stop.wait())


def _more_is_due(claim: Claim) -> bool:
    """Whether a thorough claim left something that is due now: others hold it, or it must be claimed alone."""
    return claim.suspects or (claim.next_due is not None and claim.next_due <= 0)


def _plenty(claim: Claim, room: int) -> bool:
    """Whether more is likely to be had at once. A storage may round a claim down to a size that it has prepared."""
    return len(claim.jobs) * 3 >= room
