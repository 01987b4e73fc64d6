"""Pushes of more than one statement: as fast as COPY, in little memory, all or nothing.

A million jobs instead of the usual number: PRINIA_TEST_BULK_JOBS=1000000 pytest tests/postgres/test_bulk.py

Seen to fail with: a list of answers kept; no turn for the event loop; the bell taken by a chunk; rows copied without
asking whether the role may, whatever the encoding, under the role's statement timeout; ids and rows out of step; a
deadlock told as any other trouble of the database; an error of struct that comes out as it is.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from prinia.errors import StorageError, StorageUnavailable, UniqueBusy
from prinia.job import JobSpec
from prinia.options import unique_key
from prinia.storage.postgres import PostgresStorage
from prinia.storage.postgres.migrate import migrate
from prinia.storage.postgres.specs import CHUNK_JOBS
from prinia.testing.conformance.bench import call, job

from .kit import Lab, somebody_waits, within

JOBS = int(os.environ.get("PRINIA_TEST_BULK_JOBS", "200000"))
#: More than the blocks of ids of the first three COPYs.
MANY = 15_000

#: Prints how far the memory of the process grew, in MB, and the first and last id.
CHILD = """
import resource, sys
from prinia import Prinia

dsn, number = sys.argv[1], int(sys.argv[2])
app = Prinia(dsn)

@app.task(name="send", queue="bulk")
def send(n: int, text: str) -> None: ...

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform != "darwin" else 1024**2)

with app:
    app.enqueue_many(send.options(queue="warm").job(n, "x" * 80) for n in range(5000))
    before = peak()
    jobs = app.enqueue_many(send.job(n, "x" * 80) for n in range(number))
    assert len(jobs) == number
    print(peak() - before, jobs[0].id, jobs[-1].id)
"""


async def test_memory_does_not_grow_with_the_number(lab: Lab) -> None:
    """A list of a pushed job's answers alone would take 130 bytes each, 26 MB for 200,000."""
    run = [sys.executable, "-c", CHILD, lab.dsn, str(JOBS)]
    done = await call(subprocess.run, run, capture_output=True, text=True, check=True)
    grown, first, last = map(float, done.stdout.split())
    assert grown < 12
    in_order = (
        "select count(*), min(id), max(id), bool_and((convert_from(args, 'utf8')::json ->> 'n')::bigint = nr - 1)"
        " from (select *, row_number() over (order by {}) as nr from prinia.jobs where queue = 'bulk') j"
    )
    for order in ("id", "scheduled_at, id"):
        assert await lab.rows(in_order.format(order)) == [(JOBS, first, last, True)]


async def test_ids_and_jobs_belong_together(lab: Lab) -> None:
    """Also when somebody else takes ids meanwhile."""

    def jobs() -> Iterator[JobSpec]:
        with psycopg.connect(lab.dsn, autocommit=True) as other:
            for number in range(MANY):
                if number % 500 == 0:
                    other.execute("select nextval('prinia.job_ids')")
                yield job(args=b"%d" % number)

    answers = await call(lab.storage.push, jobs())
    [(rows,)] = await lab.rows(
        "select array_agg((id, convert_from(args, 'utf8')::int, xmin)::text order by id) from prinia.jobs"
    )
    assert rows == [f"({answer.id},{number},{answer.xid})" for number, answer in enumerate(answers)]


# -- the event loop ---------------------------------------------------------------------------------------------------


def numbered(made: list[int]) -> Iterator[JobSpec]:
    for number in range(MANY):
        made[0] = number
        yield job()


async def numbered_later(made: list[int]) -> AsyncIterator[JobSpec]:
    for spec in numbered(made):
        yield spec


@pytest.mark.parametrize("jobs", [numbered, numbered_later])
async def test_the_event_loop_gets_its_turns(
    lab: Lab, jobs: Callable[[list[int]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two chunks are made before the first statement; after that there is a turn after each. (The newest driver gives
    turns of its own after some time; older ones do not.)"""
    monkeypatch.setattr("psycopg.waiting.MAX_BUSY_TIME", float("inf"), raising=False)
    made, seen = [0], [0]

    async def tick() -> None:
        while True:
            seen.append(made[0])
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await lab.storage.apush(jobs(made))
    ticking.cancel()
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 2 * CHUNK_JOBS


@pytest.mark.parametrize("at", [500, 1500, 2500, 9_999])
async def test_cancelled_in_mid_stream_nothing_is_left(lab: Lab, at: int) -> None:
    reached = asyncio.Event()

    async def jobs() -> AsyncIterator[JobSpec]:
        for number in range(at):
            yield job(args=b"%d" % number)
        reached.set()
        await asyncio.Event().wait()

    pushing = asyncio.create_task(lab.storage.apush(jobs()))
    await within(15, reached.wait())
    pushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(15, pushing)
    assert await lab.value("select count(*) from prinia.jobs") == 0
    assert len(await lab.storage.apush(job() for _ in range(MANY))) == MANY


async def test_cancelled_between_two_chunks_nothing_is_left(lab: Lab) -> None:
    made = [0]
    pushing = asyncio.create_task(lab.storage.apush(numbered(made)))
    while made[0] < 5 * CHUNK_JOBS - 1:
        await asyncio.sleep(0)
    pushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await within(15, pushing)
    assert made[0] < MANY - 1
    assert await lab.value("select count(*) from prinia.jobs") == 0


@pytest.mark.parametrize("at", [500, 1500, 2500, 9_999])
async def test_an_iterable_that_raises_leaves_nothing(lab: Lab, at: int) -> None:
    def jobs() -> Iterator[JobSpec]:
        yield from (job() for _ in range(at))
        raise KeyboardInterrupt

    def push() -> bool:
        try:
            lab.storage.push(jobs())
        except KeyboardInterrupt:
            return True
        return False

    assert await call(push)
    assert await lab.value("select count(*) from prinia.jobs") == 0
    assert len(await call(lab.storage.push, (job() for _ in range(MANY)))) == MANY


# -- bells, keys, refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [False, True])
async def test_a_push_that_takes_long_keeps_nobody_awake(lab: Lab, keys: bool) -> None:
    """It takes its bells at its end: till then a worker can sleep on its own."""
    reached, go = threading.Event(), threading.Event()

    def jobs() -> Iterator[JobSpec]:
        for number in range(3 * CHUNK_JOBS):
            unique = unique_key("conformance", str(number)) if keys and number == 5 else None
            yield job(unique=unique)
        reached.set()
        assert go.wait(15)

    worker = await lab.worker()
    pushing = asyncio.create_task(call(lab.storage.push, jobs()))
    assert await call(reached.wait, 15)
    assert await worker.consumer.bell.arm()
    go.set()
    assert await worker.consumer.bell.wait(15)
    await within(15, pushing)
    assert len(await worker.collect(3 * CHUNK_JOBS)) == 3 * CHUNK_JOBS


async def test_jobs_with_keys_among_others(lab: Lab) -> None:
    """Keys hold within a push of thousands and against what is there; ids ascend all the same."""
    held = unique_key("conformance", "held")
    [holder] = await lab.push(job(unique=held))
    again = unique_key("conformance", "again")
    keyed = {1200: held, 5300: again, 5400: again, 14_000: again}
    answers = await lab.storage.apush(job(args=b"%d" % nr, unique=keyed.get(nr)) for nr in range(MANY))
    assert (answers[1200].id, answers[1200].created) == (holder, False)
    assert answers[5300].created
    for number in (5400, 14_000):
        assert (answers[number].id, answers[number].created) == (answers[5300].id, False)
    ids = [answer.id for answer in answers if answer.created]
    assert len(ids) == MANY - 3
    assert ids == sorted(set(ids))
    assert {answer.xid for answer in answers} == {answers[0].xid}
    assert await lab.value("select count(*) from prinia.jobs") == MANY - 3 + 1


@pytest.mark.parametrize("number", [2, MANY])
async def test_waiting_for_a_key_has_a_limit(lab: Lab, number: int) -> None:
    key = unique_key("conformance", "busy")
    holder = await lab.connect(autocommit=False)
    await lab.storage.apush_within(holder, [job(unique=key)])
    impatient = PostgresStorage(conninfo.make_conninfo(lab.dsn, options="-c lock_timeout=50ms"))
    specs = [job(unique=key if nr == number // 2 else None) for nr in range(number)]
    for push in (impatient.apush(specs), call(impatient.push, specs)):
        with pytest.raises(UniqueBusy, match="still open"):
            await push
    await holder.rollback()
    assert await lab.value("select count(*) from prinia.jobs") == 0


LOCKED_OUT = "locked each other out.* unique keys .*1,000 jobs.*; nothing was stored: try again"


@pytest.mark.parametrize("awaited", [False, True])
async def test_pushes_of_the_same_keys_that_lock_each_other_out(lab: Lab, awaited: bool) -> None:
    """One of them stores nothing and says what happened; tried again it finds the other's keys."""
    storage = PostgresStorage(conninfo.make_conninfo(lab.dsn, options="-c deadlock_timeout=20ms"))
    both_hold_one = threading.Barrier(2, timeout=15)

    def jobs(keys: str, meet: Callable[[], object]) -> Iterator[JobSpec]:
        # The first two chunks are made before the first is stored.
        for number in range(2 * CHUNK_JOBS):
            yield job(unique=unique_key("conformance", keys[0]) if number == 0 else None)
        meet()
        yield job(unique=unique_key("conformance", keys[1]))

    def push(keys: str, meet: Callable[[], object] = both_hold_one.wait) -> int:
        specs = jobs(keys, meet)
        pushed = asyncio.run(storage.apush(specs)) if awaited else storage.push(specs)
        return sum(one.created for one in pushed)

    orders = ("ab", "ba")
    ended = await within(15, asyncio.gather(*(call(push, keys) for keys in orders), return_exceptions=True))
    [(keys, error)] = [(keys, end) for keys, end in zip(orders, ended, strict=True) if isinstance(end, Exception)]
    with pytest.raises(StorageUnavailable, match=LOCKED_OUT):
        raise error
    assert await lab.value("select count(*) from prinia.jobs") == 2 * CHUNK_JOBS + 1
    assert await call(push, keys, lambda: None) == 2 * CHUNK_JOBS - 1


async def test_callers_transactions_that_lock_each_other_out(lab: Lab) -> None:
    a, b = (job(unique=unique_key("conformance", key)) for key in "ab")
    impatient = conninfo.make_conninfo(lab.dsn, options="-c deadlock_timeout=20ms")
    one, other = [await lab.connect(autocommit=False, dsn=impatient) for _ in range(2)]
    await lab.storage.apush_within(one, [a])
    await lab.storage.apush_within(other, [b])

    async def push(connection: psycopg.AsyncConnection[Any], spec: JobSpec) -> None:
        try:
            await lab.storage.apush_within(connection, [spec])
        finally:
            await connection.rollback()

    waiting = asyncio.create_task(push(one, b))
    await somebody_waits(lab)
    ended = await within(15, asyncio.gather(waiting, push(other, a), return_exceptions=True))
    [error] = [end for end in ended if end is not None]
    with pytest.raises(StorageUnavailable, match=LOCKED_OUT):
        raise error


@pytest.mark.parametrize("wrong", [{"priority": 101}, {"max_attempts": 0}, {"timeout": float("nan")}, {"queue": ""}])
async def test_what_the_table_refuses_stops_all_of_them(lab: Lab, wrong: dict[str, Any]) -> None:
    with pytest.raises(StorageError, match="the database refused"):
        await lab.storage.apush(job(**(wrong if number == 5_000 else {})) for number in range(MANY))
    assert await lab.value("select count(*) from prinia.jobs") == 0


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 40_000}, {"max_crashes": -40_000}, {"max_attempts": 2**31}, {"delay": 1e300},
        {"expires_in": float("inf")}, {"delay": float("nan")}, {"scheduled_at": datetime(2100, 1, 1)},  # noqa: DTZ001
    ],
    ids=str,
)  # fmt: skip
async def test_a_number_that_the_table_cannot_hold_stops_all_of_them(
    lab: Lab, wrong: dict[str, Any], awaited: bool
) -> None:
    """A row of COPY has no place for it."""
    specs = (job(**(wrong if number == 5_000 else {})) for number in range(MANY))
    [(name, value)] = wrong.items()
    with pytest.raises(StorageError, match=re.escape(f"{name}={value!r}")):
        await (lab.storage.apush(specs) if awaited else call(lab.storage.push, specs))
    assert await lab.value("select count(*) from prinia.jobs") == 0


@pytest.mark.parametrize("number", [1, 2, MANY])
async def test_a_server_that_only_reads_is_a_trouble_that_passes(lab: Lab, number: int) -> None:
    """A standby, while the other one takes over. On a connection of the caller's it is the connection's fault."""
    storage = PostgresStorage(conninfo.make_conninfo(lab.dsn, options="-c default_transaction_read_only=on"))
    for push in (storage.apush, lambda specs: call(storage.push, specs)):
        with pytest.raises(StorageUnavailable, match="read-only"):
            await push([job() for _ in range(number)])


# -- roles, schemas, settings -----------------------------------------------------------------------------------------


async def bulk_on(lab: Lab, dsn: str, **options: Any) -> list[int]:
    storage = PostgresStorage(dsn, **options)
    return [pushed.id for pushed in await storage.apush(job(tags=("é",)) for _ in range(MANY))]


async def test_a_role_that_may_only_enqueue(lab: Lab) -> None:
    role = await lab.value("select 'bulk' || oid from pg_database where datname = current_database()")
    await lab.rows(f"create role {role} login")
    try:
        await lab.rows(f"grant usage on schema prinia to {role}")
        await lab.rows(f"grant execute on function prinia.enqueue to {role}")
        ids = await bulk_on(lab, conninfo.make_conninfo(lab.dsn, options=f"-c role={role}"))
    finally:
        await lab.rows(f"drop owned by {role}")
        await lab.rows(f"drop role {role}")
    assert len(await lab.storage.afind(ids)) == MANY


async def test_a_connection_that_speaks_another_encoding(lab: Lab) -> None:
    ids = await bulk_on(lab, conninfo.make_conninfo(lab.dsn, client_encoding="latin1"))
    assert {record.tags for record in await lab.storage.afind(ids)} == {("é",)}


async def test_a_schema_of_any_name(lab: Lab) -> None:
    schema = 'jobs 100% "x"'
    await call(lambda: migrate(lab.dsn, schema=schema))
    storage = PostgresStorage(lab.dsn, schema=schema)
    assert len(await storage.apush(job() for _ in range(MANY))) == MANY
    assert len(await call(storage.push, (job() for _ in range(MANY)))) == MANY


async def test_a_slow_iterable_meets_no_statement_timeout(lab: Lab) -> None:
    """The role's limit for statements is not meant for how long a caller takes to make its jobs."""
    limited = PostgresStorage(conninfo.make_conninfo(lab.dsn, options="-c statement_timeout=1s"))

    def jobs() -> Iterator[JobSpec]:
        yield from (job() for _ in range(2500))
        with psycopg.connect(lab.dsn) as other:
            other.execute("select pg_sleep(1.2)")
        yield job()

    assert len(await call(limited.push, jobs())) == 2501
