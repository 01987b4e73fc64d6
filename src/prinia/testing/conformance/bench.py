"""What the tests of the suite stand on: a storage, workers without an engine, and patience instead of sleep."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count
from time import monotonic
from typing import Any, ParamSpec, Self, TypeVar
from uuid import UUID, uuid4

from prinia.job import AttemptError, ClaimedJob, Instance, JobRecord, JobSpec, JobState
from prinia.outcome import Ack, AckKind
from prinia.storage.protocol import Beat, Claim, Consumer, Pulse, Receipt, Storage

P = ParamSpec("P")
T = TypeVar("T")
_POLL = 0.005


def job(**fields: Any) -> JobSpec:
    """A job to push: of task "conformance" with empty arguments unless said otherwise."""
    return JobSpec(**{"task": "conformance", "args": b"{}"} | fields)


def failure(attempt: int = 1, message: str = "boom", kind: str = "ValueError") -> AttemptError:
    """What a failed attempt is reported with."""
    return AttemptError(attempt=attempt, kind=kind, message=message, traceback="Traceback: …")


async def call(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make a blocking call where it may block: in a thread that runs no event loop."""
    return await asyncio.to_thread(function, *args, **kwargs)


@dataclass(slots=True)
class StandIn:
    """One worker instance driven by hand. It numbers its claims itself; ``tokens`` are those it has used."""

    storage: Storage
    instance: Instance
    patience: float
    listen: bool = True
    tokens: list[int] = field(default_factory=list)
    consumer: Consumer = field(init=False)
    pulse: Pulse = field(init=False)
    _numbers: count[int] = field(default_factory=lambda: count(1))
    _closed: bool = False

    def __post_init__(self) -> None:
        self.consumer = self.storage.consumer(self.instance, listen=self.listen)
        self.pulse = self.storage.pulse(self.instance)

    @property
    def id(self) -> UUID:
        """The instance's id."""
        return self.instance.id

    async def claim(self, limit: int = 10, *, alone: bool = False, thorough: bool = True) -> Claim:
        """One claim with the next token."""
        self.tokens.append(next(self._numbers))
        return await self.consumer.claim(limit, token=self.tokens[-1], alone=alone, thorough=thorough)

    async def claimed(self, limit: int = 10, *, alone: bool = False) -> list[ClaimedJob]:
        """The jobs of one claim."""
        return list((await self.claim(limit, alone=alone)).jobs)

    async def claimed_ids(self, limit: int = 10, *, alone: bool = False) -> list[int]:
        """The ids of the jobs of one claim."""
        return [job.id for job in await self.claimed(limit, alone=alone)]

    async def collect(self, number: int, *, alone: bool = False) -> list[ClaimedJob]:
        """Claim until ``number`` jobs have come."""
        jobs: list[ClaimedJob] = []
        deadline = monotonic() + self.patience
        while True:
            jobs += await self.claimed(number - len(jobs), alone=alone)
            if len(jobs) >= number:
                return jobs
            assert monotonic() < deadline, f"only {len(jobs)} of {number} jobs could be claimed in time"
            await asyncio.sleep(_POLL)

    async def one(self, *, alone: bool = False) -> ClaimedJob:
        """Claim until a job has come."""
        return (await self.collect(1, alone=alone))[0]

    async def ack(self, *acks: Ack) -> Receipt:
        """One flush."""
        return await self.consumer.ack(acks)

    async def recorded(self, *acks: Ack) -> None:
        """One flush, of which all must be recorded."""
        receipt = await self.ack(*acks)
        assert not receipt.lost | receipt.busy, f"not recorded: {receipt}"

    async def beat(self, *, tokens: Sequence[int] | None = None, started: Sequence[int] = ()) -> Beat:
        """One heartbeat; it reports all tokens used so far unless told which."""
        return await call(self.pulse.beat, self.tokens if tokens is None else tokens, started)

    async def declare_dead(self, other: StandIn) -> None:
        """Declare another instance dead, which must work: its counter stands still."""
        counters = (await self.beat()).counters
        assert other.id in counters, "an open instance is not among the live ones"
        assert await call(self.pulse.declare_dead, other.id, counters[other.id])

    async def rescue(self, other: UUID) -> int:
        """Rescue until nothing is left; how many jobs came back."""
        total = 0
        while number := await call(self.pulse.rescue, other):
            total += number
        return total

    async def bury(self, other: StandIn) -> int:
        """Declare another instance dead and rescue its jobs; how many came back."""
        await self.declare_dead(other)
        return await self.rescue(other.id)

    async def close(self) -> None:
        """Close both sides, once."""
        if not self._closed:
            self._closed = True
            await self.consumer.close()
            await call(self.pulse.close)


def ack(claimed: ClaimedJob, kind: AckKind, **fields: Any) -> Ack:
    """An ack for a claimed job, with the error a failed attempt would have."""
    if kind in (AckKind.RETRY, AckKind.FAIL):
        fields.setdefault("error", failure(claimed.attempt))
    if kind is AckKind.SNOOZE:
        fields.setdefault("uncounted", True)
    return Ack(claimed.id, claimed.token, kind, **fields)


class Bench:
    """A fresh storage, opened, and the workers made on it, closed at the end."""

    def __init__(self, suite: ConformanceBase, storage: Storage) -> None:
        self.storage = storage
        self.patience = suite.patience
        self._suite = suite
        self._workers: list[StandIn] = []

    def transaction(self) -> AbstractContextManager[Any] | None:
        """The suite's hook of that name."""
        return self._suite.transaction(self.storage)

    async def push(self, *specs: JobSpec) -> list[int]:
        """Push these jobs; their ids."""
        return [pushed.id for pushed in await self.storage.apush(specs)]

    async def push_one(self, **fields: Any) -> int:
        """Push one job; its id."""
        return (await self.push(job(**fields)))[0]

    async def worker(
        self, *queues: str, opened: bool = True, listen: bool = True, command: str | None = None
    ) -> StandIn:
        """A worker of these queues, "default" without any; it listens unless told not to."""
        instance = Instance(
            id=uuid4(),
            name="stand-in",
            queues=queues or ("default",),
            tasks=("conformance",),
            host="localhost",
            pid=os.getpid(),
            version="0",
            concurrency=10,
            command=command,
        )
        worker = StandIn(self.storage, instance, self.patience, listen)
        self._workers.append(worker)
        if opened:
            await worker.consumer.open()
        return worker

    async def find(self, id: int) -> JobRecord:
        """The job of this id, which must exist."""
        records = await self.storage.afind([id])
        assert len(records) == 1, f"job {id} cannot be found"
        return records[0]

    async def until(self, id: int, state: JobState) -> JobRecord:
        """Look at a job until it is in this state."""
        deadline = monotonic() + self.patience
        while (record := await self.find(id)).state is not state:
            assert monotonic() < deadline, f"job {id} is {record.state}, never became {state}"
            await asyncio.sleep(_POLL)
        return record

    async def in_state(self, id: int, state: JobState) -> JobRecord:
        """The job, which must be in this state now."""
        record = await self.find(id)
        assert record.state is state, f"job {id} is {record.state}, not {state}"
        return record

    async def finish(self, claimed: ClaimedJob, by: StandIn, kind: AckKind = AckKind.COMPLETE) -> None:
        """End a claimed job, which must be recorded."""
        await by.recorded(ack(claimed, kind))

    async def __aenter__(self) -> Self:
        await call(self.storage.open)
        await self.storage.aopen()
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            await worker.close()
        await self.storage.aclose()
        await call(self.storage.close)


class ConformanceBase:
    """The hooks of the suite, which a storage's author overrides."""

    #: Seconds after which what a test waits for is taken never to happen.
    patience: float = 10.0

    def make_storage(self) -> Storage:
        """A storage that is empty and ready to use; called once per test."""
        raise NotImplementedError("override make_storage() to return a fresh storage")

    def transaction(self, storage: Storage) -> AbstractContextManager[Any] | None:
        """A transaction on a blocking connection of the caller's, for ``push_within``: committed when the block ends,
        rolled back when it raises. None for a storage that has no such thing."""
        return None


def promise(test: Callable[[Any, Bench], Awaitable[None]]) -> Callable[[Any], None]:
    """Make a plain test method of a coroutine function that takes a `Bench`."""

    def run(self: ConformanceBase) -> None:
        async def on_bench() -> None:
            async with asyncio.timeout(self.patience * 6), Bench(self, self.make_storage()) as bench:
                await test(self, bench)

        asyncio.run(on_bench())

    # No functools.wraps: a test runner that unwraps would take ``bench`` for something to fill in.
    run.__name__, run.__qualname__ = test.__name__, test.__qualname__
    run.__module__, run.__doc__ = test.__module__, test.__doc__
    return run
