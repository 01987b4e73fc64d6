"""Bugs of operations on many jobs, of pauses, of commands to workers, and of the audit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from prinia.changes import AuditEntry, Batch, PauseKind, Step, WorkerCommand
from prinia.errors import WorkerNotFound
from prinia.job import JobState
from prinia.selection import select
from prinia.storage.memory.bell import MemoryBell
from prinia.storage.memory.consumer import MemoryConsumer
from prinia.storage.memory.rows import Finished, Registered
from prinia.storage.memory.tables import Tables
from prinia.storage.protocol import Claim

from .base import Broken


class SelectionIgnored(Broken):
    """An operation is made on every job."""

    def operate(self, step: Step, /) -> Batch:
        return super().operate(replace(step, selection=select()))


class StepsStandStill(Broken):
    """Each step begins with the first job."""

    def operate(self, step: Step, /) -> Batch:
        return super().operate(replace(step, after=0))


class DryStepsAct(Broken):
    """A dry run does what it says."""

    def operate(self, step: Step, /) -> Batch:
        return super().operate(replace(step, dry=False))


class OperationsOnlySaid(Broken):
    """What an operation says it did it did not."""

    def operate(self, step: Step, /) -> Batch:
        return super().operate(replace(step, dry=True))


class RunningTaken(Broken):
    """Running jobs are changed as if they waited."""

    def operate(self, step: Step, /) -> Batch:
        for job in self.tables.live.values():
            job.claimed_at = None
        return super().operate(step)


class EndedUnexplained(Broken):
    """Why jobs are left alone is not said."""

    def operate(self, step: Step, /) -> Batch:
        return replace(super().operate(step), skipped={})


class OperationsMute(Broken):
    """Nobody is woken by what an operation makes claimable."""

    class tables_class(Tables):
        silent = False

        def ring(self, queues: Iterable[str]) -> None:
            if not self.silent:
                super().ring(queues)

    def operate(self, step: Step, /) -> Batch:
        assert isinstance(self.tables, OperationsMute.tables_class)
        self.tables.silent = True
        try:
            return super().operate(step)
        finally:
            self.tables.silent = False


class OneColourInert(Broken):
    """Only the awaiting form does anything."""

    def operate(self, step: Step, /) -> Batch:
        return Batch()

    async def aoperate(self, step: Step, /) -> Batch:
        return super().operate(step)


class HistoryLeftBehind(Broken):
    """A job that comes back has forgotten its errors."""

    class tables_class(Tables):
        def redrive(self, row: Finished, now: datetime) -> None:
            super().redrive(replace(row, record=replace(row.record, errors=())), now)


class FenceLeftBehind(Broken):
    """An ack of the run that ended a job is a stranger once the job is back."""

    class tables_class(Tables):
        def redrive(self, row: Finished, now: datetime) -> None:
            super().redrive(replace(row, owner=None, token=None), now)


class AllComeBack(Broken):
    """A retry brings back whatever has ended."""

    def operate(self, step: Step, /) -> Batch:
        if step.ended:
            state = [state for state in JobState if state.final]
            step = replace(step, selection=replace(step.selection, state=tuple(state)))
        return super().operate(step)


class ArgumentsMadeUp(Broken):
    """A job whose arguments were not kept comes back without any."""

    def operate(self, step: Step, /) -> Batch:
        for id, row in self.tables.finished.items():
            if row.record.args is None:
                self.tables.finished[id] = replace(row, record=replace(row.record, args=b"{}"))
        return super().operate(step)


class KeysForgotten(Broken):
    """A job that comes back cares for no unique key."""

    class tables_class(Tables):
        def redrive(self, row: Finished, now: datetime) -> None:
            key = row.job.spec.unique
            super().redrive(row, now)
            if key is not None:
                self.unique.pop(key.hash, None)
                self.windows.pop(key.hash, None)


class PausesOnlySaid(Broken):
    """Nothing is paused."""

    def pause(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        return True


class PausesAreForAll(Broken):
    """Whoever pauses something pauses everything."""

    def pause(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        super().pause("everything", by=by)
        return super().pause(kind, name, by=by)


class PausedLost(Broken):
    """Jobs that were passed over while their task was paused are never found again."""

    class consumer_class(MemoryConsumer):
        async def claim(self, limit: int, /, *, token: int, alone: bool = False, thorough: bool = True) -> Claim:
            for job in self._tables.live.values():
                if job.claimed_at is None and job.spec.task in self._tables.paused_tasks:
                    job.place += 1
            return await super().claim(limit, token=token, alone=alone, thorough=thorough)


class PauseTakesAway(Broken):
    """Running jobs are taken from their workers by a pause."""

    def pause(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        _take_away(self.tables)
        return super().pause(kind, name, by=by)


class ResumeMute(Broken):
    """Nobody is woken when something goes on."""

    class tables_class(OperationsMute.tables_class):
        pass

    def resume(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        assert isinstance(self.tables, ResumeMute.tables_class)
        self.tables.silent = True
        try:
            return super().resume(kind, name, by=by)
        finally:
            self.tables.silent = False


class CommandIgnored(Broken):
    """A worker that was told something claims all the same."""

    class consumer_class(MemoryConsumer):
        async def claim(self, limit: int, /, *, token: int, alone: bool = False, thorough: bool = True) -> Claim:
            me = self._tables.register.get(self._instance.id)
            command = me.command if me is not None else None
            if me is not None:
                me.command = None
            try:
                return await super().claim(limit, token=token, alone=alone, thorough=thorough)
            finally:
                if me is not None:
                    me.command = command


class CommandTakesAway(Broken):
    """A worker that is told something loses what it runs."""

    def command_worker(self, instance: UUID, command: WorkerCommand | None, /, *, by: str) -> bool:
        _take_away(self.tables)
        return super().command_worker(instance, command, by=by)


class CommandAlwaysNew(Broken):
    """Every command is new, and a stop can be taken back."""

    def command_worker(self, instance: UUID, command: WorkerCommand | None, /, *, by: str) -> bool:
        super().command_worker(instance, command, by=by)
        self.tables.register[instance].command = command
        return True


class GhostsTold(Broken):
    """Whoever is not there is told, too."""

    def command_worker(self, instance: UUID, command: WorkerCommand | None, /, *, by: str) -> bool:
        try:
            return super().command_worker(instance, command, by=by)
        except WorkerNotFound:
            return True


class SummonsMute(Broken):
    """A worker does not hear that it was told something."""

    class consumer_class(MemoryConsumer):
        async def open(self) -> None:
            await super().open()
            self._tables.listeners.clear()


class SummonsForgotten(Broken):
    """A worker does not hear what it was told while it was not waiting."""

    def command_worker(self, instance: UUID, command: WorkerCommand | None, /, *, by: str) -> bool:
        told = super().command_worker(instance, command, by=by)
        for listener in self.tables.listeners:
            assert isinstance(listener, MemoryBell)
            listener._summoned = False
        return told


class CommandDiesWithLife(Broken):
    """A new life of a worker knows nothing of what the one before was told."""

    class consumer_class(MemoryConsumer):
        async def open(self) -> None:
            now = self._tables.now()
            self._tables.register[self._instance.id] = Registered(self._instance, now, now)
            await super().open()


class AuditForgotten(Broken):
    """Nobody knows who did what."""

    def audit(self, *, before: int | None, limit: int, by: str | None, operation: str | None) -> list[AuditEntry]:
        return []


class AuditUnsorted(Broken):
    """The audit begins with the oldest entry, and is not searched."""

    def audit(self, *, before: int | None, limit: int, by: str | None, operation: str | None) -> list[AuditEntry]:
        return list(self.tables.audit.values())[:limit]


class StepsApart(Broken):
    """Each step of an operation is an entry of its own in the audit."""

    def operate(self, step: Step, /) -> Batch:
        return super().operate(replace(step, note=None))


class NamesAsTheyAre(Broken):
    """A name that cannot be stored is refused."""

    def pause(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        by.encode()
        return super().pause(kind, name, by=by)


class WhoIsForgotten(Broken):
    """Who cancelled a job is not kept."""

    def operate(self, step: Step, /) -> Batch:
        return super().operate(replace(step, by="somebody"))


class AlwaysRescheduledByDelay(Broken):
    """A time to be due at is not heard."""

    def operate(self, step: Step, /) -> Batch:
        return super().operate(replace(step, change=replace(step.change, at=None)))


def _take_away(tables: Tables) -> None:
    for job in tables.live.values():
        job.owner = None
