"""Bugs of situations."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from uuid import UUID

from prinia.changes import WorkerCommand
from prinia.job import JobRecord
from prinia.overview import WorkerRecord
from prinia.situation import Situation
from prinia.storage.memory.controlling import all_pauses
from prinia.storage.memory.listing import Listing
from prinia.storage.memory.rows import LiveJob

from .base import Broken


class OddSituation(Listing):
    """Tells situations as a method of it changes them."""

    def changed(self, situation: Situation) -> Situation:
        return situation

    def situation(self, id: int, /, *, limit: int) -> Situation:
        return self.changed(super().situation(id, limit=limit))


class EndedUnexplained(OddSituation, Broken):
    """A job that has ended is not there."""

    def changed(self, situation: Situation) -> Situation:
        ended = situation.job is not None and situation.job.state.final
        return replace(situation, job=None if ended else situation.job)


class DeadlineUntold(OddSituation, Broken):
    """Nobody hears of a latest start."""

    def changed(self, situation: Situation) -> Situation:
        return replace(situation, expires_at=None)


class PausesUntold(OddSituation, Broken):
    """Nobody hears of pauses."""

    def changed(self, situation: Situation) -> Situation:
        return replace(situation, pauses=())


class DeadUntold(OddSituation, Broken):
    """Workers that were declared dead are left out."""

    def changed(self, situation: Situation) -> Situation:
        return replace(situation, workers=[worker for worker in situation.workers if worker.alive])


class AlwaysAround(OddSituation, Broken):
    """Pauses and workers are told of jobs that have ended, too."""

    def changed(self, situation: Situation) -> Situation:
        return replace(situation, pauses=all_pauses(self.tables), workers=self._workers(situation.now))


class CountedWithoutEnd(Broken):
    """All jobs ahead are counted, however many."""

    def situation(self, id: int, /, *, limit: int) -> Situation:
        return super().situation(id, limit=10**9)


class OddCount(Broken):
    """The base of those that count otherwise."""

    def counts(self, other: LiveJob, job: LiveJob, now: datetime) -> bool:
        return False

    def _ahead(self, job: LiveJob, now: datetime) -> int:
        return sum(other is not job and self.counts(other, job, now) for other in self.tables.live.values())


class FirstComeFirst(OddCount):
    """A priority is no reason to go first."""

    def counts(self, other: LiveJob, job: LiveJob, now: datetime) -> bool:
        return other.spec.queue == job.spec.queue and (other.due, other.id) < (job.due, job.id)


class EverybodyAhead(OddCount):
    """All jobs of the queue of a higher priority count, whatever they do."""

    def counts(self, other: LiveJob, job: LiveJob, now: datetime) -> bool:
        return other.spec.queue == job.spec.queue and other.spec.priority > job.spec.priority


class BlockingFormBlind(Broken):
    """The blocking form finds no job."""

    async def asituation(self, id: int, /, *, limit: int) -> Situation:
        return super().situation(id, limit=limit)

    def situation(self, id: int, /, *, limit: int) -> Situation:
        return Situation(now=self.tables.now())


class CommanderForgotten(Broken):
    """A worker does not say who told it."""

    def command_worker(self, instance: UUID, command: WorkerCommand | None, /, *, by: str) -> bool:
        told = super().command_worker(instance, command, by=by)
        self.tables.register[instance].commanded_by = None
        return told


class CommanderStays(Broken):
    """A worker that may go on still names who told it to stand still."""

    def workers(self) -> list[WorkerRecord]:
        names = {id: one.commanded_by for id, one in self.tables.register.items()}
        return [replace(worker, commanded_by=names[worker.id]) for worker in super().workers()]


class CancellerUnnamed(Broken):
    """A running job does not say that somebody wants it cancelled."""

    async def afind(self, ids: object, /) -> list[JobRecord]:
        records = super().find(ids)  # type: ignore[arg-type]
        return [record if record.state.final else replace(record, reason=None) for record in records]
