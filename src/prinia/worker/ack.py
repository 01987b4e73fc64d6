"""ACK: outcomes are collected and recorded in flushes, one in flight at a time.

What has finished is sent as soon as the flush before it is back. Outcomes are kept through any outage, sent again
until they are recorded, and hold back claiming when too many wait. A flush that the database refuses is halved until
the row that causes it is found; that job fails with the reason, the others are recorded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from prinia.clock import Clock
from prinia.errors import StorageError, StorageUnavailable
from prinia.job import AttemptError, ClaimedJob, JobState
from prinia.outcome import Ack, AckKind
from prinia.storage.protocol import Consumer, Receipt
from prinia.storage.text import storable
from prinia.worker.announce import Announcer
from prinia.worker.ledger import Counts, Ledger
from prinia.worker.outage import Backoff, Outage
from prinia.worker.waiting import first

log = logging.getLogger("prinia.worker")

#: Bounds of one flush.
FLUSH_ROWS = 1000
FLUSH_BYTES = 4 * 1024 * 1024
#: Claiming pauses while more than this waits to be recorded.
FULL_ROWS = 2000
FULL_BYTES = 64 * 1024 * 1024

#: While other jobs run, fewer outcomes than `_FEW` wait so many seconds for company.
_FEW = 100
_COMPANY = 0.002
#: Seconds between two tries of a row that the database refused.
_REFUSED_PAUSE = 0.1


#: What a job counts as that ended otherwise than its ack says.
_ENDED = {JobState.COMPLETED: "completed", JobState.FAILED: "failed", JobState.CANCELLED: "cancelled"}

#: An outcome on its way, and the field of `WorkerStats` that it adds to. A tuple, because one is made for every job.
Unrecorded: TypeAlias = tuple[Ack, ClaimedJob, str]


class Flusher:
    """Collects outcomes (`add`) and records them (`run`) until it is closed and empty."""

    def __init__(
        self,
        consumer: Consumer,
        ledger: Ledger,
        counts: Counts,
        outage: Outage,
        *,
        jobs_run: Callable[[], bool],
        changed: asyncio.Event,
        clock: Clock,
        random: Callable[[], float],
        announcer: Announcer | None = None,
    ) -> None:
        self._consumer = consumer
        self._announcer = announcer
        self._ledger = ledger
        self._counts = counts
        self._outage = outage
        self._jobs_run = jobs_run
        self._changed = changed
        self._clock = clock
        self._backoff = Backoff(random)
        self._busy_pause = Backoff(random, first=0.01, longest=0.25)
        self._pending: list[Unrecorded] = []
        self._in_flight: dict[int, Unrecorded] = {}
        #: Ids of which an ack may have been recorded without our hearing of it.
        self._unheard: set[int] = set()
        self._busy: list[Unrecorded] = []
        #: By job id, what is to be logged once it is sure that it happened.
        self._unsaid: dict[int, Callable[[], None]] = {}
        self._busy_due = 0.0
        self._bytes = 0
        self._closing = False
        self._dirty = asyncio.Event()
        self._settled = asyncio.Event()

    @property
    def unrecorded(self) -> int:
        """How many outcomes are not recorded yet."""
        return len(self._pending) + len(self._in_flight) + len(self._busy)

    @property
    def full(self) -> bool:
        """Whether claiming must wait until more has been recorded."""
        return len(self._pending) > FULL_ROWS or self._bytes > FULL_BYTES or self.unrecorded > FULL_ROWS

    def add(self, ack: Ack, job: ClaimedJob, counter: str) -> None:
        """Record this, soon."""
        self._bytes += _size(ack)
        if not self._pending:
            self._dirty.set()
        self._pending.append((ack, job, counter))

    def add_unsure(self, ack: Ack, job: ClaimedJob, counter: str, say: Callable[[], None]) -> None:
        """Record this, unless the job turns out to be completed already; ``say`` it in the log only then."""
        self._unsaid[ack.id] = say
        self.add(ack, job, counter)

    def close(self) -> None:
        """Nothing is added any more: `run` returns once all is recorded."""
        self._closing = True
        self._dirty.set()

    def drop(self, *, counter: str = "lost") -> None:
        """Forget all outcomes: the jobs belong to others by now, or soon will."""
        dropped = [*self._pending, *self._in_flight.values(), *self._busy]
        self._ledger.settled(Counter(ack.token for ack, _, _ in dropped))
        self._counts[counter] += len(dropped)
        self._pending.clear()
        self._in_flight.clear()
        self._busy.clear()
        self._unsaid.clear()
        self._bytes = 0

    async def until_empty(self) -> None:
        """Return once all is recorded."""
        while self.unrecorded:
            self._settled.clear()
            await self._settled.wait()

    async def run(self) -> None:
        """Record what is added until `close`; survives every error of the storage."""
        while True:
            if not self._pending:
                if self._closing and not self._busy:
                    return
                await self._wait_for_more()
            if self._busy and self._clock.monotonic() >= self._busy_due:
                await self.send_busy()
            if self._pending:
                if len(self._pending) < _FEW and self._jobs_run() and not self._closing:
                    await asyncio.sleep(_COMPANY)
                await self.flush()

    async def flush(self) -> None:
        """Record one flush of what waits, however long it takes."""
        self._in_flight = self._take()
        await self._send_until_settled()

    async def send_busy(self) -> None:
        """Send again, one by one, the acks whose rows somebody had locked."""
        busy, self._busy = self._busy, []
        for number, unrecorded in enumerate(busy):
            self._in_flight = {unrecorded[0].id: unrecorded}
            try:
                await self._send_until_settled()
            except asyncio.CancelledError:
                self._busy += busy[number + 1 :]
                raise

    async def _wait_for_more(self) -> None:
        self._dirty.clear()
        if self._busy:
            pause = max(0.0, self._busy_due - self._clock.monotonic())
            await first(self._dirty.wait(), self._clock.sleep(pause))
        elif not self._closing:
            await self._dirty.wait()

    def _take(self) -> dict[int, Unrecorded]:
        """The next flush, in the order of ids. One flush has each id once, or its receipt would be ambiguous."""
        if len(self._pending) <= FLUSH_ROWS and self._bytes <= FLUSH_BYTES:
            everything = {unrecorded[0].id: unrecorded for unrecorded in self._pending}
            if len(everything) == len(self._pending):
                self._pending.clear()
                return everything
        taken: dict[int, Unrecorded] = {}
        size = 0
        for unrecorded in self._pending:
            ack = unrecorded[0]
            size += _size(ack)
            id = ack.id
            if id in taken or len(taken) == FLUSH_ROWS or (size > FLUSH_BYTES and taken):
                break
            taken[id] = unrecorded
        del self._pending[: len(taken)]
        return taken

    async def _send_until_settled(self) -> None:
        while self._in_flight:
            acks = [self._in_flight[id][0] for id in sorted(self._in_flight)]
            try:
                await self._send(acks)
            except StorageError as error:
                self._outage.began("record outcomes", error)
                self._unheard.update(self._in_flight)
                self._ledger.recheck = True
                self._changed.set()
                await self._clock.sleep(self._backoff.next())
        self._unheard.clear()
        self._outage.ended("record outcomes")
        self._backoff.reset()

    async def _send(self, acks: list[Ack]) -> None:
        """Send these; what was recorded leaves `_in_flight`, even when an error is raised for another part."""
        try:
            receipt = await self._consumer.ack(acks)
        except StorageUnavailable:
            raise
        except StorageError as error:
            if len(acks) == 1:
                await self._send_refused(acks[0], error)
            else:
                middle = len(acks) // 2
                await self._send(acks[:middle])
                await self._send(acks[middle:])
        else:
            self._settle(acks, receipt)

    async def _send_refused(self, ack: Ack, refusal: StorageError) -> None:
        """One outcome was refused: is it this one, or the database as a whole?

        It is sent again, and if refused again a plain failure in its place. If that is refused as well, nothing is
        wrong with this row: the error goes up, and the outcome is kept for when the database takes it.
        """
        await self._clock.sleep(_REFUSED_PAUSE)
        try:
            self._settle([ack], await self._consumer.ack([ack]))
        except StorageUnavailable:
            raise
        except StorageError:
            _, job, _ = self._in_flight[ack.id]
            error = AttemptError(
                attempt=job.attempt,
                kind="StorageError",
                message=storable(f"the outcome could not be recorded: {refusal}", limit=2048),
            )
            instead = Ack(ack.id, ack.token, AckKind.FAIL, error=error)
            receipt = await self._consumer.ack([instead])
            log.error("job %d (%s) failed: %s", ack.id, job.task, error.message)
            self._in_flight[ack.id] = (instead, job, "failed")
            self._bytes += _size(instead) - _size(ack)
            self._settle([instead], receipt)

    def _settle(self, acks: Sequence[Ack], receipt: Receipt) -> None:
        if receipt.busy or receipt.lost:
            acks = self._sort_out(acks, receipt)
        for id, state in receipt.ended.items():
            if id in self._in_flight:
                ack, job, _ = self._in_flight[id]
                self._in_flight[id] = (ack, job, _ENDED[state])
        # Dropped meanwhile, when the instance was declared dead, are those that are not there any more.
        done = [unrecorded for ack in acks if (unrecorded := self._in_flight.pop(ack.id, None)) is not None]
        self._ledger.settled(Counter([ack.token for ack, _, _ in done]))
        self._counts.update([counter for _, _, counter in done])
        self._bytes -= sum([_size(ack) for ack, _, _ in done])
        if self._unsaid:
            self._say(done, receipt)
        self._plan_busy(receipt)
        self._settled.set()
        self._changed.set()
        if self._announcer is not None and self._announcer.hears_outcomes:
            for ack, job, counter in done:
                self._announcer.recorded(ack, job, counter)

    def _say(self, done: Sequence[Unrecorded], receipt: Receipt) -> None:
        for ack, _, counter in done:
            say = self._unsaid.pop(ack.id, None)
            if say is not None and ack.id not in receipt.ended and counter != "lost":
                say()

    def _sort_out(self, acks: Sequence[Ack], receipt: Receipt) -> list[Ack]:
        """Put what is busy aside; what is lost counts as lost. Returns what leaves the flusher."""
        settled = []
        for ack in acks:
            unrecorded = self._in_flight.get(ack.id)
            if unrecorded is not None and ack.id in receipt.busy:
                del self._in_flight[ack.id]
                self._busy.append(unrecorded)
                continue
            settled.append(ack)
            if unrecorded is not None and ack.id in receipt.lost and not self._was_recorded(ack):
                _, job, _ = unrecorded
                self._in_flight[ack.id] = (ack, job, "lost")
                log.warning("job %d (%s) is not ours any more; its outcome is dropped", ack.id, job.task)
                if self._announcer is not None:
                    self._announcer.lost(job)
        return settled

    def _was_recorded(self, ack: Ack) -> bool:
        """A job that went back to its queue may have been claimed anew since: then its ack is not recognised."""
        return ack.id in self._unheard and ack.kind in (AckKind.RETRY, AckKind.SNOOZE)

    def _plan_busy(self, receipt: Receipt) -> None:
        if receipt.busy:
            self._busy_due = self._clock.monotonic() + self._busy_pause.next()
        elif not self._busy:
            self._busy_pause.reset()


def _size(ack: Ack) -> int:
    """About how many bytes it is kept in, and sent in."""
    if ack.result is not None:
        return len(ack.result)
    if ack.within is not None and ack.within.result is not None:
        return len(ack.within.result)
    return len(ack.error.message) + len(ack.error.traceback or "") if ack.error is not None else 0
