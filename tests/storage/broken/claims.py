"""Bugs of claim."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import datetime

from msgspec.structs import replace as replace_spec

from prinia.changes import PauseKind
from prinia.job import JobSpec
from prinia.storage.memory.consumer import MemoryConsumer
from prinia.storage.memory.rows import LiveJob
from prinia.storage.memory.tables import Tables, WallClock
from prinia.storage.protocol import Claim

from .base import Broken, Race

#: More than there is.
ENDLESS = 10**9


class NoLock(Broken):
    """Selecting and marking are two steps: another claimer gets in between."""

    class tables_class(Tables):
        def __init__(self, clock: WallClock) -> None:
            super().__init__(clock)
            self.race = Race()

        def select(
            self, queues: Sequence[str], limit: int, now: datetime, *, alone: bool, exclude: AbstractSet[str]
        ) -> list[LiveJob]:
            jobs = super().select(queues, limit, now, alone=alone, exclude=exclude)
            for job in jobs:
                self.lines[job.spec.queue].add(job)
            self.lock.release()
            self.race.meet()
            self.lock.acquire()
            return jobs


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
            super().insert(id, replace_spec(spec, delay=None, scheduled_at=None), meta, now)


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

    def pause(self, kind: PauseKind, name: str = "", /, *, by: str) -> bool:
        return kind == "queue" or super().pause(kind, name, by=by)


class ExcludeIgnored(Broken):
    """An unknown task is claimed again and again."""

    class consumer_class(MemoryConsumer):
        def exclude(self, task: str, /) -> None:
            pass


class LimitIgnored(Broken):
    """A claim takes one job more than asked for."""

    class consumer_class(MemoryConsumer):
        async def claim(self, limit: int, /, *, token: int, alone: bool = False, thorough: bool = True) -> Claim:
            return await super().claim(limit + 1, token=token, alone=alone, thorough=thorough)


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
            super().insert(id, replace_spec(spec, expires_in=None, expires_at=None), meta, now)


class ClaimByAll(Broken):
    """A claim looks at every queue there is."""

    class tables_class(Tables):
        def select(
            self, queues: Sequence[str], limit: int, now: datetime, *, alone: bool, exclude: AbstractSet[str]
        ) -> list[LiveJob]:
            return super().select(tuple(self.lines), limit, now, alone=alone, exclude=exclude)


class NextDueUnknown(Broken):
    """A claim that got nothing does not say for how long."""

    class consumer_class(MemoryConsumer):
        async def claim(self, limit: int, /, *, token: int, alone: bool = False, thorough: bool = True) -> Claim:
            claim = await super().claim(limit, token=token, alone=alone, thorough=thorough)
            return replace(claim, next_due=None)


class HastyClaimsMisled(Broken):
    """A claim that is not thorough says that nothing is due for a long time."""

    class consumer_class(MemoryConsumer):
        async def claim(self, limit: int, /, *, token: int, alone: bool = False, thorough: bool = True) -> Claim:
            claim = await super().claim(limit, token=token, alone=alone, thorough=thorough)
            return claim if thorough else replace(claim, next_due=3600.0)


class ScheduledInTheWay(Broken):
    """Only the first hundred jobs of a queue are looked at, due or not."""

    class tables_class(Tables):
        def select(
            self, queues: Sequence[str], limit: int, now: datetime, *, alone: bool, exclude: AbstractSet[str]
        ) -> list[LiveJob]:
            waiting = sorted(self.live.values(), key=lambda job: (-job.spec.priority, job.due, job.id))
            waiting = [job for job in waiting if job.claimed_at is None][:100]
            jobs = super().select(queues, limit, now, alone=alone, exclude=exclude)
            for job in jobs:
                if job not in waiting:
                    self.lines[job.spec.queue].add(job)
            return [job for job in jobs if job in waiting]
