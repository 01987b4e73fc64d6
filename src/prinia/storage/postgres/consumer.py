"""A worker's side of the storage: claim, ack, recover, over one claim and one ack connection."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from prinia.changes import Orders, Paused, WorkerCommand
from prinia.errors import StorageError
from prinia.job import MAX_KEPT_ERRORS, ClaimedJob, Instance, JobState
from prinia.outcome import Ack, AckKind
from prinia.storage.postgres.acks import END, ENDS, ack_params, complete_params
from prinia.storage.postgres.bell import PostgresBell, SilentBell
from prinia.storage.postgres.connection import HOT_SETTINGS, AsyncLine, array, lacks_leaf, text_array
from prinia.storage.postgres.extras import read_extras
from prinia.storage.postgres.identity import meet
from prinia.storage.postgres.listener import Listener
from prinia.storage.postgres.marks import LaneKey, Marks, Position
from prinia.storage.postgres.migrate import acheck
from prinia.storage.postgres.sql import Sql, Statement
from prinia.storage.protocol import Claim, Receipt

#: A limit is a literal of the statement, and each literal a statement to prepare: so few sizes.
CLAIM_SIZES = (1000, 500, 200, 100, 50, 20, 10, 5, 2, 1)
#: At most so many lanes in one claim.
MAX_LANES = 64
#: Looking for unknown lanes may take this part of the time: where dead rows make it dear, it gets rare.
PROBE_SHARE = 0.05
#: Losing claims by a server crash loses nothing (the jobs are ready again), so they need not wait for the disk.
CLAIM_SETTINGS = HOT_SETTINGS | {"synchronous_commit": "off"}
#: The parts of a flush are joined by hash: estimates of one row lead to nested loops, which grow with its square.
ACK_SETTINGS = HOT_SETTINGS | {"enable_nestloop": "off"}


class _Answer(NamedTuple):
    """The one row of ``claim.sql``: the jobs, the tips, the lanes found, and what the marks want to know."""

    ids: list[int] | None
    tasks: list[str]
    queues: list[str]
    priorities: list[int]
    attempts: list[int]
    max_attempts: list[int]
    crashes: list[int]
    args: list[bytes]
    extras: list[str | None]
    tip_queues: list[str] | None
    tip_priorities: list[int]
    tip_times: list[datetime]
    tip_ids: list[int]
    found_queues: list[str] | None
    found_priorities: list[int]
    probe_seconds: float
    server_now: float
    xid: int | None
    xmin: int
    paused: list[str] | None
    paused_tasks: list[str]
    paused_all: bool
    suspects: bool


class PostgresConsumer:
    """`prinia.storage.protocol.Consumer` on PostgreSQL."""

    def __init__(
        self, dsn: Callable[[], str], sql: Sql, instance: Instance, find_listener: Callable[[], Listener] | None
    ) -> None:
        self._sql = sql
        self._instance = instance
        name = f"prinia worker {instance.name}"
        self._claims = AsyncLine(dsn, name=name, schema=sql.schema, settings=CLAIM_SETTINGS)
        self._acks = AsyncLine(dsn, name=name, schema=sql.schema, settings=ACK_SETTINGS)
        self._bell = SilentBell() if find_listener is None else PostgresBell(find_listener, instance.queues)
        self._marks = Marks(instance.queues)
        self._session = 0
        self._opened = False
        self._excluded: list[str] = []
        self._probe_at = self._probe_took = 0.0
        self._suspects = False
        #: Of the last claim. When it changes, jobs below the marks may have become claimable.
        self._paused = Paused()
        #: The server's time at the first statement of the last claim. (Microseconds survive in a float.)
        self._looked_at = math.inf
        #: Jobs that have an error history, and the token of their latest claim: that may be there before the answer to
        #: the ack of the claim before it.
        self._with_history: dict[int, int] = {}
        self._statements = {size: sql.query("claim", limit=str(size)) for size in CLAIM_SIZES}
        self._claim_alone = sql.query("claim_alone")
        self._look = sql.query("look")
        self._complete = sql.query("complete")
        self._ack = sql.query("ack", kept_errors=str(MAX_KEPT_ERRORS))
        self._settle = sql.query("settle")
        self._recover = sql.query("rescue", found=sql.part("found_unheard"), kept_errors=str(MAX_KEPT_ERRORS))
        self._held = sql.query("held")
        self._cancel_requests = sql.query("cancel_requests")
        self._orders = sql.query("orders")

    @property
    def bell(self) -> PostgresBell | SilentBell:
        """The bell over the queues of this instance."""
        return self._bell

    async def open(self) -> None:
        """Connect, check the schema, make sure of the archive, register."""
        try:
            await self._register()
        except BaseException:
            await self._disconnect()
            raise
        self._opened = True

    async def _register(self) -> None:
        await acheck(await self._claims.connect(), schema=self._sql.schema)
        await meet(self._claims, self._sql)
        await self._acks.run(self._sql.query("make_leaves"))
        await self._acks.run(
            self._sql.query("register"),
            {
                "id": str(self._instance.id),
                "name": self._instance.name,
                "queues": text_array(self._instance.queues),
                "tasks": text_array(self._instance.tasks),
                "host": self._instance.host,
                "pid": self._instance.pid,
                "version": self._instance.version,
                "concurrency": self._instance.concurrency,
                "run": self._instance.run,
                "command": self._instance.command,
            },
        )
        await self._bell.open()

    async def close(self) -> None:
        """Take the instance off the register, disconnect."""
        self._opened = False
        try:
            await self._bell.close()
            await self._acks.run(self._sql.query("unregister"), {"id": str(self._instance.id)})
        finally:
            await self._disconnect()

    async def _disconnect(self) -> None:
        await self._claims.close()
        await self._acks.close()

    def exclude(self, task: str, /) -> None:
        """Claim no job of this task any more."""
        if task not in self._excluded:
            self._excluded.append(task)

    # -- claim ----------------------------------------------------------------------------------------------------

    async def claim(self, limit: int, /, *, token: int, alone: bool = False, thorough: bool = True) -> Claim:
        """`prinia.storage.protocol.Consumer.claim`; see `prinia.storage.postgres.marks` for where it looks."""
        if alone:
            return Claim(await self._claim_one_alone(token))
        turns = self._marks.turns()
        size = _step_down(limit)
        full = self._marks.scan_all_if_due(time.monotonic())
        jobs = await self._claim(size, token, turns, full=full)
        if len(jobs) == size or not thorough:
            return Claim(jobs, suspects=self._suspects)
        self._marks.scan_floors()
        jobs += await self._claim(_step_down(limit - len(jobs)), token, turns, probe=True)
        return Claim(jobs, next_due=await self._look_around(), suspects=self._suspects)

    async def _claim(
        self, size: int, token: int, turns: list[str], *, full: bool = False, probe: bool = False
    ) -> list[ClaimedJob]:
        jobs: list[ClaimedJob] = []
        self._looked_at = math.inf
        started = time.monotonic()
        if not self._opened:
            raise StorageError("this worker instance is not open: call open() before it claims")
        await self._new_session()
        lanes = self._marks.in_order(turns)
        catching = self._marks.catching
        probe = probe or not lanes or started >= self._probe_at
        for at in range(0, max(len(lanes), 1), MAX_LANES):
            jobs = await self._claim_lanes(size, token, turns, lanes[at : at + MAX_LANES], probe=probe and at == 0)
            if jobs:
                break
        now = time.monotonic()
        if full:
            self._marks.scanned_all(now, now - started)
        if catching:
            self._marks.caught_up(now, now - started)
        return jobs

    async def _new_session(self) -> None:
        await self._claims.connect()
        if self._session != self._claims.session:
            await meet(self._claims, self._sql)
            self._session = self._claims.session
            self._marks.drop()

    async def _claim_lanes(
        self, size: int, token: int, turns: list[str], lanes: list[tuple[LaneKey, Any]], *, probe: bool
    ) -> list[ClaimedJob]:
        gaps = self._marks.gaps() if probe else []
        starts = [lane.start for _, lane in lanes]
        [row] = await self._claims.run(
            self._statements[size],
            {
                "owner": str(self._instance.id),
                "token": str(token),
                "turns": text_array(turns),
                "queues": text_array([queue for (queue, _), _ in lanes]),
                "priorities": array([priority for (_, priority), _ in lanes]),
                **_positions(starts),
                "gap_queues": text_array([queue for queue, _, _ in gaps]),
                "gap_lows": array([low for _, low, _ in gaps]),
                "gap_highs": array([high for _, _, high in gaps]),
                "excluded": text_array(self._excluded),
            },
        )
        answer = _Answer(*row)
        found = list(zip(answer.found_queues or (), answer.found_priorities or (), strict=True))
        if gaps:
            # The lesser of the last two: one may have been slow only because the machine was.
            cost = min(self._probe_took, answer.probe_seconds)
            self._probe_at, self._probe_took = time.monotonic() + cost / PROBE_SHARE, answer.probe_seconds
        self._marks.add(found)
        known = {key for key, _ in lanes} | set(found)
        paused = Paused(frozenset(answer.paused or ()), frozenset(answer.paused_tasks), answer.paused_all)
        visited = [key for key, _ in self._marks.in_order(turns) if key in known and not _skips(paused, key)]
        now = time.monotonic()
        self._marks.note(xid=answer.xid, now=now)
        self._marks.advance(visited, _by_lane(row[9:13]), short=len(answer.ids or ()) < size)
        self._marks.observe(server_now=answer.server_now, xmin=answer.xmin, now=now)
        self._suspects = answer.suspects
        if paused != self._paused:
            self._paused = paused
            self._marks.drop()
        self._looked_at = min(self._looked_at, answer.server_now)
        return self._jobs(token, row[:9])

    async def _claim_one_alone(self, token: int) -> list[ClaimedJob]:
        [row] = await self._claims.run(
            self._claim_alone,
            {
                "owner": str(self._instance.id),
                "token": str(token),
                "queues": text_array(self._instance.queues),
                "excluded": text_array(self._excluded),
            },
        )
        return self._jobs(token, row)

    def _jobs(self, token: int, columns: tuple[Any, ...]) -> list[ClaimedJob]:
        if columns[0] is None:
            return []
        ids, tasks, queues, priorities, attempts, max_attempts, crashes, args, extras = columns
        jobs = [
            ClaimedJob(job_id, token, task, queue, priority, attempt, most, crash, data, extra and read_extras(extra))
            for job_id, task, queue, priority, attempt, most, crash, data, extra in zip(
                ids, tasks, queues, priorities, attempts, max_attempts, crashes, args, extras, strict=True
            )
        ]
        self._with_history.update(
            (job.id, token)
            for job in jobs
            if job.attempt > 1 or job.crashes or (job.extras is not None and job.extras.history)
        )
        return jobs

    async def _look_around(self) -> float | None:
        keys = list(self._marks.lanes)
        tips = [self._marks.lanes[key].tip for key in keys]
        [row] = await self._claims.run(
            self._look,
            {
                "queues": text_array([queue for queue, _ in keys]),
                "priorities": array([priority for _, priority in keys]),
                **_positions(tips),
                "excluded": text_array(self._excluded),
                "at": self._looked_at,
                "owner": str(self._instance.id),
            },
        )
        self._marks.jump(_by_lane(row[:4]))
        next_due: float | None = row[4]
        return next_due

    # -- ack ------------------------------------------------------------------------------------------------------

    async def ack(self, acks: Sequence[Ack], /) -> Receipt:
        """`prinia.storage.protocol.Consumer.ack`: one statement for what is simply completed, one for the rest."""
        acks = list({(ack.id, ack.token): ack for ack in acks}.values())
        known = self._with_history
        plain = [ack for ack in acks if ack.kind is AckKind.COMPLETE and ack.id not in known]
        other = [ack for ack in acks if ack.kind is not AckKind.COMPLETE or ack.id in known]
        unsettled, _ = await self._flush(plain, self._complete, complete_params) if plain else ([], ())
        left, cancelled = await self._flush(other, self._ack, ack_params) if other else ([], ())
        ended = dict.fromkeys(cancelled, JobState.CANCELLED)
        receipt = await self._settled([*unsettled, *left], ended) if unsettled or left else Receipt(ended=ended)
        for ack in other:
            if known.get(ack.id) == ack.token and ack.id not in receipt.busy:
                del known[ack.id]
        return receipt

    async def _flush(
        self, acks: list[Ack], statement: Statement, params: Callable[[list[Ack]], dict[str, str]]
    ) -> tuple[list[Ack], list[int]]:
        """Returns what was not recorded (all, unless all was), and which of the rest a cancel request ended."""
        acks.sort(key=lambda ack: ack.id)
        values = params(acks) | {"owner": str(self._instance.id), "ids": array([ack.id for ack in acks])}
        try:
            [(recorded, cancelled, *_)] = await self._acks.run(statement, values)
        except StorageError as error:
            if not lacks_leaf(error):
                raise
            await self._acks.run(self._sql.query("make_leaves"))
            [(recorded, cancelled, *_)] = await self._acks.run(statement, values)
        return ([] if recorded == len(acks) else acks), cancelled or []

    async def _settled(self, acks: list[Ack], ended: dict[int, JobState]) -> Receipt:
        ends = {ack.id: END.get(ack.kind) for ack in acks}
        rows = await self._acks.run(
            self._settle,
            {
                "owner": str(self._instance.id),
                "ids": array([ack.id for ack in acks]),
                "tokens": array([ack.token for ack in acks]),
            },
        )
        return Receipt(
            lost=frozenset(job_id for job_id, verdict in rows if verdict == "lost"),
            busy=frozenset(job_id for job_id, verdict in rows if verdict == "busy"),
            ended=ended | {job_id: JobState(end) for job_id, end in rows if end in ENDS and end != ends[job_id]},
        )

    async def cancel_requests(self) -> dict[int, str]:
        """`prinia.storage.protocol.Consumer.cancel_requests`."""
        return dict(await self._acks.run(self._cancel_requests, {"owner": str(self._instance.id)}))

    async def orders(self) -> Orders:
        """`prinia.storage.protocol.Consumer.orders`."""
        params = {"owner": str(self._instance.id), "queues": text_array(self._instance.queues)}
        [(command, queues, tasks, everything)] = await self._acks.run(self._orders, params)
        return Orders(
            command=None if command is None else WorkerCommand(command),
            paused=Paused(frozenset(queues), frozenset(tasks), everything),
        )

    # -- recover --------------------------------------------------------------------------------------------------

    async def recover(self, tokens: Sequence[int], running: Sequence[ClaimedJob], /) -> frozenset[int]:
        """`prinia.storage.protocol.Consumer.recover`."""
        owner = str(self._instance.id)
        while tokens and (await self._acks.run(self._recover, {"owner": owner, "tokens": array(tokens)}))[0][0]:
            pass  # up to a thousand at a time
        if not running:
            return frozenset()
        held = await self._acks.run(
            self._held,
            {"owner": owner, "ids": array([job.id for job in running])},
        )
        mine = set(held)
        return frozenset(job.id for job in running if (job.id, job.token) not in mine)


def _by_lane(columns: tuple[Any, ...]) -> dict[LaneKey, Position]:
    """Positions by lane, of four arrays (queue, priority, due time, id) that are NULL when empty."""
    return {
        (queue, priority): (at, job_id)
        for queue, priority, at, job_id in zip(*(column or () for column in columns), strict=True)
    }


def _skips(paused: Paused, lane: LaneKey) -> bool:
    return paused.everything or lane[0] in paused.queues


def _step_down(limit: int) -> int:
    return next(size for size in CLAIM_SIZES if size <= limit)


def _positions(positions: list[Position]) -> dict[str, str]:
    return {
        "times": text_array([position[0].isoformat() if position else "-infinity" for position in positions]),
        "ids": array([position[1] if position else 0 for position in positions]),
    }
