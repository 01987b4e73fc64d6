"""Acks: rows somebody else holds are busy, a lost reply is no loss, nobody locks another out, and the archive is never
in the way.

Seen to fail with: rows locked without "skip locked"; owner and token not left behind; flushes and cancels that wait for
locks in opposite orders; an ack that does not make the leaf that it lacks; leaves attached under a lock that readers
feel; makers that do not wait for each other; leaves clipped to nobody.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import psycopg
import pytest

from prinia.errors import StorageUnavailable
from prinia.job import ClaimedJob, JobState
from prinia.outcome import AckKind
from prinia.storage.postgres.connection import AsyncLine
from prinia.storage.protocol import Receipt
from prinia.testing.conformance.bench import ack, call, job

from .kit import Lab, inside, terminate, within

KINDS = [AckKind.COMPLETE, AckKind.RETRY, AckKind.SNOOZE, AckKind.FAIL, AckKind.CANCEL]


@pytest.mark.parametrize("kind", KINDS)
async def test_rows_that_somebody_holds_are_busy(lab: Lab, kind: AckKind) -> None:
    worker = await lab.worker()
    await lab.push(*[job() for _ in range(3)])
    jobs = await worker.claimed(3)
    holder = await lab.connect(autocommit=False)
    await holder.execute("select from prinia.jobs where id = %s for update", (jobs[1].id,))
    acks = [ack(job, kind) for job in jobs]
    assert await within(5, worker.ack(*acks)) == Receipt(busy=frozenset({jobs[1].id}))
    await holder.rollback()
    await worker.recorded(acks[1])
    await worker.recorded(*acks)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_ack_whose_reply_was_lost(lab: Lab, monkeypatch: pytest.MonkeyPatch, kind: AckKind) -> None:
    """It was committed before the connection went; sent again it is recorded once."""
    worker = await lab.worker()
    id = await lab.push_one()
    sent = (
        ack(await worker.one(), kind, delay=3600)
        if kind in (AckKind.RETRY, AckKind.SNOOZE)
        else ack(await worker.one(), kind)
    )
    run = AsyncLine.run

    async def lost(line: AsyncLine, *args: Any) -> Any:
        rows = await run(line, *args)
        terminate(lab.dsn, f"pid = {(await line.connect()).info.backend_pid}")
        monkeypatch.setattr(AsyncLine, "run", run)
        await run(line, b"select 1")
        return rows

    monkeypatch.setattr(AsyncLine, "run", lost)
    with pytest.raises(StorageUnavailable):
        await worker.ack(sent)
    before = await lab.find(id)
    await worker.recorded(sent)
    assert await lab.find(id) == before
    assert before.state is not JobState.RUNNING


async def test_an_ack_that_is_cancelled_breaks_nothing(lab: Lab) -> None:
    worker = await lab.worker()
    line = inside(worker)._acks
    task = asyncio.create_task(line.run(b"select pg_sleep(60)"))
    while not await lab.value("select exists (select from pg_stat_activity where query = 'select pg_sleep(60)')"):
        pass
    task.cancel()
    await asyncio.wait([task])
    await lab.push_one()
    await within(10, lab.finish(await worker.one(), worker))


# -- deadlocks ---------------------------------------------------------------------------------------------------

DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"


async def strife(lab: Lab, seconds: float) -> list[str]:
    """Acks, cancels, rescues and claims of the same jobs from eight connections at once; what went wrong."""
    workers = [await lab.another().worker() for _ in range(4)]
    errors: list[str] = []
    newest = [600]
    until = monotonic() + seconds
    stop = threading.Event()

    async def work(worker: Any, seed: int) -> None:
        chance = random.Random(seed)
        while monotonic() < until:
            jobs = await worker.claimed(100)
            chance.shuffle(jobs)
            await worker.ack(*(ack(job, chance.choice(KINDS[1:3])) for job in jobs))

    def cancel(seed: int) -> None:
        chance = random.Random(seed)
        while not stop.is_set():
            last = newest[0]
            lab.storage.cancel(chance.sample(range(max(1, last - 400), last + 1), 100), by="strife")

    def free(seed: int) -> None:
        pulse = workers[seed].pulse
        while not stop.is_set():
            pulse.beat([], [])
            pulse.free_strays()

    def feed(seed: int) -> None:
        while not stop.is_set():
            newest[0] = lab.storage.push([job() for _ in range(50)])[-1].id

    def guarded(function: Callable[[int], None], seed: int) -> None:
        try:
            function(seed)
        except Exception as error:
            errors.append(repr(error))

    threads = [asyncio.to_thread(guarded, function, seed) for seed in (0, 1) for function in (cancel, free, feed)]
    others = [asyncio.create_task(thread) for thread in threads]
    try:
        await asyncio.gather(*(work(worker, seed) for seed, worker in enumerate(workers)))
    except Exception as error:
        errors.append(repr(error))
    stop.set()
    await asyncio.gather(*others)
    return errors


async def test_nobody_locks_another_out(lab: Lab) -> None:
    before = await lab.value(DEADLOCKS)
    await lab.push(*[job() for _ in range(600)])
    assert await strife(lab, 2.5) == []
    assert await lab.value(DEADLOCKS) == before


# -- leaves ------------------------------------------------------------------------------------------------------

LEAVES = "select count(*) from prinia.leaves()"


async def drop_leaves(lab: Lab) -> None:
    for (leaf,) in await lab.rows("select leaf from prinia.leaves()"):
        await lab.rows(f"drop table prinia.{leaf}")


@pytest.mark.parametrize("kind", [AckKind.COMPLETE, AckKind.FAIL, AckKind.CANCEL])
async def test_an_ack_makes_the_leaf_that_it_lacks(lab: Lab, kind: AckKind) -> None:
    worker = await lab.worker()
    id = await lab.push_one()
    claimed = await worker.one()
    await drop_leaves(lab)
    await worker.recorded(ack(claimed, kind))
    await lab.in_state(id, JobState({"complete": "completed", "fail": "failed", "cancel": "cancelled"}[kind]))


@pytest.mark.parametrize("how", ["cancel", "sweep", "rescue"])
async def test_others_make_the_leaf_that_they_lack(lab: Lab, how: str) -> None:
    worker, other = await lab.worker(), await lab.worker()
    id = await lab.push_one(expires_in=0.001 if how == "sweep" else None, max_crashes=0)
    if how == "rescue":
        await other.one()
        await worker.declare_dead(other)
    await drop_leaves(lab)
    if how == "cancel":
        assert await call(lab.storage.cancel, [id], by="me") == 1
    elif how == "sweep":
        assert await call(worker.pulse.sweep_expired) == 1
    else:
        assert await worker.rescue(other.id) == 1
    assert (await lab.find(id)).state.final


async def test_leaves_cover_what_default_retention_names(lab: Lab) -> None:
    uncovered = (
        "select count(*) from generate_series(0, 37 * 24) h where not exists (select from prinia.leaves() l"
        " where l.low <= now() + h * interval '1 hour' and now() + h * interval '1 hour' < l.high)"
    )
    for _ in range(2):
        await call((await lab.worker()).pulse.prepare_archive)
        assert await lab.value(uncovered) == 0
        assert await lab.value(LEAVES) <= 64
        await drop_leaves(lab)


async def test_a_reader_of_the_archive_blocks_nobody(lab: Lab) -> None:
    worker = await lab.worker()
    await lab.push_one()
    claimed = await worker.one()
    reader = await lab.connect(autocommit=False)
    await drop_leaves(lab)
    await reader.execute("select count(*) from prinia.archive")
    await within(5, lab.finish(claimed, worker))
    await lab.rows("delete from prinia.queues")
    await lab.rows("insert into prinia.queues (name, keep_failed) values ('long', interval '3 years')")
    assert await within(5, lab.value("select prinia.make_leaves()")) > 0


async def test_a_leaf_made_in_place_would_wait_for_readers(lab: Lab) -> None:
    """Why leaves are made apart and attached."""
    reader = await lab.connect(autocommit=False)
    await reader.execute("select count(*) from prinia.archive")
    maker = await lab.connect()
    await maker.execute("set lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        await maker.execute(
            "create table prinia.far partition of prinia.archive for values from ('2090-01-01') to ('2090-01-02')"
        )


async def test_makers_wait_for_each_other(lab: Lab) -> None:
    await drop_leaves(lab)
    made = await asyncio.gather(*(lab.value("select prinia.make_leaves()") for _ in range(8)))
    assert sorted(made)[:7] == [0] * 7
    assert max(made) == await lab.value(LEAVES)


ODD = [
    "now() - interval '1 day'",
    "now() - interval '1 year'",
    "now() + interval '60 days'",
    "now() + interval '10 years'",
]


async def test_odd_times(lab: Lab) -> None:
    """After a clock that stepped, or a retention of years: in any order, whatever stands already."""
    rng = random.Random(7)
    times = ODD + [f"now() + interval '{rng.randint(-1500, 4000)} hours'" for _ in range(25)]
    rng.shuffle(times)
    await drop_leaves(lab)
    for time in times:
        await lab.rows(f"select prinia.make_leaf({time})")
        assert not await lab.value(f"select prinia.make_leaf({time})")
    assert await lab.value("select prinia.make_leaves()") >= 0
    leaves = await lab.rows("select low, high from prinia.leaves() order by low")
    assert all(low < high for low, high in leaves)
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(leaves))


async def test_a_claim_that_overtakes_the_answer_to_an_ack_keeps_the_history(lab: Lab) -> None:
    worker = await lab.worker()
    consumer, id = inside(worker), await lab.push_one()
    first, second = await worker.one(), list[ClaimedJob]()
    run = consumer._acks.run

    async def overtaken(*args: Any, **options: Any) -> Any:
        rows = await run(*args, **options)
        if not second:
            second.append(await worker.one())
        return rows

    consumer._acks.run = overtaken  # type: ignore[method-assign]
    await worker.recorded(ack(first, AckKind.RETRY))
    await worker.recorded(ack(second[0], AckKind.COMPLETE))
    record = await lab.find(id)
    assert (record.state, len(record.errors)) == (JobState.COMPLETED, 1)
