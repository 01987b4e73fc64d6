"""``process=True``: functions in processes of their own, which can be killed and which may die."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from prinia import (
    INJECTED,
    ConfigurationError,
    Context,
    InvalidOptions,
    Middleware,
    Prinia,
    TaskDefinitionError,
    WorkerContext,
)
from prinia.job import JobRecord, JobState
from prinia.storage.memory import MemoryStorage
from prinia.worker import Worker
from tests.engine.kit import until
from tests.processes import shop
from tests.processes.parts import Order, total


@pytest.fixture
def storage() -> Iterator[MemoryStorage]:
    """Empty, in place of the shop's."""
    before, shop.app._storage = shop.app._storage, MemoryStorage()
    yield shop.app._storage
    shop.app._storage = before


@pytest.fixture
async def worker(storage: MemoryStorage) -> AsyncIterator[Worker]:
    async with shop.app.worker(name="w", pool=2) as running:
        yield running


async def record(storage: MemoryStorage, id: int, *states: JobState) -> JobRecord:
    """The job, once it is in one of these states."""
    wanted = states or (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
    await until(lambda: storage.find([id])[0].state in wanted, f"for {id} to be {wanted}", seconds=60)
    return storage.find([id])[0]


async def pids(path: Path) -> list[int]:
    await until(path.exists, "for the function to start", seconds=60)
    return [int(pid) for pid in path.read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def replaced(things: list[Any], *others: Any) -> Iterator[None]:
    """Other things in a list for a while."""
    before = list(things)
    things[:] = others
    yield
    things[:] = before


async def test_arguments_context_and_result_travel(storage: MemoryStorage, worker: Worker) -> None:
    job = await shop.describe.options(tags=["a"], meta={"b": [1]}).aenqueue(Order(7, Decimal("1.50")))
    said = await job.aresult(timeout=60)
    process = said.pop("process")
    assert process != os.getpid()
    assert said == {
        "order": "Order 7 Decimal('1.50')", "job": job.id, "attempt": 1, "tags": ["a"], "meta": {"b": [1]},
        "worker": f"w {worker.instance.id} 0", "stopping": False, "loaded": [f"loaded in {process}"],
        "argv": sys.argv[:1],
    }  # fmt: skip
    again = await (await shop.describe.aenqueue(Order(7, Decimal(1)))).aresult(timeout=60)
    assert (again["process"], len(again["loaded"])) == (process, 1), "a process is kept, and set up once"  # type: ignore[arg-type]


async def test_the_jobs_codec_is_used_there(storage: MemoryStorage) -> None:
    """A codec of the app, of which the task's own module knows nothing: the app's module is imported there too."""
    with replaced(shop.app.surroundings.process_hooks):
        worker = shop.app.worker(pool=1)
    encoded = b'#{"orders":[{"id":1,"cents":"0.1"},{"id":2,"cents":"0.2"}]}'
    [job] = await shop.app.aenqueue_many([total.job_encoded(encoded, codec="marked")])
    async with worker:
        assert await job.aresult(timeout=60) == Order(0, Decimal("0.3"))
    stored = await record(storage, job.id)
    assert stored.codec == "marked"
    assert stored.result is not None
    assert stored.result.startswith(b"#")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("SIGKILL", "its process was killed by SIGKILL, perhaps by the system for want of memory"),
        ("SIGSEGV", "its process was killed by SIGSEGV"),
        ("exit", "the function ended its process with exit code 7"),
    ],
)
async def test_a_process_that_dies_costs_its_job_an_attempt_and_nobody_else_anything(
    storage: MemoryStorage, worker: Worker, tmp_path: Path, how: str, message: str
) -> None:
    beside = await shop.wait.aenqueue(str(tmp_path / "pids"))
    before = await pids(tmp_path / "pids")
    dying = await shop.die.aenqueue(how)
    died = await record(storage, dying.id)
    assert (died.state, died.crashes) == (JobState.FAILED, 0)
    assert [(error.kind, error.message) for error in died.errors] == [("prinia.errors.ProcessDied", message)]
    assert await (await shop.process_id.aenqueue()).aresult(timeout=60) not in before, "the pool is whole again"
    assert storage.find([beside.id])[0].state is JobState.RUNNING
    assert is_running(before[0])
    await shop.app.get_job(beside.id).acancel()
    await record(storage, beside.id)


async def test_a_process_killed_between_two_jobs_costs_nothing(storage: MemoryStorage, worker: Worker) -> None:
    first = await (await shop.process_id.aenqueue()).aresult(timeout=60)
    os.kill(first, signal.SIGKILL)
    # Not by /proc: that calls a process a zombie while some of its threads still end.
    await until(lambda: os.waitid(os.P_PID, first, os.WEXITED | os.WNOHANG | os.WNOWAIT))
    second = await shop.process_id.aenqueue()
    assert await second.aresult(timeout=60) != first
    assert (await record(storage, second.id)).attempt == 1


@pytest.mark.parametrize("by", ["timeout", "cancel", "stop"])
async def test_it_is_killed_with_all_that_it_has_started(storage: MemoryStorage, tmp_path: Path, by: str) -> None:
    worker = shop.app.worker(pool=1, stop_timeout=0)
    async with worker:
        warm = await (await shop.process_id.aenqueue()).aresult(timeout=60)
        task = shop.wait.options(timeout=0.3) if by == "timeout" else shop.wait
        job = await task.aenqueue(str(tmp_path / "pids"))
        pid, grandchild = await pids(tmp_path / "pids")
        assert pid == warm
        if by == "cancel":
            await job.acancel()
        if by == "stop":
            worker.stop()
        ended = await record(storage, job.id, JobState.FAILED, JobState.CANCELLED, JobState.READY)
        assert not is_running(pid), "it is gone before the outcome is recorded"
        await until(lambda: not is_running(grandchild))
        expected = {"timeout": JobState.FAILED, "cancel": JobState.CANCELLED, "stop": JobState.READY}
        assert ended.state is expected[by]
        if by == "timeout":
            assert [(error.kind, error.message) for error in ended.errors] == [("Timeout", "timeout after 0.3 s")]
    assert worker.stats.abandoned == 0


async def test_a_memory_limit_fails_the_attempt(storage: MemoryStorage, worker: Worker) -> None:
    small = await shop.fill.aenqueue(16)
    assert await small.aresult(timeout=60) == 16 * 1024 * 1024
    too_big = await record(storage, (await shop.fill.aenqueue(4096)).id)
    assert [(error.kind, error.message) for error in too_big.errors] == [
        ("MemoryError", "it needed more than its memory_limit of 64 MB")
    ]
    assert await (await shop.fill.aenqueue(16)).aresult(timeout=60)


async def test_the_limit_of_one_task_is_not_left_behind_for_the_next(storage: MemoryStorage) -> None:
    async with shop.app.worker(pool=1):
        assert await (await shop.fill.aenqueue(1)).aresult(timeout=60)
        assert await (await shop.fill_unlimited.aenqueue(128)).aresult(timeout=60)


@pytest.mark.parametrize(
    ("how", "state", "kind"),
    [
        ("value", JobState.FAILED, "ValueError"),
        ("exit", JobState.FAILED, "SystemExit"),
        ("fail", JobState.FAILED, "prinia.outcome.Fail"),
        ("retry", JobState.FAILED, "prinia.outcome.Retry"),
        ("snooze", JobState.SCHEDULED, None),
    ],
)
async def test_what_a_function_raises_counts_as_anywhere(
    storage: MemoryStorage, worker: Worker, how: str, state: JobState, kind: str | None
) -> None:
    job = await shop.fail.aenqueue(how)
    ended = await record(storage, job.id, JobState.FAILED, JobState.SCHEDULED)
    assert ended.state is state
    assert [error.kind for error in ended.errors] == ([kind] if kind else [])
    if how == "value":
        [error] = ended.errors
        assert error.message == "no value"
        assert 'raise ValueError(f"no {how}")' in str(error.traceback)
        assert "prinia/worker" not in str(error.traceback)


async def test_retry_rules_are_asked_where_the_error_is(storage: MemoryStorage, worker: Worker) -> None:
    ruled = await shop.ruled.aenqueue("600")
    mapped = await shop.mapped.aenqueue("os")
    ended = await shop.mapped.aenqueue("value")
    for job in (ruled, mapped):
        waiting = await record(storage, job.id, JobState.RETRYING)
        failed_at = waiting.errors[-1].at
        assert waiting.scheduled_at is not None
        assert failed_at is not None
        assert (waiting.scheduled_at - failed_at).total_seconds() > 500
    assert (await record(storage, ended.id)).state is JobState.FAILED


async def test_what_cannot_be_had_there_is_said(storage: MemoryStorage, worker: Worker) -> None:
    result = await record(storage, (await shop.unstorable.aenqueue()).id)
    assert "result not storable: $: " in result.errors[0].message
    for how, said in (("complete", "ctx.complete() is not there for"), ("stop", "ctx.worker.stop() is not there for")):
        refused = await record(storage, (await shop.complete.aenqueue(how)).id)
        assert (refused.state, refused.errors[0].kind) == (JobState.FAILED, "prinia.errors.ConfigurationError")
        assert refused.errors[0].message.startswith(said)


async def test_no_more_run_than_there_are_processes(storage: MemoryStorage, tmp_path: Path) -> None:
    async with shop.app.worker(pool=1, stop_timeout=0) as worker:
        first = await shop.wait.aenqueue(str(tmp_path / "first"))
        await pids(tmp_path / "first")
        second = await shop.process_id.aenqueue()
        assert await (await shop.threaded.aenqueue()).aresult(timeout=60) == os.getpid(), "threads go on"
        await until(lambda: worker.stats.waiting == 1)
        await first.acancel()
        assert await second.aresult(timeout=60)


class Doubling(Middleware):
    """Sees what the function returned, and that it raised."""

    def __init__(self) -> None:
        self.seen: list[object] = []

    async def run(self, ctx: Context, call_next: Any) -> Any:
        try:
            result = await call_next()
        except Exception as error:
            self.seen.append(str(error))
            raise
        self.seen.append(result)
        return Order(result.id, result.cents * 2) if isinstance(result, Order) else result


async def test_middleware_stands_around_it(storage: MemoryStorage) -> None:
    doubling = Doubling()
    with replaced(shop.app.surroundings.middleware, doubling):
        worker = shop.app.worker(pool=1)
    async with worker:
        job = await total.aenqueue([Order(1, Decimal(2))])
        assert await job.aresult(timeout=60) == Order(0, Decimal(4))
        await record(storage, (await shop.fail.aenqueue("value")).id)
    assert doubling.seen == [Order(0, Decimal(2)), "ValueError: no value"]


async def test_a_process_that_cannot_be_set_up_fails_the_attempt(storage: MemoryStorage) -> None:
    with replaced(shop.app.surroundings.process_modules, "tests.processes.nosuch"):
        worker = shop.app.worker(pool=1)
    async with worker:
        job = await shop.fail.aenqueue("fail")
        ended = await record(storage, job.id)
    [error] = ended.errors
    assert error.kind == "prinia.errors.ProcessDied"
    assert error.message.startswith("a process for it could not be set up: prinia.errors.ConfigurationError: there is")


async def test_no_process_is_left_when_the_worker_has_stopped(storage: MemoryStorage) -> None:
    async with shop.app.worker(pool=2):
        jobs = [await shop.process_id.aenqueue() for _ in range(6)]
        processes = {await job.aresult(timeout=60) for job in jobs}
        assert all(map(is_running, processes))
    assert not any(map(is_running, processes))


def test_definitions_that_make_no_sense() -> None:
    app = Prinia(storage=MemoryStorage())

    async def coroutine() -> None: ...

    def nested() -> None: ...

    with pytest.raises(TaskDefinitionError, match="is for plain functions"):
        app.task(process=True)(coroutine)
    with pytest.raises(TaskDefinitionError, match="at the top level of a module"):
        app.task(process=True)(nested)
    with pytest.raises(TaskDefinitionError, match="connection cannot be injected there"):
        app.task(process=True)(wants_a_resource)
    with pytest.raises(InvalidOptions, match="add process=True"):
        app.task(memory_limit=10)
    for limit in (0, 1.5, True, "1"):
        with pytest.raises(InvalidOptions, match=r"memory_limit=.* must be a whole number of MB"):
            app.task(process=True, memory_limit=limit)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptions, match="process='yes' must be True or False"):
        app.task(process="yes")  # type: ignore[call-overload]
    for hook in (coroutine, nested, wants_an_argument, 3):
        with pytest.raises(ConfigurationError, match="on_process_start: "):
            app.on_process_start(hook)  # type: ignore[type-var]


def test_a_task_that_nobody_would_find_is_refused_before_anything_starts() -> None:
    app = Prinia(storage=MemoryStorage())
    app.task(process=True)(plain)
    with pytest.raises(ConfigurationError, match="is not the task itself, so another process cannot find it"):
        app.worker()
    other = Prinia(storage=MemoryStorage())
    other.task(plain)
    with pytest.raises(ConfigurationError, match="pool=0 must be a whole number"):
        other.worker(pool=0)


def plain() -> None: ...


def wants_an_argument(number: int) -> None: ...


def wants_a_resource(connection: WorkerContext = INJECTED) -> None: ...
