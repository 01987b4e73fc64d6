"""Storages that break one promise each, to see the conformance suite notice.

Each double is the memory storage with one mechanism switched off; its docstring is the bug.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from prinia.job import AttemptError, ClaimedJob, Instance, JobSpec, JobState, Pushed
from prinia.storage.memory import MemoryStorage, SystemWallClock
from prinia.storage.memory.bell import MemoryBell
from prinia.storage.memory.consumer import MemoryConsumer
from prinia.storage.memory.pulse import MemoryPulse
from prinia.storage.memory.rows import LiveJob, Registered
from prinia.storage.memory.tables import Tables
from prinia.storage.protocol import Claim

ENDLESS = 10**9


class Broken(MemoryStorage):
    """A memory storage made of replaceable parts."""

    tables_class: ClassVar[type[Tables]] = Tables
    consumer_class: ClassVar[type[MemoryConsumer]] = MemoryConsumer
    pulse_class: ClassVar[type[MemoryPulse]] = MemoryPulse

    def __init__(self) -> None:
        super().__init__()
        self.tables = self.tables_class(SystemWallClock())

    def consumer(self, instance: Instance, /) -> MemoryConsumer:
        return self.consumer_class(self.tables, instance)

    def pulse(self, instance: Instance, /) -> MemoryPulse:
        return self.pulse_class(self.tables, instance)


class NoFence(Broken):
    """Any ack of a running job counts, whoever sends it."""

    class tables_class(Tables):
        def owns(self, job: LiveJob | None, owner: UUID, token: int) -> bool:
            return job is not None and job.claimed_at is not None


class FencedByOwnerAlone(Broken):
    """The token of the claim is not looked at."""

    class tables_class(Tables):
        def owns(self, job: LiveJob | None, owner: UUID, token: int) -> bool:
            return job is not None and job.claimed_at is not None and job.owner == owner


class FencedByTokenAlone(Broken):
    """The owner of the claim is not looked at."""

    class tables_class(Tables):
        def owns(self, job: LiveJob | None, owner: UUID, token: int) -> bool:
            return job is not None and job.claimed_at is not None and job.token == token


class NoLock(Broken):
    """Selecting and marking are two steps: another claimer gets in between."""

    class tables_class(Tables):
        def select(
            self, queues: Sequence[str], limit: int, now: datetime, *, alone: bool, exclude: AbstractSet[str]
        ) -> list[LiveJob]:
            jobs = super().select(queues, limit, now, alone=alone, exclude=exclude)
            for job in jobs:
                self.lines[job.spec.queue].add(job)
            self.lock.release()
            time.sleep(0.001)
            self.lock.acquire()
            return jobs


class UniqueKeyLost(Broken):
    """Unique keys are not kept."""

    class tables_class(Tables):
        def insert(self, id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> None:
            super().insert(id, replace(spec, unique=None), meta, now)


class UniqueKeyFreedByClaim(Broken):
    """A unique key is free as soon as its job runs."""

    class tables_class(Tables):
        def take(self, job: LiveJob, owner: Registered, token: int, now: datetime) -> None:
            super().take(job, owner, token, now)
            if job.spec.unique is not None:
                self.unique.pop(job.spec.unique.hash, None)


class UniqueKeyNeverFreed(Broken):
    """A unique key outlives its job."""

    class tables_class(Tables):
        def finish(
            self, job: LiveJob, state: JobState, now: datetime, *, result: bytes | None = None, reason: str | None = None
        ) -> None:
            super().finish(job, state, now, result=result, reason=reason)
            if job.spec.unique is not None:
                self.unique[job.spec.unique.hash] = job.id


class UniqueKeyRaced(Broken):
    """A unique key is looked up before the push and taken after it."""

    def push(self, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        specs = list(jobs)
        held = [spec.unique is not None and spec.unique.hash in self.tables.unique for spec in specs]
        time.sleep(0.001)
        blind = [spec if taken else replace(spec, unique=None) for spec, taken in zip(specs, held, strict=True)]
        answers = super().push(blind)
        for spec, answer in zip(specs, answers, strict=True):
            if spec.unique is not None:
                self.tables.unique[spec.unique.hash] = answer.id
        return answers


class EarlyCommit(Broken):
    """A push stores chunk by chunk: what came before an error stays."""

    async def apush(self, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /) -> Sequence[Pushed]:
        answers: list[Pushed] = []
        if isinstance(jobs, AsyncIterable):
            return [pushed async for spec in jobs for pushed in self.push([spec])]
        for spec in jobs:
            answers += self.push([spec])
        return answers


class PushReversed(Broken):
    """Jobs of one push are stored last first."""

    async def apush(self, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /) -> Sequence[Pushed]:
        specs = [spec async for spec in jobs] if isinstance(jobs, AsyncIterable) else list(jobs)
        return list(reversed(self.push(list(reversed(specs)))))


class ArgumentsRewritten(Broken):
    """JSON arguments go through a column that parses them."""

    class tables_class(Tables):
        def insert(self, id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> None:
            if spec.codec == "json":
                spec = replace(spec, args=json.dumps(json.loads(spec.args), sort_keys=True).encode())
            super().insert(id, spec, meta, now)


class EmptyResultLost(Broken):
    """An empty result is taken for none."""

    class tables_class(Tables):
        def finish(
            self, job: LiveJob, state: JobState, now: datetime, *, result: bytes | None = None, reason: str | None = None
        ) -> None:
            super().finish(job, state, now, result=result or None, reason=reason)


class AckForgotten(Broken):
    """A recorded ack leaves no owner and token behind: sent again it is lost."""

    class tables_class(Tables):
        def recorded(self, id: int, owner: UUID, token: int) -> bool:
            return False


class AckRecordedTwice(Broken):
    """An ack sent again is recorded again."""

    class tables_class(Tables):
        def owns(self, job: LiveJob | None, owner: UUID, token: int) -> bool:
            return job is not None and job.owner == owner and job.token == token


class EverythingRecorded(Broken):
    """An ack that cannot be recorded is said to have been."""

    class tables_class(Tables):
        def recorded(self, id: int, owner: UUID, token: int) -> bool:
            return True


class AttemptNotHandedBack(Broken):
    """Every claim counts."""

    class tables_class(Tables):
        def hand_back(self, job: LiveJob) -> None:
            pass


class HistoryLost(Broken):
    """Only the last error is kept."""

    class tables_class(Tables):
        def note(self, job: LiveJob, error: AttemptError, now: datetime) -> None:
            job.errors = ()
            super().note(job, error, now)


class HistoryEndless(Broken):
    """The first errors are kept instead of the latest."""

    class tables_class(Tables):
        def note(self, job: LiveJob, error: AttemptError, now: datetime) -> None:
            before = job.errors
            super().note(job, error, now)
            job.errors = (*before, job.errors[-1])


class TextsAsTheyAre(Broken):
    """A text with a NUL character is refused, as a text column does."""

    class tables_class(Tables):
        def note(self, job: LiveJob, error: AttemptError, now: datetime) -> None:
            error.message.encode()
            if "\0" in error.message:
                raise ValueError("a text may not contain NUL")
            super().note(job, error, now)


class RecoverDoesNothing(Broken):
    """A claim whose reply was lost is not handed back by the worker that reconnects."""

    class consumer_class(MemoryConsumer):
        async def recover(self, tokens: Sequence[int], running: Sequence[ClaimedJob], /) -> frozenset[int]:
            return frozenset()


class StraysStay(Broken):
    """A claim whose reply was lost is never found."""

    class pulse_class(MemoryPulse):
        def free_strays(self) -> int:
            return 0


class StraysTooSoon(Broken):
    """A claim in flight is taken for a stray."""

    class tables_class(Tables):
        def take(self, job: LiveJob, owner: Registered, token: int, now: datetime) -> None:
            super().take(job, owner, token, now)
            job.claimed_beat -= 2


class StraysOfAll(Broken):
    """Reported tokens are not looked at when strays are freed."""

    class pulse_class(MemoryPulse):
        def beat(self, tokens: Sequence[int], started: Sequence[int], /) -> Any:
            return super().beat((), started)


class BellMute(Broken):
    """Nobody rings."""

    class tables_class(Tables):
        def ring(self, queues: Iterable[str]) -> None:
            pass


class BellForgetful(Broken):
    """A ring between arming and sleeping is lost."""

    class consumer_class(MemoryConsumer):
        def __init__(self, tables: Tables, instance: Instance) -> None:
            super().__init__(tables, instance)
            self._bell = _ForgetfulBell(tables, instance.queues)


class _ForgetfulBell(MemoryBell):
    async def wait(self, seconds: float, /) -> bool:
        self._rung = False
        return await super().wait(seconds)


class BellForPushesOnly(Broken):
    """What comes back rings for nobody."""

    class tables_class(Tables):
        def release(self, job: LiveJob, now: datetime, *, delay: float = 0.0) -> None:
            bells, self.bells = self.bells, set()
            super().release(job, now, delay=delay)
            self.bells = bells


class BellNotPassedOn(Broken):
    """A sleeper woken for more than it can run keeps it to itself."""

    class consumer_class(MemoryConsumer):
        def __init__(self, tables: Tables, instance: Instance) -> None:
            super().__init__(tables, instance)
            self._bell = _SelfishBell(tables, instance.queues)


class _SelfishBell(MemoryBell):
    async def pass_on(self) -> None:
        pass


class PriorityIgnored(Broken):
    """First in, first out, whatever the priority."""

    class tables_class(Tables):
        def select(
            self, queues: Sequence[str], limit: int, now: datetime, *, alone: bool, exclude: AbstractSet[str]
        ) -> list[LiveJob]:
            jobs: list[LiveJob] = []
            for queue in queues:
                found = super().select((queue,), ENDLESS, now, alone=alone, exclude=exclude)
                found.sort(key=lambda job: (job.due, job.id))
                for job in found[limit - len(jobs) :]:
                    self.lines[queue].add(job)
                jobs += found[: limit - len(jobs)]
            return jobs


class DueTimeIgnored(Broken):
    """Jobs are claimed before they are due."""

    class tables_class(Tables):
        def insert(self, id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> None:
            super().insert(id, replace(spec, delay=None, scheduled_at=None), meta, now)


class DelayIgnored(Broken):
    """Retries and snoozes are due at once."""

    class tables_class(Tables):
        def release(self, job: LiveJob, now: datetime, *, delay: float = 0.0) -> None:
            super().release(job, now)


class OldDueTimeKept(Broken):
    """What comes back is as old as it was: it overtakes."""

    class tables_class(Tables):
        def release(self, job: LiveJob, now: datetime, *, delay: float = 0.0) -> None:
            super().release(job, job.due, delay=delay)


class NoTurns(Broken):
    """The first queue is always served first."""

    class consumer_class(MemoryConsumer):
        def _queues_in_turn(self) -> tuple[str, ...]:
            return self._instance.queues


class PauseIgnored(Broken):
    """A paused queue is claimed from."""

    def pause(self, queue: str, /) -> None:
        pass


class ExcludeIgnored(Broken):
    """An unknown task is claimed again and again."""

    class consumer_class(MemoryConsumer):
        def exclude(self, task: str, /) -> None:
            pass


class LimitIgnored(Broken):
    """A claim takes one job more than asked for."""

    class consumer_class(MemoryConsumer):
        async def claim(self, limit: int, /, *, token: int, alone: bool = False) -> Claim:
            return await super().claim(limit + 1, token=token, alone=alone)


class SuspectsBesideOthers(Broken):
    """A job that keeps killing workers is claimed beside innocent ones."""

    class tables_class(Tables):
        def select(
            self, queues: Sequence[str], limit: int, now: datetime, *, alone: bool, exclude: AbstractSet[str]
        ) -> list[LiveJob]:
            jobs = super().select(queues, limit, now, alone=alone, exclude=exclude)
            return jobs + super().select(queues, limit - len(jobs), now, alone=True, exclude=exclude)


class NeverExpires(Broken):
    """The latest start is not kept."""

    class tables_class(Tables):
        def insert(self, id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> None:
            super().insert(id, replace(spec, expires_in=None, expires_at=None), meta, now)


class CancelForgotten(Broken):
    """A running job that somebody cancelled is retried all the same."""

    class tables_class(Tables):
        def release(self, job: LiveJob, now: datetime, *, delay: float = 0.0) -> None:
            job.cancel_by = None
            super().release(job, now, delay=delay)


class CancelBeatsResult(Broken):
    """A result that arrives after somebody asked to cancel is thrown away."""

    class tables_class(Tables):
        def finish(
            self, job: LiveJob, state: JobState, now: datetime, *, result: bytes | None = None, reason: str | None = None
        ) -> None:
            super().finish(job, JobState.CANCELLED if job.cancel_by else state, now, result=result, reason=reason)


class RescueKeepsOwner(Broken):
    """What comes back still carries the fence of the claim that had it."""

    class tables_class(Tables):
        def unown(self, job: LiveJob) -> None:
            pass


class LateAckOfTheDead(Broken):
    """An ack of an instance that is not registered any more is taken for whoever has the job now."""

    class tables_class(Tables):
        def owns(self, job: LiveJob | None, owner: UUID, token: int) -> bool:
            return super().owns(job, owner, token) or (job is not None and owner not in self.register)


class CrashCostsAnAttempt(Broken):
    """A crash counts as an attempt."""

    class pulse_class(MemoryPulse):
        def rescue(self, instance: UUID, /) -> int:
            jobs = [job for job in self._tables.live.values() if job.owner == instance and job.claimed_at]
            rescued = super().rescue(instance)
            for job in jobs:
                job.attempt += 1
            return rescued


class CrashNotCounted(Broken):
    """A job may kill workers forever."""

    class pulse_class(MemoryPulse):
        def rescue(self, instance: UUID, /) -> int:
            for job in self._tables.live.values():
                job.crashes -= 1 if job.owner == instance and job.claimed_at else 0
            return super().rescue(instance)


class CrashHitsTheNotStarted(Broken):
    """A job that had not started counts as started."""

    class pulse_class(MemoryPulse):
        def rescue(self, instance: UUID, /) -> int:
            if (dead := self._tables.register.get(instance)) is not None:
                dead.started = frozenset(self._tables.live)
            return super().rescue(instance)


class StartedNotKept(Broken):
    """It is not known which jobs of a dead worker had started."""

    class pulse_class(MemoryPulse):
        def beat(self, tokens: Sequence[int], started: Sequence[int], /) -> Any:
            return super().beat(tokens, ())


class RescuesWhatWasRecorded(Broken):
    """A rescue takes the fence that a recorded retry left behind for a running claim."""

    class pulse_class(MemoryPulse):
        def rescue(self, instance: UUID, /) -> int:
            for job in self._tables.live.values():
                if job.owner == instance:
                    job.claimed_at = job.claimed_at or self._tables.now()
            return super().rescue(instance)


class RescuesTheLiving(Broken):
    """A rescue does not ask whether the instance is dead."""

    class pulse_class(MemoryPulse):
        def rescue(self, instance: UUID, /) -> int:
            if (other := self._tables.register.get(instance)) is not None:
                other.dead = True
            return super().rescue(instance)


class ZombieClaims(Broken):
    """A worker that was declared dead goes on claiming."""

    class consumer_class(MemoryConsumer):
        async def claim(self, limit: int, /, *, token: int, alone: bool = False) -> Claim:
            before = self._tables.register.get(self._instance.id)
            self._tables.register[self._instance.id] = Registered(self._instance)
            try:
                return await super().claim(limit, token=token, alone=alone)
            finally:
                if before is None:
                    del self._tables.register[self._instance.id]
                else:
                    self._tables.register[self._instance.id] = before


class DeclaresTheBeatingDead(Broken):
    """A death is declared whatever the counter says by now."""

    class pulse_class(MemoryPulse):
        def declare_dead(self, instance: UUID, counter: int, /) -> bool:
            other = self._tables.register.get(instance)
            return other is not None and super().declare_dead(instance, other.counter)


class TwoLeaders(Broken):
    """Whoever wants to lead does."""

    class pulse_class(MemoryPulse):
        def lead(self, leader: UUID | None, term: int, /) -> bool:
            return super().lead(self._tables.leader, self._tables.term)


class TermIgnored(Broken):
    """Who leads is compared, in which term is not."""

    class pulse_class(MemoryPulse):
        def lead(self, leader: UUID | None, term: int, /) -> bool:
            return super().lead(leader, self._tables.term)


DOUBLES: tuple[type[Broken], ...] = tuple(Broken.__subclasses__())
