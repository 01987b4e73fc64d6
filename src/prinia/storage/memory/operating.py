"""Operations on many jobs, a step at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec

from prinia.changes import STEP, Batch, Change, ChangeKind, Step, retried_states
from prinia.job import JobState
from prinia.storage.memory.rows import Finished, LiveJob, live_record, live_state
from prinia.storage.memory.tables import Tables


class Operating:
    """`prinia.storage.protocol.Operates` in memory: a part of the storage, which has the tables."""

    tables: Tables

    def operate(self, step: Step, /) -> Batch:
        """`prinia.storage.protocol.Operates.operate`. Nothing is ever locked here for longer than a step."""
        tables = self.tables
        with tables.lock:
            now = tables.now()
            matched = _matched(tables, step, now)
            refused = {id: verdict for id in matched if (verdict := _verdict(tables, step, id, now)) is not None}
            for id in matched:
                if id not in refused and not step.dry:
                    # Of two jobs of one step with the same unique key only the first finds it free.
                    if (verdict := _verdict(tables, step, id, now)) is not None:
                        refused[id] = verdict
                    else:
                        _apply(tables, step, id, now)
            skipped, changed = Counter(refused.values()), len(matched) - len(refused)
            return Batch(
                matched=matched,
                changed=changed,
                skipped=skipped,
                note=None if step.dry else _note(tables, step, changed, len(refused), now),
                after=matched[-1] if len(matched) == STEP else None,
            )

    async def aoperate(self, step: Step, /) -> Batch:
        """`operate`, awaited."""
        return self.operate(step)


def _matched(tables: Tables, step: Step, now: datetime) -> list[int]:
    if step.ended:
        records = [row.record for id, row in tables.finished.items() if id > step.after]
    else:
        records = [live_record(job, now) for id, job in tables.live.items() if id > step.after]
    return sorted(record.id for record in records if step.selection.matches(record))[:STEP]


def _verdict(tables: Tables, step: Step, id: int, now: datetime) -> str | None:
    """Why a job is left alone."""
    if step.ended:
        return _ended_verdict(tables, step, tables.finished[id], now)
    return _live_verdict(step.change, tables.live[id], now)


def _live_verdict(change: Change, job: LiveJob, now: datetime) -> str | None:
    state, kind = live_state(job, now), change.kind
    if kind is ChangeKind.CANCEL:
        return "cancel requested" if job.cancel_by is not None else None
    if state is JobState.RUNNING:
        return state
    if kind is ChangeKind.RETRY and state is not JobState.RETRYING:
        return state
    if kind is ChangeKind.RUN_NOW and state is JobState.READY:
        return state
    same = (kind is ChangeKind.REPRIORITISE and job.spec.priority == change.priority) or (
        kind is ChangeKind.MOVE and job.spec.queue == change.queue
    )
    return "unchanged" if same else None


def _ended_verdict(tables: Tables, step: Step, row: Finished, now: datetime) -> str | None:
    kind = step.change.kind
    if kind is ChangeKind.DELETE:
        return None
    if kind is not ChangeKind.RETRY or row.record.state not in retried_states(step.selection):
        return row.record.state
    if row.record.args is None:
        return "arguments not kept"
    key = row.job.spec.unique
    holder = None if key is None else tables.holder(key, now)
    return "unique key taken" if holder not in (None, row.record.id) else None


def _apply(tables: Tables, step: Step, id: int, now: datetime) -> None:
    change = step.change
    if change.kind is ChangeKind.DELETE:
        _delete(tables, id)
    elif step.ended:
        tables.redrive(tables.finished[id], now)
    elif change.kind is ChangeKind.CANCEL:
        tables.cancel(tables.live[id], now, by=step.by)
    else:
        _change(tables, tables.live[id], change, now)


def _change(tables: Tables, job: LiveJob, change: Change, now: datetime) -> None:
    due = job.due
    if change.kind in (ChangeKind.RETRY, ChangeKind.RUN_NOW):
        due = now
    elif change.kind is ChangeKind.RESCHEDULE:
        due = change.at if change.at is not None else now + timedelta(seconds=change.delay or 0)
    elif change.kind is ChangeKind.REPRIORITISE:
        job.spec = msgspec.structs.replace(job.spec, priority=change.priority)
    elif change.kind is ChangeKind.MOVE:
        job.spec = msgspec.structs.replace(job.spec, queue=change.queue)
    job.due = max(due, now)
    tables.lines[job.spec.queue].add(job)
    tables.ring((job.spec.queue,))


def _delete(tables: Tables, id: int) -> None:
    job = tables.live.pop(id, None) or tables.finished.pop(id).job
    tables.announce(id)
    job.place += 1
    if job.spec.unique is not None:
        if tables.unique.get(job.spec.unique.hash) == id:
            del tables.unique[job.spec.unique.hash]
        if tables.windows.get(job.spec.unique.hash, (None,))[0] == id:
            del tables.windows[job.spec.unique.hash]


def _note(tables: Tables, step: Step, changed: int, skipped: int, now: datetime) -> int:
    if step.note is None:
        return tables.note_audit(
            step.by, step.change.kind, step.selection.as_json(), now,
            values=step.change.values(), changed=changed, skipped=skipped,
        )  # fmt: skip
    entry = tables.audit[step.note]
    tables.audit[step.note] = replace(entry, changed=entry.changed + changed, skipped=entry.skipped + skipped)
    return step.note
