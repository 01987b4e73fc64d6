"""A job that somebody awaits, what was seen of it, and how it is told that there is nothing to wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from prinia.errors import JobNotCommitted, JobNotFound, ResultTimeout, StorageUnavailable
from prinia.job import JobRecord

#: A message names so many ids.
_NAMED = 10

AnyAwaited = TypeVar("AnyAwaited", bound="Awaited")


@dataclass(slots=True, eq=False)
class Awaited:
    """A job as its handle knows it, and as it was last seen.

    ``xid`` is the transaction of its enqueue, if known; if not ``created``, that may have replaced the job, so that
    what is seen may be the old one. ``seen`` is what the last look found, or why it failed.
    """

    id: int
    xid: int | None = None
    created: bool = True
    seen: JobRecord | StorageUnavailable | None = None

    def hidden(self, found: JobRecord | None) -> bool:
        """Whether an open transaction may be why this was found: nothing, or a job that it may have replaced."""
        return self.xid is not None and (found is None or not (self.created or found.state.final))


def refuse_open(id: int, is_open: bool) -> None:
    """Raises `JobNotCommitted` if the job's transaction is open."""
    if is_open:
        raise JobNotCommitted(
            f"job {id} is not committed: the transaction that enqueued or replaced it is still open, and until "
            "it commits no worker sees the job. Commit first, then wait",
            job_id=id,
        )


def there(id: int, found: Sequence[JobRecord]) -> JobRecord:
    """The job that was found. Raises `JobNotFound`."""
    if not found:
        raise JobNotFound(
            f"there is no job {id}: its transaction was rolled back or has not committed, or the job ended and was "
            f"deleted after its retention time",
            job_id=id,
        )
    return found[0]


def too_late(awaited: Sequence[Awaited], timeout: float) -> ResultTimeout:
    """The error for these jobs, which have not ended in time; its cause is the outage of the database, if any."""
    first = awaited[0]
    seen = next((one.seen for one in awaited if isinstance(one.seen, StorageUnavailable)), first.seen)
    after = f"after {timeout:g} s of waiting"
    if isinstance(seen, StorageUnavailable) or seen is None:
        text = f"job {first.id}: {after} the database did not answer{f': {seen}' if seen else ''}"
    elif len(awaited) == 1:
        text = f"job {first.id} ({seen.task}) is still {seen.state} {after}; it goes on"
    else:
        ids = ", ".join(str(one.id) for one in awaited[:_NAMED]) + (", ..." if len(awaited) > _NAMED else "")
        text = f"{len(awaited):,} jobs have not ended {after}; they go on: {ids}"
    error = ResultTimeout(text, job_id=first.id)
    error.__cause__ = seen if isinstance(seen, StorageUnavailable) else None
    return error


def check_timeout(timeout: object) -> None:
    """Raises `TypeError` or `ValueError`."""
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout={timeout!r} must be seconds (int or float), or None to wait for ever")
    if not timeout >= 0:  # NaN neither
        raise ValueError(f"timeout={timeout!r} must be seconds, 0 or more, or None to wait for ever")
