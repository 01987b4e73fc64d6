"""Claims: what is late is found, what is dead is not read again, and a claim stays one cheap write.

Seen to fail with: marks dropped before each claim; floors that move with the tip, without a catch-up scan, or by the
claim's own transaction id while others' later ones held rows; lanes of paused queues counted as scanned; a push that
reads the clock before it waits for a key's holder; a look that walks from now to the start of a lane; tips that do
not jump over excluded rows; probes that are always made, or not before a sleep; only the first 64 lanes visited; a
claim that writes an indexed column.
"""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from prinia.errors import StorageUnavailable
from prinia.outcome import AckKind
from prinia.storage.postgres import consumer as consumer_module
from prinia.storage.postgres import marks as marks_module
from prinia.storage.postgres.consumer import PostgresConsumer
from prinia.storage.postgres.marks import Marks
from prinia.testing.conformance.bench import StandIn, ack, call, job

from .kit import Lab, Spy, inside, somebody_waits, terminate, until, within


async def drain(lab: Lab, worker: StandIn, size: int, *, rounds: int | None = None) -> list[int]:
    """Claim and complete without ever being thorough, until nothing comes or for some rounds; the ids."""
    ids: list[int] = []
    while rounds is None or rounds > 0:
        claim = await worker.claim(size, thorough=False)
        if not claim.jobs:
            break
        ids += [job.id for job in claim.jobs]
        await worker.recorded(*(ack(job, AckKind.COMPLETE) for job in claim.jobs))
        if rounds is not None:
            rounds -= 1
    return ids


def mark(worker: StandIn) -> Marks:
    return inside(worker)._marks


# -- what is late ------------------------------------------------------------------------------------------------


async def late_job(lab: Lab, worker: StandIn) -> tuple[psycopg.AsyncConnection[Any], int]:
    """A job pushed but not committed while the worker's tip passes it, by more than the slack."""
    connection = await lab.connect(autocommit=False)
    [late] = await lab.storage.apush_within(connection, [job()])
    await age(lab, connection, late.id)
    await lab.fill(40)
    assert len(await drain(lab, worker, 5, rounds=4)) == 20
    return connection, late.id


async def found_under_backlog(lab: Lab, worker: StandIn, id: int) -> None:
    """The worker gets this job although there is always more for it than it takes, and it never looks thoroughly."""

    async def found() -> bool:
        await lab.fill(10)
        return id in await drain(lab, worker, 5, rounds=1)

    await until(found, f"job {id} is claimed")


async def age(lab: Lab, connection: psycopg.AsyncConnection[Any], id: int) -> None:
    """As if the push had been made a minute ago."""
    await connection.execute(
        "update prinia.jobs set scheduled_at = scheduled_at - interval '1 minute' where id = %s", (id,)
    )


async def test_a_late_commit_is_found_by_a_thorough_claim(lab: Lab) -> None:
    worker = await lab.worker()
    connection, late = await late_job(lab, worker)
    await connection.commit()
    assert late in await worker.claimed_ids(100)


async def test_a_late_commit_is_found_by_a_worker_that_is_never_dry(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await lab.worker()
    connection, late = await late_job(lab, worker)
    await connection.commit()
    monkeypatch.setattr(Marks, "scan_all_if_due", lambda *_: False)
    await found_under_backlog(lab, worker, late)


async def test_without_a_catch_up_a_late_commit_is_not_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above would see if the floor moved without a scan."""

    def move(lane: marks_module.Lane, scan_from: object, floor_after: marks_module.Position) -> None:
        lane.floor = floor_after

    monkeypatch.setattr(marks_module.Lane, "catch_up", move)
    monkeypatch.setattr(Marks, "scan_all_if_due", lambda *_: False)
    worker = await lab.worker()
    connection, late = await late_job(lab, worker)
    await connection.commit()
    found: list[int] = []
    for _ in range(10):
        await lab.fill(10)
        found += await drain(lab, worker, 5, rounds=2)
    assert late not in found


async def test_an_open_writer_holds_the_floor_and_a_reader_does_not(lab: Lab) -> None:
    worker = await lab.worker()
    reader = await lab.connect(autocommit=False)
    await reader.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
    await reader.execute("select count(*) from prinia.jobs")

    async def floor() -> marks_module.Position:
        await lab.fill(20)
        await drain(lab, worker, 5, rounds=4)
        return mark(worker).lanes["default", 0].floor

    before = await floor()
    while (moved := await floor()) == before:
        pass
    assert moved is not None
    writer = await lab.connect(autocommit=False)
    await writer.execute("select pg_current_xact_id()")
    await floor()
    held = await floor()
    assert await floor() == held
    await writer.commit()
    for _ in range(50):
        if (moved := await floor()) != held:
            break
    assert moved != held


@pytest.mark.parametrize("by_a_later_transaction", [False, True])
async def test_a_rolled_back_claim_is_found(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, by_a_later_transaction: bool
) -> None:
    """A claim passes a row that another claim has locked, and that one rolls back. With the later transaction the lock
    is taken while the first claim is under way already."""
    monkeypatch.setattr(Marks, "scan_all_if_due", lambda *_: False)
    await lab.fill(60, scheduled_at="clock_timestamp() - interval '1 hour' + n * interval '1 minute'")
    [(first,), (locked,)] = await lab.rows("select id from prinia.jobs order by scheduled_at, id limit 2")
    await lab.rows(
        f"create function prinia.meet(id bigint) returns boolean language plpgsql as $$ begin"
        f" if id = {first} then perform pg_advisory_xact_lock(1); end if; return true; end $$"
    )
    other, gate = await lab.connect(autocommit=False), await lab.connect()
    worker = await lab.worker()
    consumer = inside(worker)
    plain = consumer._statements[2]
    lock = f"update prinia.jobs set claimed_at = now() where id = {locked}".encode()
    if by_a_later_transaction:
        await gate.execute("select pg_advisory_lock(1)")
        # The first row is locked, and with it the claim has its transaction id, before it waits at the second.
        consumer._statements[2] = plain.replace(
            b"r.claimed_at is null", b"r.claimed_at is null and prinia.meet(r.id - 1)"
        )
        claim = asyncio.create_task(worker.claim(2, thorough=False))
        await somebody_waits(lab)
        await other.execute(lock)
        await gate.execute("select pg_advisory_unlock(1)")
        ids = [job.id for job in (await claim).jobs]
        consumer._statements[2] = plain
    else:
        await other.execute(lock)
        ids = await drain(lab, worker, 2, rounds=1)
    assert locked not in ids
    ids += await drain(lab, worker, 2, rounds=5)
    assert locked not in ids
    await other.rollback()
    await found_under_backlog(lab, worker, locked)


async def test_a_job_that_becomes_due_between_a_claim_and_its_look_is_found(lab: Lab) -> None:
    worker = await lab.worker()
    consumer, [id] = inside(worker), await lab.push(job(delay=1))  # far enough ahead for the claim to come first
    look = consumer._look_around

    async def late_look() -> float | None:
        while not await lab.value("select scheduled_at < clock_timestamp() from prinia.jobs"):
            await asyncio.sleep(0.005)
        return await look()

    consumer._look_around = late_look  # type: ignore[method-assign]
    claim = await worker.claim()
    assert (list(claim.jobs), claim.next_due) == ([], 0)
    assert [one.id for one in (await worker.claim(thorough=False)).jobs] == [id]


async def test_a_push_that_waited_for_a_key_is_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stores its job long after it read the clock; floors must not move past it meanwhile."""
    monkeypatch.setattr(marks_module, "SLACK", marks_module.SLACK * 0)
    monkeypatch.setattr(marks_module, "CATCH_UP_SHARE", 1e9)
    worker = await lab.worker()
    holder, other = await lab.connect(autocommit=False), await lab.connect(autocommit=False)
    push = b"""select id from prinia.enqueue('[{"task": "t", "args": {}, "unique_key": "k"}]')"""
    await holder.execute(push)
    waiting = asyncio.create_task(other.execute(push))
    await somebody_waits(lab)
    await lab.fill(10)
    await drain(lab, worker, 5)
    await holder.rollback()
    [late] = await (await waiting).fetchone() or ()
    for _ in range(10):
        await lab.fill(10)
        await drain(lab, worker, 5)
    await other.commit()
    assert late in await worker.claimed_ids(100)


async def test_a_late_commit_in_a_paused_queue_is_found(lab: Lab) -> None:
    """While a queue is paused its lanes are not scanned, so no floor may move."""
    worker = await lab.worker()
    connection, late = await late_job(lab, worker)
    await connection.commit()
    await call(lab.storage.pause, "queue", "default", by="Ada")
    for _ in range(10):
        assert await worker.claimed_ids(100) == []
        await lab.fill(1)
    await call(lab.storage.resume, "queue", "default", by="Ada")
    assert late in await worker.claimed_ids(100)


async def test_a_new_session_looks_from_the_start(lab: Lab) -> None:
    worker = await lab.worker()
    await lab.fill(20)
    await drain(lab, worker, 10)
    assert mark(worker).lanes["default", 0].tip is not None
    line = inside(worker)._claims
    terminate(lab.dsn, f"pid = {(await line.connect()).info.backend_pid}")
    with pytest.raises(StorageUnavailable):
        await worker.claim()
    late = await lab.value(
        "insert into prinia.jobs (id, task, args, scheduled_at)"
        " values (nextval('prinia.job_ids'), 't', '', now() - interval '1 day') returning id"
    )
    assert [job.id for job in (await worker.claim(10, thorough=False)).jobs] == [late]


# -- what is dead ------------------------------------------------------------------------------------------------


async def pinned(lab: Lab) -> psycopg.AsyncConnection[Any]:
    """A reader whose snapshot keeps every dead row."""
    pin = await lab.connect(autocommit=False)
    await pin.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
    await pin.execute("select count(*) from prinia.jobs")
    return pin


async def waves(lab: Lab, worker: StandIn, spy: Spy, *, drop: bool = False) -> list[int]:
    """The buffers that each of ten waves took to claim, with the claims that found nothing at its end."""
    taken = []
    for _ in range(10):
        await lab.fill(1000, scheduled_at="clock_timestamp()")
        spy.taken()
        while True:
            if drop:
                mark(worker).drop()
            claimed = await worker.claimed(100)
            if not claimed:
                break
            plans = [plan for plan in spy.taken() if "skip locked" in plan.text or "passed" in plan.text]
            taken_now = sum(plan.buffers for plan in plans)
            taken.append(taken_now)
            await worker.recorded(*(ack(job, AckKind.COMPLETE) for job in claimed))
            spy.taken()
    per_wave = len(taken) // 10
    return [sum(taken[at : at + per_wave]) for at in range(0, per_wave * 10, per_wave)]


@pytest.mark.parametrize("drop", [False, True])
async def test_claims_stay_flat_under_a_pinned_horizon(lab: Lab, monkeypatch: pytest.MonkeyPatch, drop: bool) -> None:
    """Ten waves; with the marks dropped before each claim it does not stay flat."""
    monkeypatch.setattr(marks_module, "SLACK", marks_module.SLACK * 0)
    worker = await lab.worker()
    await pinned(lab)
    spy = Spy()
    await spy.watch(await inside(worker)._claims.connect())
    buffers = await waves(lab, worker, spy, drop=drop)
    if drop:
        assert buffers[-1] > 3 * buffers[0], buffers
    else:
        assert buffers[-1] < 1.3 * buffers[0], buffers


async def test_a_dry_look_does_not_walk_the_dead(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks_module, "SLACK", marks_module.SLACK * 0)
    worker = await lab.worker()
    await pinned(lab)
    await lab.fill(5000)
    await drain(lab, worker, 500)

    end = mark(worker).lanes["default", 0].tip
    assert end is not None

    async def floor_follows() -> bool:
        await lab.push_one()
        await lab.finish(await worker.one(), worker)
        floor = mark(worker).lanes["default", 0].floor
        return floor is not None and floor > end

    await until(floor_follows, "the floor is where the tip was")
    spy = Spy()
    await spy.watch(await inside(worker)._claims.connect())
    assert not (await worker.claim()).jobs
    assert sum(plan.buffers for plan in spy.taken()) < 200


async def test_a_backlog_pushed_at_once_does_not_slow_down(lab: Lab) -> None:
    """A wave whose due times are all within the slack: catching up may not read it again and again."""
    worker = await lab.worker()
    await pinned(lab)
    await lab.fill(20000, scheduled_at="'2026-01-01T00:00:00Z'::timestamptz + n * interval '1 microsecond'")
    spy = Spy()
    await spy.watch(await inside(worker)._claims.connect())

    async def cost() -> int:
        spy.taken()
        await drain(lab, worker, 200, rounds=20)
        return sum(plan.buffers for plan in spy.taken() if "skip locked" in plan.text)

    costs = [await cost() for _ in range(5)]
    assert costs[-1] < 1.4 * costs[0], costs


async def cheapest_claim(lab: Lab, worker: StandIn, spy: Spy) -> int:
    """The buffers of a claim of one new job, when it does not happen to catch up."""
    buffers = []
    for _ in range(4):
        [id] = await lab.push(job())
        spy.taken()
        assert [job.id for job in (await worker.claim(10, thorough=False)).jobs] == [id]
        buffers += [plan.buffers for plan in spy.taken()]
    return min(buffers)


async def test_excluded_rows_are_passed_once(lab: Lab) -> None:
    worker = await lab.worker()
    await lab.fill(5000, task="'unknown'")
    inside(worker).exclude("unknown")
    assert not (await worker.claim()).jobs
    spy = Spy()
    await spy.watch(await inside(worker)._claims.connect())
    [id] = await lab.push(job())
    assert [job.id for job in (await worker.claim(10, thorough=False)).jobs] == [id]
    [plan] = spy.taken()
    assert plan.buffers < 100
    assert not (await worker.claim(10, thorough=True)).jobs
    assert max(plan.buffers for plan in spy.taken()) > 100, "a thorough claim looks from the floor, over all of them"
    late = await lab.value(
        "insert into prinia.jobs (id, task, args, scheduled_at)"
        " select nextval('prinia.job_ids'), 'known', '', scheduled_at from prinia.jobs order by id offset 100 limit 1"
        " returning id"
    )
    assert (await worker.claimed_ids(10)) == [late]


async def test_jobs_far_ahead_cost_nothing(lab: Lab) -> None:
    worker = await lab.worker()
    await lab.fill(100_000, scheduled_at="now() + interval '1 day' + n * interval '1 second'", priority="50 + n % 3")
    await lab.fill(100)
    spy = Spy()
    await spy.watch(await inside(worker)._claims.connect())
    claim = await worker.claim(50, thorough=False)
    assert len(claim.jobs) == 50
    assert not (await worker.claim(1000)).jobs[50:]
    plans = spy.taken()
    assert max(plan.buffers for plan in plans) < 1000, [plan.buffers for plan in plans]
    assert max(plan.handled for plan in plans) < 5000


async def test_running_rows_are_stepped_over(lab: Lab) -> None:
    """The index knows nothing of claims, so floors lead over running rows; tips do not."""
    worker = await lab.worker()
    await lab.fill(5000)
    for _ in range(5):
        await worker.claimed(1000)
    spy = Spy()
    await spy.watch(await inside(worker)._claims.connect())
    assert await cheapest_claim(lab, worker, spy) < 100


# -- lanes -------------------------------------------------------------------------------------------------------


async def test_more_lanes_than_one_claim_visits(lab: Lab) -> None:
    queues = ("a", "b")
    worker = await lab.worker(*queues)
    for queue in queues:
        await lab.fill(101, queue=f"'{queue}'", priority="n - 51")
    assert len(await worker.collect(202)) == 202
    await lab.fill(1, queue="'a'", priority="-50")
    assert len(await within(5, worker.claimed(10))) == 1


async def test_dear_probes_get_rare_but_are_made_before_a_sleep(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[bool] = []
    run = PostgresConsumer._claim_lanes

    async def spied(consumer: PostgresConsumer, *args: Any, probe: bool) -> Any:
        probed.append(probe)
        return await run(consumer, *args, probe=probe)

    monkeypatch.setattr(PostgresConsumer, "_claim_lanes", spied)
    worker = await lab.worker()
    await lab.fill(50)
    monkeypatch.setattr(consumer_module, "PROBE_SHARE", 1e-9)
    await drain(lab, worker, 5, rounds=10)
    assert probed == [True, True, *[False] * 8], "two dear ones in a row make them rare"
    id = await lab.push_one(priority=7)
    assert [job.id for job in (await worker.claim(100)).jobs][-1] == id


async def test_cheap_probes_go_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "PROBE_SHARE", 1e9)
    worker = await lab.worker()
    await lab.fill(50)
    await drain(lab, worker, 5, rounds=5)
    id = await lab.push_one(priority=7)
    assert [job.id for job in (await worker.claim(1, thorough=False)).jobs] == [id]


# -- one cheap write ---------------------------------------------------------------------------------------------

HOT = """select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where schemaname = 'prinia' and relname = 'jobs'"""


@pytest.mark.parametrize("index", [None, "create index on prinia.jobs (owner)"])
async def test_claims_are_hot_updates(lab: Lab, index: str | None) -> None:
    """An index on a column that the claim writes would end that."""
    if index is not None:
        await lab.rows(index)
    worker = await lab.worker()
    for _ in range(5):
        await lab.push(*[job(args=b'{"x":"%s"}' % (b"x" * 100)) for _ in range(1000)])
    for _ in range(10):
        await worker.claimed(500)
    await worker.close()
    await until(lambda: lab.value(f"select n_tup_upd >= 5000 from ({HOT}) s"), "the statistics arrive")
    [(updates, hot)] = await lab.rows(HOT)
    assert (hot >= 0.9 * updates) == (index is None)
