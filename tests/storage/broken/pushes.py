"""Bugs of push."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from prinia.job import JobSpec, JobState, Pushed
from prinia.storage.memory.rows import LiveJob, Registered
from prinia.storage.memory.tables import Tables

from .base import Broken, Race


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
            self,
            job: LiveJob,
            state: JobState,
            now: datetime,
            *,
            result: bytes | None = None,
            reason: str | None = None,
        ) -> None:
            super().finish(job, state, now, result=result, reason=reason)
            if job.spec.unique is not None:
                self.unique[job.spec.unique.hash] = job.id


class UniqueKeyRaced(Broken):
    """A unique key is looked up before the push and taken after it."""

    def __init__(self) -> None:
        super().__init__()
        self.race = Race()

    def push(self, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        specs = list(jobs)
        held = [spec.unique is not None and spec.unique.hash in self.tables.unique for spec in specs]
        self.race.meet()
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


class PushWithinAnything(Broken):
    """Whatever is given as a connection, the jobs are stored."""

    def push_within(self, connection: Any, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        return self.push(jobs)

    async def apush_within(
        self, connection: Any, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /
    ) -> Sequence[Pushed]:
        return await self.apush(jobs)


class TransactionIgnored(Broken):
    """A push in the caller's transaction does not wait for its commit."""

    def push_within(self, connection: Any, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        return self.push(jobs)

    def transaction(self) -> AbstractContextManager[Any] | None:
        return nullcontext()


class CommitMute(TransactionIgnored):
    """A push in the caller's transaction rings for nobody."""

    def push_within(self, connection: Any, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        bells, self.tables.bells = self.tables.bells, set()
        answers = self.push(jobs)
        self.tables.bells = bells
        return answers


class EmptyPushRefused(Broken):
    """A push of nothing is taken for a mistake."""

    def push(self, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        specs = list(jobs)
        return super().push([specs[0], *specs[1:]])


class AsyncIterableCut(Broken):
    """Of an async iterable only the first job is taken."""

    async def apush(self, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /) -> Sequence[Pushed]:
        if not isinstance(jobs, AsyncIterable):
            return self.push(jobs)
        async for spec in jobs:
            return self.push([spec])
        return ()


class PushCut(Broken):
    """A push ends after two thousand jobs."""

    async def apush(self, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /) -> Sequence[Pushed]:
        return (await super().apush(jobs))[:2000]


class ManyForgetOptions(Broken):
    """Of thousands each is stored as the one before was."""

    async def apush(self, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /) -> Sequence[Pushed]:
        specs = [spec async for spec in jobs] if isinstance(jobs, AsyncIterable) else list(jobs)
        if len(specs) > 2000:
            specs = [replace(specs[0], args=spec.args) for spec in specs]
        return self.push(specs)


class ManyMute(Broken):
    """Thousands ring for nobody."""

    async def apush(self, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /) -> Sequence[Pushed]:
        specs = [spec async for spec in jobs] if isinstance(jobs, AsyncIterable) else list(jobs)
        bells = self.tables.bells
        if len(specs) > 2000:
            self.tables.bells = set()
        answers = self.push(specs)
        self.tables.bells = bells
        return answers


class PastDueTimeKept(Broken):
    """A job due long ago is as old as it says."""

    class tables_class(Tables):
        def insert(self, id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> None:
            super().insert(id, spec, meta, min(now, spec.scheduled_at or now))


class CodecForgotten(Broken):
    """Everything is taken for JSON, and options for nothing."""

    class tables_class(Tables):
        def insert(self, id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> None:
            super().insert(id, JobSpec(task=spec.task, args=spec.args, queue=spec.queue), None, now)


class OptionsForAll(Broken):
    """Every claimed job drags its extras along."""

    class tables_class(Tables):
        def insert(self, id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> None:
            super().insert(id, replace(spec, timeout=60.0), meta, now)


class NulEscapeRefused(Broken):
    """JSON arguments go through a column that has no place for a NUL character, escaped or not."""

    class tables_class(Tables):
        def insert(self, id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> None:
            if b"\\u0000" in spec.args:
                raise ValueError("a text may not contain NUL")
            super().insert(id, spec, meta, now)
