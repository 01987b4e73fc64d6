"""Operations on many jobs from outside, step by step."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from prinia.changes import STEP, Batch, Change, ChangeKind, Step
from prinia.job import JobRecord, JobState
from prinia.options import unique_key
from prinia.outcome import AckKind
from prinia.selection import Selection, select
from prinia.testing.conformance.bench import Bench, ConformanceBase, StandIn, ack, call, failure, job, promise

_CHANGES = {
    ChangeKind.CANCEL: Change(kind=ChangeKind.CANCEL),
    ChangeKind.RETRY: Change(kind=ChangeKind.RETRY),
    ChangeKind.RUN_NOW: Change(kind=ChangeKind.RUN_NOW),
    ChangeKind.RESCHEDULE: Change(kind=ChangeKind.RESCHEDULE, delay=600.0),
    ChangeKind.REPRIORITISE: Change(kind=ChangeKind.REPRIORITISE, priority=7),
    ChangeKind.MOVE: Change(kind=ChangeKind.MOVE, queue="other"),
    ChangeKind.DELETE: Change(kind=ChangeKind.DELETE),
}


async def operate(bench: Bench, kind: ChangeKind, selection: Selection, **fields: Any) -> Batch:
    """One step."""
    return await bench.storage.aoperate(Step(change=_CHANGES[kind], selection=selection, by="Ada", **fields))


async def exists(bench: Bench, id: int) -> bool:
    """Whether a job can be found."""
    return bool(await bench.storage.afind([id]))


async def failed(bench: Bench, worker: StandIn, **fields: Any) -> JobRecord:
    """A job that has failed, at its second attempt."""
    id = await bench.push_one(**fields)
    await worker.recorded(ack(await worker.one(), AckKind.RETRY))
    await worker.recorded(ack(await worker.one(), AckKind.FAIL, error=failure(2, "for good")))
    return await bench.in_state(id, JobState.FAILED)


class OperatePromises(ConformanceBase):
    """Jobs that wait can be changed, all that meet a selection; jobs that run are cancelled or left alone."""

    @promise
    async def test_only_what_meets_the_selection_is_changed(self, bench: Bench) -> None:
        """A step changes the jobs that meet every condition, in the order of their ids, and says which those are."""
        mail, other, export = await bench.push(job(queue="email"), job(), job(queue="email", tags=("export",)))
        batch = await operate(bench, ChangeKind.REPRIORITISE, select(queue="email"))
        assert (list(batch.matched), batch.changed, dict(batch.skipped)) == ([mail, export], 2, {})
        assert [(await bench.find(id)).priority for id in (mail, other, export)] == [7, 0, 7]
        batch = await operate(bench, ChangeKind.REPRIORITISE, select(queue="nobody"))
        assert (list(batch.matched), batch.changed, batch.after) == ([], 0, None)

    @promise
    async def test_steps_go_on_where_the_last_one_ended(self, bench: Bench) -> None:
        """A step takes up to 1,000 jobs and says after which id the next one goes on; the last says that it is."""
        ids = await bench.push(*(job() for _ in range(STEP + 5)))
        first = await operate(bench, ChangeKind.REPRIORITISE, select(queue="default"))
        assert (list(first.matched), first.changed) == (ids[:STEP], STEP)
        assert first.after is not None
        second = await operate(
            bench, ChangeKind.REPRIORITISE, select(queue="default"), after=first.after, note=first.note
        )
        assert (list(second.matched), second.changed, second.after) == (ids[STEP:], 5, None)

    @promise
    async def test_a_dry_step_changes_nothing(self, bench: Bench) -> None:
        """A dry step says what would be changed, changes nothing, and does not go to the audit."""
        worker = await bench.worker()
        broken = await failed(bench, worker)
        await bench.push_one(priority=1)
        running = (await worker.one()).id
        waiting = await bench.push_one(delay=60)
        records = [await bench.find(id) for id in (broken.id, running, waiting)]
        for kind in ChangeKind:
            for ended in (False, True):
                everything = select(ids=[broken.id, running, waiting])
                batch = await operate(bench, kind, everything, ended=ended, dry=True)
                assert list(batch.matched) == ([broken.id] if ended else [running, waiting])
                assert batch.changed + sum(batch.skipped.values()) == len(batch.matched)
        assert [await bench.find(id) for id in (broken.id, running, waiting)] == records
        assert list(await bench.storage.aaudit(before=None, limit=10, by=None, operation=None)) == []

    @promise
    async def test_running_jobs_are_left_alone(self, bench: Bench) -> None:
        """But for a cancel, a running job is skipped, goes on, and its worker still owns it."""
        worker = await bench.worker()
        id = await bench.push_one()
        claimed = await worker.one()
        for kind in ChangeKind:
            if kind is not ChangeKind.CANCEL:
                batch = await operate(bench, kind, select(ids=[id]))
                assert (batch.changed, dict(batch.skipped)) == (0, {"running": 1}), kind
        await bench.finish(claimed, worker)
        await bench.in_state(id, JobState.COMPLETED)

    @promise
    async def test_a_cancel_ends_or_marks(self, bench: Bench) -> None:
        """Waiting jobs end as cancelled, running ones are marked once; who did it is in the reason."""
        worker = await bench.worker()
        running = await bench.push_one()
        claimed = await worker.one()
        waiting = await bench.push_one()
        batch = await operate(bench, ChangeKind.CANCEL, select(queue="default"))
        assert (list(batch.matched), batch.changed) == ([running, waiting], 2)
        assert (await bench.in_state(waiting, JobState.CANCELLED)).reason == "cancelled by Ada"
        assert dict(await worker.consumer.cancel_requests()) == {running: "cancelled by Ada"}
        batch = await operate(bench, ChangeKind.CANCEL, select(queue="default"))
        assert (batch.changed, dict(batch.skipped)) == (0, {"cancel requested": 1})
        await worker.recorded(ack(claimed, AckKind.RETRY))
        await bench.in_state(running, JobState.CANCELLED)

    @promise
    async def test_ended_jobs_are_skipped_by_their_state(self, bench: Bench) -> None:
        """A step among ended jobs that changes none of them says in which state they are."""
        worker = await bench.worker()
        done = await bench.push_one()
        await bench.finish(await worker.one(), worker)
        broken = (await failed(bench, worker)).id
        for kind in ChangeKind:
            if not kind.reaches_ended:
                batch = await operate(bench, kind, select(ids=[done, broken]), ended=True)
                assert (list(batch.matched), batch.changed) == ([done, broken], 0)
                assert dict(batch.skipped) == {"completed": 1, "failed": 1}

    @promise
    async def test_run_now(self, bench: Bench) -> None:
        """Scheduled and retrying jobs are due at once, with their attempts; ready ones stay as they are."""
        worker = await bench.worker()
        retrying = await bench.push_one()
        await worker.recorded(ack(await worker.one(), AckKind.RETRY, delay=600))
        scheduled, ready = await bench.push(job(delay=600), job())
        before = await bench.find(ready)
        batch = await operate(bench, ChangeKind.RUN_NOW, select(queue="default"))
        assert (batch.changed, dict(batch.skipped)) == (2, {"ready": 1})
        assert await bench.find(ready) == before
        claimed = {one.id: one.attempt for one in await worker.collect(3)}
        assert claimed == {retrying: 2, scheduled: 1, ready: 1}

    @promise
    async def test_reschedule(self, bench: Bench) -> None:
        """Waiting jobs are due after a delay or at a time; one that has passed makes them due now."""
        scheduled, ready = await bench.push(job(delay=60), job())
        batch = await operate(bench, ChangeKind.RESCHEDULE, select(queue="default"))
        assert batch.changed == 2
        worker = await bench.worker()
        claim = await worker.claim()
        assert list(claim.jobs) == []
        assert claim.next_due is not None
        assert 500 < claim.next_due <= 600
        for at, state in ((timedelta(hours=1), JobState.SCHEDULED), (timedelta(hours=-1), JobState.READY)):
            change = Change(kind=ChangeKind.RESCHEDULE, at=datetime.now(UTC) + at)
            step = Step(change=change, selection=select(ids=[scheduled, ready]), by="Ada")
            assert (await bench.storage.aoperate(step)).changed == 2
            record = await bench.in_state(ready, state)
            assert record.scheduled_at is not None
            assert record.created_at < record.scheduled_at
        assert await worker.claimed_ids() == [scheduled, ready]

    @promise
    async def test_reprioritise(self, bench: Bench) -> None:
        """A job of a new priority is claimed in its order, by a worker that knows the queue too."""
        worker = await bench.worker()
        first, second, third, fourth = await bench.push(*(job() for _ in range(4)))
        assert await worker.claimed_ids(1) == [first]
        batch = await operate(bench, ChangeKind.REPRIORITISE, select(ids=[third, fourth]))
        assert batch.changed == 2
        assert await worker.claimed_ids() == [third, fourth, second]
        scheduled = await bench.push_one(delay=600, priority=7)
        batch = await operate(bench, ChangeKind.REPRIORITISE, select(ids=[scheduled]))
        assert (batch.changed, dict(batch.skipped)) == (0, {"unchanged": 1})
        await bench.in_state(scheduled, JobState.SCHEDULED)

    @promise
    async def test_move(self, bench: Bench) -> None:
        """A job that was moved is claimed from its new queue and from no other, when it is due."""
        one, another = await bench.worker(), await bench.worker("other")
        assert await another.claimed_ids() == []
        ready, scheduled = await bench.push(job(), job(delay=600))
        batch = await operate(bench, ChangeKind.MOVE, select(queue="default"))
        assert (batch.changed, dict(batch.skipped)) == (2, {})
        assert await one.claimed_ids() == []
        assert await another.claimed_ids() == [ready]
        assert (await bench.in_state(scheduled, JobState.SCHEDULED)).queue == "other"
        batch = await operate(bench, ChangeKind.MOVE, select(ids=[scheduled]))
        assert dict(batch.skipped) == {"unchanged": 1}

    @promise
    async def test_delete(self, bench: Bench) -> None:
        """Waiting and ended jobs are gone, with their errors and their unique keys."""
        worker = await bench.worker()
        broken = (await failed(bench, worker)).id
        key, window = unique_key("conformance", "key"), unique_key("conformance", "window", window=3600)
        waiting, held = await bench.push(job(unique=key, delay=60), job(unique=window, delay=60))
        batch = await operate(bench, ChangeKind.DELETE, select(queue="default"))
        assert (list(batch.matched), batch.changed) == ([waiting, held], 2)
        assert (await operate(bench, ChangeKind.DELETE, select(state="failed"), ended=True)).changed == 1
        for id in (waiting, held, broken):
            assert not await exists(bench, id)
        assert await worker.claimed_ids() == []
        again = await bench.storage.apush([job(unique=key), job(unique=window)])
        assert [pushed.created for pushed in again] == [True, True]

    @promise
    async def test_what_becomes_claimable_wakes_a_sleeper(self, bench: Bench) -> None:
        """Whoever sleeps is woken by a retry of a failed job, a run now, a reschedule, a new priority and a move."""
        worker, sleeper = await bench.worker(), await bench.worker("default", "other")
        await failed(bench, worker)
        await bench.push(*(job(delay=600) for _ in range(4)))
        for kind, ended in (
            (ChangeKind.RETRY, True), (ChangeKind.RUN_NOW, False), (ChangeKind.RESCHEDULE, False),
            (ChangeKind.REPRIORITISE, False), (ChangeKind.MOVE, False),
        ):  # fmt: skip
            while not await sleeper.consumer.bell.arm():
                await sleeper.claim()
            batch = await operate(bench, kind, select(queue="default"), ended=ended)
            assert batch.changed, kind
            assert await sleeper.consumer.bell.wait(bench.patience), f"slept through a {kind}"
            await sleeper.consumer.bell.disarm()

    @promise
    async def test_both_colours_do_the_same(self, bench: Bench) -> None:
        """The blocking form does what the awaiting one does."""
        id = await bench.push_one(delay=60)
        step = Step(change=_CHANGES[ChangeKind.RUN_NOW], selection=select(ids=[id]), by="Ada")
        assert (await call(bench.storage.operate, step)).changed == 1
        await bench.in_state(id, JobState.READY)


class RedrivePromises(ConformanceBase):
    """Jobs that have ended can be brought back, once each, with respect for their unique keys."""

    @promise
    async def test_a_failed_job_comes_back(self, bench: Bench) -> None:
        """It is ready, under its id, with all its attempts before it, its options and its errors as they were."""
        worker = await bench.worker()
        retry = select(queue="default")
        before = await failed(
            bench, worker, args=b'{"to": "Ada"}', priority=3, max_attempts=2, tags=("a", "b"), meta={"tenant": 7}
        )
        batch = await operate(bench, ChangeKind.RETRY, retry, ended=True)
        assert (list(batch.matched), batch.changed) == ([before.id], 1)
        record = await bench.in_state(before.id, JobState.READY)
        assert (record.attempt, record.crashes, record.started_at, record.reason) == (0, 0, None, None)
        assert record.scheduled_at is not None
        assert before.scheduled_at is not None
        assert record.scheduled_at > before.scheduled_at
        for name in ("args", "priority", "max_attempts", "tags", "meta", "errors", "created_at", "task", "codec"):
            assert getattr(record, name) == getattr(before, name), name
        claimed = await worker.one()
        assert (claimed.id, claimed.attempt) == (before.id, 1)
        await worker.recorded(ack(claimed, AckKind.FAIL, error=failure(1, "again")))
        after = await bench.in_state(before.id, JobState.FAILED)
        assert [error.message for error in after.errors] == ["boom", "for good", "again"]
        assert (await operate(bench, ChangeKind.RETRY, retry, ended=True)).changed == 1
        await bench.finish(await worker.one(), worker)
        assert (await bench.in_state(before.id, JobState.COMPLETED)).errors == after.errors

    @promise
    async def test_an_old_ack_does_not_touch_what_came_back(self, bench: Bench) -> None:
        """An ack of the run that failed, sent again, changes nothing and is no surprise."""
        worker = await bench.worker()
        id = await bench.push_one()
        sent = ack(await worker.one(), AckKind.FAIL)
        await worker.recorded(sent)
        await operate(bench, ChangeKind.RETRY, select(ids=[id]), ended=True)
        await worker.recorded(sent)
        await bench.in_state(id, JobState.READY)

    @promise
    async def test_others_come_back_where_their_state_is_named(self, bench: Bench) -> None:
        """Completed and cancelled jobs are skipped unless the selection names their state."""
        worker = await bench.worker()
        ids = {}
        for kind, state in ((AckKind.COMPLETE, JobState.COMPLETED), (AckKind.CANCEL, JobState.CANCELLED)):
            ids[state] = await bench.push_one()
            await bench.finish(await worker.one(), worker, kind)
            batch = await operate(bench, ChangeKind.RETRY, select(ids=[ids[state]]), ended=True)
            assert (batch.changed, dict(batch.skipped)) == (0, {state: 1})
        batch = await operate(bench, ChangeKind.RETRY, select(state=list(ids)), ended=True)
        assert batch.changed == 2
        assert sorted(await worker.claimed_ids()) == sorted(ids.values())

    @promise
    async def test_what_cannot_run_again_is_left(self, bench: Bench) -> None:
        """A completed job whose large arguments were not kept is skipped."""
        worker = await bench.worker()
        id = await bench.push_one(args=b'"' + b"a" * 5000 + b'"')
        await bench.finish(await worker.one(), worker)
        batch = await operate(bench, ChangeKind.RETRY, select(state="completed"), ended=True)
        assert (batch.changed, dict(batch.skipped)) == (0, {"arguments not kept": 1})
        await bench.in_state(id, JobState.COMPLETED)

    @promise
    async def test_a_unique_key_is_taken_again(self, bench: Bench) -> None:
        """A job that comes back holds its key; one whose key another job holds stays where it is."""
        worker = await bench.worker()
        key = unique_key("conformance", "key")
        first = await failed(bench, worker, unique=key)
        second = await failed(bench, worker, unique=key)
        batch = await operate(bench, ChangeKind.RETRY, select(state="failed"), ended=True)
        assert (batch.changed, dict(batch.skipped)) == (1, {"unique key taken": 1})
        await bench.in_state(first.id, JobState.READY)
        [pushed] = await bench.storage.apush([job(unique=key)])
        assert (pushed.id, pushed.created) == (first.id, False)
        batch = await operate(bench, ChangeKind.RETRY, select(ids=[second.id]), ended=True)
        assert dict(batch.skipped) == {"unique key taken": 1}
        await bench.finish(await worker.one(), worker)
        assert (await operate(bench, ChangeKind.RETRY, select(ids=[second.id]), ended=True)).changed == 1

    @promise
    async def test_a_key_with_a_window_stays_its_job_s(self, bench: Bench) -> None:
        """A job comes back within the window of its own key, which goes on as it was."""
        worker = await bench.worker()
        key = unique_key("conformance", "window", window=3600)
        broken = await failed(bench, worker, unique=key)
        assert (await operate(bench, ChangeKind.RETRY, select(ids=[broken.id]), ended=True)).changed == 1
        [pushed] = await bench.storage.apush([job(unique=key)])
        assert (pushed.id, pushed.created) == (broken.id, False)

    @promise
    async def test_waiting_retries_are_due_now(self, bench: Bench) -> None:
        """Of jobs that have not ended a retry takes those that wait for their next attempt, and no others."""
        worker = await bench.worker()
        retrying = await bench.push_one()
        await worker.recorded(ack(await worker.one(), AckKind.RETRY, delay=600))
        scheduled, ready = await bench.push(job(delay=600), job())
        batch = await operate(bench, ChangeKind.RETRY, select(queue="default"))
        assert (batch.changed, dict(batch.skipped)) == (1, {"scheduled": 1, "ready": 1})
        assert {one.id: one.attempt for one in await worker.collect(2)} == {retrying: 2, ready: 1}
        await bench.in_state(scheduled, JobState.SCHEDULED)
