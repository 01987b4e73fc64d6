"""Operations on many jobs beside other transactions: nothing waits long, nothing is lost, nothing is done twice.

Seen to fail with: rows locked without "skip locked"; no second look at the selection after the lock; error histories
deleted by the ids that were locked; unique keys not looked for; edges not looked for; the database's default isolation;
an error of a lock not taken for "left"; leaves not made; an audit entry for each step; due times left as they were;
the planner left to itself.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from prinia import Prinia, course
from prinia.changes import STEP, Batch, Change, ChangeKind, Operated, Step
from prinia.job import JobState
from prinia.options import unique_key
from prinia.outcome import AckKind
from prinia.query import JobQuery
from prinia.selection import select
from prinia.storage.postgres import operating
from prinia.testing.conformance.bench import StandIn, ack, call, failure, job

from .kit import Connection, Lab, Spy, inside, somebody_waits, until, within

KEY = unique_key("conformance", "order:9")


def jobs(lab: Lab, **conditions: Any) -> JobQuery:
    """A query over the lab's storage."""
    return Prinia(storage=lab.storage).jobs(**conditions)


async def step(lab: Lab, kind: ChangeKind, *, ended: bool = False, **conditions: Any) -> Batch:
    """One step."""
    return await lab.storage.aoperate(
        Step(change=Change(kind=kind), selection=select(**conditions), by="Ada", ended=ended)
    )


async def fail(lab: Lab, worker: StandIn, *, number: int = 1, **fields: Any) -> list[int]:
    """Jobs that have failed."""
    ids = await lab.push(*(job(**fields) for _ in range(number)))
    claimed = await worker.collect(number)
    await worker.recorded(*(ack(one, AckKind.FAIL) for one in claimed))
    return ids


async def count(lab: Lab) -> tuple[int, int]:
    """How many rows there are of live and of finished jobs."""
    return await lab.value("select count(*) from prinia.jobs"), await lab.value("select count(*) from prinia.archive")


async def test_what_somebody_has_locked_is_not_waited_for(lab: Lab) -> None:
    """The others are done at once, the locked one when it is free."""
    first, locked, last = await lab.push(job(delay=60), job(delay=60), job(delay=60))
    other = await lab.connect(autocommit=False)
    await other.execute("select from prinia.jobs where id = %s for update", (locked,))
    told: list[Operated] = []
    running = asyncio.ensure_future(jobs(lab, queue="default").arun_now(progress=told.append))
    await until(lambda: len(told) > 1, "a second step has come back")
    assert told[0].changed == 2
    assert [(await lab.find(id)).state for id in (first, last)] == [JobState.READY] * 2
    await other.rollback()
    assert await within(20, running) == Operated(matched=3, changed=3)


async def test_what_stays_locked_is_skipped_and_said(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "AGAIN", course.AGAIN[:3])
    worker = await lab.worker()
    [ended] = await fail(lab, worker)
    live = await lab.push_one()
    other = await lab.connect(autocommit=False)
    await other.execute("select from prinia.jobs for update")
    await other.execute("select from prinia.archive for update")
    done = await within(20, jobs(lab, ids=[ended, live]).adelete())
    assert done == Operated(matched=2, skipped={"locked": 2})
    assert str(done) == "0 of 2 jobs changed; skipped: 2 locked"


async def test_a_job_that_a_claim_has_just_taken(lab: Lab) -> None:
    """The claim has the row until it commits; then the job runs, and does not meet the selection any more."""
    id = await lab.push_one()
    worker = await lab.worker()
    other = await lab.connect(autocommit=False)
    await other.execute(
        "update prinia.jobs set claimed_at = now(), owner = %s, token = 1, attempt = 1", (str(worker.id),)
    )
    told: list[Operated] = []
    running = asyncio.ensure_future(jobs(lab, state="ready").areprioritise(5, progress=told.append))
    await until(lambda: told, "the first step has come back")
    await other.commit()
    assert await within(20, running) == Operated(matched=1, skipped={"changed meanwhile": 1})
    assert (await lab.find(id)).priority == 0
    done = await jobs(lab, ids=[id]).areprioritise(5)
    assert done == Operated(matched=1, skipped={"running": 1})


async def test_a_job_that_an_ack_has_just_ended(lab: Lab) -> None:
    """It is found where it is now: a cancel says that it has completed, a delete deletes it there."""
    worker = await lab.worker()
    one, another = await lab.push(job(), job())
    claimed = await worker.collect(2)
    for claim, id in zip(claimed, (one, another), strict=True):
        other = await lab.connect(autocommit=False)
        await other.execute("select from prinia.jobs where id = %s for update", (id,))
        told: list[Operated] = []
        query = jobs(lab, ids=[id])
        operation = query.acancel if id == one else query.adelete
        running = asyncio.ensure_future(operation(progress=told.append))
        await until(partial(len, told), "the first step has come back")
        await other.rollback()
        if id == one:
            assert (await within(20, running)).changed == 1  # it was marked
            await worker.recorded(ack(claim, AckKind.COMPLETE))
            assert await query.acancel() == Operated(matched=1, skipped={"completed": 1})
        else:
            assert (await within(20, running)) == Operated(matched=1, skipped={"running": 1})
            await worker.recorded(ack(claim, AckKind.COMPLETE))
            assert await query.adelete() == Operated(matched=1, changed=1)


async def test_ids_that_have_vanished(lab: Lab) -> None:
    id = await lab.push_one(delay=60)
    assert await jobs(lab, ids=[id]).adelete() == Operated(matched=1, changed=1)
    for operation in ("acancel", "aretry", "arun_now", "adelete"):
        assert await getattr(jobs(lab, ids=[id, 77]), operation)() == Operated(missing=(id, 77))
    assert await jobs(lab, ids=[]).acancel() == Operated()


@pytest.mark.parametrize(
    "change",
    ["queue = 'elsewhere'", "priority = 9", "claimed_at = now(), attempt = 2"],
    ids=["moved", "kept", "claimed"],
)
@pytest.mark.parametrize("kind", [ChangeKind.CANCEL, ChangeKind.RUN_NOW, ChangeKind.DELETE])
async def test_a_row_that_changes_between_a_look_and_its_lock(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, kind: ChangeKind, change: str
) -> None:
    """What does not meet the selection any more stays as it is, what does is changed, and no error is lost."""
    worker = await lab.worker()
    id = await lab.push_one()
    await worker.recorded(ack(await worker.one(), AckKind.RETRY, delay=600, error=failure(1, "once")))
    # A statement waits for this lock once it has its snapshot.
    held = "j.queue = any (%(sel_queue)s::text[]) and (select pg_advisory_xact_lock_shared(7) is null) is not null"
    monkeypatch.setattr(operating, "live_condition", lambda selection: held)
    monkeypatch.setattr(operating, "LOCK_TIMEOUT", "20s")
    blocker = await lab.connect(autocommit=False)
    await blocker.execute("select pg_advisory_xact_lock(7)")
    running = asyncio.ensure_future(step(lab, kind, queue="default"))
    await somebody_waits(lab)
    await lab.rows(f"update prinia.jobs set {change} where id = %s", id)
    await blocker.rollback()
    batch = await within(20, running)
    assert list(batch.matched) == [id]
    if "elsewhere" in change:
        assert (batch.changed, dict(batch.skipped), list(batch.left)) == (0, {}, [id])
    if "claimed" in change:
        assert batch.changed == 0 or kind is ChangeKind.CANCEL
        assert (await lab.find(id)).state is JobState.RUNNING
    if batch.changed and kind is ChangeKind.DELETE:
        assert await count(lab) == (0, 0)
        assert await lab.value("select count(*) from prinia.attempts") == 0
    else:
        assert [error.message for error in (await lab.find(id)).errors] == ["once"]


@pytest.mark.parametrize("kind", [ChangeKind.REPRIORITISE, ChangeKind.MOVE, ChangeKind.RUN_NOW, ChangeKind.RETRY])
async def test_what_is_changed_lies_above_the_marks(lab: Lab, kind: ChangeKind) -> None:
    """A worker that has long passed the time at which a job was due finds it by its very next quick claim."""
    worker = await lab.worker("other")
    fields: dict[ChangeKind, dict[str, Any]] = {
        ChangeKind.REPRIORITISE: {"priority": 0},
        ChangeKind.MOVE: {"queue": "default"},
        ChangeKind.RUN_NOW: {"delay": 600},
    }
    one: dict[str, Any] = {"queue": "other", "priority": 7} | fields.get(kind, {})
    [id] = await fail(lab, worker, **one) if kind is ChangeKind.RETRY else await lab.push(job(**one))
    if kind is not ChangeKind.RUN_NOW:
        await lab.rows("update prinia.jobs set scheduled_at = scheduled_at - interval '1 minute'")
    late = await lab.push_one(queue="other", priority=7)
    assert [claimed.id for claimed in await worker.claimed(1)] == [late]
    for lane in inside(worker)._marks.lanes.values():
        lane.catching, lane.floor = False, lane.tip  # as after a while
    change = Change(kind=kind, priority=7, queue="other")
    operation = Step(change=change, selection=select(ids=[id]), by="Ada", ended=kind is ChangeKind.RETRY)
    assert (await lab.storage.aoperate(operation)).changed == 1
    assert [claimed.id for claimed in (await worker.claim(thorough=False)).jobs] == [id]


@pytest.mark.parametrize("outcome", ["commits", "rolls back", "stays open"])
async def test_a_redrive_beside_a_push_of_the_same_key(lab: Lab, monkeypatch: pytest.MonkeyPatch, outcome: str) -> None:
    """The push has the key if it commits. While it is open the others of the step come back without this one."""
    monkeypatch.setattr(operating, "LOCK_TIMEOUT", "50ms")
    worker = await lab.worker()
    if outcome == "stays open":
        monkeypatch.setattr(course, "AGAIN", [(0.01, 10), (0.01, 1)])
    [keyed] = await fail(lab, worker, unique=KEY)
    plain = await fail(lab, worker, number=12)
    pusher = await lab.connect(autocommit=False)
    await lab.storage.apush_within(pusher, [job(unique=KEY)])
    told: list[Operated] = []
    running = asyncio.ensure_future(jobs(lab, state="failed").aretry(progress=told.append))
    await until(lambda: told, "the first step has come back")
    assert told[0].changed == 0  # all of it was left
    if outcome == "commits":
        await pusher.commit()
        assert await within(20, running) == Operated(matched=13, changed=12, skipped={"unique key taken": 1})
    elif outcome == "rolls back":
        await pusher.rollback()
        assert await within(20, running) == Operated(matched=13, changed=13)
        assert (await lab.find(keyed)).state is JobState.READY
    else:
        assert await within(20, running) == Operated(matched=13, changed=12, skipped={"locked": 1})
        assert [(await lab.find(id)).state for id in plain] == [JobState.READY] * 12


async def test_a_push_waits_for_a_redrive_of_its_key(lab: Lab) -> None:
    """Two redrives and eight pushes of one key at once: one of them has it."""
    worker = await lab.worker()
    for _ in range(5):
        ids = await fail(lab, worker, unique=KEY)
        other = lab.another()
        answers = await asyncio.gather(
            step(lab, ChangeKind.RETRY, ended=True, ids=ids),
            step(other, ChangeKind.RETRY, ended=True, ids=ids),
            *(lab.storage.apush([job(unique=KEY)]) for _ in range(8)),
        )
        assert await lab.value("select count(*) from prinia.jobs where unique_hash is not null") == 1
        redriven = sum(answer.changed for answer in answers if isinstance(answer, Batch))
        assert redriven == (0 if await lab.value("select id from prinia.jobs") != ids[0] else 1)
        await jobs(lab, everything=True).adelete()
        assert await count(lab) == (0, 0)


async def test_eight_redrives_bring_each_job_back_once(lab: Lab) -> None:
    worker = await lab.worker()
    ids = await fail(lab, worker, number=300)
    done = await asyncio.gather(*(jobs(lab, state="failed").aretry(by=f"Ada {nr}") for nr in range(8)))
    assert sum(one.changed for one in done) == 300
    assert await count(lab) == (300, 0)
    assert sorted(one.id for one in await worker.collect(300)) == ids
    assert await lab.value("select sum(changed) from prinia.audit") == 300


async def test_everything_at_once(lab: Lab) -> None:
    """Workers claim and ack, people retry, cancel, move and delete: each job is in one place."""
    everything = set(await lab.push(*(job(priority=nr % 3) for nr in range(300))))
    stop = asyncio.Event()

    async def work(worker: StandIn) -> None:
        kinds = itertools.cycle([AckKind.COMPLETE, AckKind.FAIL, AckKind.RETRY, AckKind.SNOOZE])
        while not stop.is_set():
            claimed = await worker.claimed(20)
            acks = [ack(one, next(kinds)) for one in claimed]
            while acks:
                receipt = await worker.ack(*acks)
                acks = [one for one in acks if one.id in receipt.busy]
            await asyncio.sleep(0)

    async def operate(query: JobQuery, kind: ChangeKind, *args: Any) -> int:
        operation = getattr(query, f"a{kind}")
        return sum([(await operation(*args)).changed for _ in range(8)])

    workers = [await lab.worker("default", "other") for _ in range(3)]
    working = [asyncio.ensure_future(work(worker)) for worker in workers]
    retried, *_, deleted = await asyncio.gather(
        operate(jobs(lab, state=["failed", "completed"]), ChangeKind.RETRY),
        operate(jobs(lab, queue="default"), ChangeKind.MOVE, "other"),
        operate(jobs(lab, queue="other"), ChangeKind.REPRIORITISE, 5),
        operate(jobs(lab, state="retrying"), ChangeKind.RUN_NOW),
        operate(jobs(lab, state="ready"), ChangeKind.CANCEL),
        operate(jobs(lab, state="cancelled"), ChangeKind.DELETE),
    )
    stop.set()
    await within(30, asyncio.gather(*working))
    live, finished = await count(lab)
    both = await lab.value("select count(*) from prinia.jobs j join prinia.archive f on f.id = j.id")
    left = {id for (id,) in await lab.rows("select id from prinia.all_jobs")}
    assert both == 0
    assert len(left) == live + finished == len(everything) - deleted
    assert left <= everything
    assert retried > 0
    assert deleted > 0
    assert await lab.value("select count(*) from prinia.attempts t where not exists"
                           " (select from prinia.jobs j where j.id = t.job_id)") == 0  # fmt: skip


async def test_matches_far_apart_are_found(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step looks at so many rows and says how far it came; what lies beyond is found by the next."""
    monkeypatch.setattr(operating, "STRETCH", 10)
    ids = await lab.push(*(job(queue="rare" if nr % 25 == 24 else "default", delay=60) for nr in range(100)))
    batch = await step(lab, ChangeKind.RUN_NOW, queue="rare")
    assert (list(batch.matched), batch.after) == ([], ids[10])
    assert await jobs(lab, queue="rare").arun_now() == Operated(matched=4, changed=4)
    worker = await lab.worker()
    await fail(lab, worker, number=3)
    await jobs(lab, queue="default").acancel()
    assert (await jobs(lab, state="failed").aretry()).changed == 3


async def test_a_step_looks_at_its_stretch_by_an_index(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the statistics say: nothing reads the whole table, and nothing sorts it."""
    monkeypatch.setattr(operating, "STRETCH", 2000)
    spy, connection = Spy(), await lab.connect()
    await spy.watch(connection)

    @asynccontextmanager
    async def watched() -> AsyncIterator[Connection]:
        yield connection

    monkeypatch.setattr(lab.storage._pools, "aconnection", watched)  # type: ignore[attr-defined]
    await lab.rows("analyze prinia.jobs")
    await lab.fill(20_000, queue="case when n % 5000 = 0 then 'rare' else 'default' end")
    for state in ("analyzed when empty", "analyzed when full"):
        if state == "analyzed when full":
            await lab.rows("analyze prinia.jobs")
        batch = await step(lab, ChangeKind.REPRIORITISE, queue="nobody")
        plans = spy.taken()
        assert batch.after is not None, state
        scans = [node for plan in plans for node, _ in plan.nodes() if node.get("Relation Name") == "jobs"]
        assert {node["Node Type"] for node in scans} <= {"Index Scan", "Index Only Scan", "ModifyTable"}, state
        assert plans, state
        assert max(plan.handled for plan in plans) < 10_000, state


async def test_a_database_of_another_isolation(lab: Lab) -> None:
    """Where transactions are of repeatable read by default, an operation still sees what was committed meanwhile."""
    name = await lab.value("select current_database()")
    await lab.rows(f"alter database \"{name}\" set default_transaction_isolation = 'repeatable read'")
    other = lab.another()
    id = await lab.push_one(delay=60)
    assert await jobs(other, ids=[id]).arun_now() == Operated(matched=1, changed=1)
    blocker = await lab.connect(autocommit=False)
    await blocker.execute("lock table prinia.queues in access exclusive mode")
    running = asyncio.ensure_future(step(other, ChangeKind.CANCEL, ids=[id]))
    await somebody_waits(lab)
    await lab.rows("update prinia.jobs set priority = 9")
    await blocker.rollback()
    batch = await within(20, running)
    assert list(batch.matched) == [id]


async def test_a_cancel_where_the_archive_has_no_leaf(lab: Lab) -> None:
    id = await lab.push_one(delay=60)
    await lab.rows(
        "do $$ declare leaf text; begin for leaf in select l.leaf from prinia.leaves() l loop"
        " execute format('drop table prinia.%I', leaf); end loop; end $$"
    )
    assert await jobs(lab, ids=[id]).acancel() == Operated(matched=1, changed=1)
    again = await lab.push_one(delay=60)
    await lab.rows(
        "do $$ declare leaf text; begin for leaf in select l.leaf from prinia.leaves() l loop"
        " execute format('drop table prinia.%I', leaf); end loop; end $$"
    )
    assert await call(jobs(lab, ids=[again]).cancel) == Operated(matched=1, changed=1)


async def test_more_than_a_step_is_one_entry_of_the_audit(lab: Lab) -> None:
    await lab.fill(2 * STEP + 10)
    worker = await lab.worker()
    await worker.collect(10)
    done = await jobs(lab, queue="default").areprioritise(7, by="Ada")
    assert done == Operated(matched=2 * STEP + 10, changed=2 * STEP, skipped={"running": 10})
    [row] = await lab.rows('select by, operation, target, "values", changed, skipped from prinia.audit')
    assert row == ("Ada", "reprioritise", {"queue": ["default"]}, {"priority": 7}, 2 * STEP, 10)


async def test_old_histories_come_back_whatever_they_are(lab: Lab) -> None:
    """A row of the archive that was written by hand, without an error history that can be read, comes back too."""
    worker = await lab.worker()
    ids = await fail(lab, worker, number=2)
    await lab.rows("update prinia.archive set errors = '{}' where id = %s", ids[0])
    await lab.rows("update prinia.archive set errors = null where id = %s", ids[1])
    assert (await jobs(lab, state="failed").aretry()).changed == 2
    assert [(await lab.find(id)).errors for id in ids] == [(), ()]
