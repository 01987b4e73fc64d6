"""Orders on a real server: workers that sleep hear of them by a notification, others look; and pauses beside marks.

Seen to fail with: no notification of a command; marks kept when a pause ends; the command of a worker ignored by a
claim, by the look before sleeping, by the look for suspects; a paused task that keeps its worker awake.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from prinia import Prinia
from prinia.changes import WorkerCommand
from prinia.job import JobState
from prinia.testing.conformance.bench import job
from prinia.worker import Worker
from prinia.worker import orders as orders_module

from .kit import Lab, Spy, inside, terminate, until, within
from .test_waking import asleep

#: Of ticks: never, as far as these tests go.
NEVER = 10**9


@pytest.fixture
def app(lab: Lab) -> Prinia:
    app = Prinia(lab.dsn)

    @app.task(name="greet")
    async def greet(name: str) -> str:
        return name

    return app


def told(worker: Worker) -> WorkerCommand | None:
    """What the worker has heard."""
    return None if worker._equipment is None else worker._equipment.hold.command


async def test_a_sleeping_worker_hears_by_notification(lab: Lab, app: Prinia, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no look at all until it is summoned: quiet, on again, and stopped; and of two the one that is meant."""
    monkeypatch.setattr(orders_module, "NET", NEVER)
    async with app, app.worker() as meant, app.worker() as other:
        await asleep(lab, "default")
        assert await app.aquiet_worker(meant.instance.id, by="Ada")
        await until(lambda: told(meant) is WorkerCommand.QUIET, "it is quiet")
        job = await app.tasks["greet"].aenqueue("Ada")
        assert await job.aresult(timeout=20) == "Ada"
        assert (await job.ainfo()).owner == other.instance.id
        assert await app.aresume_worker(meant.instance.id, by="Ada")
        await until(lambda: told(meant) is None, "it goes on")
        assert await app.astop_worker(meant.instance.id, by="Ada")
        await until(lambda: meant.health().state == "stopped", "it has stopped")
        assert told(other) is None
    assert [entry.operation for entry in await Prinia(lab.dsn).aaudit()] == [
        "stop_worker", "resume_worker", "quiet_worker",
    ]  # fmt: skip


async def test_a_worker_that_does_not_listen_looks(lab: Lab, app: Prinia, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders_module, "NET", NEVER)
    async with app, app.worker(listen=False, poll=3600) as worker:
        assert await app.astop_worker(worker.instance.id, by="Ada")
        await until(lambda: worker.health().state == "stopped", "it has stopped")


async def test_what_was_said_while_nobody_could_hear(lab: Lab, app: Prinia, monkeypatch: pytest.MonkeyPatch) -> None:
    """A LISTEN connection that was lost and is back is reason enough to look."""
    monkeypatch.setattr(orders_module, "NET", NEVER)
    monkeypatch.setattr(orders_module, "UNHEARD", NEVER)
    async with app, app.worker() as worker:
        await asleep(lab, "default")
        await lab.rows("update prinia.workers set command = 'quiet'")  # without a word
        assert await asyncio.to_thread(terminate, lab.dsn, "application_name = 'prinia listener'")
        await until(lambda: told(worker) is WorkerCommand.QUIET, "it has looked")


async def test_a_command_is_in_effect_before_it_is_heard(lab: Lab) -> None:
    """The claim itself looks, and so does what it says of the next due time."""
    worker = await lab.worker()
    await lab.push(job(), job(delay=5))
    assert await lab.storage.acommand_worker(worker.id, WorkerCommand.QUIET, by="Ada")
    claim = await worker.claim()
    assert (list(claim.jobs), claim.next_due, claim.suspects) == ([], None, False)


@pytest.mark.parametrize(
    "pause", [("task", "paused"), ("queue", "email"), ("everything", "")], ids=lambda pause: str(pause[0])
)
async def test_marks_are_dropped_when_a_pause_begins_and_ends(lab: Lab, pause: tuple[Any, str]) -> None:
    """What a worker passed over while it was paused is claimed by its very next thorough claim."""
    worker = await lab.worker("default", "email")
    await lab.push(job(), job(queue="email"))
    await worker.collect(2)
    ids = await lab.push(*(job(task="paused", queue="email") for _ in range(5)))
    await lab.storage.apause(*pause, by="Ada")
    await lab.push(job(), job())
    for _ in range(3):
        await worker.claim()  # passes over what is paused, and lets its tips go on
    for lane in inside(worker)._marks.lanes.values():
        lane.catching, lane.floor = False, lane.tip  # as after a while
    await lab.storage.aresume(*pause, by="Ada")
    assert [one.id for one in await worker.claimed() if one.task == "paused"] == ids


async def test_a_paused_task_lets_its_worker_sleep(lab: Lab, app: Prinia) -> None:
    """A worker that has nothing but paused jobs asks the server nothing."""
    await app.apause(task="greet", by="Ada")
    async with app, app.worker(poll=3600) as worker:
        job = await app.tasks["greet"].aenqueue("Ada")
        await asleep(lab, "default")
        assert worker._life is not None
        claims = worker._life._consumer._claims  # type: ignore[attr-defined]
        spy = Spy()
        await spy.watch(await claims.connect())
        # Orders and heartbeats go on meanwhile, on other connections.
        await lab.rows("select pg_sleep(0.2)")
        assert spy.taken() == []
        assert (await job.ainfo()).state is JobState.READY
        assert await app.aresume(task="greet", by="Ada")
        assert await within(20, job.aresult(timeout=20)) == "Ada"


async def test_old_workers_know_of_paused_queues_alone(lab: Lab) -> None:
    """A worker of an older Prinia registers, claims and leaves on this schema as it did."""
    id = await lab.push_one()
    await lab.rows(
        "insert into prinia.workers (id, name, queues, tasks, host, pid, version, concurrency)"
        " values ('00000000-0000-0000-0000-000000000001', 'old', '{default}', '{}', 'h', 1, '0.1', 1)"
    )
    claim = (
        "update prinia.jobs set owner = '00000000-0000-0000-0000-000000000001', token = 1, claimed_at = now(),"
        " attempt = 1 where id = %s and (select q.paused_at from prinia.queues q where q.name = queue) is null"
        " and (select w.died_at is null from prinia.workers w where w.id = '00000000-0000-0000-0000-000000000001')"
        " returning id"
    )
    await lab.storage.apause("queue", "default", by="Ada")
    assert await lab.rows(claim, id) == []
    await lab.storage.aresume("queue", "default", by="Ada")
    assert await lab.rows(claim, id) == [(id,)]
