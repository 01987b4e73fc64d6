"""Connections and pools: whatever the database has set, forks, loops, restarts, and errors in plain words.

Seen to fail with: settings of the role left as they are; a pool of the parent used by a forked child; openers that
race and each keep a pool; the pool's timeout told as a lost connection.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from prinia import Prinia
from prinia.errors import MigrationsPending, StorageError, StorageUnavailable
from prinia.outcome import AckKind
from prinia.storage.postgres import PostgresStorage, pools
from prinia.storage.postgres.connection import AsyncLine, translate
from prinia.testing.conformance.bench import ack, call, failure, job

from .kit import Lab, bell, inside, terminate, until, within

SETTINGS = {
    "default_transaction_isolation": "serializable",
    "datestyle": "SQL, DMY",
    "timezone": "Asia/Kathmandu",
    "intervalstyle": "sql_standard",
    "bytea_output": "escape",
    "extra_float_digits": "-15",
    "statement_timeout": "0",
    "search_path": "",
    "enable_indexscan": "off",
    "standard_conforming_strings": "on",
}


async def test_whatever_the_database_has_set(lab: Lab) -> None:
    name = conninfo.conninfo_to_dict(lab.dsn)["dbname"]
    for setting, value in SETTINGS.items():
        await lab.rows(f"""alter database "{name}" set {setting} = '{value}'""")
    async with Lab(lab.dsn) as other:
        worker, lost = await other.worker(), await other.worker()
        for line in (inside(worker)._claims, inside(worker)._acks):
            assert await line.run(b"show transaction_isolation") == [("read committed",)]
        pulse_line = worker.pulse._line  # type: ignore[attr-defined]
        assert await call(pulse_line.run, b"show transaction_isolation") == [("read committed",)]
        id = await other.push_one(args=b'{"x":"\\u00e9\\\\"}', tags=("a'b",), meta={"k": 1.5}, delay=0.001)
        await lost.one()
        assert await worker.bury(lost) == 1
        claimed = await worker.one()
        assert claimed.extras is not None
        await worker.recorded(ack(claimed, AckKind.RETRY, error=failure(message="é\\")))
        await other.finish(await worker.one(), worker)
        record = await other.find(id)
        assert record.args == b'{"x":"\\u00e9\\\\"}'
        assert record.created_at.utcoffset() is not None
        assert abs(record.created_at.timestamp() - time.time()) < 600
        assert [error.message for error in record.errors][-1] == "é\\"


async def test_the_server_notices_a_client_that_is_gone(lab: Lab) -> None:
    """Its session would hold bells and rows as long as the server's machine keeps the connection."""
    worker = await lab.worker()
    host = conninfo.conninfo_to_dict(lab.dsn).get("host")
    lines = inside(worker)._claims, inside(worker)._acks, bell(worker)._listener._line
    for line in lines:
        [(idle, source)] = await line.run(b"select setting, source from pg_settings where name = 'tcp_keepalives_idle'")
        # On a Unix socket the setting reads as 0: nothing can be lost there.
        assert (idle, source) == ("0" if str(host).startswith("/") else "10", "session")


# -- pools -------------------------------------------------------------------------------------------------------


def connected(lab: Lab) -> int:
    with psycopg.connect(lab.dsn, autocommit=True) as connection:
        [count] = connection.execute(
            "select count(*) from pg_stat_activity"
            " where datname = current_database() and application_name = 'prinia client'"
        ).fetchone() or (0,)
        return int(count)


def in_child(storage: PostgresStorage) -> int:
    """A forked child pushes, opens a pool of its own, pushes, closes it; how it ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            storage.push([job()])
            with_pool = PostgresStorage.open
            with_pool(storage)
            storage.push([job(), job()])
            storage.close()
            code = 0
        finally:
            os._exit(code)
    return pid


def test_a_fork_with_an_open_pool(migrated: str) -> None:
    """The children use nothing of the parent's, and the parent's pool goes on."""
    storage = PostgresStorage(migrated)
    storage.open()
    try:
        storage.push([job()])
        children = [in_child(storage) for _ in range(4)]
        for _ in range(20):
            storage.push([job()])
        assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
        storage.push([job()])
        with psycopg.connect(migrated) as connection:
            assert connection.execute("select count(*) from prinia.jobs").fetchone() == (34,)
    finally:
        storage.close()


async def test_opens_nest_and_close_in_any_order(lab: Lab) -> None:
    together = threading.Barrier(8)
    racing = True

    def dsn() -> str:
        if racing:
            together.wait(10)
        return lab.dsn

    storage = PostgresStorage(dsn)
    before = await call(connected, lab)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: storage.open(), range(8)))
    racing = False
    for _ in range(4):
        await storage.aopen()
    await asyncio.gather(*(storage.aopen() for _ in range(4)))
    for _ in range(7):
        await storage.aclose()
        await call(storage.close)
    await call(storage.push, [job()])
    await storage.apush([job()])
    assert await call(connected, lab) > before
    await storage.aclose()
    await call(storage.close)
    await until(lambda: connected(lab) == before, "all are closed")
    await call(storage.close)
    await call(storage.push, [job()])


def test_two_loops(migrated: str) -> None:
    """Each has a pool of its own; a loop without one connects per call."""
    storage = PostgresStorage(migrated)

    async def once(opened: bool) -> None:
        if opened:
            await storage.aopen()
        await asyncio.gather(*(storage.apush([job()]) for _ in range(5)))
        if opened:
            await storage.aclose()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda nr: asyncio.run(once(nr % 2 == 0)), range(8)))
    assert not storage._pools._opened


async def test_a_pool_that_is_used_up_says_so(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "OPEN_TIMEOUT", 0.2)
    monkeypatch.setattr(pools, "MAX_SIZE", 1)
    storage = PostgresStorage(lab.dsn)
    await storage.aopen()
    async with storage._pools.aconnection():
        with pytest.raises(StorageUnavailable, match="all 1 connections of the pool are in use"):
            await storage.apush([job()])
    await storage.aclose()


def drop_clients(dsn: str) -> int:
    return terminate(dsn, "application_name = 'prinia client'")


def test_connections_lost_while_idle_fail_no_blocking_call(migrated: str) -> None:
    storage = PostgresStorage(migrated)
    storage.open()
    try:
        for _ in range(3):
            with storage._pools.connection(), storage._pools.connection(), storage._pools.connection():
                pass
            assert drop_clients(migrated) >= 3
            for _ in range(4):
                storage.push([job()])
                assert len(storage.find([1])) == 1
        with psycopg.connect(migrated) as connection:
            assert connection.execute("select count(*) from prinia.jobs").fetchone() == (12,)
    finally:
        storage.close()


async def test_connections_lost_while_idle_fail_no_awaited_call(migrated: str) -> None:
    storage = PostgresStorage(migrated)
    await storage.aopen()
    try:
        for _ in range(3):
            async with (
                storage._pools.aconnection(), storage._pools.aconnection(), storage._pools.aconnection()
            ):  # fmt: skip
                pass
            assert await call(drop_clients, migrated) >= 3
            await asyncio.gather(*(storage.apush([job()]) for _ in range(4)))
            assert len(await storage.afind([1])) == 1
        assert len(await storage.afind(range(1, 100))) == 12
    finally:
        await storage.aclose()


async def test_waiting_for_many_results_takes_one_connection(migrated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters that took a connection each would find all of them in use."""
    monkeypatch.setattr(pools, "OPEN_TIMEOUT", 0.5)
    monkeypatch.setattr(pools, "MAX_SIZE", 1)
    app = Prinia(migrated)

    @app.task
    async def double(number: int) -> int:
        return number * 2

    async with app:
        jobs = await app.aenqueue_many(double.job(n) for n in range(2500))
        waiting = [asyncio.create_task(job.aresult(timeout=60)) for job in jobs]
        async with app.worker():
            assert await asyncio.gather(*waiting) == [n * 2 for n in range(2500)]


async def test_a_server_that_drops_everybody(lab: Lab) -> None:
    """Pools and workers come back by themselves; a call that met it says so, at most once per connection."""
    worker = await lab.worker()
    await lab.push_one()
    claimed = await worker.one()
    terminate(lab.dsn, "true")
    failures = 0

    async def works(attempt: Callable[[], Awaitable[Any]]) -> bool:
        nonlocal failures
        try:
            await attempt()
        except StorageUnavailable:
            failures += 1
            return False
        return True

    await until(lambda: works(lab.push_one), "it pushes again")
    await until(lambda: works(lambda: worker.recorded(ack(claimed, AckKind.COMPLETE))), "it acks again")
    await until(lambda: works(worker.one), "it claims again")
    assert failures <= 4


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            psycopg.OperationalError("connection refused\nmore"),
            StorageUnavailable,
            "no connection to the database: connection refused",
        ),
        (psycopg.InterfaceError("the connection is closed"), StorageUnavailable, "no connection"),
        (psycopg.errors.AdminShutdown("terminating"), StorageUnavailable, "cannot serve this now: terminating"),
        (psycopg.errors.TooManyConnections("too many"), StorageUnavailable, "too many"),
        (psycopg.errors.DiskFull("no space"), StorageUnavailable, "no space"),
        (psycopg.errors.QueryCanceled("statement timeout"), StorageUnavailable, "statement timeout"),
        (psycopg.errors.ReadOnlySqlTransaction("read-only"), StorageUnavailable, "read-only"),
        (psycopg.errors.DeadlockDetected("deadlock"), StorageUnavailable, "deadlock"),
        (psycopg.errors.SerializationFailure("serialize"), StorageUnavailable, "serialize"),
        (psycopg.errors.CheckViolation("priority"), StorageError, "the database refused: priority"),
        (psycopg.errors.InsufficientPrivilege("denied"), StorageError, "denied"),
        (psycopg.errors.UndefinedTable("jobs"), MigrationsPending, "run: prinia migrate"),
        (psycopg.errors.UndefinedFunction("enqueue"), MigrationsPending, "run: prinia migrate"),
        (psycopg.OperationalError(""), StorageUnavailable, "OperationalError"),
    ],
)
def test_errors_in_plain_words(error: psycopg.Error, kind: type[StorageError], text: str) -> None:
    translated = translate(error)
    assert type(translated) is kind
    assert text in str(translated)
    assert "\n" not in str(translated)


async def test_a_missing_schema_names_the_command(database: str) -> None:
    storage = PostgresStorage(database, schema="my jobs")
    with pytest.raises(MigrationsPending, match="prinia migrate --schema 'my jobs'"):
        await storage.apush([job()])
    with pytest.raises(MigrationsPending, match="prinia migrate --schema 'my jobs'"):
        await call(storage.find, [1])


async def test_a_statement_that_is_cancelled_leaves_nothing_broken(lab: Lab) -> None:
    worker = await lab.worker()
    line = inside(worker)._claims
    session = line.session
    for _ in range(3):
        task = asyncio.create_task(line.run(b"select pg_sleep(60)"))
        await until(
            lambda: lab.value(
                "select exists (select from pg_stat_activity where query = 'select pg_sleep(60)' and state = 'active')"
            ),
            "it sleeps",
        )
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    await lab.push_one()
    await within(10, lab.finish(await worker.one(), worker))
    assert line.session > session
    await until(
        lambda: lab.value(
            "select not exists (select from pg_stat_activity where query = 'select pg_sleep(60)' and state = 'active')"
        ),
        "nothing goes on in the server",
    )


async def test_without_sessions_everything_works(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a transaction pooler: settings travel with the statements, nothing is prepared."""
    connect = AsyncLine.connect

    async def pooled(line: AsyncLine) -> psycopg.AsyncConnection[tuple[object, ...]]:
        fresh = line._connection is None
        connection = await connect(line)
        if fresh:
            line.direct = False
            connection.prepare_threshold = None
            await connection.execute("discard all")
        return connection

    monkeypatch.setattr(AsyncLine, "connect", pooled)
    worker = await lab.worker()
    assert not bell(worker)._listener.listening
    ids = await lab.push(*[job() for _ in range(5)])
    jobs = await worker.claimed(5)
    assert [job.id for job in jobs] == ids
    await worker.recorded(*(ack(job, kind) for job, kind in zip(jobs, AckKind, strict=True)))
    await worker.recorded(*(ack(job, kind) for job, kind in zip(jobs, AckKind, strict=True)))
    assert await worker.consumer.recover(worker.tokens, jobs) == frozenset(ids)
    assert await inside(worker)._claims.run(b"show enable_seqscan") == [("off",)]
    for line in (inside(worker)._claims, inside(worker)._acks):
        cursor = await (await line.connect()).execute("select count(*) from pg_prepared_statements")
        assert await cursor.fetchone() == (0,)
        cursor = await (await line.connect()).execute("show enable_seqscan")
        assert await cursor.fetchone() == ("on",)
