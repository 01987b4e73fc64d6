"""RUN: what becomes of a job, by how its handler ends; and that jobs do not see each other."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from datetime import timedelta

import pytest

from prinia import INJECTED, Cancel, Context, Fail, Fixed, Retry, Snooze
from prinia.context import WorkerContext
from prinia.job import JobSpec, JobState
from prinia.worker import run as run_module
from prinia.worker.announce import Announcer
from prinia.worker.ledger import Counts, Ledger
from prinia.worker.listeners import Ears
from prinia.worker.pool import Pool
from prinia.worker.threads import Threads
from tests.engine.kit import Shop, flusher_of, ghost_instance, until

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


async def test_a_job_is_run_once_and_its_result_kept(shop: Shop) -> None:
    @shop.app.task(name="add")
    async def add(one: int, two: int) -> int:
        return one + two

    async with shop.worker() as worker:
        job = await add.aenqueue(1, 2)
        assert await job.aresult(timeout=10) == 3
        await until(lambda: worker.stats.completed == 1)
    assert shop.record(job.id).attempt == 1


async def test_a_plain_function_runs_in_a_thread(shop: Shop) -> None:
    @shop.app.task(name="where")
    def where() -> str:
        return threading.current_thread().name

    async with shop.worker():
        assert (await (await where.aenqueue()).aresult(timeout=10)).startswith("prinia-handler-")


async def test_jobs_do_not_see_each_others_context_variables(shop: Shop) -> None:
    @shop.app.task(name="look")
    async def look(name: str) -> str:
        seen = TENANT.get()
        TENANT.set(name)
        await asyncio.sleep(0)
        return seen

    @shop.app.task(name="look_in_thread")
    def look_in_thread(name: str) -> str:
        seen = TENANT.get()
        TENANT.set(name)
        return seen

    TENANT.set("the worker's")
    worker = shop.worker(concurrency=1, threads=1)
    async with worker:
        TENANT.set("set after the start")
        jobs = [await task.aenqueue(name) for task in (look, look_in_thread) for name in ("a", "b", "c")]
        assert [await job.aresult(timeout=10) for job in jobs] == ["the worker's"] * 6


async def test_never_more_than_concurrency_run_at_once(shop: Shop) -> None:
    running, most = 0, 0

    @shop.app.task(name="count")
    async def count(naps: int) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(naps):
            await asyncio.sleep(0)
        running -= 1

    async with shop.worker(concurrency=7) as worker:
        await shop.app.aenqueue_many(count.job(1 + number % 5) for number in range(3000))
        await until(lambda: worker.stats.completed == 3000)
    assert most == 7


async def test_never_more_than_threads_run_plain_functions(shop: Shop) -> None:
    running, most, lock = 0, 0, threading.Lock()

    @shop.app.task(name="count")
    def count() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.001)
        with lock:
            running -= 1

    async with shop.worker(threads=3) as worker:
        await shop.app.aenqueue_many(count.job() for _ in range(100))
        await until(lambda: worker.stats.completed == 100)
    assert most == 3


async def test_async_jobs_pass_plain_ones_that_wait_for_a_thread(shop: Shop) -> None:
    gate = threading.Event()

    @shop.app.task(name="block")
    def block() -> None:
        gate.wait(20)

    @shop.app.task(name="quick")
    async def quick() -> None: ...

    async with shop.worker(threads=2, concurrency=10):
        blocked = await shop.app.aenqueue_many(block.job() for _ in range(3))
        job = await quick.aenqueue()
        await shop.until(JobState.COMPLETED, job.id)
        assert all(shop.state(waits.id) is JobState.RUNNING for waits in blocked)
        gate.set()
        await shop.until(JobState.COMPLETED, *(waits.id for waits in blocked))


async def test_the_context_tells_of_job_and_worker(shop: Shop) -> None:
    seen: list[Context] = []

    @shop.app.task(name="tell", queue="q", max_attempts=4)
    async def tell(ctx: Context = INJECTED) -> None:
        seen.append(ctx)

    async with shop.worker(name="web-1") as worker:
        job = await tell.options(priority=7, tags=["blue"], meta={"a": 1}).aenqueue()
        await shop.until(JobState.COMPLETED, job.id)
        [ctx] = seen
        assert (ctx.job_id, ctx.task, ctx.queue, ctx.priority) == (job.id, "tell", "q", 7)
        assert (ctx.attempt, ctx.max_attempts, ctx.crashes) == (1, 4, 0)
        assert (ctx.tags, dict(ctx.meta)) == (("blue",), {"a": 1})
        assert (ctx.worker.name, ctx.worker.instance) == ("web-1", worker.instance.id)
        assert (ctx.stopping, ctx.lost) == (False, False)


async def test_failures_are_kept_and_tried_again_until_attempts_are_used_up(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    @shop.app.task(name="bad", max_attempts=3, retry=Fixed(0.01))
    async def bad(ctx: Context = INJECTED) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    async with shop.worker() as worker:
        job = await bad.aenqueue()
        await shop.until(JobState.FAILED, job.id)
        await until(lambda: worker.stats.failed == 1)
        assert worker.stats.retried == 2
    record = shop.record(job.id)
    assert [(error.attempt, error.kind, error.message) for error in record.errors] == [
        (1, "ValueError", "attempt 1"), (2, "ValueError", "attempt 2"), (3, "ValueError", "attempt 3"),
    ]  # fmt: skip
    assert "raise ValueError" in (record.errors[0].traceback or "")
    warnings = [text for text in caplog.messages if text.startswith(f"job {job.id} (bad), attempt")]
    assert len(warnings) == 3
    assert warnings[2].endswith("attempt 3/3, failed for good: ValueError: attempt 3")


async def test_a_retry_waits_as_long_as_its_policy_says(shop: Shop) -> None:
    @shop.app.task(name="bad", retry=Fixed(3600))
    async def bad() -> None:
        raise ValueError("no")

    async with shop.worker():
        job = await bad.aenqueue()
        await shop.until(JobState.RETRYING, job.id)


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError(), KeyboardInterrupt("k"), SystemExit(3), GeneratorExit(), BaseException("base")]
)
@pytest.mark.parametrize("threaded", [False, True])
async def test_whatever_a_handler_raises_hurts_its_job_alone(shop: Shop, error: BaseException, threaded: bool) -> None:
    def raise_it() -> None:
        raise error

    async def raise_it_async() -> None:
        await asyncio.sleep(0)
        raise error

    @shop.app.task(name="fine")
    async def fine() -> str:
        await asyncio.sleep(0.01)
        return "fine"

    bad = (
        shop.app.task(name="bad", max_attempts=1)(raise_it)
        if threaded
        else shop.app.task(name="bad", max_attempts=1)(raise_it_async)
    )
    async with shop.worker() as worker:
        before, job, after = await fine.aenqueue(), await bad.aenqueue(), await fine.aenqueue()
        await shop.until(JobState.FAILED, job.id)
        assert [await other.aresult(timeout=10) for other in (before, after)] == ["fine", "fine"]
        assert worker.stats.lost == worker.stats.handed_back == 0
    assert shop.record(job.id).errors[0].kind.endswith(type(error).__name__)


async def test_a_handler_that_cancels_its_own_task_fails_alone(shop: Shop) -> None:
    @shop.app.task(name="suicide", max_attempts=1)
    async def suicide() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async with shop.worker() as worker:
        job = await suicide.aenqueue()
        await shop.until(JobState.FAILED, job.id)
        await until(lambda: worker.stats.running == 0)


@pytest.mark.parametrize("threaded", [False, True])
async def test_stop_iteration_does_not_hang_the_job(shop: Shop, threaded: bool) -> None:
    def stop() -> None:
        raise StopIteration("end")

    async def stop_async() -> None:
        raise StopIteration("end")

    task = (
        shop.app.task(name="stop", max_attempts=1)(stop)
        if threaded
        else shop.app.task(name="stop", max_attempts=1)(stop_async)
    )
    async with shop.worker():
        job = await task.aenqueue()
        await shop.until(JobState.FAILED, job.id)


class TestSteering:
    async def one(self, shop: Shop, error: Callable[[], Exception], state: JobState) -> int:
        @shop.app.task(name="steer", retry=Fixed(3600))
        async def steer() -> None:
            raise error()

        async with shop.worker():
            job = await steer.aenqueue()
            await shop.until(state, job.id)
        return job.id

    async def test_fail_ends_at_once(self, shop: Shop) -> None:
        record = shop.record(await self.one(shop, lambda: Fail("customer is gone"), JobState.FAILED))
        assert record.errors[0].message == "customer is gone"

    async def test_cancel_ends_as_cancelled(self, shop: Shop) -> None:
        record = shop.record(await self.one(shop, lambda: Cancel("withdrawn"), JobState.CANCELLED))
        assert record.reason == "withdrawn"

    async def test_retry_counts(self, shop: Shop) -> None:
        record = shop.record(await self.one(shop, lambda: Retry("rate limited", delay=900), JobState.RETRYING))
        assert record.attempt == 1

    async def test_snooze_does_not_count(self, shop: Shop) -> None:
        record = shop.record(await self.one(shop, lambda: Snooze(900), JobState.SCHEDULED))
        assert (record.attempt, record.errors) == (0, ())

    @pytest.mark.parametrize(
        ("steering", "kind"),
        [
            (lambda: Snooze("soon"), "TypeError"),  # type: ignore[arg-type]
            (lambda: Snooze(None), "TypeError"),  # type: ignore[arg-type]
            (lambda: Snooze(-5), "ValueError"),
            (lambda: Retry(delay=float("nan")), "ValueError"),
            (lambda: Retry(60), "TypeError"),  # type: ignore[arg-type]
        ],
    )
    async def test_a_senseless_delay_is_a_failed_attempt(
        self, shop: Shop, steering: Callable[[], Exception], kind: str
    ) -> None:
        record = shop.record(await self.one(shop, steering, JobState.RETRYING))
        assert (record.attempt, [error.kind for error in record.errors]) == (1, [kind])

    async def test_no_delay_and_a_timedelta(self, shop: Shop) -> None:
        runs = 0

        @shop.app.task(name="steer", retry=Fixed(3600))
        async def steer() -> None:
            nonlocal runs
            runs += 1
            raise Snooze(0) if runs == 1 else Retry(delay=timedelta(0)) if runs == 2 else Cancel()

        async with shop.worker():
            job = await steer.aenqueue()
            await shop.until(JobState.CANCELLED, job.id)
        record = shop.record(job.id)
        assert (runs, record.attempt, len(record.errors)) == (3, 2, 1)


async def test_arguments_that_do_not_decode_are_a_failed_attempt(shop: Shop) -> None:
    calls: list[int] = []

    @shop.app.task(name="typed", max_attempts=2, retry=Fixed(0))
    async def typed(order: int) -> None:
        calls.append(order)

    [pushed] = shop.storage.push([JobSpec(task="typed", args=b'{"order": "nine"}', max_attempts=2, retry=Fixed(0))])
    async with shop.worker():
        job = await typed.aenqueue(9)
        await shop.until(JobState.FAILED, pushed.id)
        await shop.until(JobState.COMPLETED, job.id)
    errors = shop.record(pushed.id).errors
    assert [error.kind.rpartition(".")[2] for error in errors] == ["DecodeError"] * 2
    assert "order" in errors[0].message
    assert calls == [9]


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_result_that_cannot_be_stored_fails_at_once(shop: Shop, threaded: bool) -> None:
    runs = 0

    def make() -> dict[str, list[float]]:
        nonlocal runs
        runs += 1
        return {"a": [0.0, 1.0, 2.0, float("nan")]}

    async def make_async() -> dict[str, list[float]]:
        return make()

    task = shop.app.task(name="make")(make) if threaded else shop.app.task(name="make")(make_async)
    async with shop.worker():
        job = await task.aenqueue()
        await shop.until(JobState.FAILED, job.id)
    assert runs == 1
    assert shop.record(job.id).errors[0].message.startswith("result not storable: $.a[3]")


async def test_an_alias_runs_the_task(shop: Shop) -> None:
    @shop.app.task(name="new", aliases=("old",))
    async def renamed() -> str:
        return "ran"

    [pushed] = shop.storage.push([JobSpec(task="old", args=b"{}")])
    async with shop.worker():
        await shop.until(JobState.COMPLETED, pushed.id)


class TestTimeLimit:
    async def test_ends_the_attempt_and_lets_the_handler_clean_up(self, shop: Shop) -> None:
        cleaned: list[str] = []

        @shop.app.task(name="slow", timeout=0.05, max_attempts=3, retry=Fixed(0))
        async def slow(ctx: Context = INJECTED) -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0.01)
                cleaned.append(f"{ctx.attempt} {ctx.stopping}")

        async with shop.worker():
            job = await slow.aenqueue()
            await shop.until(JobState.FAILED, job.id)
        errors = shop.record(job.id).errors
        assert [(error.kind, error.message) for error in errors] == [("Timeout", "timeout after 0.05 s")] * 3
        assert cleaned == ["1 True", "2 True", "3 True"]

    async def test_nothing_that_a_cancelled_handler_returns_counts(self, shop: Shop) -> None:
        @shop.app.task(name="slow", timeout=0.02, max_attempts=1)
        async def slow(how: str) -> str:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if how == "raise":
                    raise ValueError("another") from None
            return "late"

        async with shop.worker():
            jobs = [await slow.aenqueue(how) for how in ("return", "raise")]
            await shop.until(JobState.FAILED, *(job.id for job in jobs))
        assert {shop.record(job.id).errors[0].kind for job in jobs} == {"Timeout"}

    async def test_a_handler_that_ignores_it_is_cancelled_again_and_keeps_its_slot(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(run_module, "CLEANUP", 0.02)
        cancelled = 0

        @shop.app.task(name="stubborn", timeout=0.02, max_attempts=1)
        async def stubborn() -> None:
            nonlocal cancelled
            while cancelled < 3:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    cancelled += 1
                    assert shop.state(job.id) is JobState.RUNNING

        async with shop.worker():
            job = await stubborn.aenqueue()
            await shop.until(JobState.FAILED, job.id)
        assert cancelled == 3
        assert "ignores cancellation" in caplog.text

    async def test_does_not_hurt_jobs_in_time(self, shop: Shop) -> None:
        @shop.app.task(name="quick", timeout=30)
        async def quick() -> int:
            await asyncio.sleep(0.001)
            return 1

        async with shop.worker():
            jobs = await shop.app.aenqueue_many(quick.job() for _ in range(200))
            await shop.until(JobState.COMPLETED, *(job.id for job in jobs))

    async def test_a_thread_is_told_and_counts_as_timed_out_once_it_ends(self, shop: Shop) -> None:
        threads: list[threading.Thread] = []

        @shop.app.task(name="slow", timeout=0.02, max_attempts=1)
        def slow(ctx: Context = INJECTED) -> str:
            threads.append(threading.current_thread())
            while not ctx.stopping:
                time.sleep(0.001)
            return "late"

        async with shop.worker():
            job = await slow.aenqueue()
            await shop.until(JobState.FAILED, job.id)
        assert shop.record(job.id).errors[0].kind == "Timeout"


async def test_a_handler_cancelled_before_its_first_step_is_not_forgotten(shop: Shop) -> None:
    @shop.app.task(name="noop")
    async def noop() -> None:
        await asyncio.sleep(3600)

    job = await noop.aenqueue()
    consumer = shop.storage.consumer(ghost_instance())
    await consumer.open()
    claim = await consumer.claim(1, token=1)
    ledger, counts, changed = Ledger(), Counts(), asyncio.Event()
    ledger.answered(ledger.new_token(), 1)
    flusher = flusher_of(consumer, ledger, counts)
    runner = run_module.Runner(
        shop.app.tasks, flusher, ledger, counts,
        concurrency=1, threads=Threads(1), pool=Pool(1, modules=[], hooks=[]), variables=copy_context(),
        changed=changed, random=random.random,
        worker=(worker := WorkerContext(name="w")), instance=ghost_instance().id, storage=shop.storage, strict=False,
        announcer=Announcer(worker, (), shop.app.tasks, Ears(counts, copy_context())),
    )  # fmt: skip
    runner.add(claim.jobs)
    runner.cancel()
    await runner.until_idle()
    await flusher.flush()
    assert counts["handed_back"] == 1
    assert (shop.state(job.id), shop.record(job.id).attempt) == (JobState.READY, 0)


async def test_an_expired_job_is_cancelled_without_running(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    runs: list[int] = []

    @shop.app.task(name="late")
    async def late() -> None:
        runs.append(1)

    [pushed] = shop.storage.push([JobSpec(task="late", args=b"{}", expires_in=0.001)])
    await asyncio.sleep(0.01)
    async with shop.worker():
        await shop.until(JobState.CANCELLED, pushed.id)
    assert runs == []
    assert shop.record(pushed.id).reason == "expired"


async def test_nothing_is_logged_for_a_job_that_goes_well(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "prinia.worker")

    @shop.app.task(name="quiet")
    async def quiet() -> None: ...

    async with shop.worker(name="w", concurrency=5) as worker:
        jobs = await shop.app.aenqueue_many(quiet.job() for _ in range(10))
        await shop.until(JobState.COMPLETED, *(job.id for job in jobs))
        instance = worker.instance.id
    assert [record.getMessage() for record in caplog.records if record.name == "prinia.worker"] == [
        f"worker w started: 1 tasks, queues default, concurrency 5, instance {instance}, run 0",
        "worker w stopped: 10 claimed, 10 completed, 10 started",
    ]
