"""Lists and counts, for people and boards: each statement looks at a bounded number of rows, by an index.

What takes several statements is a script: a generator that yields what to run and is sent the rows. It is written once
and run by a blocking and by an awaiting loop, in one transaction each.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import UTC
from typing import Any, TypeVar, cast

from prinia.overview import Count, QueueRecord, WorkerRecord
from prinia.selection import Selection
from prinia.situation import Situation
from prinia.storage.postgres.connection import BASE_SETTINGS, array, assignments
from prinia.storage.postgres.controlling import read_pauses
from prinia.storage.postgres.pools import Pools, Rows
from prinia.storage.postgres.records import record, records, utc
from prinia.storage.postgres.selecting import (
    archive_condition,
    archive_walk,
    live_condition,
    live_walk,
    selection_params,
)
from prinia.storage.postgres.sql import Sql, Statement
from prinia.storage.postgres.standing import Standing
from prinia.storage.protocol import Stretch

T = TypeVar("T")
Script = Generator[tuple[Statement, Mapping[str, Any]], Rows, T]

#: The first statement of a page looks at so many rows of each table; each next one at four times as many, to a limit.
FIRST_STRETCH, LONGEST_STRETCH = 1_000, 50_000
#: After so many rows a page ends, full or not: that takes about half a second.
PAGE_ROWS = 250_000
#: A count looks at so many rows for each job up to which it is exact.
ROWS_PER_COUNTED = 20
#: A sample reads about so many pages of each table.
SAMPLE_PAGES = 1_000
_ONE_MOMENT = b"set transaction isolation level repeatable read read only"
_BEYOND_ALL = 2**63 - 1
_CLOCK = "(select now from clock)"

#: Plans that walk an index, whatever the statistics say: only so is what a statement looks at bounded.
READ_SETTINGS = BASE_SETTINGS | {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "max_parallel_workers_per_gather": "0",
    "jit": "off",
}
#: And one that gives the jobs in the order of their ids, where one statement looks at more than a stretch.
WALK_SETTINGS = READ_SETTINGS | {"enable_sort": "off"}

_NEWEST_FIRST = {"beyond": "<", "covered": ">=", "direction": "desc", "nearest": "greatest"}
_OLDEST_FIRST = {"beyond": ">", "covered": "<=", "direction": "asc", "nearest": "least"}


class Listing:
    """`prinia.storage.protocol.Lists` and `Explains` on PostgreSQL: a part of the storage, which has the two below."""

    _sql: Sql
    _pools: Pools

    def browse(self, selection: Selection, /, *, after: int | None, limit: int, oldest_first: bool = False) -> Stretch:
        """`prinia.storage.protocol.Lists.browse`."""
        return self._play(self._browse(selection, after, limit, oldest_first))

    async def abrowse(
        self, selection: Selection, /, *, after: int | None, limit: int, oldest_first: bool = False
    ) -> Stretch:
        """`browse`, awaited."""
        return await self._aplay(self._browse(selection, after, limit, oldest_first))

    def count(self, selection: Selection, /, *, limit: int) -> Count:
        """`prinia.storage.protocol.Lists.count`."""
        return self._play(self._count(selection, limit))

    async def acount(self, selection: Selection, /, *, limit: int) -> Count:
        """`count`, awaited."""
        return await self._aplay(self._count(selection, limit))

    def queues(self, *, limit: int) -> list[QueueRecord]:
        """`prinia.storage.protocol.Lists.queues`."""
        return self._play(self._queues(limit))

    async def aqueues(self, *, limit: int) -> list[QueueRecord]:
        """`queues`, awaited."""
        return await self._aplay(self._queues(limit))

    def workers(self) -> list[WorkerRecord]:
        """`prinia.storage.protocol.Lists.workers`."""
        return [_worker(row) for row in self._pools.run(self._sql.query("workers"), {})]

    async def aworkers(self) -> list[WorkerRecord]:
        """`workers`, awaited."""
        return [_worker(row) for row in await self._pools.arun(self._sql.query("workers"), {})]

    def situation(self, id: int, /, *, limit: int) -> Situation:
        """`prinia.storage.protocol.Explains.situation`."""
        return self._play(self._situation(id, limit))

    async def asituation(self, id: int, /, *, limit: int) -> Situation:
        """`situation`, awaited."""
        return await self._aplay(self._situation(id, limit))

    # -- scripts ------------------------------------------------------------------------------------------------------

    def _browse(self, selection: Selection, after: int | None, limit: int, oldest_first: bool) -> Script[Stretch]:
        sql = self._sql.query("browse", **_conditions(selection), **(_OLDEST_FIRST if oldest_first else _NEWEST_FIRST))
        params = selection_params(selection) | {"limit": limit + 1, "last": _BEYOND_ALL if oldest_first else 0}
        at = (0 if oldest_first else _BEYOND_ALL) if after is None else after
        found: list[tuple[Any, ...]] = []
        looked, stretch = 0, FIRST_STRETCH
        while True:
            rows = yield sql, params | {"after": at, "stretch": stretch, "limit": limit + 1 - len(found)}
            found += [row[:-1] for row in rows if row[0] is not None]
            edge = rows[0][-1]
            if len(found) > limit:
                return Stretch([record(row) for row in found[:limit]], found[limit - 1][0])
            looked += stretch
            if edge is None or looked >= PAGE_ROWS:
                return Stretch([record(row) for row in found], edge)
            at, stretch = edge, min(stretch * 4, LONGEST_STRETCH)

    def _count(self, selection: Selection, limit: int) -> Script[Count]:
        conditions = _conditions(selection)
        sql, params = self._sql.query("count", **conditions), selection_params(selection)
        counted, looked, at = 0, 0, _BEYOND_ALL
        while counted <= limit and looked < limit * ROWS_PER_COUNTED:
            stretch = min(LONGEST_STRETCH, limit * ROWS_PER_COUNTED)
            [(live, finished, edge)] = yield sql, params | {"after": at, "stretch": stretch}
            counted += live + finished
            if edge is None:
                return Count(counted)
            looked, at = looked + stretch, edge
        live_percent, finished_percent = yield from self._percents()
        sample = self._sql.query("sample_count", **conditions)
        percents = {"live_percent": live_percent, "finished_percent": finished_percent}
        [(live, finished)] = yield sample, params | percents
        estimated = round(live * 100 / live_percent + finished * 100 / finished_percent)
        return Count(max(counted, estimated), exact=False)

    def _queues(self, limit: int) -> Script[list[QueueRecord]]:
        standing = Standing(limit)
        standing.add_queues((yield self._sql.query("queues", lanes=self._sql.part("lanes")), {"limit": limit}))
        standing.add_completed((yield self._sql.query("completed"), {"limit": limit}))
        if standing.needs_sample:
            live_percent, finished_percent = yield from self._percents()
            percents = {"live_percent": live_percent, "finished_percent": finished_percent}
            standing.add_sample((yield self._sql.query("sample_states"), percents), live_percent, finished_percent)
        return standing.queues()

    def _situation(self, id: int, limit: int) -> Script[Situation]:
        [(now, expires_at, ahead)] = yield self._sql.query("place"), {"id": id, "limit": limit}
        job = next(iter(records([id], (yield self._sql.query("find"), {"ids": array([id])}))), None)
        if job is None or job.state.final:
            return Situation(now=now.astimezone(UTC), job=job)
        return Situation(
            now=now.astimezone(UTC),
            job=job,
            expires_at=utc(expires_at),
            ahead=ahead,
            pauses=read_pauses((yield self._sql.query("pauses"), {})),
            workers=[_worker(row) for row in (yield self._sql.query("workers"), {})],
        )

    def _percents(self) -> Script[tuple[float, float]]:
        """How much of the two tables is a sample of them."""
        [(live, finished)] = yield self._sql.query("sizes"), {}
        return _percent(live), _percent(finished)

    # -- and who plays them -------------------------------------------------------------------------------------------

    def _play(self, script: Script[T]) -> T:
        with self._pools.connection() as connection, connection.transaction():
            connection.execute(_ONE_MOMENT)
            connection.execute(assignments(READ_SETTINGS, local=True))
            rows: Any = None
            while True:
                try:
                    sql, params = script.send(rows)
                except StopIteration as end:
                    return cast(T, end.value)
                rows = connection.execute(sql, params, binary=True).fetchall()

    async def _aplay(self, script: Script[T]) -> T:
        async with self._pools.aconnection() as connection, connection.transaction():
            await connection.execute(_ONE_MOMENT)
            await connection.execute(assignments(READ_SETTINGS, local=True))
            rows: Any = None
            while True:
                try:
                    sql, params = script.send(rows)
                except StopIteration as end:
                    return cast(T, end.value)
                rows = await (await connection.execute(sql, params, binary=True)).fetchall()


def _conditions(selection: Selection) -> dict[str, str]:
    return {
        "live": live_condition(selection, now=_CLOCK),
        "live_walk": live_walk(selection),
        "finished": archive_condition(selection),
        "finished_walk": archive_walk(selection),
    }


def _percent(pages: int) -> float:
    return min(100.0, 100.0 * SAMPLE_PAGES / max(pages, 1))


def _worker(row: tuple[Any, ...]) -> WorkerRecord:
    (id, name, host, pid, run, version, queues, tasks, concurrency, running, started_at, beat_at, beat_age, listener,
     lag, blocked, command, alive, commanded_by) = row  # fmt: skip
    return WorkerRecord(
        id=id,
        name=name,
        host=host,
        pid=pid,
        run=run,
        version=version,
        queues=tuple(queues),
        tasks=tuple(tasks),
        concurrency=concurrency,
        running=tuple(running),
        started_at=started_at.astimezone(UTC),
        beat_at=beat_at.astimezone(UTC),
        beat_age=beat_age,
        listener=listener,
        lag=lag,
        blocked=blocked,
        command=command,
        alive=alive,
        commanded_by=commanded_by,
    )
