"""Plans: hot statements walk the index they are meant to walk, whatever the statistics say.

Each state is one that a table of a queue really gets into; the statements are those that ran, prepared and with the
settings of the worker's own connections. Seen to fail with: `enable_seqscan` or `enable_bitmapscan` left on,
`enable_nestloop` left on for acks, "limit_key is null" in the look for suspects, "exists" over the archive in settle,
a sort above "for update", the error histories of an ack and the claims of `held` joined row by row.

PRINIA_TEST_PLAN_ROWS sets how many rows the tables have.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import pytest

from prinia.outcome import AckKind
from prinia.storage.postgres import connection, consumer
from prinia.testing.conformance.bench import StandIn, ack, call, job

from .kit import Lab, Plan, Spy, inside

ROWS = int(os.environ.get("PRINIA_TEST_PLAN_ROWS", "20000"))
BATCH = 100
#: So many rows may all nodes of a statement together handle for each job.
HANDLED_PER_JOB = 60
#: And so many buffers may it touch.
BUFFERS_PER_JOB = 40


async def fresh(lab: Lab) -> None:
    """Never analyzed."""
    await lab.fill(ROWS)


async def analyzed_when_empty(lab: Lab) -> None:
    """Statistics say that there is nothing."""
    await lab.rows("analyze prinia.jobs, prinia.attempts, prinia.archive")
    await lab.fill(ROWS)


async def analyzed_when_full(lab: Lab) -> None:
    """Statistics that are right."""
    await lab.fill(ROWS)
    await lab.rows("analyze prinia.jobs, prinia.attempts, prinia.archive")


async def mostly_finished(lab: Lab) -> None:
    """Statistics of a full table, which is dead rows mostly, and as many in the archive."""
    await lab.fill(ROWS)
    await lab.rows("analyze prinia.jobs, prinia.attempts, prinia.archive")
    await lab.rows(
        "with gone as (delete from prinia.jobs where id <= %s returning *)"
        " insert into prinia.archive (id, drop_at, scheduled_at, created_at, attempt, max_attempts, priority, crashes,"
        " max_crashes, rerun_after_crash, state, queue, task, codec, args)"
        " select id, now() + interval '1 day', scheduled_at, created_at, 1, 5, 0, 0, 3, true, 'completed', queue, task,"
        " codec, args from gone",
        ROWS - 5000,
    )


async def claimed_since(lab: Lab) -> None:
    """Analyzed while nothing was claimed, then most of it claimed by others."""
    await lab.fill(ROWS)
    await lab.rows("analyze prinia.jobs, prinia.attempts, prinia.archive")
    await lab.rows(
        "update prinia.jobs set claimed_at = now(), owner = '00000000-0000-0000-0000-000000000001', token = id,"
        " attempt = 1 where id <= %s",
        ROWS - 5000,
    )


State = Callable[[Lab], Awaitable[None]]
STATES: list[State] = [fresh, analyzed_when_empty, analyzed_when_full, mostly_finished, claimed_since]


class Course:
    """Everything a worker does, with the plans it took, by the file of the statement."""

    def __init__(self, lab: Lab, worker: StandIn, spy: Spy) -> None:
        self._lab = lab
        self._worker = worker
        self._spy = spy
        self.plans: dict[str, Plan] = {}

    def _took(self, name: str, marker: str) -> None:
        plans = [plan for plan in self._spy.taken() if marker in plan.text]
        assert plans, f"{name} did not run"
        # One claim in many catches up, over all that runs.
        choose = min if name == "claim" else max
        self.plans[name] = choose(plans, key=lambda plan: plan.buffers)

    async def run(self) -> None:
        """All of it."""
        lab, worker = self._lab, self._worker
        await lab.rows("alter table prinia.jobs set (autovacuum_enabled = off)")
        await worker.claim(BATCH)  # the marks get to know the lane, stepping over what others run
        self._spy.taken()
        claims = [(await worker.claim(BATCH, thorough=False)).jobs for _ in range(5)]
        self._took("claim", "skip locked")
        completed, retried, failed, snoozed, kept = claims
        await worker.recorded(*(ack(job, AckKind.COMPLETE) for job in completed))
        self._took("complete", "as a (id, token, result)")
        await worker.recorded(*(ack(job, AckKind.RETRY) for job in retried))
        self._took("ack: retry", "error_attempt integer")
        await worker.recorded(*(ack(job, AckKind.FAIL) for job in failed))
        self._took("ack: fail", "error_attempt integer")
        await worker.recorded(*(ack(job, AckKind.SNOOZE) for job in snoozed))
        self._took("ack: snooze", "error_attempt integer")
        await worker.recorded(*(ack(job, AckKind.COMPLETE) for job in completed))
        self._took("settle", "'busy'")
        assert await worker.consumer.recover([], kept) == frozenset()
        self._took("held", "select j.id, j.token")
        assert await call(lab.storage.cancel, [job.id for job in kept[:10]], by="test") == 10
        self._spy.taken()
        assert len(await worker.consumer.cancel_requests()) == 10
        self._took("cancel_requests", "'cancelled by '")
        await worker.recorded(*(ack(job, AckKind.COMPLETE) for job in kept))
        self._spy.taken()
        await worker.claim(1, alone=True)
        self._took("claim_alone", "limit 1")
        inside(worker).exclude("conformance")
        await worker.claim(1)
        self._took("look", "passed as")
        await call(lab.storage.cancel, [job.id for job in retried], by="test")
        await lab.rows(
            "update prinia.jobs set expires_at = now()"
            " where id in (select id from prinia.jobs where claimed_at is null limit 100)"
        )
        assert await call(worker.pulse.sweep_expired) == 100
        self._took("sweep_expired", "expires_at <= statement_timestamp() and e.claimed_at is null")


@pytest.fixture
async def course(lab: Lab) -> Course:
    worker = await lab.worker()
    spy = Spy()
    await spy.watch_worker(worker)
    line = worker.pulse._line  # type: ignore[attr-defined]
    spy.watch_sync(await call(line.connect))
    return Course(lab, worker, spy)


#: The index that each statement finds its jobs by.
INDEXES = {
    "claim": {"jobs_ready", "jobs_suspect"},
    "complete": {"jobs_pkey"},
    "ack: retry": {"jobs_pkey"},
    "ack: fail": {"jobs_pkey"},
    "ack: snooze": {"jobs_pkey"},
    "settle": {"jobs_pkey"},
    "held": {"jobs_pkey"},
    "cancel_requests": {"jobs_cancelling"},
    "claim_alone": {"jobs_suspect"},
    "look": {"jobs_ready"},
    "sweep_expired": {"jobs_pkey", "jobs_expiring"},
}


def faults(plans: dict[str, Plan]) -> list[str]:
    """What is wrong with these plans, in words."""
    found = []
    for name, plan in plans.items():
        indexes = {
            node["Index Name"]
            for node, _ in plan.nodes()
            if node.get("Relation Name") == "jobs" and "Index Name" in node
        }
        scans = [node for node, _ in plan.nodes() if node["Node Type"] in ("Seq Scan", "Bitmap Heap Scan")]
        found += [f"{name}: {node['Node Type']} on {node.get('Relation Name')}" for node in scans]
        if indexes != INDEXES[name]:
            found.append(f"{name}: jobs by {sorted(indexes)}")
        if plan.handled > HANDLED_PER_JOB * BATCH:
            found.append(f"{name}: {plan.handled} rows handled")
        if plan.buffers > BUFFERS_PER_JOB * BATCH:
            found.append(f"{name}: {plan.buffers} buffers")
    found += order_faults(plans["claim"])
    return found


def order_faults(plan: Plan) -> list[str]:
    """The claim locks rows in the order of the index, one by one as they are asked for."""
    locks = [(node, above) for node, above in plan.nodes() if node["Node Type"] == "LockRows"]
    found = []
    for node, above in locks:
        over = [step["Node Type"] for step in above[::-1]]
        over = over[: over.index("ModifyTable")] if "ModifyTable" in over else over
        if not set(over) <= {"Limit", "Subquery Scan", "Nested Loop"}:
            found.append(f"claim: {over} above the lock")
        if [child["Node Type"] for child in node["Plans"]] != ["Index Scan"]:
            found.append("claim: rows are not locked as the index gives them")
    return found if locks else ["claim: nothing is locked"]


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
async def test_hot_statements_walk_their_indexes(lab: Lab, course: Course, state: State) -> None:
    await state(lab)
    await course.run()
    assert faults(course.plans) == []


@pytest.mark.parametrize("setting", ["enable_seqscan"])
async def test_without_the_settings_plans_flip(lab: Lab, monkeypatch: pytest.MonkeyPatch, setting: str) -> None:
    """What the settings are for."""
    for name in ("HOT_SETTINGS", "CLAIM_SETTINGS"):
        settings = {key: value for key, value in getattr(consumer, name).items() if key != setting}
        monkeypatch.setattr(consumer, name, settings)
    worker = await lab.worker()
    spy = Spy()
    await spy.watch_worker(worker)
    await analyzed_when_empty(lab)
    await worker.claim(BATCH)
    jobs = (await worker.claim(BATCH)).jobs
    await worker.recorded(*(ack(job, AckKind.COMPLETE) for job in jobs))
    assert any(node["Node Type"] == "Seq Scan" for plan in spy.taken() for node, _ in plan.nodes())
    assert setting in connection.HOT_SETTINGS


async def test_a_sort_above_the_lock_is_noticed(lab: Lab) -> None:
    """The check sees what it is there for."""
    worker = await lab.worker()
    spy = Spy()
    await spy.watch_worker(worker)
    consumer = inside(worker)
    consumer._statements[100] = consumer._statements[100].replace(
        b"             ) hit\n", b"             ) hit order by random()\n"
    )
    await lab.fill(500)
    await worker.claim(BATCH)
    [*_, plan] = [plan for plan in spy.taken() if "order by random()" in plan.text]
    assert order_faults(plan)


@pytest.mark.parametrize("errors", [1, 19])
async def test_acks_of_many_with_histories(lab: Lab, errors: int) -> None:
    """A thousand jobs fail for good at once, each with its error history."""
    worker = await lab.worker()
    await lab.push(*[job() for _ in range(1000)])
    jobs = await worker.claimed(1000)
    await lab.rows(
        "insert into prinia.attempts (job_id, attempt, kind, message)"
        f" select id, n, 'ValueError', 'boom' from prinia.jobs, generate_series(1, {errors}) n"
    )
    spy = Spy()
    await spy.watch_worker(worker)
    await worker.recorded(*(ack(job, AckKind.FAIL) for job in jobs))
    [plan] = [plan for plan in spy.taken() if "error_attempt integer" in plan.text]
    assert plan.handled < 1000 * (60 + 20 * errors)
    assert len((await lab.find(jobs[0].id)).errors) == errors + 1


@pytest.mark.parametrize("kind", [AckKind.COMPLETE, AckKind.RETRY, AckKind.SNOOZE, AckKind.CANCEL])
async def test_acks_of_a_thousand(lab: Lab, kind: AckKind) -> None:
    """What grows with the square of a flush would show here."""
    worker = await lab.worker()
    await lab.fill(1000)
    jobs = await worker.claimed(1000)
    spy = Spy()
    await spy.watch_worker(worker)
    await worker.recorded(*(ack(job, kind) for job in jobs))
    assert max(plan.handled for plan in spy.taken()) < 1000 * HANDLED_PER_JOB
    assert await worker.consumer.recover([], jobs) is not None
    assert max(plan.handled for plan in spy.taken()) < 1000 * HANDLED_PER_JOB
