"""Bells: a push notifies only when somebody sleeps, and an armed bell misses nothing in any order of commits.

Seen to fail with: `ring` always notifying, or never looking for the lock; the lock given up before the push's commit;
the bell not tried for again by a sleeper beside its holder; `pass_on` notifying without
looking at the waiting lock, and a passed-on ring that gives up when pushes in flight hold the bell; a loud bell that
stays loud when another worker gets it, that is taken to be loud still when another made it quiet, or trusted for pushes
that were in flight when it became loud; locks counted by two sleepers at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from prinia.outcome import AckKind
from prinia.storage.postgres import bell as bell_module
from prinia.testing.conformance.bells import arm
from prinia.testing.conformance.bench import StandIn, ack, call, job

from .kit import Connection, Lab, bell, terminate, until, within

ADVISORY = (
    "select count(*) from pg_locks where locktype = 'advisory'"
    " and database = (select oid from pg_database where datname = current_database())"
)


class Ear:
    """A plain LISTEN connection on Prinia's channel."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def heard(self) -> list[str]:
        """All that was notified until now."""
        await self._connection.execute("notify ear_mark")
        heard: list[str] = []
        async for note in self._connection.notifies(timeout=10):
            if note.channel == "ear_mark":
                return heard
            if note.payload != "proof":
                heard.append(note.payload)
        raise AssertionError("nothing is notified at all")


@pytest.fixture
async def ear(lab: Lab) -> Ear:
    connection = await lab.connect()
    channel = await lab.value("select prinia.bell_channel()")
    await connection.execute(f"listen {channel}".encode())
    await connection.execute("listen ear_mark")
    return Ear(connection)


def asleep(worker: StandIn) -> asyncio.Task[bool]:
    return asyncio.create_task(bell(worker).wait(60))


async def settled() -> None:
    """Let everything run that can run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def armed(lab: Lab, *workers: StandIn) -> None:
    for worker in workers:
        await arm(lab, worker)


@asynccontextmanager
async def open_push(lab: Lab, **fields: object) -> AsyncIterator[Connection]:
    """A transaction that has pushed a job, committed with the block."""
    connection = await lab.connect(autocommit=False)
    await lab.storage.apush_within(connection, [job(**fields)])
    yield connection
    await connection.commit()


# -- who notifies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 1000])
async def test_nobody_is_notified_while_nobody_sleeps(lab: Lab, ear: Ear, number: int) -> None:
    worker = await lab.worker()
    await armed(lab, worker)
    await bell(worker).disarm()
    assert await lab.value(ADVISORY) == 0
    await lab.push(*[job() for _ in range(number)])
    await lab.finish(await worker.one(), worker, AckKind.SNOOZE)
    assert await ear.heard() == []


async def test_one_notification_for_a_thousand_jobs(lab: Lab, ear: Ear) -> None:
    worker = await lab.worker()
    await armed(lab, worker)
    await lab.push(*[job() for _ in range(1000)])
    assert len(await ear.heard()) == 1


async def test_one_notification_for_many_pushes_of_one_transaction(lab: Lab, ear: Ear) -> None:
    worker = await lab.worker()
    await armed(lab, worker)
    connection = await lab.connect(autocommit=False)
    for _ in range(10):
        await lab.storage.apush_within(connection, [job()])
    await connection.commit()
    assert len(await ear.heard()) == 1


async def test_other_queues_do_not_notify(lab: Lab, ear: Ear) -> None:
    worker = await lab.worker("default")
    await armed(lab, worker)
    other = await lab.value(
        "select 'q' || n from generate_series(1, 100) n"
        " where prinia.bell_of('q' || n) <> prinia.bell_of('default') limit 1"
    )
    await lab.push_one(queue=other)
    assert await ear.heard() == []


async def test_without_a_bell_nothing_is_rung(lab: Lab, ear: Ear) -> None:
    """What `bell => false` is for: it holds no lock and notifies nobody, so the transaction can be prepared."""
    worker = await lab.worker()
    await armed(lab, worker)
    await lab.rows("""select * from prinia.enqueue('[{"task": "t", "args": {}}]', bell => false)""")
    assert await ear.heard() == []
    assert len(await worker.claimed_ids()) == 1


@pytest.mark.parametrize("unique", [False, True])
async def test_a_rolled_back_push_rings_nothing(lab: Lab, ear: Ear, unique: bool) -> None:
    worker = await lab.worker()
    await armed(lab, worker)
    connection = await lab.connect(autocommit=False)
    key = ', "unique_key": "k"' if unique else ""
    await connection.execute(f"""select * from prinia.enqueue('[{{"task": "t", "args": {{}}{key}}}]')""".encode())
    await connection.rollback()
    assert await ear.heard() == []


async def test_a_push_of_nothing_new_rings_nothing(lab: Lab, ear: Ear) -> None:
    """A job whose key is held is not stored."""
    push = """select * from prinia.enqueue('[{"task": "t", "args": {}, "unique_key": "k"}]')"""
    await lab.rows(push)
    worker = await lab.worker()
    await armed(lab, worker)
    await lab.rows(push)
    assert await ear.heard() == []


# -- in flight ---------------------------------------------------------------------------------------------------


async def test_a_push_in_flight_keeps_the_bell_from_being_armed(lab: Lab) -> None:
    """Arming and committing in either order: armed first, the commit notifies; else arming is refused."""
    worker = await lab.worker()
    async with open_push(lab):
        assert not await bell(worker).arm()
    await armed(lab, worker)
    assert len(await worker.claimed_ids()) == 1


async def test_a_push_after_the_arming_rings_at_its_commit(lab: Lab) -> None:
    worker = await lab.worker()
    await armed(lab, worker)
    async with open_push(lab):
        assert await worker.claimed_ids() == []
        sleep = asleep(worker)
        await settled()
        assert not sleep.done()
    assert await within(lab.patience, sleep)
    assert len(await worker.claimed_ids()) == 1


async def test_pushes_and_armings_at_random(lab: Lab) -> None:
    """A sleeper that trusts its bell alone finds every job, whatever overlaps."""
    worker = await lab.worker()
    found: list[int] = []

    async def push() -> None:
        for _ in range(60):
            async with open_push(lab):
                await asyncio.sleep(0)

    async def work() -> None:
        while len(found) < 180:
            promised = await bell(worker).arm()
            found.extend(await worker.claimed_ids(100))
            if promised and len(found) < 180:
                assert await bell(worker).wait(lab.patience), "slept through a push"
            await bell(worker).disarm()
            found.extend(await worker.claimed_ids(100))

    await within(60, asyncio.gather(work(), push(), push(), push()))
    assert len(set(found)) == 180


# -- several sleepers --------------------------------------------------------------------------------------------


async def two_sleepers(lab: Lab) -> tuple[StandIn, StandIn]:
    """Two armed workers in two processes' worth; the first holds the bell."""
    one, two = await lab.worker(), await lab.another().worker()
    await armed(lab, one, two)
    return one, two


async def test_one_push_wakes_one_sleeper(lab: Lab) -> None:
    one, two = await two_sleepers(lab)
    first, second = asleep(one), asleep(two)
    await settled()
    await lab.push_one()
    assert await within(lab.patience, first)
    await settled()
    assert not second.done()
    await bell(one).pass_on()
    assert await within(2.0, second), "who waits is there to be passed work on"


async def test_one_push_leaves_the_other_asleep(lab: Lab, ear: Ear) -> None:
    one, two = await two_sleepers(lab)
    first, second = asleep(one), asleep(two)
    await settled()
    await lab.push_one()
    assert await within(lab.patience, first)
    assert len(await ear.heard()) == 1
    assert await bell(two)._listener._execute(b"select 1") == [(1,)]  # so it has read what came
    await settled()
    assert not second.done()
    second.cancel()


async def test_who_waits_takes_over_from_a_holder_that_died(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bell_module, "RETRY_EVERY", 0.05)
    one, two = await two_sleepers(lab)
    line = bell(one)._listener._line
    second = asleep(two)
    await settled()
    holder = (await line.connect()).info.backend_pid
    monkeypatch.setattr(type(bell(one)._listener), "_keep_listening", None)  # it does not come back
    bell(one)._listener._task.cancel()  # type: ignore[union-attr]
    terminate(lab.dsn, f"pid = {holder}")
    assert await within(lab.patience, second), "woken to look what it may have missed"
    await armed(lab, two)
    assert bell(two)._taken
    second = asleep(two)
    await settled()
    await lab.push_one()
    assert await within(lab.patience, second)


async def test_a_full_worker_wakes_another(lab: Lab, ear: Ear) -> None:
    one, two = await two_sleepers(lab)
    second = asleep(two)
    await bell(one).disarm()
    await bell(one).pass_on()
    assert await within(lab.patience, second)
    assert all(payload.endswith("+") for payload in await ear.heard())


async def test_passing_on_wakes_another_while_pushes_are_in_flight(lab: Lab) -> None:
    """A stream of pushes keeps the bell from everybody."""
    one, two = await two_sleepers(lab)
    second = asleep(two)
    await bell(one).disarm()
    async with open_push(lab):
        await bell(one).pass_on()
        assert await within(2.0, second)


async def test_passing_on_to_nobody_notifies_nobody(lab: Lab, ear: Ear) -> None:
    one, two = await two_sleepers(lab)
    await bell(one).disarm()
    await bell(two).disarm()
    await bell(one).pass_on()
    assert await ear.heard() == []


async def test_locks_are_counted(lab: Lab) -> None:
    """Sleepers of one process share a session, which re-enters its own locks: armed at once, let go of one by one."""
    workers = [await lab.worker() for _ in range(4)]
    for _ in range(3):
        await asyncio.gather(*(bell(worker).arm() for worker in workers))
        assert await lab.value(ADVISORY) == 1
        for worker in workers[1:]:
            await bell(worker).disarm()
        assert await lab.value(ADVISORY) == 1
        await bell(workers[0]).disarm()
        assert await lab.value(ADVISORY) == 0


async def test_waiting_locks_are_counted(lab: Lab) -> None:
    holder, other = await lab.worker(), lab.another()
    await armed(lab, holder)
    workers = [await other.worker() for _ in range(3)]
    await asyncio.gather(*(bell(worker).arm() for worker in workers))
    assert await lab.value(ADVISORY) == 2
    await asyncio.gather(*(bell(worker).disarm() for worker in workers))
    assert await lab.value(ADVISORY) == 1


async def test_a_closed_worker_leaves_no_lock(lab: Lab) -> None:
    worker, other = await lab.worker(), await lab.worker()
    await armed(lab, worker, other)
    await worker.close()
    assert await lab.value(ADVISORY) == 1
    await other.close()
    await until(lambda: lab.value(f"select ({ADVISORY}) = 0"), "no lock is left")


# -- what rings --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["retry", "snooze", "rescue", "strays", "recover", "resume", "scheduled"])
async def test_everything_that_makes_a_job_claimable_rings(lab: Lab, ear: Ear, kind: str) -> None:
    busy, sleeper = await lab.worker(), await lab.another().worker()
    await lab.push_one()
    claimed = await busy.one()
    if kind == "resume":
        await call(lab.storage.pause, "queue", "default", by="Ada")
    if kind == "strays":
        for _ in range(2):
            await busy.beat(tokens=[])
    await armed(lab, sleeper)
    if kind in ("retry", "snooze"):
        await busy.recorded(ack(claimed, AckKind(kind)))
    elif kind == "rescue":
        await sleeper.bury(busy)
    elif kind == "strays":
        await call(sleeper.pulse.free_strays)
    elif kind == "recover":
        await busy.consumer.recover(busy.tokens, [])
    elif kind == "resume":
        await call(lab.storage.resume, "queue", "default", by="Ada")
    else:
        await lab.push_one(delay=3600)
    assert len(await ear.heard()) == 1
    assert await within(lab.patience, bell(sleeper).wait(60))


# -- loud --------------------------------------------------------------------------------------------------------

LOUD = "select count(*) from prinia.loud_bells"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bells become loud soon, and are tried for often."""
    monkeypatch.setattr(bell_module, "LOUD_AFTER", 0.05)
    monkeypatch.setattr(bell_module, "RETRY_EVERY", 0.2)


@pytest.mark.usefixtures("hasty")
async def test_a_bell_out_of_reach_becomes_loud_and_quiet_again(lab: Lab, ear: Ear) -> None:
    worker = await lab.worker()
    async with open_push(lab):
        assert not await bell(worker).arm()
        await armed(lab, worker)
        assert await lab.value(LOUD) == 1
        id = await lab.push_one()
        assert await within(lab.patience, bell(worker).wait(60))
        assert len(await ear.heard()) == 1
        assert await worker.claimed_ids() == [id]
    await armed(lab, worker)
    assert await lab.value(LOUD) == 0
    assert await within(lab.patience, worker.one())
    await bell(worker).disarm()
    await lab.push_one()
    assert await ear.heard() == []


async def test_a_bell_does_not_become_loud_at_once(lab: Lab) -> None:
    worker = await lab.worker()
    async with open_push(lab):
        assert not await bell(worker).arm()
        assert not await bell(worker).arm()
        assert await lab.value(LOUD) == 0


@pytest.mark.usefixtures("hasty")
async def test_the_next_to_get_a_loud_bell_makes_it_quiet(lab: Lab) -> None:
    """The one that made it loud may be gone."""
    worker, other = await lab.worker(), await lab.another().worker()
    async with open_push(lab):
        await armed(lab, worker)
        assert await lab.value(LOUD) == 1
        await worker.close()
    await armed(lab, other)
    assert await lab.value(LOUD) == 0


@pytest.mark.usefixtures("hasty")
async def test_a_bell_that_others_made_quiet_is_made_loud_again(lab: Lab, ear: Ear) -> None:
    worker, other = await lab.worker(), await lab.another().worker()
    async with open_push(lab):
        await armed(lab, worker)
    await armed(lab, other)
    await bell(other).disarm()
    async with open_push(lab):
        await armed(lab, worker)
        assert await lab.value(LOUD) == 1
        await lab.push_one()
        assert len(await ear.heard()) == 1


@pytest.mark.usefixtures("hasty")
async def test_what_is_in_flight_when_a_bell_becomes_loud_is_found(lab: Lab) -> None:
    """A push that rang before the flag was set commits while a longer transaction keeps the bell out of reach."""
    worker = await lab.worker()
    async with open_push(lab, queue="default"):
        async with open_push(lab):
            await armed(lab, worker)
            assert await worker.claimed_ids() == []
        assert await within(lab.patience, bell(worker).wait(60))
        assert len(await worker.claimed_ids()) == 1


# -- without -----------------------------------------------------------------------------------------------------


async def test_a_lock_given_up_before_the_commit_would_miss_jobs(lab: Lab) -> None:
    """The bell is held until the commit for a reason: with a lock let go of at once the sleeper misses the push."""
    await lab.rows(
        "create function prinia.touch(a integer, b integer) returns boolean language sql as"
        " 'select pg_try_advisory_lock_shared(a, b) and pg_advisory_unlock_shared(a, b)'"
    )
    ring: str = await lab.value("select pg_get_functiondef('prinia.ring'::regproc)")
    assert "pg_try_advisory_xact_lock_shared(" in ring
    await lab.rows(ring.replace("pg_try_advisory_xact_lock_shared(", "prinia.touch("))
    worker = await lab.worker()
    async with open_push(lab):
        assert await bell(worker).arm()
        assert await worker.claimed_ids() == []
    assert not await bell(worker).wait(0.3)
