"""Bugs of completing in the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from uuid import UUID

from prinia.job import JobSpec, JobState, Pushed
from prinia.storage.memory.rows import LiveJob

from .base import Broken


class CompletedAtOnce(Broken):
    """A completion in the caller's transaction does not wait for its commit."""

    def complete_within(self, connection: Any, instance: UUID, job_id: int, token: int, result: bytes | None) -> bool:
        with self.tables.lock:
            job = self.tables.live.get(job_id)
            if job is None:
                return job_id in self.tables.finished
            if not self.owns(job, instance, token):
                return False
            self.tables.finish(job, JobState.COMPLETED, self.tables.now(), result=result)
            return True

    def owns(self, job: LiveJob, instance: UUID, token: int) -> bool:
        return job.claimed_at is not None and (job.owner, job.token) == (instance, token)

    async def acomplete_within(
        self, connection: Any, instance: UUID, job_id: int, token: int, result: bytes | None
    ) -> bool:
        return self.complete_within(connection, instance, job_id, token, result)

    def transaction(self) -> AbstractContextManager[Any] | None:
        return nullcontext()


class CompletedByAnybody(CompletedAtOnce):
    """Whoever asks completes a job, whosever it is."""

    def owns(self, job: LiveJob, instance: UUID, token: int) -> bool:
        return True


class XidForgotten(Broken):
    """No transaction is known to be open."""

    def push_within(self, connection: Any, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        return [Pushed(pushed.id, pushed.created, xid=7) for pushed in self.push(jobs)]

    def transaction(self) -> AbstractContextManager[Any] | None:
        return nullcontext()


class KeptTakenForReplaced(XidForgotten):
    """An open transaction is said to have to do with every job that it names."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = False

    def in_progress(self, xid: int, id: int, /) -> bool:
        return self.begun

    async def ain_progress(self, xid: int, id: int, /) -> bool:
        return self.begun

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.begun = True
        try:
            yield
        finally:
            self.begun = False
