"""Push: first what each job becomes, then all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from prinia.errors import DuplicateJob
from prinia.job import JobSpec, Pushed, UniqueKey
from prinia.storage.memory.tables import Tables, encode_meta


def push(tables: Tables, specs: Sequence[JobSpec]) -> tuple[Pushed, ...]:
    """Store these jobs, all or none. Raises `DuplicateJob` or `InvalidOptions` with nothing stored."""
    metas = [encode_meta(spec) for spec in specs]
    with tables.lock:
        now = tables.now()
        answers = _plan(tables, specs, now)
        for answer, spec, meta in zip(answers, specs, metas, strict=True):
            if answer.created:
                tables.insert(answer.id, spec, meta, now)
            elif spec.unique is not None and spec.unique.on_conflict == "replace":
                tables.replace_waiting(answer.id, spec, meta, now)
        tables.ring({spec.queue for spec in specs})
    return answers


def _plan(tables: Tables, specs: Sequence[JobSpec], now: datetime) -> tuple[Pushed, ...]:
    planned: dict[bytes, int] = {}
    answers: list[Pushed] = []
    for spec in specs:
        holder = None if spec.unique is None else _holder(tables, spec.unique, planned, now)
        if holder is not None:
            answers.append(Pushed(holder, created=False))
            continue
        answers.append(Pushed(next(tables.ids)))
        if spec.unique is not None:
            planned[spec.unique.hash] = answers[-1].id
    return tuple(answers)


def _holder(tables: Tables, key: UniqueKey, planned: dict[bytes, int], now: datetime) -> int | None:
    holder = planned.get(key.hash, tables.holder(key, now))
    if holder is not None and key.on_conflict == "raise":
        raise DuplicateJob(f"job {holder} already has the unique key {key.text!r}", job_id=holder)
    return holder
