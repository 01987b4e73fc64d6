"""The side of one worker instance: claim, ack, recover."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from prinia.changes import Orders, Paused, WorkerCommand
from prinia.job import ClaimedExtras, ClaimedJob, Instance
from prinia.outcome import Ack
from prinia.storage.memory.ack import record
from prinia.storage.memory.bell import MemoryBell
from prinia.storage.memory.rows import LiveJob, Registered, decode_meta
from prinia.storage.memory.tables import Tables, cancel_reason
from prinia.storage.protocol import Claim, Receipt


class MemoryConsumer:
    """`prinia.storage.protocol.Consumer` in memory."""

    def __init__(self, tables: Tables, instance: Instance, *, listen: bool = True) -> None:
        self._tables = tables
        self._instance = instance
        self._bell = MemoryBell(tables, instance.queues if listen else ())
        self._exclude: set[str] = set()
        self._turn = 0

    @property
    def bell(self) -> MemoryBell:
        """The bell over the instance's queues."""
        return self._bell

    async def open(self) -> None:
        """Register the instance. What was declared dead stays dead."""
        with self._tables.lock:
            now = self._tables.now()
            command = self._instance.command and WorkerCommand(self._instance.command)
            self._tables.register.setdefault(
                self._instance.id, Registered(self._instance, now, now, command=command or None)
            )
            if self._bell.listening:
                self._tables.listeners.add(self._bell)

    async def claim(self, limit: int, /, *, token: int, alone: bool = False, thorough: bool = True) -> Claim:
        """Take up to ``limit`` due jobs, or with ``alone`` one that has been in too many crashes.

        Nothing is overlooked here: a claim that is not ``thorough`` only spares the look for the next due time.
        """
        wanted = min(limit, 1) if alone else limit
        queues = self._queues_in_turn()
        with self._tables.lock:
            owner = self._tables.register.get(self._instance.id)
            if owner is None or owner.dead or owner.command is not None or self._tables.paused_all is not None:
                return Claim(())
            now = self._tables.now()
            exclude = self._exclude | self._tables.paused_tasks.keys()
            jobs = self._tables.select(queues, wanted, now, alone=alone, exclude=exclude)
            for job in jobs:
                self._tables.take(job, owner, token, now)
            lines = [self._tables.lines[queue] for queue in queues if queue not in self._tables.paused]
            suspects = any(line.has_suspects(now, exclude) for line in lines)
            dues = [line.next_due(now, exclude) for line in lines] if thorough and len(jobs) < wanted else []
            return Claim(
                [_claimed(job, token, now) for job in jobs],
                next_due=min((due for due in dues if due is not None), default=None),
                suspects=suspects,
            )

    def exclude(self, task: str, /) -> None:
        """Claim no job of this task any more."""
        self._exclude.add(task)

    async def ack(self, acks: Sequence[Ack], /) -> Receipt:
        """Record outcomes, each only if its job is still owned by this instance and token."""
        return record(self._tables, self._instance.id, acks)

    async def cancel_requests(self) -> dict[int, str]:
        """The claimed jobs of this instance that somebody asked to cancel, and why."""
        with self._tables.lock:
            return {
                job.id: cancel_reason(job.cancel_by)
                for job in self._tables.live.values()
                if job.cancel_by is not None and job.claimed_at is not None and job.owner == self._instance.id
            }

    async def orders(self) -> Orders:
        """What the instance was told, and what is paused."""
        tables = self._tables
        with tables.lock:
            worker = tables.register.get(self._instance.id)
            queues = frozenset(tables.paused).intersection(self._instance.queues)
            return Orders(
                command=None if worker is None else worker.command,
                paused=Paused(queues, frozenset(tables.paused_tasks), tables.paused_all is not None),
            )

    async def recover(self, tokens: Sequence[int], running: Sequence[ClaimedJob], /) -> frozenset[int]:
        """Hand back what claims with ``tokens`` got unheard; the ids of ``running`` that are no longer owned."""
        tables, owner = self._tables, self._instance.id
        unheard, known = set(tokens), {(job.id, job.token) for job in running}
        with tables.lock:
            now = tables.now()
            for job in list(tables.live.values()):
                if job.token in unheard and tables.owns(job, owner, job.token) and (job.id, job.token) not in known:
                    tables.unown(job)
                    tables.hand_back(job)
                    tables.release(job, now)
            return frozenset(job.id for job in running if not tables.owns(tables.live.get(job.id), owner, job.token))

    async def close(self) -> None:
        """Off the register, or, with jobs still owned, declared dead, so that they are rescued."""
        await self._bell.disarm()
        tables, owner = self._tables, self._instance.id
        with tables.lock:
            tables.listeners.discard(self._bell)
            if tables.leader == owner:
                tables.leader = None
            if owner in tables.register and any(
                job.owner == owner and job.claimed_at is not None for job in tables.live.values()
            ):
                tables.register[owner].dead = True
            else:
                tables.register.pop(owner, None)

    def _queues_in_turn(self) -> tuple[str, ...]:
        queues = self._instance.queues
        self._turn = (self._turn + 1) % max(len(queues), 1)
        return queues[self._turn :] + queues[: self._turn]


def _claimed(job: LiveJob, token: int, now: datetime) -> ClaimedJob:
    spec = job.spec
    return ClaimedJob(
        id=job.id,
        token=token,
        task=spec.task,
        queue=spec.queue,
        priority=spec.priority,
        attempt=job.attempt,
        max_attempts=spec.max_attempts,
        crashes=job.crashes,
        args=spec.args,
        extras=_extras(job, now),
    )


_PLAIN = ClaimedExtras()


def _extras(job: LiveJob, now: datetime) -> ClaimedExtras | None:
    spec = job.spec
    extras = ClaimedExtras(
        codec=spec.codec,
        timeout=spec.timeout,
        retry=spec.retry,
        expired=job.expired(now),
        tags=spec.tags,
        meta=decode_meta(job.meta),
    )
    return None if extras == _PLAIN else extras
