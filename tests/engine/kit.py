"""What the engine's tests share: waiting for a condition, an app on memory, and a storage whose calls can fail."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from prinia import Prinia
from prinia.clock import SystemClock
from prinia.errors import StorageError, StorageUnavailable
from prinia.job import ClaimedJob, Instance, JobRecord, JobState
from prinia.outcome import Ack
from prinia.storage.memory import MemoryStorage
from prinia.storage.memory.consumer import MemoryConsumer
from prinia.storage.memory.pulse import MemoryPulse
from prinia.storage.protocol import NO_VITALS, Beat, Claim, Receipt, Vitals
from prinia.worker import Worker
from prinia.worker.ack import Flusher
from prinia.worker.ledger import Counts, Ledger
from prinia.worker.outage import Outage

AWAY = StorageUnavailable("connection refused")


async def until(condition: Callable[[], object], what: str = "", seconds: float = 20.0) -> None:
    """Wait for a condition; fail when it does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain {what}"
        await asyncio.sleep(0.002)


@dataclass
class Faults:
    """What goes wrong: ``away`` fails every call; ``before`` and ``after`` fail single ones by method name."""

    away: bool = False
    before: dict[str, deque[Exception]] = field(default_factory=dict)
    after: dict[str, deque[Exception]] = field(default_factory=dict)
    refuses: Callable[[Ack], bool] = lambda ack: False
    busy: dict[int, int] = field(default_factory=dict)
    hang: asyncio.Event | None = None
    refused: int = 0
    claims: list[tuple[int, bool]] = field(default_factory=list)
    flushes: list[list[Ack]] = field(default_factory=list)
    recovered: list[list[int]] = field(default_factory=list)
    every_third_beat_fails: bool = False
    beats: int = 0
    tokens_beaten: list[list[int]] = field(default_factory=list)

    def plan(self, when: str, method: str, *errors: Exception) -> None:
        """Let the next calls of ``method`` fail, ``before`` or ``after`` they took effect."""
        getattr(self, when).setdefault(method, deque()).extend(errors)

    async def enter(self, method: str) -> None:
        if self.hang is not None:
            await self.hang.wait()
        self.enter_blocking(method)

    def enter_blocking(self, method: str) -> None:
        if self.away:
            self.refused += 1
            raise AWAY
        if planned := self.before.get(method):
            raise planned.popleft()

    def leave(self, method: str) -> None:
        if planned := self.after.get(method):
            raise planned.popleft()


class FaultyConsumer(MemoryConsumer):
    """A consumer in memory with faults."""

    faults: Faults

    async def open(self) -> None:
        await self.faults.enter("open")
        await super().open()

    async def claim(self, limit: int, /, *, token: int, alone: bool = False, thorough: bool = True) -> Claim:
        self.faults.claims.append((limit, alone))
        await self.faults.enter("claim")
        claim = await super().claim(limit, token=token, alone=alone, thorough=thorough)
        self.faults.leave("claim")
        return claim

    async def ack(self, acks: Sequence[Ack], /) -> Receipt:
        self.faults.flushes.append(list(acks))
        await self.faults.enter("ack")
        if any(self.faults.refuses(ack) for ack in acks):
            raise StorageError("value too wide for the column")
        busy = {ack.id for ack in acks if self.faults.busy.get(ack.id, 0) > 0}
        for id in busy:
            self.faults.busy[id] -= 1
        receipt = await super().ack([ack for ack in acks if ack.id not in busy])
        self.faults.leave("ack")
        return Receipt(lost=receipt.lost, busy=frozenset(busy), ended=receipt.ended)

    async def recover(self, tokens: Sequence[int], running: Sequence[ClaimedJob], /) -> frozenset[int]:
        await self.faults.enter("recover")
        self.faults.recovered.append(list(tokens))
        return await super().recover(tokens, running)

    async def close(self) -> None:
        await self.faults.enter("close")
        await super().close()


class FaultyPulse(MemoryPulse):
    """A pulse in memory with faults."""

    faults: Faults

    def beat(self, tokens: Sequence[int], started: Sequence[int], vitals: Vitals = NO_VITALS, /) -> Beat:
        self.faults.enter_blocking("beat")
        self.faults.beats += 1
        if self.faults.every_third_beat_fails and self.faults.beats % 3 == 0:
            raise AWAY
        self.faults.tokens_beaten.append(list(tokens))
        return super().beat(tokens, started, vitals)


class FaultyStorage(MemoryStorage):
    """A memory storage whose worker's side can fail; pushing and reading always work."""

    def __init__(self) -> None:
        super().__init__()
        self.faults = Faults()

    def consumer(self, instance: Instance, /, *, listen: bool = True) -> FaultyConsumer:
        consumer = FaultyConsumer(self.tables, instance, listen=listen)
        consumer.faults = self.faults
        return consumer

    def pulse(self, instance: Instance, /) -> FaultyPulse:
        pulse = FaultyPulse(self.tables, instance)
        pulse.faults = self.faults
        return pulse


class Shop:
    """An app on memory, and its workers."""

    def __init__(self) -> None:
        self.storage = FaultyStorage()
        self.faults = self.storage.faults
        self.app = Prinia(storage=self.storage)

    def worker(self, **options: Any) -> Worker:
        """A worker of the tasks registered so far."""
        return Worker(self.storage, self.app.tasks, hooks=self.app, **options)

    def record(self, id: int) -> JobRecord:
        """The job as it stands."""
        [record] = self.storage.find([id])
        return record

    def state(self, id: int) -> JobState:
        """The job's state."""
        return self.record(id).state

    async def until(self, state: JobState, *ids: int) -> None:
        """Wait until these jobs are in this state."""
        await until(lambda: all(self.state(id) is state for id in ids), f"for {ids} to be {state}")

    def kill_now(self, worker: Worker) -> None:
        """Declare a live worker's instance dead, as another would after a long silence."""
        register = self.storage.tables.register[worker.instance.id]
        assert self.storage.pulse(ghost_instance()).declare_dead(worker.instance.id, register.counter)

    async def crash(self, *, limit: int = 1, alone: bool = False, started: bool = True) -> list[ClaimedJob]:
        """Claim jobs as a worker that dies at once, and bring them back as a leader does."""
        instance = ghost_instance()
        consumer = MemoryConsumer(self.storage.tables, instance)
        await consumer.open()
        claim = await consumer.claim(limit, token=1, alone=alone)
        pulse = MemoryPulse(self.storage.tables, instance)
        beat = pulse.beat([1], [job.id for job in claim.jobs] if started else [])
        assert pulse.declare_dead(instance.id, beat.counters[instance.id])
        while pulse.rescue(instance.id):
            pass
        return list(claim.jobs)


def flusher_of(consumer: MemoryConsumer, ledger: Ledger, counts: Counts) -> Flusher:
    """A flusher without a worker around it."""
    return Flusher(
        consumer, ledger, counts, Outage("w"),
        jobs_run=lambda: False, changed=asyncio.Event(), clock=SystemClock(), random=random.random,
    )  # fmt: skip


def ghost_instance(queues: tuple[str, ...] = ("default",)) -> Instance:
    """An instance of a worker that exists nowhere."""
    return Instance(
        id=uuid4(), name="ghost", queues=queues, tasks=(), host="nowhere", pid=0, version="0", concurrency=1
    )
