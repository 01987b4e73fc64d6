"""Pauses of queues, tasks and everything, commands to single workers, and the audit of it all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from prinia.changes import AuditEntry, Change, ChangeKind, Paused, PauseKind, Step, WorkerCommand
from prinia.errors import WorkerNotFound
from prinia.job import JobState
from prinia.selection import select
from prinia.testing.conformance.bench import Bench, ConformanceBase, StandIn, call, job, promise

_PAUSES: tuple[tuple[PauseKind, str], ...] = (("queue", "default"), ("task", "conformance"), ("everything", ""))


async def audit(bench: Bench, **fields: Any) -> Sequence[AuditEntry]:
    """The audit, latest first."""
    return await bench.storage.aaudit(**{"before": None, "limit": 100, "by": None, "operation": None} | fields)


class PausePromises(ConformanceBase):
    """What is paused is not claimed, by nobody, and does not keep workers awake; resumed, it goes on at once."""

    @promise
    async def test_what_is_paused_is_not_claimed(self, bench: Bench) -> None:
        """Nothing of a paused queue, of a paused task, or at all, is claimed; a worker is not told that it is due."""
        for kind, name in _PAUSES:
            worker = await bench.worker()
            id = await bench.push_one()
            await bench.push_one(delay=5)
            assert await bench.storage.apause(kind, name, by="Ada")
            claim = await worker.claim()
            assert (list(claim.jobs), claim.next_due, claim.suspects) == ([], None, False), kind
            assert await bench.storage.aresume(kind, name, by="Ada")
            assert [claimed.id for claimed in await worker.collect(1)] == [id], kind
            claim = await worker.claim()
            assert claim.next_due is not None

    @promise
    async def test_others_go_on(self, bench: Bench) -> None:
        """Jobs of other tasks in the queue of a paused one are claimed, in their order, and so are other queues."""
        await bench.storage.apause("task", "paused", by="Ada")
        await bench.storage.apause("queue", "email", by="Ada")
        ids = await bench.push(job(task="paused"), job(), job(task="paused", priority=9), job(), job(queue="email"))
        worker = await bench.worker("default", "email")
        assert await worker.claimed_ids() == [ids[1], ids[3]]
        assert await worker.claimed_ids() == []

    @promise
    async def test_what_was_passed_over_is_found(self, bench: Bench) -> None:
        """A worker that ran other jobs while a task was paused finds those of the task once it goes on."""
        worker = await bench.worker()
        await bench.storage.apause("task", "paused", by="Ada")
        paused = await bench.push(*(job(task="paused") for _ in range(3)))
        await bench.push(*(job() for _ in range(3)))
        assert len(await worker.claimed()) == 3
        assert await worker.claimed() == []
        later = await bench.push_one()
        assert await worker.claimed_ids() == [later]
        await bench.storage.aresume("task", "paused", by="Ada")
        assert sorted([claimed.id for claimed in await worker.collect(3)]) == paused

    @promise
    async def test_suspects_are_paused_too(self, bench: Bench) -> None:
        """A job that has to run alone is not claimed either, nor is a worker told that there is one."""
        id = await bench.push_one()
        for _ in range(2):
            dead, other = await bench.worker(), await bench.worker()
            await dead.one()
            await other.bury(dead)
        worker = await bench.worker()
        for kind, name in _PAUSES:
            await bench.storage.apause(kind, name, by="Ada")
            assert await worker.claimed(alone=True) == [], kind
            assert not (await worker.claim()).suspects, kind
            await bench.storage.aresume(kind, name, by="Ada")
        assert (await worker.claim()).suspects
        assert (await worker.one(alone=True)).id == id

    @promise
    async def test_running_jobs_go_on(self, bench: Bench) -> None:
        """What was claimed before the pause ends as it likes."""
        worker = await bench.worker()
        for kind, name in _PAUSES:
            id = await bench.push_one()
            claimed = await worker.one()
            await bench.storage.apause(kind, name, by="Ada")
            await bench.finish(claimed, worker)
            await bench.in_state(id, JobState.COMPLETED)
            await bench.storage.aresume(kind, name, by="Ada")

    @promise
    async def test_a_resume_wakes_a_sleeper(self, bench: Bench) -> None:
        """Whoever sleeps is woken, whatever was paused."""
        worker = await bench.worker()
        for kind, name in _PAUSES:
            await bench.storage.apause(kind, name, by="Ada")
            await bench.push_one()
            while not await worker.consumer.bell.arm():
                await worker.claim()
            await bench.storage.aresume(kind, name, by="Ada")
            assert await worker.consumer.bell.wait(bench.patience), f"slept through the end of a pause of {kind}"
            await worker.consumer.bell.disarm()

    @promise
    async def test_pauses_are_told(self, bench: Bench) -> None:
        """What is paused reads back, with who did it; a worker is told of its own queues, of tasks, of everything."""
        worker = await bench.worker("default", "email")
        assert (await worker.consumer.orders()).paused == Paused()
        for kind, name in (("task", "b"), ("queue", "email"), ("task", "a"), ("queue", "other"), ("everything", "")):
            assert await bench.storage.apause(kind, name, by=f"Ada {name}")  # type: ignore[arg-type]
            assert not await bench.storage.apause(kind, name, by="Bob")  # type: ignore[arg-type]
        pauses = await bench.storage.apauses()
        assert list(await call(bench.storage.pauses)) == list(pauses)
        assert [(pause.kind, pause.name, pause.by) for pause in pauses] == [
            ("everything", "", "Ada "), ("queue", "email", "Ada email"), ("queue", "other", "Ada other"),
            ("task", "a", "Ada a"), ("task", "b", "Ada b"),
        ]  # fmt: skip
        paused = (await worker.consumer.orders()).paused
        assert paused == Paused(frozenset({"email"}), frozenset({"a", "b"}), everything=True)
        for pause in pauses:
            assert await call(bench.storage.resume, pause.kind, pause.name, by="Ada")
            assert not await bench.storage.aresume(pause.kind, pause.name, by="Ada")
        assert list(await bench.storage.apauses()) == []


class CommandPromises(ConformanceBase):
    """Single workers can be told to claim nothing more, or to stop; what is done from outside is kept, with who."""

    @promise
    async def test_a_worker_with_a_command_claims_nothing(self, bench: Bench) -> None:
        """From the command on it gets nothing and is told of nothing due, however it asks; others go on."""
        told, other = await bench.worker(), await bench.worker()
        suspect = await bench.push_one()
        for _ in range(2):
            dead = await bench.worker()
            await dead.one()
            await other.bury(dead)
        for command in (WorkerCommand.QUIET, WorkerCommand.PAUSE):
            assert await bench.storage.acommand_worker(told.id, command, by="Ada")
            assert (await told.consumer.orders()).command is command
            assert (await other.consumer.orders()).command is None
            id = await bench.push_one()
            claim = await told.claim()
            assert (list(claim.jobs), claim.next_due, claim.suspects) == ([], None, False)
            assert await told.claimed(alone=True) == []
            assert await other.claimed_ids() == [id]
        id = await bench.push_one()
        assert await bench.storage.acommand_worker(told.id, None, by="Ada")
        assert (await told.consumer.orders()).command is None
        assert await told.claimed_ids() == [id]
        assert (await told.claim()).suspects
        assert (await told.one(alone=True)).id == suspect

    @promise
    async def test_its_running_jobs_go_on(self, bench: Bench) -> None:
        """What it claimed before it may ack."""
        worker = await bench.worker()
        id = await bench.push_one()
        claimed = await worker.one()
        await bench.storage.acommand_worker(worker.id, WorkerCommand.PAUSE, by="Ada")
        await bench.finish(claimed, worker)
        await bench.in_state(id, JobState.COMPLETED)

    @promise
    async def test_a_command_is_new_once(self, bench: Bench) -> None:
        """The same command again is nothing new, and a stop is the last word; both colours say the same."""
        worker = await bench.worker()
        storage = bench.storage
        assert not await storage.acommand_worker(worker.id, None, by="Ada")
        assert await call(storage.command_worker, worker.id, WorkerCommand.QUIET, by="Ada")
        assert not await storage.acommand_worker(worker.id, WorkerCommand.QUIET, by="Ada")
        assert await storage.acommand_worker(worker.id, WorkerCommand.STOP, by="Ada")
        for command in (None, WorkerCommand.QUIET, WorkerCommand.STOP):
            assert not await storage.acommand_worker(worker.id, command, by="Ada")
        assert (await worker.consumer.orders()).command is WorkerCommand.STOP

    @promise
    async def test_who_is_not_there_cannot_be_told(self, bench: Bench) -> None:
        """A worker that has left, that was declared dead, or that never was, is an error."""
        left, dead, other = await bench.worker(), await bench.worker(), await bench.worker()
        await left.close()
        await other.declare_dead(dead)
        for instance in (left.id, dead.id, uuid4()):
            try:
                await bench.storage.acommand_worker(instance, WorkerCommand.QUIET, by="Ada")
            except WorkerNotFound as error:
                assert str(instance) in str(error)
            else:
                raise AssertionError("a worker that is not there was told something")

    @promise
    async def test_a_command_summons(self, bench: Bench) -> None:
        """A worker that listens hears that there are orders, also when it is told before it waits."""
        worker, deaf = await bench.worker(), await bench.worker(listen=False)
        await self._settled(worker)
        unheard = asyncio.create_task(deaf.consumer.bell.summons())
        await bench.storage.acommand_worker(worker.id, WorkerCommand.QUIET, by="Ada")
        async with asyncio.timeout(bench.patience):
            await worker.consumer.bell.summons()
        waiting = asyncio.create_task(worker.consumer.bell.summons())
        await asyncio.sleep(0)
        await call(bench.storage.command_worker, worker.id, None, by="Ada")
        async with asyncio.timeout(bench.patience):
            await waiting
        assert not unheard.done()
        unheard.cancel()

    async def _settled(self, worker: StandIn) -> None:
        """Hear what there is to hear of the beginning."""
        waiting = asyncio.create_task(worker.consumer.bell.summons())
        await asyncio.wait([waiting], timeout=0.05)
        waiting.cancel()

    @promise
    async def test_a_new_life_keeps_its_command(self, bench: Bench) -> None:
        """An instance that says with what command it begins has that command."""
        worker = await bench.worker(command=WorkerCommand.QUIET)
        await bench.push_one()
        assert await worker.claimed() == []
        assert (await worker.consumer.orders()).command is WorkerCommand.QUIET

    @promise
    async def test_everything_is_in_the_audit(self, bench: Bench) -> None:
        """Who did what, to what, and how many jobs it was, latest first; steps of one operation are one entry."""
        storage, worker = bench.storage, await bench.worker()
        await bench.push(*(job(priority=1) for _ in range(3)))
        await worker.one()
        change, selection = Change(kind=ChangeKind.REPRIORITISE, priority=5), select(queue="default")
        first = await storage.aoperate(Step(change=change, selection=selection, by="Ada"))
        assert first.note is not None
        more = Step(change=change, selection=selection, by="Ada", note=first.note)
        assert (await storage.aoperate(more)).note == first.note
        await storage.apause("task", "conformance", by="Bob")
        await storage.aresume("task", "conformance", by="Bob")
        await storage.acommand_worker(worker.id, WorkerCommand.QUIET, by="Cy")
        entries = await audit(bench)
        assert [(one.by, one.operation, dict(one.target)) for one in entries] == [
            ("Cy", "quiet_worker", {"instance": str(worker.id)}),
            ("Bob", "resume", {"task": "conformance"}),
            ("Bob", "pause", {"task": "conformance"}),
            ("Ada", "reprioritise", {"queue": ["default"]}),
        ]
        oldest = entries[-1]
        assert (oldest.id, oldest.changed, oldest.skipped, dict(oldest.values)) == (first.note, 2, 4, {"priority": 5})
        assert oldest.at <= entries[0].at

    @promise
    async def test_the_audit_is_read_in_pages(self, bench: Bench) -> None:
        """By what was done, by whom, and before which entry; what changed nothing left no entry."""
        for number in range(5):
            by = "Ada" if number % 2 else "Bob"
            await bench.storage.apause("queue", f"queue {number}", by=by)
            await bench.storage.apause("queue", f"queue {number}", by=by)
        await bench.storage.aresume("queue", "queue 0", by="Ada")
        everything = await audit(bench)
        assert len(everything) == 6
        assert list(await audit(bench, limit=2)) == list(everything[:2])
        assert list(await audit(bench, before=everything[1].id)) == list(everything[2:])
        assert {one.by for one in await audit(bench, by="Bob")} == {"Bob"}
        [resumed] = await call(bench.storage.audit, before=None, limit=9, by="Ada", operation="resume")
        assert resumed == everything[0]

    @promise
    async def test_names_may_hold_anything(self, bench: Bench) -> None:
        """What cannot be stored of who did it is written so that it can."""
        worker = await bench.worker()
        by = "Ada \0 \ud800 é"
        await bench.push_one()
        await bench.storage.apause("queue", "a", by=by)
        await bench.storage.acommand_worker(worker.id, WorkerCommand.QUIET, by=by)
        await bench.storage.aoperate(
            Step(change=Change(kind=ChangeKind.CANCEL), selection=select(queue="default"), by=by)
        )
        names = {entry.by for entry in await audit(bench)}
        assert len(names) == 1
        assert "Ada" in names.pop()
