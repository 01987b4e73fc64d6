"""Retention on PostgreSQL: what is past leaves the archive by leaves, and no ack waits for it.

Seen to fail with: a leaf that is dropped without being detached concurrently, and one dropped by a role that does not
own it without a limit to its wait; a detach that is not finished; leaves of what is kept long that hold what is kept
short.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from math import inf

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from prinia import Prinia
from prinia.job import Instance
from prinia.outcome import AckKind
from prinia.retention import DAY, Retention
from prinia.storage.postgres.pulse import PostgresPulse
from prinia.storage.postgres.sql import Sql
from prinia.testing.conformance import StandIn
from prinia.testing.conformance.bench import ack, call

from .kit import Lab, somebody_waits, until, within

PAST = "archive_20200101_20200102"
EXISTS = f"select to_regclass('prinia.{PAST}') is not null"
ATTACHED = f"select exists (select from prinia.leaves() where leaf = '{PAST}')"
COUNT = "select count(*) from prinia.archive"
DAYS = "generate_series(0, 38) n"
PAST_LEAVES = "select leaf from prinia.leaves() where high < now()"
WAITED_FOR = (
    "select locktype from pg_locks join pg_stat_activity using (pid) where not granted and datname = current_database()"
)
ROLES = ("owner", "other")


async def fill_past(lab: Lab) -> None:
    """A leaf that is past, and a job in it."""
    assert await lab.value("select prinia.make_leaf('2020-01-01')")
    worker = await lab.worker()
    id = await lab.push_one()
    await lab.finish(await worker.one(), worker)
    await lab.rows("update prinia.archive set drop_at = '2020-01-01 12:00 UTC' where id = %s", id)
    assert await lab.value(f"select count(*) from prinia.{PAST}") == 1
    await worker.close()


@asynccontextmanager
async def sweeping(lab: Lab, role: str) -> AsyncIterator[PostgresPulse]:
    """A leader's side, of the tables' owner or of a role that may do no more than it has to."""
    dsn = lab.dsn
    name = await lab.value("select 'sweeper' || oid from pg_database where datname = current_database()")
    if role != "owner":
        await lab.rows(f"create role {name} login")
        await lab.rows(f"grant usage on schema prinia to {name}")
        await lab.rows(f"grant select, insert, update, delete on all tables in schema prinia to {name}")
        await lab.rows(f"grant execute on all functions in schema prinia to {name}")
        dsn = make_conninfo(dsn, options=f"-c role={name}")
    instance: Instance = (await lab.worker(opened=False)).instance
    pulse = PostgresPulse(lambda: dsn, Sql("prinia"), instance)
    try:
        yield pulse
    finally:
        await call(pulse.close)
        if role != "owner":
            await lab.rows(f"drop owned by {name}")
            await lab.rows(f"drop role {name}")


async def drop_leaves(lab: Lab) -> None:
    for (leaf,) in await lab.rows("select leaf from prinia.leaves()"):
        await lab.rows(f"drop table prinia.{leaf}")


async def acked(lab: Lab, worker: StandIn, kind: AckKind = AckKind.COMPLETE) -> None:
    """A job is done and recorded, without waiting for anybody."""
    await lab.push_one()
    claimed = await worker.one()
    await within(5, worker.recorded(ack(claimed, kind)))


@pytest.mark.parametrize("role", ROLES)
async def test_what_is_past_goes_and_the_rest_stays(lab: Lab, role: str) -> None:
    await fill_past(lab)
    before = await lab.value("select count(*) from prinia.leaves()")
    async with sweeping(lab, role) as pulse:
        steps = 0
        while await call(pulse.sweep_archive):
            steps += 1
    assert steps == (1 if role == "owner" else 2), "a role that does not own it empties it first"
    assert not await lab.value(EXISTS)
    assert await lab.value("select count(*) from prinia.leaves()") == before - 1
    assert await lab.value("select count(*) from prinia.archive") == 0


async def test_whoever_leads_does_it(lab: Lab) -> None:
    await fill_past(lab)
    app = Prinia(storage=lab.storage)

    @app.task
    async def idle() -> None: ...

    async with app.worker(heartbeat=0.1, dead_after=1):
        await until(lambda: lab.value(f"select to_regclass('prinia.{PAST}') is null"), "the leaf is gone")


@pytest.mark.parametrize("role", ROLES)
async def test_acks_go_on_while_a_reader_holds_the_archive(lab: Lab, role: str) -> None:
    """Through a sweep and after it; and so does the making of a leaf that is missing."""
    worker = await lab.worker()
    await fill_past(lab)
    for (leaf,) in await lab.rows(f"select leaf from prinia.leaves() where leaf <> '{PAST}'"):
        await lab.rows(f"drop table prinia.{leaf}")
    reader = await lab.connect(autocommit=False)
    await reader.execute("select count(*) from prinia.archive")
    async with sweeping(lab, role) as pulse:
        sweep = asyncio.ensure_future(call(pulse.sweep_archive))
        if role == "owner":
            assert await until(lambda: lab.rows(WAITED_FOR), "the sweep waits") == [("virtualxid",)], (
                "no lock on a table"
            )
        while not sweep.done():
            await acked(lab, worker)
        assert await sweep == 0
        assert await lab.value(EXISTS)
        for kind in AckKind.COMPLETE, AckKind.FAIL, AckKind.CANCEL:
            await acked(lab, worker, kind)
        assert await within(5, reader.execute("select count(*) from prinia.archive"))
        await reader.rollback()
        while await call(pulse.sweep_archive):
            pass
    assert not await lab.value(EXISTS)
    assert await lab.value(COUNT) >= 4


async def test_a_reader_with_a_snapshot_of_its_own(lab: Lab) -> None:
    """Repeatable read sees the leaf until its end, through a detach that has begun."""
    await fill_past(lab)
    reader = await lab.connect(autocommit=False)
    await reader.execute("set transaction isolation level repeatable read")
    await reader.execute("select count(*) from prinia.archive")
    async with sweeping(lab, "owner") as pulse:
        for _ in range(2):
            assert await call(pulse.sweep_archive) == 0
            assert await (await within(5, reader.execute(COUNT.encode()))).fetchone() == (1,)
            await acked(lab, await lab.worker())
        await reader.rollback()
        assert await call(pulse.sweep_archive) == 1
    assert not await lab.value(EXISTS)


async def test_a_detach_that_was_interrupted_is_finished(lab: Lab) -> None:
    """By the next leader, whoever ended the last one."""
    await fill_past(lab)
    await lab.rows("select prinia.make_leaf('2019-01-01')")
    reader, detacher = await lab.connect(autocommit=False), await lab.connect()
    await reader.execute("select count(*) from prinia.archive")
    detach = asyncio.ensure_future(
        detacher.execute(f"alter table prinia.archive detach partition prinia.{PAST} concurrently".encode())
    )
    await somebody_waits(lab)
    await lab.rows("select pg_cancel_backend(%s)", detacher.info.backend_pid)
    with pytest.raises(psycopg.errors.QueryCanceled):
        await detach
    await reader.rollback()
    async with sweeping(lab, "owner") as pulse:
        assert await call(pulse.sweep_archive) == 1
        assert not await lab.value(EXISTS), "it goes before the older one: only one detach may be under way"
        assert await call(pulse.sweep_archive) == 1
        assert await call(pulse.sweep_archive) == 0


@pytest.mark.parametrize("role", ROLES)
async def test_a_leaf_that_was_detached_and_not_dropped_goes(lab: Lab, role: str) -> None:
    await fill_past(lab)
    await lab.rows(f"alter table prinia.archive detach partition prinia.{PAST}")
    async with sweeping(lab, role) as pulse:
        while await call(pulse.sweep_archive):
            pass
    assert not await lab.value(EXISTS)


async def test_two_leaders_at_once(lab: Lab) -> None:
    for day in range(1, 9):
        await lab.rows("select prinia.make_leaf(%s::timestamptz)", f"2020-01-{day} 12:00 UTC")

    async with sweeping(lab, "owner") as one, sweeping(lab, "owner") as two:

        async def sweep(pulse: PostgresPulse) -> None:
            while await lab.value(f"select count(*) from ({PAST_LEAVES}) p"):
                await call(pulse.sweep_archive)

        await within(60, asyncio.gather(sweep(one), sweep(two)))
    assert await lab.rows(PAST_LEAVES) == []


async def test_only_a_leaf_that_is_past_can_be_dropped_by_others(lab: Lab) -> None:
    await lab.storage.aset_retention("default", Retention(completed=inf))
    leaves = await lab.value("select count(*) from prinia.leaves()")
    standing = await lab.value("select array_agg(leaf order by low) from prinia.leaves()")
    for leaf in (standing[0], standing[-1], "jobs", "archive", "archive_60000101_ever"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="is no leaf of the archive that is past"):
            await lab.rows("select prinia.drop_leaf(%s)", leaf)
    assert not await lab.value("select prinia.drop_leaf('archive_20000101_20000102')"), "it is not there"
    assert await lab.value("select count(*) from prinia.leaves()") == leaves


# -- leaves, and the clock -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("days", [-400, -100, -40, 40, 100, 400])
async def test_acks_and_retention_go_on_across_a_jump_of_the_clock(lab: Lab, days: int) -> None:
    """After a jump the leaves that stand are those of another time: that is all it is to the archive."""
    worker = await lab.worker()
    await drop_leaves(lab)
    await lab.rows(f"select prinia.make_leaf(now() - interval '{days} days' + n * interval '1 day') from {DAYS}")
    for kind in AckKind.COMPLETE, AckKind.FAIL, AckKind.CANCEL:
        await acked(lab, worker, kind)
    assert await lab.value(COUNT) == 3
    async with sweeping(lab, "owner") as pulse:
        while await call(pulse.sweep_archive):
            pass
    assert await lab.value(COUNT) == 3
    assert await lab.value("select count(*) from prinia.leaves() where high < now() - interval '1 day'") == 0


async def test_leaves_are_few_and_narrow_whatever_is_kept(lab: Lab) -> None:
    await lab.rows(
        "insert into prinia.queues (name, keep_completed, keep_failed) select 'kept ' || days,"
        " prinia.keep('infinity'), prinia.keep(days * 86400) from generate_series(0, 600, 20) days"
    )
    await lab.rows("select prinia.make_leaves()")
    assert await lab.value("select count(*) from prinia.leaves()") <= 64
    await drop_leaves(lab)
    assert 0 < await lab.value("select prinia.make_leaves()") <= 62
    assert await lab.value("select prinia.make_leaves()") == 0
    widths = (
        "select distinct high - low from prinia.leaves()"
        " where low < now() + interval '38 days' and high > now() - interval '1 day'"
    )
    assert await lab.rows(widths) == [(timedelta(days=1),)]


async def test_kept_for_ever_means_the_leaf_to_infinity(lab: Lab) -> None:
    await lab.storage.aset_retention("default", Retention(completed=inf))
    worker = await lab.worker()
    await acked(lab, worker)
    leaf = "select relname::text from prinia.archive a join pg_class c on c.oid = a.tableoid"
    assert await lab.value(leaf) == "archive_60000101_ever"
    await lab.rows("update prinia.archive set drop_at = 'infinity'")
    assert await lab.value(COUNT) == 1


async def test_a_keep_that_was_written_by_hand(lab: Lab) -> None:
    """An interval as it is: what it names has its leaf, wide as it may be."""
    worker = await lab.worker()
    await lab.rows("insert into prinia.queues (name, keep_completed) values ('default', '200 days')")
    await acked(lab, worker)
    assert (await lab.storage.aretention("default")).completed == 200 * DAY
    kept = await lab.value("select drop_at - finished_at from prinia.archive")
    assert timedelta(days=199) < kept < timedelta(days=201)
