"""Operations on many jobs, a step at a time: the parts that a statement of ``operate.sql`` is put together from."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from prinia.changes import STEP, Batch, Change, ChangeKind, Step, retried_states
from prinia.errors import StorageError
from prinia.storage.postgres.connection import assignments, lacks_leaf, sqlstate, text_array
from prinia.storage.postgres.listing import READ_SETTINGS, WALK_SETTINGS
from prinia.storage.postgres.pools import Pools, Rows
from prinia.storage.postgres.selecting import (
    archive_condition,
    archive_walk,
    live_condition,
    live_walk,
    selection_params,
)
from prinia.storage.postgres.sql import Sql, Statement
from prinia.storage.text import storable

#: A step looks at so many rows at most, whatever it is looking for.
STRETCH = 20_000
#: An uncommitted job that holds a unique key is not waited for longer than this.
LOCK_TIMEOUT = "500ms"
#: Lock not available, deadlock detected, unique violation: somebody else was in the way, all of it is left.
_IN_THE_WAY = ("55P03", "40P01", "23505")
_READ_COMMITTED = b"set transaction isolation level read committed"

_RUNNING = "when j.claimed_at is not null then 'running'"
_BLOCKED = "when j.scheduled_at = 'infinity' then 'blocked'"
_READY = "when j.scheduled_at <= (select clock_timestamp()) then 'ready'"
_NOW = "(select clock_timestamp())"

#: Why a job that has not ended is left alone.
_LIVE_VERDICTS = {
    ChangeKind.CANCEL: "case when j.cancel_requested_at is not null then 'cancel requested' end",
    ChangeKind.RETRY: f"case {_RUNNING} {_BLOCKED} {_READY} when j.attempt = 0 then 'scheduled' end",
    ChangeKind.RUN_NOW: f"case {_RUNNING} {_BLOCKED} {_READY} end",
    ChangeKind.RESCHEDULE: f"case {_RUNNING} {_BLOCKED} end",
    ChangeKind.REPRIORITISE: f"case {_RUNNING} when j.priority = %(priority)s::smallint then 'unchanged' end",
    ChangeKind.MOVE: f"case {_RUNNING} when j.queue = %(queue)s then 'unchanged' end",
    ChangeKind.DELETE: f"case {_RUNNING} end",
}
#: And what others become. Whatever makes a job claimable makes it due now at the earliest: see `marks`.
_ASSIGNMENTS = {
    ChangeKind.RETRY: f"scheduled_at = {_NOW}",
    ChangeKind.RUN_NOW: f"scheduled_at = {_NOW}",
    ChangeKind.RESCHEDULE: f"scheduled_at = greatest({_NOW}, coalesce(%(at)s::timestamptz, {_NOW} + %(delay)s::float8"
    " * interval '1 second'))",
    ChangeKind.REPRIORITISE: f"priority = %(priority)s::smallint, scheduled_at = greatest(j.scheduled_at, {_NOW})",
    ChangeKind.MOVE: f"queue = %(queue)s, scheduled_at = greatest(j.scheduled_at, {_NOW})",
}
#: Why a job that has ended is left alone.
_ENDED_VERDICTS = {
    ChangeKind.RETRY: "case when j.state <> all (%(retried)s::text[]) then j.state"
    " when j.args is null then 'arguments not kept'"
    " when j.unique_key is not null and ("
    "exists (select from {schema}.jobs h where h.unique_hash = {schema}.unique_hash(j.task, 'live', j.unique_key))"
    " or exists (select from {schema}.unique_keys k"
    " where k.hash = {schema}.unique_hash(j.task, 'window', j.unique_key) and k.job_id <> j.id"
    " and k.expires_at > clock_timestamp())) then 'unique key taken' end",
    ChangeKind.DELETE: "null::text",
}


class Operating:
    """`prinia.storage.protocol.Operates` on PostgreSQL: a part of the storage, which has the two below."""

    _sql: Sql
    _pools: Pools

    def operate(self, step: Step, /) -> Batch:
        """`prinia.storage.protocol.Operates.operate`."""
        try:
            return _batch(step, self._step(step))
        except StorageError as error:
            if lacks_leaf(error):
                self._pools.run(self._sql.query("make_leaves"), {})
                return self.operate(step)
            if not _in_the_way(error):
                raise
            return _left(step, _batch(step, self._step(replace(step, dry=True))))

    async def aoperate(self, step: Step, /) -> Batch:
        """`operate`, awaited."""
        try:
            return _batch(step, await self._astep(step))
        except StorageError as error:
            if lacks_leaf(error):
                await self._pools.arun(self._sql.query("make_leaves"), {})
                return await self.aoperate(step)
            if not _in_the_way(error):
                raise
            return _left(step, _batch(step, await self._astep(replace(step, dry=True))))

    def _step(self, step: Step) -> Rows:
        with self._pools.connection() as connection, connection.transaction():
            connection.execute(_READ_COMMITTED)
            connection.execute(_settings(step))
            return connection.execute(_statement(self._sql, step), _params(step), binary=True).fetchall()

    async def _astep(self, step: Step) -> Rows:
        async with self._pools.aconnection() as connection, connection.transaction():
            await connection.execute(_READ_COMMITTED)
            await connection.execute(_settings(step))
            cursor = await connection.execute(_statement(self._sql, step), _params(step), binary=True)
            return await cursor.fetchall()


def _settings(step: Step) -> Statement:
    settings = WALK_SETTINGS if step.selection.ids is None else READ_SETTINGS
    return assignments({**settings, "lock_timeout": LOCK_TIMEOUT}, local=True)


def _statement(sql: Sql, step: Step) -> Statement:
    kind, selection = step.change.kind, step.selection
    if step.ended:
        condition, walk = archive_condition(selection, alias="j"), archive_walk(selection, alias="j")
        verdict = _ENDED_VERDICTS.get(kind, "j.state")
    else:
        condition, walk = live_condition(selection), live_walk(selection)
        verdict = _LIVE_VERDICTS[kind]
    note = "note_none" if step.dry else "note_first" if step.note is None else "note_more"
    return sql.query(
        "operate",
        done=sql.part(_done(step)),
        noted=sql.part(note),
        lock=sql.part("operate_lock"),
        mine="locked" if step.ended and kind is ChangeKind.RETRY else "mine",
        end_waiting=sql.part("end_waiting"),
        assignments=_ASSIGNMENTS.get(kind, ""),
        verdict=verdict,
        condition=condition,
        walk=walk,
        table="archive" if step.ended else "jobs",
        stretch=str(STRETCH),
    )


def _done(step: Step) -> str:
    """The part of the statement that does it."""
    kind = step.change.kind
    if step.dry or (step.ended and not kind.reaches_ended):
        return "operate_look"
    if kind in (ChangeKind.CANCEL, ChangeKind.DELETE):
        return f"operate_{kind}"
    return "operate_redrive" if step.ended else "operate_update"


def _params(step: Step) -> dict[str, Any]:
    change: Change = step.change
    return selection_params(step.selection) | {
        "after": step.after,
        "note": step.note,
        "by": storable(step.by),
        "reason": storable(f"cancelled by {step.by}"),
        "operation": change.kind.value,
        "target": json.dumps(step.selection.as_json()),
        "values": json.dumps(change.values()),
        "at": change.at,
        "delay": change.delay,
        "priority": change.priority,
        "queue": change.queue,
        "retried": text_array(sorted(retried_states(step.selection))),
    }


def _batch(step: Step, rows: Rows) -> Batch:
    [(matched, changed, skipped, left, note, edge, _)] = rows
    matched = matched or []
    return Batch(
        matched=matched,
        changed=changed,
        skipped=skipped or {},
        left=left or [],
        note=step.note if note is None else note,
        after=matched[-1] if len(matched) == STEP else edge,
    )


def _in_the_way(error: StorageError) -> bool:
    return error.__cause__ is not None and sqlstate(error.__cause__) in _IN_THE_WAY


def _left(step: Step, seen: Batch) -> Batch:
    """Nothing was done, and all of it wants another step."""
    return Batch(matched=seen.matched, left=seen.matched, note=step.note, after=seen.after)
