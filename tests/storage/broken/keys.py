"""Bugs of keys with a window, and of replacing."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from prinia.job import JobSpec, JobState, Pushed, UniqueKey
from prinia.storage.memory.pulse import MemoryPulse
from prinia.storage.memory.rows import LiveJob
from prinia.storage.memory.tables import Tables

from .base import Broken, Race


class WindowEndsWithJob(Broken):
    """A key with a window is free when its job has ended."""

    class tables_class(Tables):
        def finish(self, job: LiveJob, state: JobState, now: datetime, **ending: Any) -> None:
            super().finish(job, state, now, **ending)
            if job.spec.unique is not None:
                self.windows.pop(job.spec.unique.hash, None)


class WindowEndless(Broken):
    """A key with a window is held for ever."""

    class tables_class(Tables):
        def holder(self, key: UniqueKey, now: datetime) -> int | None:
            return self.windows.get(key.hash, (super().holder(key, now), now))[0]


class ScopesMixed(Broken):
    """A key with a window is the key without one."""

    class tables_class(Tables):
        def holder(self, key: UniqueKey, now: datetime) -> int | None:
            for job in self.live.values():
                if job.spec.unique is not None and job.spec.unique.text == key.text:
                    return job.id
            return super().holder(key, now)


class WindowOfNothing(Broken):
    """The window begins although nothing was stored."""

    class tables_class(Tables):
        def holder(self, key: UniqueKey, now: datetime) -> int | None:
            holder = super().holder(key, now)
            if holder is None and key.window is not None:
                self.windows[key.hash] = (0, now + timedelta(seconds=key.window))
            return holder


class SweepOfHeldKeys(Broken):
    """A sweep forgets every key."""

    class pulse_class(MemoryPulse):
        def sweep_keys(self) -> int:
            swept = len(self._tables.windows)
            self._tables.windows.clear()
            return swept


class WindowRaced(Broken):
    """Whether a window is over is looked up before the push."""

    def __init__(self) -> None:
        super().__init__()
        self.race = Race()

    def push(self, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        specs = list(jobs)
        over = [spec.unique and self.tables.holder(spec.unique, self.tables.now()) is None for spec in specs]
        self.race.meet()
        return super().push(
            [replace(spec, unique=None) if free else spec for spec, free in zip(specs, over, strict=True)]
        )


class ReplaceIgnored(Broken):
    """Who asks to replace gets the holder as it is."""

    class tables_class(Tables):
        def replace_waiting(self, id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> None:
            pass


class ReplaceKeepsDueTime(Broken):
    """A replaced job is due when the old one was."""

    class tables_class(Tables):
        def replace_waiting(self, id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> None:
            due = self.live[id].due if id in self.live else now
            super().replace_waiting(id, replace(spec, delay=None, scheduled_at=due), meta, now)


class ReplaceKeepsHistory(Broken):
    """A replaced job goes on where the old one was."""

    class tables_class(Tables):
        def replace_waiting(self, id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> None:
            old = self.live.get(id)
            super().replace_waiting(id, spec, meta, now)
            if old is not None and old is not (job := self.live[id]):
                job.attempt, job.crashes, job.errors = old.attempt, old.crashes, old.errors


class ReplacesRunning(Broken):
    """A running job is replaced like any other."""

    class tables_class(Tables):
        def replace_waiting(self, id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> None:
            old = self.live.get(id)
            claimed_at = old.claimed_at if old is not None else None
            if old is not None:
                old.claimed_at = None
            super().replace_waiting(id, spec, meta, now)
            if id in self.live:
                self.live[id].claimed_at = claimed_at


class ReplacesEnded(Broken):
    """A key held by a job that has ended is given to the job that would replace it."""

    def push(self, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        specs = list(jobs)
        for spec in specs:
            if spec.unique is not None and spec.unique.on_conflict == "replace":
                held = self.tables.windows.get(spec.unique.hash)
                if held is not None and held[0] not in self.tables.live:
                    del self.tables.windows[spec.unique.hash]
        return super().push(specs)

    async def apush(self, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /) -> Sequence[Pushed]:
        return self.push([spec async for spec in jobs] if isinstance(jobs, AsyncIterable) else jobs)


class ReplaceMovesWindow(Broken):
    """Replacing starts the window anew."""

    class tables_class(Tables):
        def replace_waiting(self, id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> None:
            super().replace_waiting(id, spec, meta, now)
            if spec.unique is not None and spec.unique.window is not None:
                self.windows[spec.unique.hash] = (id, now + timedelta(seconds=spec.unique.window))


class ReplaceForgetsFence(Broken):
    """Nothing is left of the claim of the old job's last attempt."""

    class tables_class(Tables):
        def replace_waiting(self, id: int, spec: JobSpec, meta: bytes | None, now: datetime) -> None:
            super().replace_waiting(id, spec, meta, now)
            if id in self.live and self.live[id].claimed_at is None:
                self.unown(self.live[id])


class ReplaceMute(Broken):
    """Only new jobs ring."""

    async def apush(self, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /) -> Sequence[Pushed]:
        bells, self.tables.bells = self.tables.bells, set()
        answers = await super().apush(jobs)
        self.tables.bells = bells
        if any(answer.created for answer in answers):
            self.tables.ring(self.tables.lines)
        return answers
