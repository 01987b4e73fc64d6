"""Lost replies, refused rows, locked rows, a database that goes and comes: nothing is lost and nothing runs twice."""

from __future__ import annotations

import asyncio
import logging

import pytest

from prinia import INJECTED, Context, Fixed
from prinia.errors import StorageError, StorageUnavailable
from prinia.job import ClaimedJob, JobState
from prinia.outcome import Ack, AckKind
from prinia.worker.ledger import Counts, Ledger
from tests.engine.kit import Shop, flusher_of, ghost_instance, until

GONE = StorageUnavailable("server closed the connection")


async def test_a_claim_whose_answer_is_lost_is_handed_back_and_run_once(shop: Shop) -> None:
    runs: list[int] = []

    @shop.app.task(name="count")
    async def count(ctx: Context = INJECTED) -> None:
        runs.append(ctx.job_id)

    shop.faults.plan("after", "claim", GONE)
    jobs = await shop.app.aenqueue_many(count.job() for _ in range(50))
    ids = [job.id for job in jobs]
    async with shop.worker() as worker:
        await shop.until(JobState.COMPLETED, *ids)
        await until(lambda: worker.stats.completed == 50)
    assert sorted(runs) == ids
    assert {(shop.record(id).attempt, shop.record(id).crashes) for id in ids} == {(1, 0)}
    assert [1] in shop.faults.recovered


async def test_recovery_is_tried_until_it_works(shop: Shop) -> None:
    @shop.app.task(name="noop")
    async def noop() -> None: ...

    shop.faults.plan("after", "claim", GONE)
    shop.faults.plan("before", "recover", GONE, GONE)
    job = await noop.aenqueue()
    async with shop.worker():
        await shop.until(JobState.COMPLETED, job.id)
    assert shop.record(job.id).attempt == 1


async def test_an_ack_whose_answer_is_lost_is_sent_again_and_counts_once(shop: Shop) -> None:
    runs: list[int] = []

    @shop.app.task(name="count")
    async def count(fail: bool, ctx: Context = INJECTED) -> None:
        runs.append(ctx.job_id)
        if fail:
            raise ValueError("once")

    shop.faults.plan("after", "ack", GONE, GONE)
    jobs = [await count.options(max_attempts=1).aenqueue(number % 2 == 1) for number in range(10)]
    async with shop.worker() as worker:
        await until(lambda: worker.stats.completed == 5 and worker.stats.failed == 5)
        assert worker.stats.lost == 0
    assert sorted(runs) == [job.id for job in jobs]
    assert {len(shop.record(job.id).errors) for job in jobs} == {0, 1}


async def test_results_are_kept_through_an_outage(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "prinia.worker")
    gate = asyncio.Event()
    runs: list[int] = []

    @shop.app.task(name="hold")
    async def hold(ctx: Context = INJECTED) -> int:
        runs.append(ctx.job_id)
        await gate.wait()
        return ctx.job_id

    jobs = await shop.app.aenqueue_many(hold.job() for _ in range(10))
    async with shop.worker(name="w", poll=0.05) as worker:
        await until(lambda: worker.stats.running == 10)
        shop.faults.away = True
        gate.set()
        await until(lambda: worker.stats.unrecorded == 10 and len(shop.faults.flushes) >= 3)
        shop.faults.away = False
        await until(lambda: worker.stats.completed == 10)
        assert [await job.aresult(timeout=10) for job in jobs] == sorted(runs)
        after = await shop.app.aenqueue_many(hold.job() for _ in range(10))
        await shop.until(JobState.COMPLETED, *(job.id for job in after))
        await until(lambda: "worker w: the database is back" in caplog.messages, "for all parts to be well")
    assert len(runs) == 20
    assert sum("database unreachable" in text for text in caplog.messages) == 1
    assert sum("the database is back" in text for text in caplog.messages) == 1


async def test_every_slot_works_again_after_an_outage(shop: Shop) -> None:
    gate = asyncio.Event()

    @shop.app.task(name="hold")
    async def hold() -> None:
        await gate.wait()

    async with shop.worker(concurrency=10, poll=0.02) as worker:
        await until(lambda: shop.storage.tables.bells)
        shop.faults.away = True
        await shop.app.aenqueue_many(hold.job() for _ in range(30))
        await until(lambda: shop.faults.refused >= 5)
        shop.faults.away = False
        await until(lambda: worker.stats.running == 10)
        gate.set()
        await until(lambda: worker.stats.completed == 30)


async def test_jobs_that_others_took_during_an_outage_are_cancelled(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[bool] = []

    @shop.app.task(name="hold")
    async def hold(ctx: Context = INJECTED) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(ctx.lost)

    job = await hold.aenqueue()
    async with shop.worker(poll=0.02, concurrency=3) as worker:
        await until(lambda: worker.stats.running == 1)
        with shop.storage.tables.lock:
            shop.storage.tables.live[job.id].owner = None
        shop.faults.plan("before", "claim", GONE)
        await until(lambda: ended == [True])
        await until(lambda: worker.stats.lost == 1)
        assert worker.stats.running == 0
    assert sum("1 running jobs were taken by others" in text for text in caplog.messages) == 1


async def test_the_late_outcome_of_a_job_that_is_lost_changes_nothing(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()

    @shop.app.task(name="hold")
    async def hold() -> str:
        await gate.wait()
        return "late"

    job = await hold.aenqueue()
    async with shop.worker() as worker:
        await until(lambda: worker.stats.running == 1)
        with shop.storage.tables.lock:
            shop.storage.tables.live[job.id].token = 999
        gate.set()
        await until(lambda: worker.stats.lost == 1)
        assert shop.state(job.id) is JobState.RUNNING
        assert worker.stats.completed == 0
        with shop.storage.tables.lock:
            shop.storage.tables.live[job.id].owner = None
    assert f"job {job.id} (hold) is not ours any more" in caplog.text


class TestRefusedRows:
    async def test_the_culprit_fails_and_the_others_are_recorded(
        self, shop: Shop, caplog: pytest.LogCaptureFixture
    ) -> None:
        runs: list[int] = []

        @shop.app.task(name="work")
        async def work(ctx: Context = INJECTED) -> int:
            runs.append(ctx.job_id)
            return ctx.job_id

        jobs = await shop.app.aenqueue_many(work.job() for _ in range(100))
        ids = [job.id for job in jobs]
        culprits = {ids[3], ids[64]}
        shop.faults.refuses = lambda ack: ack.id in culprits and ack.kind is AckKind.COMPLETE
        async with shop.worker() as worker:
            await until(lambda: worker.stats.completed == 98 and worker.stats.failed == 2)
        assert sorted(runs) == ids, "no run loop"
        for id in culprits:
            record = shop.record(id)
            assert record.state is JobState.FAILED
            assert "could not be recorded: value too wide for the column" in record.errors[0].message

    async def test_a_passing_refusal_costs_no_result(self, shop: Shop) -> None:
        @shop.app.task(name="work")
        async def work() -> int:
            return 7

        shop.faults.plan("before", "ack", StorageError("deadlock detected"))
        async with shop.worker():
            assert await (await work.aenqueue()).aresult(timeout=10) == 7

    async def test_a_database_that_refuses_everything_costs_no_result(self, shop: Shop) -> None:
        refusing = True

        @shop.app.task(name="work")
        async def work() -> int:
            return 7

        shop.faults.refuses = lambda ack: refusing
        jobs = await shop.app.aenqueue_many(work.job() for _ in range(20))
        async with shop.worker() as worker:
            await until(lambda: any(ack.kind is AckKind.FAIL for flush in shop.faults.flushes for ack in flush))
            refusing = False
            await until(lambda: worker.stats.completed == 20)
            assert [await job.aresult(timeout=10) for job in jobs] == [7] * 20


async def test_a_locked_row_is_sent_again_alone(shop: Shop) -> None:
    @shop.app.task(name="work")
    async def work() -> int:
        return 7

    jobs = await shop.app.aenqueue_many(work.job() for _ in range(20))
    shop.faults.busy = {jobs[4].id: 3, jobs[9].id: 1}
    async with shop.worker() as worker:
        await until(lambda: worker.stats.completed == 20)
        assert worker.stats.unrecorded == 0
    alone = [flush[0].id for flush in shop.faults.flushes if len(flush) == 1]
    assert alone.count(jobs[4].id) == 3
    assert alone.count(jobs[9].id) == 1


async def test_a_locked_row_holds_up_no_others(shop: Shop) -> None:
    @shop.app.task(name="work")
    async def work() -> int:
        return 7

    stuck = await work.aenqueue()
    shop.faults.busy = {stuck.id: 10**6}
    async with shop.worker() as worker:
        for _ in range(20):
            assert await (await work.aenqueue()).aresult(timeout=10) == 7
        assert worker.stats.unrecorded == 1
        shop.faults.busy = {}
        assert await stuck.aresult(timeout=10) == 7


async def test_flushes_are_ordered_bounded_and_have_each_id_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prinia.worker.ack.FLUSH_BYTES", 5_000)
    monkeypatch.setattr("prinia.worker.ack.FLUSH_ROWS", 40)

    @shop.app.task(name="big")
    async def big(size: int) -> str:
        return "x" * size

    await shop.app.aenqueue_many(big.job(number % 20 * 100) for number in range(500))
    await big.aenqueue(20_000)
    async with shop.worker() as worker:
        await until(lambda: worker.stats.completed == 501)

    def size(flush: list[Ack]) -> int:
        return sum(len(ack.result or b"") for ack in flush)

    for flush in shop.faults.flushes:
        ids = [ack.id for ack in flush]
        assert ids == sorted(set(ids))
        assert len(flush) <= 40
        assert size(flush) <= 5_000 or len(flush) == 1


async def test_two_outcomes_of_one_job_are_never_in_one_flush(shop: Shop) -> None:
    """A job handed back may be claimed anew before that was recorded: the receipt names ids, not tokens."""
    ledger = Ledger()
    flusher = flusher_of(shop.storage.consumer(ghost_instance()), ledger, Counts())
    for id in (3, 1, 2, 3, 1):
        token = ledger.new_token()
        ledger.answered(token, 1)
        job = ClaimedJob(id, token, "t", "default", 0, 1, 5, 0, b"{}")
        flusher.add(Ack(id, token, AckKind.COMPLETE), job, "completed")
    await flusher.flush()
    await flusher.flush()
    assert [[(ack.id, ack.token) for ack in flush] for flush in shop.faults.flushes] == [
        [(1, 2), (2, 3), (3, 1)], [(1, 5), (3, 4)],
    ]  # fmt: skip
    assert ledger.tokens() == []


async def test_a_job_that_comes_back_at_once_is_no_trouble_for_its_own_ack(shop: Shop) -> None:
    """A retry whose ack's answer was lost may be claimed and done again before that ack is sent anew."""

    @shop.app.task(name="twice")
    async def twice(ctx: Context = INJECTED) -> int:
        if ctx.attempt < 4:
            raise ValueError("again")
        return ctx.attempt

    shop.faults.plan("after", "ack", GONE, GONE)
    async with shop.worker(poll=0.01) as worker:
        jobs = [await twice.options(retry=Fixed(0)).aenqueue() for _ in range(5)]
        assert [await job.aresult(timeout=20) for job in jobs] == [4] * 5
        await until(lambda: worker.stats.unrecorded == 0)
        assert worker.stats.lost == 0


@pytest.mark.parametrize("error", [StorageError("permission denied"), GONE])
async def test_no_error_of_a_claim_ends_the_worker(shop: Shop, error: StorageError) -> None:
    @shop.app.task(name="noop")
    async def noop() -> None: ...

    shop.faults.plan("before", "claim", error, error, error)
    async with shop.worker():
        await (await noop.aenqueue()).aresult(timeout=20)


async def test_a_fault_of_ours_ends_the_worker_in_order_and_is_raised(shop: Shop) -> None:
    @shop.app.task(name="hold")
    async def hold() -> None:
        await asyncio.sleep(3600)

    job = await hold.aenqueue()
    worker = shop.worker(poll=0.02, stop_timeout=3600)
    running = asyncio.ensure_future(worker.run())
    await until(lambda: worker.stats.running == 1)
    shop.faults.plan("before", "claim", ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        await asyncio.wait_for(running, 30)
    assert shop.state(job.id) is JobState.READY


async def test_a_claim_that_is_refused_is_said_once_and_tried_again(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "prinia.worker")

    @shop.app.task(name="noop")
    async def noop() -> None: ...

    shop.faults.plan("before", "claim", *[StorageError("refused") for _ in range(4)])
    job = await noop.aenqueue()
    async with shop.worker():
        await shop.until(JobState.COMPLETED, job.id)
    assert sum("refused to claim" in text for text in caplog.messages) == 1
    assert sum("the database is back" in text for text in caplog.messages) == 1
