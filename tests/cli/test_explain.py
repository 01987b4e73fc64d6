"""``prinia explain``: with real jobs and workers, in text and in JSON.

Seen to fail with: situations of two moments put together; jobs ahead not counted; who told a worker left out; arguments
in the document.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from prinia import Cancel, Fixed, JobNotFound, Prinia, ReasonCode
from prinia.cli import main
from prinia.storage.memory import MemoryStorage
from prinia.testing.conformance import StandIn
from tests.postgres.kit import Lab, until

from .conftest import Cli


class Desk(Lab):
    """An app with tasks, and ``prinia explain`` beside it."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.app = Prinia(dsn)
        self.go_on = threading.Event()

        @self.app.task(name="send", queue="email")
        async def send() -> None: ...

        @self.app.task(name="stay", queue="email")
        def stay() -> None:
            self.go_on.wait(60)

        @self.app.task(name="fail", queue="email", retry=Fixed(3600))
        async def fail(secret: str) -> None:
            raise ValueError("no ink")

        @self.app.task(name="give_up", queue="email")
        async def give_up() -> None:
            raise Cancel("nobody wants it")

        self.send, self.stay, self.fail, self.give_up = send, stay, fail, give_up

    async def invoke(self, *arguments: str) -> str:
        """What a command prints that works."""
        done = await asyncio.to_thread(CliRunner().invoke, main, [*arguments, "--database-url", self.dsn])
        assert done.exit_code == 0, done.output
        return done.output

    async def explained(self, id: int) -> tuple[list[str], str]:
        """The codes of the reasons and the text, which must say what the JSON says."""
        document, codes = await self._document(id)
        while True:
            printed = await self.invoke("explain", str(id))
            before, (document, codes) = codes, await self._document(id)
            if codes == before:  # a real worker may have done something between two of them
                break
        assert set(document) == {"id", "at", "job", "reasons"}
        assert document["id"] == id
        assert [line for line in printed.splitlines() if line in list(ReasonCode)] == codes
        assert all(f"\n    -> {reason['advice'][:20]}" in printed for reason in document["reasons"])
        if document["job"] is not None:
            assert document["job"]["id"] == id
            assert not {"args", "result"} & set(document["job"])
            assert printed.startswith(f"job {id}: {document['job']['task']} in queue")
        return codes, printed

    async def _document(self, id: int) -> tuple[dict[str, Any], list[str]]:
        document = json.loads(await self.invoke("explain", str(id), "--json"))
        return document, [reason["code"] for reason in document["reasons"]]

    async def because(self, id: int, *codes: str) -> str:
        """It must be for these reasons; the text."""
        found, printed = await self.explained(id)
        assert found == list(codes), printed
        return printed

    async def until(self, id: int, code: str) -> str:  # type: ignore[override]
        """Ask until this is the first reason; the text."""

        async def is_it() -> bool:
            return (await self.app.aexplain(id)).reasons[0].code == code

        await until(is_it, f"job {id} is {code}")
        return (await self.explained(id))[1]


@pytest.fixture
async def desk(migrated: str) -> AsyncIterator[Desk]:
    """A database with nobody on it."""
    async with Desk(migrated) as desk, desk.app:
        yield desk
        desk.go_on.set()


async def stand_in(desk: Desk, **fields: Any) -> StandIn:
    """A worker driven by hand, on the register as this says."""
    worker = await desk.worker("email")
    columns = {"tasks": ["send", "stay"], "name": "w1"} | fields
    sets = ", ".join(f"{name} = %s" for name in columns)
    await desk.rows(f"update prinia.workers set {sets} where id = %s", *columns.values(), str(worker.id))
    return worker


async def test_due_later(desk: Desk) -> None:
    await stand_in(desk)
    later = await desk.send.options(delay=3600).aenqueue()
    assert "(in 59m" in await desk.because(later.id, "scheduled")
    await desk.rows("update prinia.jobs set scheduled_at = 'infinity' where id = %s", later.id)
    await desk.because(later.id, "blocked")


async def test_after_a_failed_attempt(desk: Desk) -> None:
    job = await desk.fail.aenqueue("geheim")
    async with desk.app.worker(name="w1"):
        printed = await desk.until(job.id, "retrying")
        assert "Attempt 1 of 5 has failed" in printed
        assert "the last error was ValueError: no ink" in printed
        assert "geheim" not in printed + await desk.invoke("explain", str(job.id), "--json")


async def test_whoever_paused_it(desk: Desk) -> None:
    await stand_in(desk)
    job = await desk.send.aenqueue()
    await desk.app.apause(queue="email", by="Ada")
    assert 'Its queue "email" is paused by Ada' in await desk.because(job.id, "queue_paused")
    await desk.app.apause(task="send", by="Bob")
    await desk.app.apause(everything=True, by="Eve")
    printed = await desk.because(job.id, "everything_paused", "queue_paused", "task_paused")
    assert "Everything is paused by Eve" in printed
    assert "Its task send is paused by Bob" in printed
    for command in ("--all", "email", "--task send"):
        assert f"prinia resume {command}" in printed
        await desk.invoke("resume", *command.split(), "--by", "Ada")  # what it advises is what helps
    await desk.because(job.id, "next")


async def test_nobody_serves_it(desk: Desk) -> None:
    job = await desk.send.aenqueue()
    assert "no worker is live at all" in await desk.because(job.id, "unserved")
    async with desk.app.worker(queues=["sms"], name="w9"):
        assert 'the live workers serve "sms" only' in await desk.because(job.id, "unserved")


async def test_nobody_knows_it(desk: Desk) -> None:
    job = await desk.app.aenqueue_by_name("newer", {}, queue="email")
    async with desk.app.worker(name="w1"):
        printed = await desk.until(job.id, "task_unknown")  # it is claimed once, and handed back
    assert 'Of the workers that serve its queue "email" none knows the task newer: w1.' in printed


async def test_everybody_was_told_to_claim_nothing(desk: Desk) -> None:
    async with desk.app.worker(name="w1") as worker:
        await desk.app.aquiet_worker(worker.instance.id, by="Ada")
        job = await desk.send.aenqueue()
        printed = await desk.because(job.id, "workers_told")
        assert "w1 (quiet by Ada)" in printed
        assert f"prinia workers resume {worker.instance.id}" in printed
        await desk.invoke("workers", "resume", str(worker.instance.id))
        await desk.until(job.id, "completed")


async def test_it_runs(desk: Desk) -> None:
    running = await desk.stay.aenqueue()
    async with desk.app.worker(name="w1", concurrency=1, heartbeat=0.1, dead_after=30.0) as worker:
        printed = await desk.until(running.id, "running")
        assert f"in worker w1 (pid {worker.instance.pid} on {worker.instance.host}, instance " in printed
        desk.go_on.set()
        await desk.until(running.id, "completed")


async def test_others_wait_behind_it(desk: Desk) -> None:
    # No real one: that claims a little ahead and hands back what it cannot start.
    worker = await stand_in(desk, concurrency=1)
    running = await desk.stay.aenqueue()
    assert (await worker.one()).id == running.id
    await worker.beat(started=[running.id])
    first, second = await desk.send.aenqueue(), await desk.send.aenqueue()
    assert "1 of 1 slots are taken (w1)" in await desk.because(first.id, "workers_full")
    assert "by priority or due time: 1 job." in await desk.because(second.id, "workers_full", "behind")
    await desk.invoke("jobs", "cancel", str(running.id), "--by", "Ada")
    assert "cancel requested by Ada" in await desk.because(running.id, "cancel_requested", "running")


async def test_its_worker_ails_and_dies(desk: Desk) -> None:
    dead, other = await stand_in(desk), await stand_in(desk, name="w2")
    job = await desk.send.aenqueue()
    assert (await dead.one()).id == job.id
    await dead.beat()
    await desk.because(job.id, "claimed")
    await dead.beat(started=[job.id])
    await desk.because(job.id, "running")
    await desk.rows("update prinia.workers set blocked = 7 where id = %s", str(dead.id))
    await desk.because(job.id, "worker_blocked")
    await desk.rows("update prinia.workers set beat_at = now() - interval '11 s' where id = %s", str(dead.id))
    assert "last heard of 11s ago, which is late" in await desk.because(job.id, "worker_late")
    await other.declare_dead(dead)
    assert "was declared dead" in await desk.because(job.id, "worker_dead")
    await desk.rows("delete from prinia.workers where id = %s", str(dead.id))
    await desk.because(job.id, "owner_unknown")


async def test_it_crashed_workers(desk: Desk) -> None:
    watcher = await stand_in(desk, name="w2")
    job = await desk.send.aenqueue()
    for _ in range(2):
        dying = await stand_in(desk)
        await dying.one()
        await watcher.bury(dying)
    assert "It was running in 2 crashes of workers" in await desk.because(job.id, "suspect")


async def test_all_that_could_run_it_ail(desk: Desk) -> None:
    worker = await stand_in(desk, blocked=7)
    job = await desk.send.aenqueue()
    await desk.because(job.id, "workers_blocked")
    await desk.rows("update prinia.workers set beat_at = now() - interval '1 min' where id = %s", str(worker.id))
    await desk.because(job.id, "workers_late")


async def test_deadlines(desk: Desk) -> None:
    await stand_in(desk)
    near = await desk.send.options(expires=30).aenqueue()
    await desk.because(near.id, "deadline_near")
    early = await desk.send.options(expires=3600).aenqueue()
    await desk.invoke("jobs", "reschedule", str(early.id), "--delay", "2h")
    await desk.because(early.id, "deadline_before_due", "scheduled")
    await desk.rows("update prinia.jobs set expires_at = now() where id = %s", near.id)
    await desk.because(near.id, "deadline_passed")
    async with desk.app.worker(name="w2"):
        await desk.until(near.id, "expired")


async def test_it_has_ended(desk: Desk) -> None:
    jobs = [
        await desk.send.aenqueue(),
        await desk.fail.options(max_attempts=1).aenqueue("x"),
        await desk.give_up.aenqueue(),
    ]
    async with desk.app.worker(name="w1"):
        await desk.until(jobs[0].id, "completed")
        printed = await desk.until(jobs[1].id, "failed")
        assert "after 1 attempt of 1" in printed
        assert "the last error was ValueError: no ink" in printed
        assert "(nobody wants it)" in await desk.until(jobs[2].id, "cancelled")


async def test_there_is_no_such_job(desk: Desk) -> None:
    printed = await desk.because(4711, "not_found")
    assert printed.startswith("not_found\n    There is no job 4711.\n    -> ")
    with pytest.raises(JobNotFound):
        await desk.app.aexplain(0)


async def test_it_is_of_one_moment(desk: Desk) -> None:
    """What changes between two statements is not seen: a job cannot be ready and its worker gone in one explanation."""
    await stand_in(desk)
    job = await desk.send.aenqueue()
    script = desk.app.storage._situation  # type: ignore[attr-defined]

    def interrupted(*args: Any) -> Any:
        going = script(*args)
        rows: Any = None
        while True:
            try:
                asked = going.send(rows)
            except StopIteration as end:
                return end.value
            rows = yield asked
            with psycopg.connect(desk.dsn, autocommit=True) as connection:
                connection.execute("delete from prinia.workers")

    desk.app.storage._situation = interrupted  # type: ignore[attr-defined]
    assert [reason.code for reason in (await desk.app.aexplain(job.id)).reasons] == ["next"]
    desk.app.storage._situation = script  # type: ignore[attr-defined]
    await desk.because(job.id, "unserved")


async def test_on_memory_it_is_the_same() -> None:
    app = Prinia(storage=MemoryStorage())

    @app.task(name="send", queue="email")
    async def send() -> None: ...

    async def codes(id: int) -> list[str]:
        return [reason.code.value for reason in (await app.aexplain(id)).reasons]

    job, later = await send.aenqueue(), await send.options(expires=1800).aenqueue()
    await app.jobs(ids=[later.id]).areschedule(delay=3600)
    assert await codes(job.id) == ["unserved"]
    await app.apause(queue="email", by="Ada")
    assert await codes(later.id) == ["queue_paused", "unserved", "deadline_before_due", "scheduled"]
    async with app.worker():
        assert await codes(job.id) == ["queue_paused"]
        await app.aresume(queue="email")
        await job.aresult(timeout=20)
        assert await codes(job.id) == ["completed"]
        assert await codes(99) == ["not_found"]
    explanation = await asyncio.to_thread(app.explain, job.id)
    assert str(explanation).startswith(f"job {job.id}: It completed at ")


def test_as_a_process(cli: Cli, migrated: str) -> None:
    id = Prinia(migrated).enqueue_by_name("greet", {"name": "Ada"}, queue="greetings").id
    done = cli.run("explain", str(id), "--json", PRINIA_APP="shop.jobs:app", PRINIA_DATABASE_URL=migrated)
    assert (done.returncode, done.stderr) == (0, "")
    assert [reason["code"] for reason in json.loads(done.stdout)["reasons"]] == ["unserved"]


def test_what_cannot_be_explained(new_migrated: Callable[[], str], database: str) -> None:
    runner = CliRunner()
    done = runner.invoke(main, ["explain", "1", "--database-url", database])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("prinia: Prinia's tables in schema 'prinia' are missing")
    assert "run: prinia migrate" in done.stderr
    for id in ("x", "1.5"):
        assert runner.invoke(main, ["explain", id, "--database-url", new_migrated()]).exit_code == 2
    done = runner.invoke(main, ["explain", "0", "--database-url", new_migrated()])
    assert (done.exit_code, done.stderr) == (1, "prinia: there is no job 0: ids are whole numbers, 1 or more\n")
