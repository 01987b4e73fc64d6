"""Bugs of lists and counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from prinia.job import JobRecord, JobState
from prinia.overview import Count, QueueRecord, WorkerRecord
from prinia.selection import Selection, select
from prinia.storage.memory.listing import Listing
from prinia.storage.memory.pulse import MemoryPulse
from prinia.storage.protocol import NO_VITALS, Beat, Stretch, Vitals

from .base import Broken


class Picky(Listing):
    """Finds what a method of it says."""

    def fits(self, selection: Selection, record: JobRecord) -> bool:
        return selection.matches(record)

    def browse(self, selection: Selection, /, *, after: int | None, limit: int, oldest_first: bool = False) -> Stretch:
        everything = super().browse(select(), after=after, limit=10**9, oldest_first=oldest_first).records
        found = [record for record in everything if self.fits(selection, record)]
        return Stretch(found[:limit], found[limit - 1].id if len(found) > limit else None)


class StateIgnored(Picky, Broken):
    """Jobs are found whatever their state."""

    def fits(self, selection: Selection, record: JobRecord) -> bool:
        return replace(selection, state=None).matches(record)


class FinishedUnseen(Picky, Broken):
    """Jobs that have ended are not found."""

    def fits(self, selection: Selection, record: JobRecord) -> bool:
        return not record.state.final and selection.matches(record)


class AnyTag(Picky, Broken):
    """One of several tags is enough."""

    def fits(self, selection: Selection, record: JobRecord) -> bool:
        tagged = selection.tag is None or not set(selection.tag).isdisjoint(record.tags)
        return tagged and replace(selection, tag=None).matches(record)


class NothingIsEverything(Picky, Broken):
    """No ids are all ids."""

    def fits(self, selection: Selection, record: JobRecord) -> bool:
        return replace(selection, ids=selection.ids or None).matches(record)


class FirstError(Picky, Broken):
    """Jobs are found by the first of their errors."""

    def fits(self, selection: Selection, record: JobRecord) -> bool:
        return selection.matches(replace(record, errors=record.errors[:1]))


class OwnerOutlives(Picky, Broken):
    """A job that was given back is found by who had it."""

    def fits(self, selection: Selection, record: JobRecord) -> bool:
        live = self.tables.live.get(record.id)
        return selection.matches(record if live is None else replace(record, owner=live.owner))


class BeforeIncludes(Picky, Broken):
    """``before`` includes its moment."""

    def fits(self, selection: Selection, record: JobRecord) -> bool:
        if selection.created_before is not None:
            selection = replace(selection, created_before=selection.created_before + timedelta(microseconds=1))
        return selection.matches(record)


class Forgetful(Broken):
    """Errors are not told in lists."""

    def browse(self, selection: Selection, /, *, after: int | None, limit: int, oldest_first: bool = False) -> Stretch:
        stretch = super().browse(selection, after=after, limit=limit, oldest_first=oldest_first)
        return replace(stretch, records=[replace(record, errors=()) for record in stretch.records])


class AlwaysNewestFirst(Broken):
    """Jobs come newest first, whatever was asked for."""

    def browse(self, selection: Selection, /, *, after: int | None, limit: int, oldest_first: bool = False) -> Stretch:
        return super().browse(selection, after=after, limit=limit)


class PagesByNumber(Broken):
    """A page begins after so many jobs, not after a job."""

    def browse(self, selection: Selection, /, *, after: int | None, limit: int, oldest_first: bool = False) -> Stretch:
        start = after or 0
        found = super().browse(selection, after=None, limit=10**9, oldest_first=oldest_first).records
        return Stretch(found[start : start + limit], start + limit if len(found) > start + limit else None)


class OneMorePage(Broken):
    """A full page promises another."""

    def browse(self, selection: Selection, /, *, after: int | None, limit: int, oldest_first: bool = False) -> Stretch:
        stretch = super().browse(selection, after=after, limit=limit, oldest_first=oldest_first)
        full = len(stretch.records) == limit
        return replace(stretch, after=stretch.records[-1].id if full else None)


class BlockingFormsBlind(Broken):
    """A blocking look sees nothing."""

    async def abrowse(
        self, selection: Selection, /, *, after: int | None, limit: int, oldest_first: bool = False
    ) -> Stretch:
        return super().browse(selection, after=after, limit=limit, oldest_first=oldest_first)

    def browse(self, selection: Selection, /, *, after: int | None, limit: int, oldest_first: bool = False) -> Stretch:
        return Stretch((), None)


class CountsLiveOnly(Broken):
    """Jobs that have ended are not counted."""

    def count(self, selection: Selection, /, *, limit: int) -> Count:
        records = super().browse(selection, after=None, limit=10**9).records
        return Count(sum(not record.state.final for record in records))


class OddQueues(Listing):
    """Tells queues as a method of it changes them."""

    def changed(self, queue: QueueRecord) -> QueueRecord:
        return queue

    def queues(self, *, limit: int) -> list[QueueRecord]:
        return [self.changed(queue) for queue in super().queues(limit=limit)]


class ScheduledAreReady(OddQueues, Broken):
    """Jobs that are due later are counted as ready."""

    def changed(self, queue: QueueRecord) -> QueueRecord:
        counts = dict(queue.counts)
        later = counts.pop(JobState.SCHEDULED, Count(0))
        ready = counts.get(JobState.READY, Count(0))
        return replace(queue, counts={**counts, JobState.READY: Count(ready.number + later.number)})


class DeadServe(OddQueues, Broken):
    """Instances that were declared dead still serve their queues."""

    def changed(self, queue: QueueRecord) -> QueueRecord:
        every = self.tables.register.values()
        return replace(queue, workers=tuple(one.instance.id for one in every if queue.name in one.instance.queues))


class ImportantOldest(OddQueues, Broken):
    """Only jobs of the highest priority are seen to wait."""

    def changed(self, queue: QueueRecord) -> QueueRecord:
        waiting = [job for job in self.tables.live.values() if job.spec.queue == queue.name and job.claimed_at is None]
        first = min(waiting, key=lambda job: (-job.spec.priority, job.due), default=None)
        return replace(queue, oldest_ready_at=None if first is None else first.due)


class PauseUnseen(OddQueues, Broken):
    """No queue is told to be paused."""

    def changed(self, queue: QueueRecord) -> QueueRecord:
        return replace(queue, paused=False)


class DeadAreWell(Broken):
    """Instances that were declared dead are told as the others."""

    def workers(self) -> list[WorkerRecord]:
        return [replace(worker, alive=True) for worker in super().workers()]


class VitalsStay(Broken):
    """What an instance once said of itself stays, though it says it no more."""

    class pulse_class(MemoryPulse):
        def beat(self, tokens: Sequence[int], started: Sequence[int], vitals: Vitals = NO_VITALS, /) -> Beat:
            me = self._alive()
            if vitals == NO_VITALS and me is not None:
                vitals = me.vitals
            return super().beat(tokens, started, vitals)
