"""The callers' side: push, find, cancel, in both colours.

Every operation is one statement or a few of them in a transaction, written once without I/O (its SQL, its parameters,
how its rows are read) and run by a small blocking and a small awaiting loop. That is why no code is generated here.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any, TypeGuard
from uuid import UUID

from prinia.errors import ConnectionUnusable, StorageError, StorageUnavailable
from prinia.job import Answers, JobRecord, JobSpec, Pushed
from prinia.retention import DEFAULT, Retention
from prinia.storage.postgres.bulk import Bulk
from prinia.storage.postgres.connection import array, lacks_leaf
from prinia.storage.postgres.keys import busy_keys
from prinia.storage.postgres.pools import Pools
from prinia.storage.postgres.records import records
from prinia.storage.postgres.specs import achunks, answers, checked, chunks, encode_specs
from prinia.storage.postgres.sql import Sql
from prinia.storage.postgres.within import GivenAsyncConnection, GivenConnection, encode_completion
from prinia.storage.text import storable

#: A round of cancel leaves rows that somebody has locked just now; so many rounds, so many seconds apart.
CANCEL_ROUNDS, CANCEL_PAUSE = 500, 0.01


class Callers:
    """The callers' operations, over a pool or over a connection that the caller brings."""

    def __init__(self, sql: Sql, pools: Pools) -> None:
        self._sql = sql
        self._schema = sql.schema
        self._pools = pools
        self._push = sql.query("push")
        self._push_within = sql.call("push_within")
        self._bulk = Bulk(sql)
        self._complete = sql.call("complete_within")
        self._in_progress = sql.query("in_progress")
        self._find = sql.query("find")
        self._expect = sql.query("expect")
        self._cancel = sql.query("cancel", end_waiting=sql.part("end_waiting"))
        self._make_leaves = sql.query("make_leaves")
        self._set_retention = sql.query("set_retention")
        self._retention = sql.query("retention")

    def push(self, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        """`prinia.storage.protocol.Pushes.push`."""
        ahead = chunks(jobs)
        first: list[JobSpec] = next(ahead, [])
        second: list[JobSpec] = next(ahead, [])
        with self._pools.connection() as connection:
            if second:
                return self._bulk.push(connection, itertools.chain((first, second), ahead))
            with connection.transaction() if _may_refuse(first) else nullcontext():
                with busy_keys(first):
                    rows = connection.execute(self._push, {"jobs": encode_specs(first), "bell": True}).fetchall()
                return checked(first, answers(rows))

    async def apush(self, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /) -> Sequence[Pushed]:
        """`push`, awaited."""
        ahead = achunks(jobs)
        first: list[JobSpec] = await anext(ahead, [])
        second: list[JobSpec] = await anext(ahead, [])
        async with self._pools.aconnection() as connection:
            if second:
                return await self._bulk.apush(connection, _achain((first, second), ahead))
            async with connection.transaction() if _may_refuse(first) else nullcontext():
                with busy_keys(first):
                    cursor = await connection.execute(self._push, {"jobs": encode_specs(first), "bell": True})
                    rows = await cursor.fetchall()
                return checked(first, answers(rows))

    def push_within(self, connection: Any, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        """`prinia.storage.protocol.PushesWithin.push_within`."""
        within = GivenConnection(connection, schema=self._schema)
        if _is_one(jobs):
            return self._push_chunk(within, list(jobs))
        pushed = Answers()
        with within.savepoint():
            for chunk in chunks(jobs):
                pushed.extend(self._push_chunk(within, chunk))
        return pushed

    async def apush_within(
        self, connection: Any, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /
    ) -> Sequence[Pushed]:
        """`push_within`, awaited."""
        within = GivenAsyncConnection(connection, schema=self._schema)
        if _is_one(jobs):
            return await self._apush_chunk(within, list(jobs))
        pushed = Answers()
        async with within.savepoint():
            async for chunk in achunks(jobs):
                pushed.extend(await self._apush_chunk(within, chunk))
        return pushed

    def _push_chunk(self, within: GivenConnection, specs: list[JobSpec]) -> list[Pushed]:
        with busy_keys(specs):
            rows = within.run(self._push_within, encode_specs(specs))
        return checked(specs, answers(rows))

    async def _apush_chunk(self, within: GivenAsyncConnection, specs: list[JobSpec]) -> list[Pushed]:
        with busy_keys(specs):
            rows = await within.run(self._push_within, encode_specs(specs))
        return checked(specs, answers(rows))

    def complete_within(self, connection: Any, instance: UUID, job_id: int, token: int, result: bytes | None) -> bool:
        """`prinia.storage.protocol.CompletesWithin.complete_within`."""
        within = GivenConnection(connection, schema=self._schema)
        return _completed(within.run(self._complete, encode_completion(instance, job_id, token, result)))

    async def acomplete_within(
        self, connection: Any, instance: UUID, job_id: int, token: int, result: bytes | None
    ) -> bool:
        """`complete_within`, awaited."""
        within = GivenAsyncConnection(connection, schema=self._schema)
        return _completed(await within.run(self._complete, encode_completion(instance, job_id, token, result)))

    def find(self, ids: Sequence[int], /) -> Sequence[JobRecord]:
        """`prinia.storage.protocol.Reads.find`."""
        return records(ids, self._pools.run(self._find, {"ids": array(ids)}))

    async def afind(self, ids: Sequence[int], /) -> Sequence[JobRecord]:
        """`find`, awaited."""
        return records(ids, await self._pools.arun(self._find, {"ids": array(ids)}))

    def in_progress(self, xid: int, id: int, /) -> bool:
        """`prinia.storage.protocol.Reads.in_progress`."""
        [(answer,)] = self._pools.run(self._in_progress, {"xid": xid, "id": id})
        return bool(answer)

    async def ain_progress(self, xid: int, id: int, /) -> bool:
        """`in_progress`, awaited."""
        [(answer,)] = await self._pools.arun(self._in_progress, {"xid": xid, "id": id})
        return bool(answer)

    def expect(self, ids: Sequence[int], /) -> None:
        """`prinia.storage.protocol.Announces.expect`."""
        self._pools.run(self._expect, {"ids": array(ids)})

    async def aexpect(self, ids: Sequence[int], /) -> None:
        """`expect`, awaited."""
        await self._pools.arun(self._expect, {"ids": array(ids)})

    def cancel(self, ids: Sequence[int], /, *, by: str) -> int:
        """`prinia.storage.protocol.Cancels.cancel`."""
        cancelled: int = 0
        for _ in range(CANCEL_ROUNDS):
            try:
                [(done, left, _)] = self._pools.run(self._cancel, _cancel_params(ids, by))
            except StorageError as error:
                if not lacks_leaf(error):
                    raise
                self._pools.run(self._make_leaves, {})
                continue
            cancelled += done
            if not left:
                return cancelled
            time.sleep(CANCEL_PAUSE)
        raise _cancel_stuck(cancelled)

    async def acancel(self, ids: Sequence[int], /, *, by: str) -> int:
        """`cancel`, awaited."""
        cancelled: int = 0
        for _ in range(CANCEL_ROUNDS):
            try:
                [(done, left, _)] = await self._pools.arun(self._cancel, _cancel_params(ids, by))
            except StorageError as error:
                if not lacks_leaf(error):
                    raise
                await self._pools.arun(self._make_leaves, {})
                continue
            cancelled += done
            if not left:
                return cancelled
            await asyncio.sleep(CANCEL_PAUSE)
        raise _cancel_stuck(cancelled)

    def set_retention(self, queue: str, retention: Retention, /) -> None:
        """`prinia.storage.protocol.Retains.set_retention`."""
        self._pools.run(self._set_retention, {"queue": queue, **asdict(retention)})
        self._pools.run(self._make_leaves, {})

    async def aset_retention(self, queue: str, retention: Retention, /) -> None:
        """`set_retention`, awaited."""
        await self._pools.arun(self._set_retention, {"queue": queue, **asdict(retention)})
        await self._pools.arun(self._make_leaves, {})

    def retention(self, queue: str, /) -> Retention:
        """`prinia.storage.protocol.Retains.retention`."""
        return _read_retention(self._pools.run(self._retention, {"queue": queue}))

    async def aretention(self, queue: str, /) -> Retention:
        """`retention`, awaited."""
        return _read_retention(await self._pools.arun(self._retention, {"queue": queue}))


def _is_one(jobs: Iterable[JobSpec] | AsyncIterable[JobSpec]) -> TypeGuard[Sequence[JobSpec]]:
    return isinstance(jobs, Sequence) and len(jobs) == 1


def _may_refuse(specs: list[JobSpec]) -> bool:
    """Whether a taken key would have to undo other jobs of the same statement."""
    return len(specs) > 1 and any(spec.unique is not None and spec.unique.on_conflict == "raise" for spec in specs)


async def _achain(begun: tuple[list[JobSpec], ...], rest: AsyncIterator[list[JobSpec]]) -> AsyncIterator[list[JobSpec]]:
    for chunk in begun:
        yield chunk
    async for chunk in rest:
        yield chunk


def _completed(rows: Sequence[tuple[Any, ...]]) -> bool:
    [(ours,)] = rows
    if ours is None:
        raise ConnectionUnusable(
            "the transaction, of isolation level repeatable read or serializable, does not see that this worker has "
            "claimed the job: it began before that, or others have the job by now. Begin the transaction in the handler"
        )
    return bool(ours)


def _cancel_params(ids: Sequence[int], by: str) -> dict[str, str]:
    return {"ids": array(ids), "by": storable(by), "reason": storable(f"cancelled by {by}")}


def _read_retention(rows: Sequence[tuple[Any, ...]]) -> Retention:
    """Of a queue of which nothing was said there is no row, or one without numbers."""
    found = dict(zip(asdict(DEFAULT), rows[0], strict=True)) if rows else {}
    return replace(DEFAULT, **{state: keep for state, keep in found.items() if keep is not None})


def _cancel_stuck(cancelled: int) -> StorageUnavailable:
    return StorageUnavailable(
        f"{cancelled} jobs were cancelled, but some stayed locked by other transactions for"
        f" {CANCEL_ROUNDS * CANCEL_PAUSE:.0f} s; try again"
    )
