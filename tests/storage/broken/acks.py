"""Bugs of ack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from prinia.job import MAX_ERROR_BYTES, AttemptError, JobState
from prinia.outcome import Ack
from prinia.storage.memory.consumer import MemoryConsumer
from prinia.storage.memory.rows import LiveJob
from prinia.storage.memory.tables import Tables
from prinia.storage.protocol import Receipt

from .base import Broken


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


class EmptyResultLost(Broken):
    """An empty result is taken for none."""

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
            super().finish(job, state, now, result=result or None, reason=reason)


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


class AckedAgain(Broken):
    """What has ended is claimed again."""

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
            self.lines[job.spec.queue].add(job)


class EndUnexplained(Broken):
    """An ended job keeps neither reason nor result."""

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
            job.errors = ()
            super().finish(job, state, now)


class FlushCut(Broken):
    """Of a flush the first thousand acks are looked at."""

    class consumer_class(MemoryConsumer):
        async def ack(self, acks: Sequence[Ack], /) -> Receipt:
            return await super().ack(acks[:1000])


class EndsUntold(Broken):
    """A receipt does not say that a job had ended otherwise."""

    class consumer_class(MemoryConsumer):
        async def ack(self, acks: Sequence[Ack], /) -> Receipt:
            return replace(await super().ack(acks), ended={})


class EmptyFlushRefused(Broken):
    """A flush of nothing is taken for a mistake."""

    class consumer_class(MemoryConsumer):
        async def ack(self, acks: Sequence[Ack], /) -> Receipt:
            return await super().ack([acks[0], *acks[1:]])


class HugeTextsRefused(Broken):
    """A text above the limit is refused, and its flush with it."""

    class tables_class(Tables):
        def note(self, job: LiveJob, error: AttemptError, now: datetime) -> None:
            if len(error.message) > MAX_ERROR_BYTES:
                raise ValueError("too long")
            super().note(job, error, now)


class ReasonsAsTheyAre(Broken):
    """A reason with a NUL character is refused."""

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
            if "\0" in (reason or ""):
                raise ValueError("a text may not contain NUL")
            super().finish(job, state, now, result=result, reason=reason)
