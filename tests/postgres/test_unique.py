"""Unique keys on PostgreSQL: pushes that replace while others claim and ack, and windows that end.

Seen to fail with: a replace that looks only once; one that does not ask whether the holder runs; a holder that has
ended taken for one that runs; windows taken over without asking again; a lock on a key that is only kept.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest

from prinia.errors import UniqueBusy
from prinia.job import ClaimedJob, JobSpec
from prinia.options import unique_key
from prinia.outcome import AckKind
from prinia.testing.conformance.bench import ack, call, job

from .kit import Connection, Lab, somebody_waits, until, within
from .test_enqueue import push

RACERS = 16
ROUNDS = 40


def window(text: str = "k", seconds: float = 600, **fields: Any) -> JobSpec:
    return job(unique=unique_key("conformance", text, window=seconds), **fields)


# -- replacing --------------------------------------------------------------------------------------------------------


def numbered(number: int, key: str = "k") -> dict[str, Any]:
    """A job that says its number in several columns."""
    return {
        "task": "conformance", "unique_key": key, "on_conflict": "replace",
        "args": number, "tags": [str(number)], "meta": {"n": number}, "max_attempts": number + 1,
    }  # fmt: skip


def number_of(claimed: ClaimedJob) -> int:
    """The number of a job, which must be the same wherever it says it."""
    number = int(claimed.args)
    assert claimed.extras is not None
    assert (claimed.extras.tags, claimed.extras.meta) == ((str(number),), {"n": number}), "half of one, half of another"
    assert claimed.max_attempts == number + 1
    return number


@pytest.fixture
async def racers(lab: Lab) -> list[Connection]:
    return [await lab.connect() for _ in range(RACERS)]


@pytest.mark.parametrize("kind", [AckKind.COMPLETE, AckKind.RETRY])
async def test_sixteen_replace_at_the_ack_while_others_claim(lab: Lab, racers: list[Connection], kind: AckKind) -> None:
    """Exactly one creates, or none when all came before the end; whatever is claimed meanwhile is one job, whole."""
    owner, thief = await lab.worker(), await lab.worker()
    numbers = iter(range(10**6))
    for _ in range(ROUNDS):
        first = next(numbers)
        [(holder, created, _)] = await push(racers[0], numbered(first))
        assert created
        held = await owner.one()
        assert number_of(held) == first
        stolen: list[ClaimedJob] = []
        done = asyncio.Event()

        async def steal(stolen: list[ClaimedJob] = stolen, done: asyncio.Event = done) -> None:
            while not done.is_set():
                stolen += await thief.claimed()

        stealing = asyncio.create_task(steal())
        racing = asyncio.gather(*(push(racer, numbered(next(numbers))) for racer in racers))
        await owner.recorded(ack(held, kind))
        answers = await racing
        done.set()
        await stealing
        stolen += await thief.claimed()
        makers = [id for [(id, created, _)] in answers if created]
        assert len(makers) <= (1 if kind is AckKind.COMPLETE else 0), "stored twice"
        assert {id for [(id, _, _)] in answers} <= {holder, *makers}
        assert [claimed.id for claimed in stolen] == (makers or ([holder] if kind is AckKind.RETRY else []))
        for claimed in stolen:
            record = await lab.find(claimed.id)
            assert record.args == b"%d" % number_of(claimed), "replaced while it ran"
            await thief.recorded(ack(claimed, AckKind.COMPLETE))
        assert await lab.value("select count(*) from prinia.jobs") == 0


async def test_the_last_to_replace_is_what_runs(lab: Lab, racers: list[Connection]) -> None:
    """While the holder waits no push is lost to it: each either replaces or is replaced."""
    worker = await lab.worker()
    for _ in range(5):
        await push(racers[0], numbered(0) | {"delay": 600})
        await asyncio.gather(*(push(racer, numbered(number)) for number, racer in enumerate(racers)))
        await push(racers[1], numbered(77))
        claimed = await worker.one()
        assert number_of(claimed) == 77
        await lab.finish(claimed, worker)


async def test_an_open_claim_is_waited_for(lab: Lab) -> None:
    """A holder that somebody has just locked is kept when that was a claim, and replaced when it was rolled back."""
    other, waiter = await lab.connect(autocommit=False), await lab.connect()
    for commits in (True, False):
        key = f"commits {commits}"
        [(id, _, _)] = await push(waiter, numbered(1, key))
        await other.execute(
            "update prinia.jobs set claimed_at = now(), owner = gen_random_uuid(), token = 1 where id = %s", (id,)
        )
        replacing = asyncio.create_task(push(waiter, numbered(2, key)))
        await somebody_waits(lab)
        await (other.commit() if commits else other.rollback())
        assert [row[:2] for row in await within(10, replacing)] == [(id, False)]
        assert (await lab.find(id)).args == (b"1" if commits else b"2")


@pytest.mark.parametrize("seen_alive", [False, True])
async def test_a_holder_that_ends_while_it_is_waited_for_is_followed(lab: Lab, seen_alive: bool) -> None:
    """The new job is not lost with it, at whatever statement of its push."""
    other, waiter = await lab.connect(autocommit=False), await lab.connect()
    [(id, _, _)] = await push(waiter, numbered(1))
    end = "delete from prinia.jobs"
    await other.execute("select from prinia.jobs for update" if seen_alive else end)
    replacing = asyncio.create_task(push(waiter, numbered(2)))
    await somebody_waits(lab)
    if seen_alive:
        await other.execute(end)
    await other.commit()
    [(new, created, _)] = await within(10, replacing)
    assert created
    assert new != id
    assert (await lab.find(new)).args == b"2"


async def test_a_holder_that_waits_for_other_jobs_is_kept(lab: Lab) -> None:
    connection = await lab.connect()
    [(id, _, _)] = await push(connection, numbered(1))
    await lab.rows("update prinia.jobs set scheduled_at = 'infinity'")
    assert [row[:2] for row in await push(connection, numbered(2))] == [(id, False)]
    assert await lab.value("select scheduled_at = 'infinity' and convert_from(args, 'utf8') = '1' from prinia.jobs")


async def test_a_replaced_job_is_seen_by_a_worker_whose_marks_have_passed_it(lab: Lab) -> None:
    """Its due time is the later of its own and now, and so above what was claimed before."""
    worker = await lab.worker()
    connection = await lab.connect()
    await push(connection, numbered(1) | {"delay": 600})
    for _ in range(20):
        await lab.push_one()
        await lab.finish(await worker.one(), worker)
    await push(connection, numbered(2) | {"scheduled_at": "2020-01-01T00:00:00Z"})
    claim = await worker.claim(thorough=False)
    assert [number_of(claimed) for claimed in claim.jobs] == [2]


async def test_sql_users_may_raise(lab: Lab) -> None:
    connection = await lab.connect()
    for more in ({}, {"unique_for": 600}):
        [(id, _, _)] = await push(connection, {"unique_key": "k", **more})
        with pytest.raises(psycopg.errors.UniqueViolation, match=f"job {id} already has the unique key 'k'"):
            await push(connection, {}, {"unique_key": "k", "on_conflict": "raise", **more})
    assert await lab.value("select count(*) from prinia.jobs") == 2


async def test_a_rolled_back_replace_changes_nothing(lab: Lab) -> None:
    worker, connection = await lab.worker(), await lab.connect(autocommit=False)
    [(id, _, _)] = await push(connection, numbered(1))
    await connection.commit()
    await worker.recorded(ack(await worker.one(), AckKind.RETRY, delay=600))
    before = await lab.find(id)
    await push(connection, numbered(2))
    await connection.rollback()
    assert len(before.errors) == 1
    assert await lab.find(id) == before


# -- windows ----------------------------------------------------------------------------------------------------------


async def test_a_key_is_taken_over_in_place(lab: Lab) -> None:
    [first] = await lab.push(window(seconds=0.001))
    [second] = await until(lambda: _new(lab, window(seconds=0.001)), "its window is over")
    [third] = await until(lambda: _new(lab, window(seconds=600)), "its window is over")
    assert first < second < third
    assert await lab.rows("select job_id from prinia.unique_keys") == [(third,)]


async def _new(lab: Lab, spec: JobSpec) -> list[int]:
    return [pushed.id for pushed in await lab.storage.apush([spec]) if pushed.created]


@pytest.mark.parametrize("stands", [False, True])
@pytest.mark.parametrize("commits", [False, True])
async def test_a_taker_that_is_not_committed_is_waited_for(lab: Lab, commits: bool, stands: bool) -> None:
    """Of a new key as of one whose window is over."""
    if stands:
        await lab.push(window(seconds=0.001))
        await until(lambda: lab.value("select expires_at < clock_timestamp() from prinia.unique_keys"), "it is over")
    taker, other = await lab.connect(autocommit=False), await lab.connect()
    [taken] = await lab.storage.apush_within(taker, [window()])
    waiting = asyncio.create_task(lab.storage.apush_within(other, [window()]))
    await somebody_waits(lab)
    await (taker.commit() if commits else taker.rollback())
    [answer] = await within(10, waiting)
    assert answer.created is not commits
    assert (answer.id == taken.id) is commits


async def test_waiting_for_a_window_has_a_limit(lab: Lab) -> None:
    taker, other = await lab.connect(autocommit=False), await lab.connect()
    await lab.storage.apush_within(taker, [window()])
    await other.execute("set lock_timeout = '50ms'")
    with pytest.raises(UniqueBusy, match="still open"):
        await lab.storage.apush_within(other, [window()])


async def test_who_is_told_of_the_holder_holds_up_nobody(lab: Lab) -> None:
    """A key that is held is looked at and not locked: the transaction of who was told may stay open."""
    [holder] = await lab.push(window())
    told, other = await lab.connect(autocommit=False), await lab.connect()
    await other.execute("set lock_timeout = '50ms'")
    for connection in (told, other):
        [answer] = await lab.storage.apush_within(connection, [window()])
        assert (answer.id, answer.created) == (holder, False)


async def test_a_sweep_leaves_a_key_that_is_just_taken(lab: Lab) -> None:
    await lab.push(window(seconds=0.001))
    await until(lambda: lab.value("select expires_at < clock_timestamp() from prinia.unique_keys"), "it is over")
    worker, taker = await lab.worker(), await lab.connect(autocommit=False)
    await lab.storage.apush_within(taker, [window()])
    assert await call(worker.pulse.sweep_keys) == 0
    await taker.commit()
    assert await call(worker.pulse.sweep_keys) == 0
    assert (await lab.storage.apush([window()]))[0].created is False


async def test_a_sweep_goes_in_batches(lab: Lab) -> None:
    await lab.rows(
        "insert into prinia.unique_keys select decode(lpad(to_hex(n), 32, '0'), 'hex'), n, now() - interval '1 s'"
        " from generate_series(1, 2500) n"
    )
    worker = await lab.worker()
    assert [await call(worker.pulse.sweep_keys) for _ in range(4)] == [1000, 1000, 500, 0]


async def test_sixteen_race_for_a_key_whose_window_is_over(lab: Lab, racers: list[Connection]) -> None:
    for round in range(ROUNDS):
        key = {"unique_key": f"k{round}"}
        await push(racers[0], key | {"unique_for": 0.001})
        await until(
            lambda: lab.value("select max(expires_at) < clock_timestamp() from prinia.unique_keys"), "it is over"
        )
        answers = await asyncio.gather(*(push(racer, key | {"unique_for": 600}) for racer in racers))
        assert sum(created for [(_, created, _)] in answers) == 1
        assert len({id for [(id, _, _)] in answers}) == 1
        await lab.rows("delete from prinia.unique_keys")


async def test_old_clients_and_new_ones_share_keys(lab: Lab) -> None:
    """Who knows nothing of windows pushes as ever."""
    connection = await lab.connect()
    old = json.dumps([{"task": "conformance", "args": {}, "unique_key": "k"}])
    [(id, _)] = await lab.rows("select id, created from prinia.enqueue(%s)", old)
    assert await lab.push(job(unique=unique_key("conformance", "k"))) == [id]
    [(other, created, _)] = await push(connection, {"task": "conformance", "unique_key": "k", "unique_for": 60})
    assert created
    assert other != id
