"""Waking: timers that grow, async iterators that are followed, and a worker that does not listen.

Seen to fail with: back-offs that never grow or never start over; an item asked for anew at each rest; the next item
asked for before the last one was acted on; iterators that stay open, are not waited for with a limit, or are followed
per life instead of per run; no timer under iterators; `listen` not handed on; due times ignored where nothing rings.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, Self

import pytest

from prinia import ConfigurationError, PollBackoff
from prinia.job import JobSpec, JobState
from prinia.storage.memory.bell import MemoryBell
from prinia.worker import waking as waking_module
from prinia.worker.waking import Sources, Waking, poll_sources
from tests.engine.kit import Shop, until

HOUR = 3600.0


class Pushed:
    """An async iterator that gives what is put into it, and knows what was asked of it."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[object] = asyncio.Queue()
        self.asked = self.starts = self.closed = 0

    async def _iterate(self) -> AsyncIterator[object]:
        self.starts += 1
        try:
            while True:
                self.asked += 1
                yield await self.items.get()
        finally:
            self.closed += 1

    def __aiter__(self) -> AsyncIterator[object]:
        return self._iterate()


def waking(*iterables: Any) -> Waking:
    return Waking(Sources((PollBackoff(),), iterables), lambda: 0.0)


class TestBackoff:
    def test_the_wait_grows_to_its_cap_and_jitter_is_on_top(self) -> None:
        backoff = PollBackoff(start=0.5, factor=3, cap=10, jitter=0.5)
        assert [backoff.wait(empty, 0.0) for empty in range(5)] == [0.5, 1.5, 4.5, 10, 10]
        assert backoff.wait(10**9, 1.0) == 15

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"start": 0}, "start=0 must be seconds, more than 0"),
            ({"start": True}, "start=True"),
            ({"cap": float("inf")}, "cap=inf"),
            ({"cap": 0.05}, r"cap=0.05 must not be below start=0.1"),
            ({"factor": 0.9}, "factor=0.9 must be a number from 1 to 100"),
            ({"jitter": "much"}, "jitter='much' must be a number from 0 to 1"),
        ],
    )
    def test_refuses_what_makes_no_sense(self, fields: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            PollBackoff(**fields)


class TestSources:
    def test_seconds_are_a_wait_that_does_not_grow(self) -> None:
        for poll in (5, 5.0, timedelta(seconds=5), [timedelta(seconds=5)]):
            [timer] = poll_sources(poll, listen=True).timers
            assert [timer.wait(empty, 0.9) for empty in (0, 1, 99)] == [5, 5, 5]

    @pytest.mark.parametrize(("listen", "seconds"), [(True, 30), (False, 1)])
    def test_a_net_stays_where_no_timer_is_given(self, listen: bool, seconds: float) -> None:
        source = Pushed()
        for poll in (None, source, [source]):
            [timer] = poll_sources(poll, listen=listen).timers
            assert timer.wait(0, 0.9) == seconds
        assert poll_sources([source, 7], listen=listen).timers[0].wait(0, 0.9) == 7

    def test_several_are_kept(self) -> None:
        one, two, backoff = Pushed(), Pushed(), PollBackoff()
        assert poll_sources((one, backoff, two), listen=True) == Sources((backoff,), (one, two))

    @pytest.mark.parametrize(
        "poll", [0, -1, True, float("nan"), timedelta(0), "5", b"5", [5, "soon"], PollBackoff, iter([1])]
    )
    def test_what_is_no_source_is_refused(self, poll: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"worker: poll=.* must be seconds .* async iterator, or a list"):
            poll_sources(poll, listen=True)

    def test_the_text_helps(self) -> None:
        async def ticks() -> AsyncIterator[None]:
            yield

        with pytest.raises(ConfigurationError, match=r"call it: poll=ticks\(\)"):
            poll_sources(ticks, listen=True)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="poll=\\[\\] has no source"):
            poll_sources([], listen=True)


class TestWaking:
    def test_the_first_of_several_timers_counts(self) -> None:
        sources = poll_sources([2, PollBackoff(start=0.5, factor=2, jitter=0)], listen=True)
        waits = Waking(sources, lambda: 0.0)
        seconds = []
        for _ in range(4):
            seconds.append(waits.seconds())
            waits.ran_out()
        assert seconds == [0.5, 1, 2, 2]
        waits.found()
        assert waits.seconds() == 0.5

    async def test_an_item_is_kept_until_it_is_taken_and_only_then_the_next_is_asked_for(self) -> None:
        source = Pushed()
        async with waking(source) as rests:
            waiting = asyncio.create_task(rests.item())
            await until(lambda: source.asked == 1)
            waiting.cancel()  # a rest that ends for another reason takes nothing from the iterator
            assert not rests.taken()
            for item in range(3):
                source.items.put_nowait(item)
                await rests.item()
                for _ in range(10):
                    await asyncio.sleep(0)  # it could ask meanwhile
                assert source.asked == item + 1
                assert rests.taken()
                assert not rests.taken()
                await until(lambda item=item: source.asked == item + 2)  # type: ignore[misc]
        assert source.closed == 1

    async def test_any_of_several_wakes(self) -> None:
        one, two = Pushed(), Pushed()
        async with waking(one, two) as rests:
            for source in (one, two, two, one):
                source.items.put_nowait(None)
                await rests.item()
                assert rests.taken()
            for source in (one, two):
                source.items.put_nowait(None)
            await until(lambda: one.items.empty() and two.items.empty())
            assert rests.taken(), "both at once are one reason to look"
            await until(lambda: one.asked == two.asked == 4)

    async def test_one_that_never_waits_does_not_block_the_loop(self) -> None:
        given = 0

        async def eager() -> AsyncIterator[None]:
            nonlocal given
            while True:
                given += 1
                yield

        async with waking(eager()) as rests:
            for looks in range(1, 4):
                await rests.item()
                assert given == looks
                assert rests.taken()

    async def test_one_that_fails_or_ends_wakes_no_more_and_others_do(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "prinia.worker")

        async def breaks() -> AsyncIterator[None]:
            yield
            raise ValueError("no broker")

        async def ends() -> AsyncIterator[None]:
            yield

        async def cancels() -> AsyncIterator[None]:
            yield
            raise asyncio.CancelledError

        async def exits() -> AsyncIterator[None]:
            yield
            raise SystemExit(3)

        class Liar:
            def __aiter__(self) -> Any:
                return 7

        good = Pushed()
        async with waking(breaks(), ends(), cancels(), exits(), Liar(), good) as rests:
            await rests.item()
            assert rests.taken()
            await until(lambda: len(caplog.records) == 5)
            good.items.put_nowait(None)
            await rests.item()
        texts = caplog.messages
        assert len(texts) == 5
        assert sum("failed; it wakes no more" in text for text in texts) == 3
        assert sum("was cancelled; it wakes no more" in text for text in texts) == 1
        assert sum("has ended" in text for text in texts) == 1
        assert "no broker" in caplog.text

    async def test_an_iterator_is_followed_and_closed_in_one_task(self) -> None:
        tasks = []

        async def within_a_limit() -> AsyncIterator[None]:
            async with asyncio.timeout(HOUR):  # a thing of one task
                try:
                    while True:
                        tasks.append(asyncio.current_task())
                        yield
                finally:
                    tasks.append(asyncio.current_task())

        async with waking(within_a_limit()) as rests:
            for _ in range(2):
                await rests.item()
                assert rests.taken()
        assert len(tasks) >= 3
        assert len(set(tasks)) == 1

    async def test_one_that_does_not_close_is_left_behind(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(waking_module, "GRACE", 0.01)
        end = asyncio.Event()

        async def clings() -> AsyncIterator[None]:
            try:
                await asyncio.Event().wait()
                yield
            finally:
                await end.wait()

        async with waking(clings()) as rests:
            await asyncio.sleep(0)
        assert "1 async iterators given as poll= do not end" in caplog.text
        end.set()
        await asyncio.wait(rests._followers)


class TestWorker:
    @pytest.fixture
    def job(self, shop: Shop) -> Callable[[], int]:
        """Stores a job and gives its id."""

        @shop.app.task(name="note")
        async def note() -> None: ...

        return lambda: shop.storage.push([JobSpec(task="note", args=b"{}")])[0].id

    async def test_without_listening_the_poll_finds_a_job(self, shop: Shop, job: Callable[[], int]) -> None:
        async with shop.worker(listen=False, poll=0.01):
            await until(lambda: len(shop.faults.claims) > 10, "it looks often")
            await shop.until(JobState.COMPLETED, job())

    async def test_without_listening_nothing_rings(
        self, shop: Shop, job: Callable[[], int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rested = asyncio.Event()
        rings = []
        wait = MemoryBell.wait

        async def noted(bell: MemoryBell, seconds: float, /) -> bool:
            rested.set()
            rings.append(await wait(bell, seconds))
            return rings[-1]

        monkeypatch.setattr(MemoryBell, "wait", noted)
        async with shop.worker(listen=False, poll=0.05):
            await rested.wait()
            await shop.until(JobState.COMPLETED, job())
            await until(lambda: len(rings) > 2)
        assert not any(rings)

    async def test_an_item_wakes_a_worker_at_once(self, shop: Shop, job: Callable[[], int]) -> None:
        source = Pushed()
        async with shop.worker(listen=False, poll=[HOUR, source]):
            for _ in range(3):
                await until(lambda: shop.storage.tables.bells, "for the worker to sleep")
                id = job()
                source.items.put_nowait(None)
                await shop.until(JobState.COMPLETED, id)
        assert (source.starts, source.closed) == (1, 1)

    async def test_a_ring_wakes_a_worker_beside_its_iterators(self, shop: Shop, job: Callable[[], int]) -> None:
        async with shop.worker(poll=[HOUR, Pushed()]):
            await until(lambda: shop.storage.tables.bells, "for the worker to sleep")
            await shop.until(JobState.COMPLETED, job())

    async def test_a_due_time_ends_a_rest_that_nothing_else_would(self, shop: Shop, job: Callable[[], int]) -> None:
        shop.storage.push([JobSpec(task="note", args=b"{}", delay=0.1)])
        async with shop.worker(listen=False, poll=HOUR):
            await until(lambda: not shop.storage.tables.live)

    async def test_a_broken_iterator_leaves_the_net(
        self, shop: Shop, job: Callable[[], int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(waking_module, "POLL_UNHEARD", 0.02)

        class Broken:
            def __aiter__(self) -> Self:
                return self

            async def __anext__(self) -> None:
                raise ValueError("no broker")

        async with shop.worker(listen=False, poll=Broken()):
            await until(lambda: "no broker" in caplog.text)
            await until(lambda: shop.storage.tables.bells, "for the worker to sleep")
            await shop.until(JobState.COMPLETED, job())
        assert sum("wakes no more" in text for text in caplog.messages) == 1

    async def test_rests_grow_while_nothing_is_found_and_start_over(
        self, shop: Shop, job: Callable[[], int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rests: list[float] = []
        go_on = asyncio.Event()

        async def noted(bell: MemoryBell, seconds: float, /) -> bool:
            rests.append(seconds)
            if len(rests) == 5:
                await go_on.wait()
            if len(rests) > 7:
                await asyncio.Event().wait()
            return False

        monkeypatch.setattr(MemoryBell, "wait", noted)
        async with shop.worker(poll=PollBackoff(start=1, factor=2, cap=6, jitter=0)):
            await until(lambda: len(rests) == 5)
            id = job()
            go_on.set()
            await until(lambda: len(rests) == 8)
            assert shop.state(id) is JobState.COMPLETED
        assert rests == [1, 2, 4, 6, 6, 1, 2, 4]

    async def test_iterators_outlive_an_instance(self, shop: Shop, job: Callable[[], int]) -> None:
        source = Pushed()
        async with shop.worker(listen=False, poll=[HOUR, source], heartbeat=0.01, dead_after=5) as worker:
            before = worker.instance.id
            await until(lambda: shop.storage.tables.bells, "for the worker to sleep")
            shop.kill_now(worker)
            await until(lambda: worker.instance.id != before and shop.storage.tables.bells)
            id = job()
            source.items.put_nowait(None)
            await shop.until(JobState.COMPLETED, id)
        assert (source.starts, source.closed) == (1, 1)

    async def test_a_worker_that_starts_again_follows_anew(self, shop: Shop, job: Callable[[], int]) -> None:
        source = Pushed()
        worker = shop.worker(listen=False, poll=[HOUR, source])
        for run in (1, 2):
            async with worker:
                await until(lambda: shop.storage.tables.bells, "for the worker to sleep")
                id = job()
                source.items.put_nowait(None)
                await shop.until(JobState.COMPLETED, id)
            assert (source.starts, source.closed) == (run, run)

    async def test_iterators_are_closed_when_the_worker_is_cancelled(self, shop: Shop, job: Callable[[], int]) -> None:
        source = Pushed()
        running = asyncio.create_task(shop.worker(poll=source).run())
        await until(lambda: source.asked == 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert source.closed == 1
