"""Bugs of rescue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from prinia.outcome import Ack
from prinia.storage.memory.consumer import MemoryConsumer
from prinia.storage.memory.pulse import MemoryPulse
from prinia.storage.memory.rows import LiveJob
from prinia.storage.memory.tables import Tables
from prinia.storage.protocol import Receipt, Vitals

from .base import Broken


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
        def beat(self, tokens: Sequence[int], started: Sequence[int], *vitals: Vitals) -> Any:
            return super().beat(tokens, (), *vitals)


class RerunsWhatMayNot(Broken):
    """A job that must not run again after a crash does, unless it is known to have started."""

    class pulse_class(MemoryPulse):
        def rescue(self, instance: UUID, /) -> int:
            owner = self._tables.register.get(instance)
            for job in self._tables.live.values():
                if owner is not None and job.owner == instance and job.id not in owner.started:
                    job.spec = msgspec.structs.replace(job.spec, rerun_after_crash=True)
            return super().rescue(instance)


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


class RescueUnbounded(Broken):
    """A rescue takes all jobs at once."""

    class pulse_class(MemoryPulse):
        def rescue(self, instance: UUID, /) -> int:
            total = 0
            while number := super().rescue(instance):
                total += number
            return total


class AckAndRescue(Broken):
    """An ack of a worker that was declared dead is said to be recorded, and its job is rescued all the same."""

    class consumer_class(MemoryConsumer):
        async def ack(self, acks: Sequence[Ack], /) -> Receipt:
            me = self._tables.register.get(self._instance.id)
            return Receipt() if me is not None and me.dead else await super().ack(acks)
