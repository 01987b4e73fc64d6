"""Ack: record how runs ended, each only for the claim that owns its job."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from prinia.job import JobState
from prinia.outcome import Ack, AckKind
from prinia.storage.memory.rows import LiveJob
from prinia.storage.memory.tables import Tables
from prinia.storage.protocol import Receipt


def record(tables: Tables, owner: UUID, acks: Iterable[Ack]) -> Receipt:
    """Record what this owner's claims still own, and name what they do not."""
    lost: set[int] = set()
    ended: dict[int, JobState] = {}
    with tables.lock:
        now = tables.now()
        for ack in acks:
            job = tables.live.get(ack.id)
            if job is not None and tables.owns(job, owner, ack.token):
                _apply(tables, job, ack, now)
            elif not tables.recorded(ack.id, owner, ack.token):
                lost.add(ack.id)
                continue
            finished = tables.finished.get(ack.id)
            if finished is not None and finished.record.state is not _END.get(ack.kind):
                ended[ack.id] = finished.record.state
    return Receipt(lost=frozenset(lost), ended=ended)


#: The state that a job ends in by an ack of this kind.
_END = {
    AckKind.COMPLETE: JobState.COMPLETED,
    AckKind.FAIL: JobState.FAILED,
    AckKind.CANCEL: JobState.CANCELLED,
}


def _apply(tables: Tables, job: LiveJob, ack: Ack, now: datetime) -> None:
    if ack.error is not None:
        tables.note(job, ack.error, now)
    if ack.uncounted or ack.kind is AckKind.SNOOZE:
        tables.hand_back(job)
    match ack.kind:
        case AckKind.COMPLETE:
            tables.finish(job, JobState.COMPLETED, now, result=ack.result)
        case AckKind.FAIL:
            tables.finish(job, JobState.FAILED, now, reason=ack.reason)
        case AckKind.CANCEL:
            tables.finish(job, JobState.CANCELLED, now, reason=ack.reason)
        case AckKind.RETRY | AckKind.SNOOZE:
            tables.release(job, now, delay=ack.delay)
