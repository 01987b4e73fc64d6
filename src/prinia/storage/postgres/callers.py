"""The callers' side: push, find, cancel, pause, in both colours.

Every operation is one statement or a few of them in a transaction, written once without I/O (its SQL, its parameters,
how its rows are read) and run by a small blocking and a small awaiting loop. That is why no code is generated here.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

import psycopg
from psycopg import errors as pg

from prinia.errors import DuplicateJob, StorageError, StorageUnavailable, UniqueBusy
from prinia.job import JobRecord, JobSpec, Pushed
from prinia.storage.postgres.connection import array, lacks_leaf, translate
from prinia.storage.postgres.pools import Pools
from prinia.storage.postgres.records import records
from prinia.storage.postgres.specs import achunks, answers, chunks, encode_specs
from prinia.storage.postgres.sql import Sql
from prinia.storage.postgres.within import acursor, asavepoint, cursor, savepoint
from prinia.storage.text import storable

#: A round of cancel leaves rows that somebody has locked just now; so many rounds, so many seconds apart.
CANCEL_ROUNDS, CANCEL_PAUSE = 500, 0.01


class Callers:
    """The callers' operations, over a pool or over a connection that the caller brings."""

    def __init__(self, sql: Sql, pools: Pools) -> None:
        self._schema = sql.schema
        self._pools = pools
        self._push = sql.query("push")
        self._find = sql.query("find")
        self._cancel = sql.query("cancel", end_waiting=sql.part("end_waiting"))
        self._make_leaves = sql.query("make_leaves")
        self._pause = sql.query("pause")
        self._resume = sql.query("resume")

    def push(self, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        """`prinia.storage.protocol.Pushes.push`."""
        with self._pools.connection() as connection:
            return self.push_within(connection, jobs)

    async def apush(self, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /) -> Sequence[Pushed]:
        """`push`, awaited."""
        async with self._pools.aconnection() as connection:
            return await self.apush_within(connection, jobs)

    def push_within(self, connection: Any, jobs: Iterable[JobSpec], /) -> Sequence[Pushed]:
        """`prinia.storage.protocol.PushesWithin.push_within`: a savepoint where more than one statement is needed."""
        ahead = chunks(jobs)
        first: list[JobSpec] = next(ahead, [])
        second: list[JobSpec] = next(ahead, [])
        if not second and not _may_refuse(first):
            return self._push_chunk(connection, first)
        pushed: list[Pushed] = []
        with savepoint(connection):
            for chunk in _chain(first, second, ahead):
                pushed += self._push_chunk(connection, chunk)
        return pushed

    async def apush_within(
        self, connection: Any, jobs: Iterable[JobSpec] | AsyncIterable[JobSpec], /
    ) -> Sequence[Pushed]:
        """`push_within`, awaited."""
        ahead = achunks(jobs)
        first: list[JobSpec] = await anext(ahead, [])
        second: list[JobSpec] = await anext(ahead, [])
        if not second and not _may_refuse(first):
            return await self._apush_chunk(connection, first)
        pushed: list[Pushed] = []
        async with await asavepoint(connection):
            async for chunk in _achain(first, second, ahead):
                pushed += await self._apush_chunk(connection, chunk)
        return pushed

    def _push_chunk(self, connection: Any, specs: list[JobSpec]) -> list[Pushed]:
        with self._push_errors():
            rows = cursor(connection).execute(self._push, {"jobs": encode_specs(specs)}).fetchall()
        return _checked(specs, answers(rows))

    async def _apush_chunk(self, connection: Any, specs: list[JobSpec]) -> list[Pushed]:
        with self._push_errors():
            done = await acursor(connection).execute(self._push, {"jobs": encode_specs(specs)})
            rows = await done.fetchall()
        return _checked(specs, answers(rows))

    @contextlib.contextmanager
    def _push_errors(self) -> Iterator[None]:
        try:
            yield
        except pg.LockNotAvailable as error:
            raise UniqueBusy(
                "another transaction enqueued a job with the same unique key and is still open"
                f" (lock_timeout ran out): {error}"
            ) from error
        except psycopg.Error as error:
            raise translate(error, schema=self._schema) from error

    def find(self, ids: Sequence[int], /) -> Sequence[JobRecord]:
        """`prinia.storage.protocol.Reads.find`."""
        return records(ids, self._pools.run(self._find, {"ids": array(ids)}))

    async def afind(self, ids: Sequence[int], /) -> Sequence[JobRecord]:
        """`find`, awaited."""
        return records(ids, await self._pools.arun(self._find, {"ids": array(ids)}))

    def cancel(self, ids: Sequence[int], /, *, by: str) -> int:
        """`prinia.storage.protocol.Cancels.cancel`."""
        cancelled: int = 0
        for _ in range(CANCEL_ROUNDS):
            try:
                [(done, left)] = self._pools.run(self._cancel, _cancel_params(ids, by))
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
                [(done, left)] = await self._pools.arun(self._cancel, _cancel_params(ids, by))
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

    def pause(self, queue: str, /) -> None:
        """`prinia.storage.protocol.Pauses.pause`."""
        self._pools.run(self._pause, {"queue": queue})

    def resume(self, queue: str, /) -> None:
        """`prinia.storage.protocol.Pauses.resume`."""
        self._pools.run(self._resume, {"queue": queue})


def _may_refuse(specs: list[JobSpec]) -> bool:
    """Whether a taken key would have to undo other jobs of the same statement."""
    return len(specs) > 1 and any(spec.unique is not None and spec.unique.on_conflict == "raise" for spec in specs)


def _checked(specs: list[JobSpec], pushed: list[Pushed]) -> list[Pushed]:
    for spec, answer in zip(specs, pushed, strict=True):
        if not answer.created and spec.unique is not None and spec.unique.on_conflict == "raise":
            raise DuplicateJob(
                f"task {spec.task!r}: live job {answer.id} already has the unique key {spec.unique.text!r}",
                job_id=answer.id,
            )
    return pushed


def _chain(first: list[JobSpec], second: list[JobSpec], rest: Iterator[list[JobSpec]]) -> Iterator[list[JobSpec]]:
    yield from (first, second) if second else (first,)
    yield from rest


async def _achain(
    first: list[JobSpec], second: list[JobSpec], rest: AsyncIterator[list[JobSpec]]
) -> AsyncIterator[list[JobSpec]]:
    for chunk in (first, second) if second else (first,):
        yield chunk
    async for chunk in rest:
        yield chunk


def _cancel_params(ids: Sequence[int], by: str) -> dict[str, str]:
    return {"ids": array(ids), "by": storable(by), "reason": storable(f"cancelled by {by}")}


def _cancel_stuck(cancelled: int) -> StorageUnavailable:
    return StorageUnavailable(
        f"{cancelled} jobs were cancelled, but some stayed locked by other transactions for"
        f" {CANCEL_ROUNDS * CANCEL_PAUSE:.0f} s; try again"
    )
