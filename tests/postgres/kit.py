"""What the tests of the PostgreSQL storage stand on: a storage with its database at hand, connections that look from
outside, and the plans and buffers of the statements that really ran."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

import psycopg

from prinia.storage.postgres import PostgresStorage
from prinia.storage.postgres.bell import PostgresBell
from prinia.storage.postgres.consumer import PostgresConsumer
from prinia.testing.conformance.bench import Bench, ConformanceBase, StandIn
from tests import waiting

Row = tuple[Any, ...]
Connection = psycopg.AsyncConnection[Row]

PATIENCE = 15.0

EXPLAIN = (
    "load 'auto_explain'",
    "set auto_explain.log_min_duration = 0",
    "set auto_explain.log_analyze = on",
    "set auto_explain.log_buffers = on",
    "set auto_explain.log_timing = off",
    "set auto_explain.log_format = json",
    "set auto_explain.log_level = notice",
    "set auto_explain.log_nested_statements = on",
)


class Lab(Bench):
    """A bench on a database, with other storages and plain connections beside it."""

    def __init__(self, dsn: str) -> None:
        suite = ConformanceBase()
        suite.patience = PATIENCE
        super().__init__(suite, PostgresStorage(dsn))
        self.dsn = dsn
        self._connections: list[Connection] = []
        self._others: list[Lab] = []

    def another(self, **options: Any) -> Lab:
        """The same database seen from another process: a storage, and so a listener, of its own."""
        other = Lab(self.dsn)
        other.storage = PostgresStorage(self.dsn, **options)
        self._others.append(other)
        return other

    async def connect(self, *, autocommit: bool = True, dsn: str | None = None) -> Connection:
        """A connection from outside, closed at the end."""
        connection = await psycopg.AsyncConnection.connect(dsn or self.dsn, autocommit=autocommit)
        self._connections.append(connection)
        return connection

    async def rows(self, statement: str, *params: Any) -> list[Row]:
        """What a statement answers, on a connection of its own."""
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            cursor = await connection.execute(statement.encode(), params or None)
            return await cursor.fetchall() if cursor.description else []

    async def value(self, statement: str, *params: Any) -> Any:
        """The one value that a statement answers."""
        [(value,)] = await self.rows(statement, *params)
        return value

    async def fill(self, number: int, **columns: str) -> None:
        """Store ready jobs by the thousand; ``columns`` are SQL expressions over ``n``, their number."""
        columns = {"task": "'conformance'", "args": "'{}'"} | columns
        await self.rows(
            f"insert into prinia.jobs (id, {', '.join(columns)})"
            f" select nextval('prinia.job_ids'), {', '.join(columns.values())} from generate_series(1, {number}) n"
        )

    async def __aexit__(self, *args: object) -> None:
        for other in self._others:
            await other.__aexit__(*args)
        for connection in self._connections:
            await connection.close()
        await super().__aexit__(*args)


def inside(worker: StandIn) -> PostgresConsumer:
    """A worker's consumer as what it is."""
    assert isinstance(worker.consumer, PostgresConsumer)
    return worker.consumer


def bell(worker: StandIn) -> PostgresBell:
    """The bell of a worker that listens."""
    found = inside(worker).bell
    assert isinstance(found, PostgresBell)
    return found


async def until(condition: Callable[[], Any], what: str, *, patience: float = PATIENCE) -> Any:
    """Look until something is true, and answer with it."""
    deadline = monotonic() + patience
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert monotonic() < deadline, f"it never came to pass: {what}"
        await asyncio.sleep(0.005)


async def somebody_waits(lab: Lab) -> None:
    """Until a statement in this database waits for a lock."""
    waits = (
        "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')"
    )
    await until(lambda: lab.value(waits), "a statement waits for a lock")


async def within(seconds: float, awaitable: Awaitable[Any]) -> Any:
    """What it answers, or a failure when it takes too long."""
    async with asyncio.timeout(seconds):
        return await awaitable


# -- plans --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plan:
    """One statement that ran: its text and its plan with what it really read."""

    text: str
    root: dict[str, Any]

    def nodes(self) -> Iterator[tuple[dict[str, Any], tuple[dict[str, Any], ...]]]:
        """Every node with those above it, outermost first."""
        yield from _nodes(self.root, ())

    @property
    def buffers(self) -> int:
        """How many buffers it touched."""
        return int(self.root["Shared Hit Blocks"] + self.root["Shared Read Blocks"])

    @property
    def handled(self) -> int:
        """How many rows all nodes gave or threw away."""
        return sum(
            int(
                (node["Actual Rows"] + sum(value for key, value in node.items() if key.startswith("Rows Removed")))
                * node["Actual Loops"]
            )
            for node, _ in self.nodes()
        )


def _nodes(node: dict[str, Any], above: tuple[dict[str, Any], ...]) -> Iterator[tuple[Any, Any]]:
    yield node, above
    for child in node.get("Plans", ()):
        yield from _nodes(child, (*above, node))


class Spy:
    """Collects the plans of all that runs on some connections. ``taken`` gives them and forgets them."""

    def __init__(self) -> None:
        self._plans: list[Plan] = []

    async def watch(self, connection: Connection) -> None:
        """Watch an async connection."""
        connection.add_notice_handler(self._notice)
        for setting in EXPLAIN:
            await connection.execute(setting.encode())

    def watch_sync(self, connection: psycopg.Connection[Row]) -> None:
        """Watch a blocking connection."""
        connection.add_notice_handler(self._notice)
        for setting in EXPLAIN:
            connection.execute(setting.encode())

    async def watch_worker(self, worker: StandIn) -> None:
        """Watch a worker's claims and acks."""
        await self.watch(await inside(worker)._claims.connect())
        await self.watch(await inside(worker)._acks.connect())

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        message = diagnostic.message_primary or ""
        if " plan:" in message:
            plan = json.loads(message[message.index("{") :])
            self._plans.append(Plan(plan["Query Text"], plan["Plan"]))

    def taken(self) -> list[Plan]:
        """The plans since the last call."""
        plans, self._plans = self._plans, []
        return plans


def terminate(dsn: str, where: str) -> int:
    """Cut sessions of this database off, wait until they are gone, and say how many. (PostgreSQL 13 cannot wait.)"""
    of_this = f"from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and {where}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        pids = [pid for (pid,) in connection.execute(f"select pid {of_this}".encode()).fetchall()]
        connection.execute("select pg_terminate_backend(pid) from unnest(%s::int[]) as cut (pid)", (pids,))
        left = "select count(*) from pg_stat_activity where pid = any (%s)"
        waiting.until(lambda: connection.execute(left, (pids,)).fetchall() == [(0,)], what="the sessions are gone")
    return len(pids)
