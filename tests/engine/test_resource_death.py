"""A resource that dies while workers run: it is noticed at once, and ends them in order and with its error."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from prinia import INJECTED, Context, EventKind, Prinia, ResourceError
from prinia.job import JobState
from prinia.worker import Worker
from tests.engine.heard import Heard
from tests.engine.kit import Shop, until
from tests.engine.things import Pool, Session, Settings, provide_pool


class Fuse:
    """Blows when it is told to."""

    def __init__(self) -> None:
        self._blown = asyncio.Event()

    def mend(self) -> None:
        self._blown.clear()

    def blow(self) -> None:
        self._blown.set()

    async def watch(self) -> None:
        await self._blown.wait()
        raise ConnectionError("the server is gone")


@pytest.fixture
async def fuse() -> Fuse:
    return Fuse()


def provide(app: Prinia, fuse: Fuse, scope: str, steps: list[str] | None = None) -> None:
    """A pool that keeps an eye on its server, as many do."""
    steps = [] if steps is None else steps

    @app.provide(scope=scope)  # type: ignore[call-overload, untyped-decorator]
    async def pool() -> AsyncIterator[Pool]:
        steps.append("open")
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(fuse.watch())
            yield Pool("fine")
            watching.cancel()
        steps.append("close")


SAID = (
    r"provide.<locals>.pool, a resource of scope {}, could not be kept open: ExceptionGroup: unhandled errors in a "
    r"TaskGroup \(1 sub-exception\): ConnectionError: the server is gone$"
)


@pytest.mark.parametrize("scope", ["app", "worker"])
async def test_it_ends_its_worker_in_order_and_with_its_error(
    shop: Shop, heard: Heard, fuse: Fuse, scope: str, caplog: pytest.LogCaptureFixture
) -> None:
    steps: list[str] = []
    gate = asyncio.Event()
    provide(shop.app, fuse, scope)
    shop.app.on_stop(lambda: steps.append("stop hook"))

    @shop.app.task(name="use")
    async def use(pool: Pool = INJECTED, ctx: Context = INJECTED) -> str:
        await gate.wait()
        await until(lambda: ctx.stopping)
        return "ended by itself"

    job = await use.aenqueue()
    worker = shop.worker(name="w", on_event=heard)
    running = asyncio.ensure_future(worker.run())
    await shop.until(JobState.RUNNING, job.id)
    fuse.blow()
    await until(lambda: EventKind.ERROR in heard.kinds())
    # At once, before the stop is over; and the job that runs may end.
    assert not running.done()
    assert steps == []
    said = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in said[1:]] == [f"worker w stops: {said[0].getMessage()}"]
    assert said[0].exc_info is not None
    late = await use.aenqueue()
    gate.set()
    with pytest.raises(ResourceError, match=SAID.format(scope)) as caught:
        await asyncio.wait_for(running, 20)
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    event = heard.only(EventKind.ERROR)
    assert (event.reason, event.exception) == (str(caught.value), caught.value)
    assert heard.kinds()[-1] is EventKind.STOPPED
    assert steps == ["stop hook"]
    assert shop.record(job.id).result == b'"ended by itself"'
    assert (shop.state(late.id), shop.record(late.id).attempt) == (JobState.READY, 0)
    assert not shop.storage.tables.register
    assert not shop.app.surroundings.shared
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 2


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
async def test_whatever_ends_it_ends_the_worker_alone(shop: Shop, kind: type[BaseException]) -> None:
    @shop.app.provide
    async def pool() -> AsyncIterator[Pool]:
        task = asyncio.current_task()
        assert task is not None
        keeping.append(task)
        try:
            yield Pool()
        except asyncio.CancelledError:
            raise kind("now") from None

    keeping: list[asyncio.Task[object]] = []

    @shop.app.task(name="use")
    async def use(pool: Pool = INJECTED) -> None: ...

    running = asyncio.ensure_future(shop.worker().run())
    await until(lambda: shop.faults.claims)
    keeping[0].cancel()
    with pytest.raises(ResourceError, match=f"could not be kept open: {kind.__name__}: now"):
        await asyncio.wait_for(running, 20)


async def test_one_whose_own_task_is_cancelled_is_dead_too(shop: Shop) -> None:
    keeping: list[asyncio.Task[object]] = []

    @shop.app.provide
    async def pool() -> Pool:
        task = asyncio.current_task()
        assert task is not None
        keeping.append(task)
        return Pool()

    @shop.app.task(name="use")
    async def use(pool: Pool = INJECTED) -> None: ...

    with pytest.raises(
        ResourceError, match=r"pool, a resource of scope worker, could not be kept open: its asyncio ta"
    ):
        async with shop.worker():
            keeping[0].cancel()


@pytest.mark.parametrize("where", ["start hook", "later resource"])
async def test_one_that_dies_during_the_start_ends_the_start(shop: Shop, fuse: Fuse, where: str) -> None:
    steps: list[str] = []
    provide(shop.app, fuse, "worker")

    async def hang() -> None:
        steps.append(where)
        await asyncio.sleep(3600)

    if where == "start hook":
        shop.app.on_start(hang)

    @shop.app.provide
    async def session(pool: Pool = INJECTED) -> Session:
        if where != "start hook":
            await hang()
        return Session()

    @shop.app.task(name="use")
    async def use(session: Session = INJECTED) -> None: ...

    running = asyncio.ensure_future(shop.worker().run())
    await until(lambda: steps)
    fuse.blow()
    with pytest.raises(ResourceError, match=SAID.format("worker")):
        await asyncio.wait_for(running, 20)
    assert shop.faults.claims == []
    assert not shop.storage.tables.register


async def test_one_that_dies_during_the_stop_is_told_all_the_same(shop: Shop, heard: Heard, fuse: Fuse) -> None:
    gate = asyncio.Event()
    provide(shop.app, fuse, "worker")

    @shop.app.task(name="use")
    async def use(pool: Pool = INJECTED) -> None:
        await gate.wait()

    job = await use.aenqueue()
    worker = shop.worker(on_event=heard)
    running = asyncio.ensure_future(worker.run())
    await shop.until(JobState.RUNNING, job.id)
    worker.stop()
    fuse.blow()
    await until(lambda: EventKind.ERROR in heard.kinds())
    gate.set()
    with pytest.raises(ResourceError, match=SAID.format("worker")):
        await asyncio.wait_for(running, 20)
    assert shop.state(job.id) is JobState.COMPLETED


async def test_its_worker_may_run_again(shop: Shop, fuse: Fuse) -> None:
    steps: list[str] = []
    provide(shop.app, fuse, "worker", steps)

    @shop.app.task(name="use")
    async def use(pool: Pool = INJECTED) -> str:
        return pool.name

    worker = shop.worker()
    running = asyncio.ensure_future(worker.run())
    await until(lambda: shop.faults.claims)
    fuse.blow()
    with pytest.raises(ResourceError):
        await asyncio.wait_for(running, 20)
    fuse.mend()
    async with worker:
        assert await (await use.aenqueue()).aresult(timeout=10) == "fine"
    assert steps == ["open", "open", "close"]


class TestApp:
    """Of scope app: every worker that uses it, and none else."""

    @pytest.fixture
    def work(self, shop: Shop) -> Callable[..., Worker]:
        """Makes workers: some use the pool, some use what wants it, some use neither; all use the settings."""

        @shop.app.provide(scope="app")
        async def settings() -> AsyncIterator[Settings]:
            yield Settings("settings")

        @shop.app.provide(scope="app")
        async def session(pool: Pool = INJECTED) -> AsyncIterator[Session]:
            yield Session("of a pool")

        @shop.app.task(name="pool", queue="pool")
        async def with_pool(pool: Pool = INJECTED, settings: Settings = INJECTED) -> None: ...

        @shop.app.task(name="session", queue="session")
        async def with_session(session: Session = INJECTED, settings: Settings = INJECTED) -> None: ...

        @shop.app.task(name="neither", queue="neither")
        async def neither(settings: Settings = INJECTED) -> str:
            return settings.name

        def make(task: str) -> Worker:
            return Worker(shop.storage, {task: shop.app.tasks[task]}, name=task, hooks=shop.app)

        return make

    async def test_all_that_use_it_end_and_others_do_not(
        self, shop: Shop, fuse: Fuse, work: Callable[[str], Worker]
    ) -> None:
        provide(shop.app, fuse, "app")
        workers = [work(task) for task in ("pool", "pool", "session")]
        async with work("neither"):
            running = [asyncio.ensure_future(worker.run()) for worker in workers]
            await until(lambda: len(shop.storage.tables.register) == 4)
            await until(lambda: len(shop.faults.claims) >= 4)
            fuse.blow()
            ends = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 20)
            assert [type(end) for end in ends] == [ResourceError] * 3
            assert len(set(map(id, ends))) == 3, "each has an error of its own"
            neither = shop.app.tasks["neither"]
            assert await (await neither.aenqueue()).aresult(timeout=10) == "settings"

    async def test_it_is_opened_anew_once_they_have_ended(
        self, shop: Shop, heard: Heard, fuse: Fuse, work: Callable[[str], Worker]
    ) -> None:
        steps: list[str] = []
        provide(shop.app, fuse, "app", steps)
        shop.app.on_event(EventKind.ERROR)(heard)
        gate = asyncio.Event()

        @shop.app.task(name="hold")
        async def hold(session: Session = INJECTED) -> None:
            await gate.wait()

        async with work("neither"):
            job = await hold.aenqueue()
            running = asyncio.ensure_future(work("hold").run())
            await shop.until(JobState.RUNNING, job.id)
            fuse.blow()
            await until(lambda: heard.events)
            with pytest.raises(ResourceError, match=r"gone; it is opened anew once the workers that used it have stop"):
                await work("pool").run()
            assert steps == ["open"]
            gate.set()
            with pytest.raises(ResourceError, match=r"gone$"):
                await asyncio.wait_for(running, 20)
            fuse.mend()
            async with work("session"):
                await (await shop.app.tasks["session"].aenqueue()).aresult(timeout=10)
        assert steps == ["open", "open", "close"]

    async def test_what_is_no_more_used_is_closed_while_others_go_on(
        self, shop: Shop, work: Callable[[str], Worker]
    ) -> None:
        steps: list[str] = []
        provide_pool(shop.app, "app", steps)

        async with work("neither"):
            assert steps == []
            async with work("pool"), work("session"):
                assert steps == ["open"]
            assert steps == ["open", "close"]
