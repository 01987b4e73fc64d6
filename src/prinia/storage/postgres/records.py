"""Rows of the view all_jobs as `JobRecord`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from prinia.job import AttemptError, JobRecord, JobState


def records(ids: Sequence[int], rows: Iterable[tuple[Any, ...]]) -> list[JobRecord]:
    """The records of ``find.sql``, in the order of ``ids``."""
    by_id = {row[0]: record(row) for row in rows}
    return [by_id[job_id] for job_id in ids if job_id in by_id]


def utc(moment: datetime | None) -> datetime | None:
    """The same moment, in UTC."""
    return moment.astimezone(UTC) if moment is not None else None


def record(row: tuple[Any, ...]) -> JobRecord:
    """One row, with the columns of ``find.sql``."""
    (job_id, task, queue, state, priority, attempt, max_attempts, crashes, args, codec, created_at, scheduled_at,
     started_at, finished_at, owner, result, errors, reason, tags, meta) = row  # fmt: skip
    return JobRecord(
        id=job_id,
        task=task,
        queue=queue,
        state=JobState(state),
        priority=priority,
        attempt=attempt,
        max_attempts=max_attempts,
        crashes=crashes,
        args=args,
        codec=codec,
        created_at=created_at.astimezone(UTC),
        scheduled_at=utc(scheduled_at),
        started_at=utc(started_at),
        finished_at=utc(finished_at),
        owner=owner,
        result=result,
        errors=tuple(map(_error, errors or ())),
        reason=reason,
        tags=tuple(tags or ()),
        meta=_meta(meta),
    )


def _meta(text: str | None) -> dict[str, Any]:
    """A row written by hand may nest deeper than can be read here: then nothing of it is shown."""
    try:
        meta = msgspec.json.decode(text) if text is not None else {}
    except RecursionError:
        return {}
    return meta if isinstance(meta, dict) else {}


def _error(entry: dict[str, Any]) -> AttemptError:
    return AttemptError(
        attempt=entry["attempt"],
        kind=entry["kind"],
        message=entry["message"],
        traceback=entry["traceback"],
        at=datetime.fromisoformat(entry["at"]).astimezone(UTC),
    )
