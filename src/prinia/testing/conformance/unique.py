"""Unique keys: one live job per key, or one per key and window."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from time import monotonic
from typing import Any

from prinia.errors import DuplicateJob
from prinia.job import JobSpec, OnConflict, Pushed
from prinia.options import unique_key
from prinia.outcome import AckKind
from prinia.testing.conformance.bench import Bench, ConformanceBase, StandIn, ack, call, job, promise


def keyed(
    text: str = "order:9", *, on_conflict: OnConflict = "keep", window: float | None = None, **fields: Any
) -> JobSpec:
    """A job with a unique key."""
    return job(unique=unique_key("conformance", text, on_conflict, window=window), **fields)


class UniquePromises(ConformanceBase):
    """While a job lives, its unique key is held."""

    @promise
    async def test_a_held_key_keeps_the_holder(self, bench: Bench) -> None:
        """A job whose key is held is not stored: the answer names the holder and says so; others get in."""
        [holder] = await bench.push(keyed())
        other, kept = await bench.storage.apush([keyed("order:10"), keyed()])
        assert (kept.id, kept.created) == (holder, False)
        assert other.created
        assert other.id != holder
        worker = await bench.worker()
        assert await worker.claimed_ids() == [holder, other.id]

    @promise
    async def test_a_held_key_raises_when_asked(self, bench: Bench) -> None:
        """With on_conflict="raise" a held key raises DuplicateJob with the holder's id, and nothing is stored."""
        [holder] = await bench.push(keyed(queue="other"))
        try:
            await bench.storage.apush([job(), keyed(on_conflict="raise"), job()])
        except DuplicateJob as error:
            assert error.job_id == holder
        else:
            raise AssertionError("a held unique key did not raise")
        worker = await bench.worker()
        assert await worker.claimed() == []

    @promise
    async def test_two_equal_keys_in_one_push(self, bench: Bench) -> None:
        """Of two jobs with one key in one push the first is stored and the second is answered with it."""
        first, between, second = await bench.storage.apush([keyed(), keyed("order:10"), keyed()])
        assert first.created
        assert between.created
        assert (second.id, second.created) == (first.id, False)
        worker = await bench.worker()
        assert sorted(await worker.claimed_ids()) == sorted([first.id, between.id])

    @promise
    async def test_two_equal_keys_in_one_push_raise_when_asked(self, bench: Bench) -> None:
        """Of two jobs with one key in one push the second raises if it says so, and nothing is stored."""
        try:
            await bench.storage.apush([keyed(), keyed(on_conflict="raise")])
        except DuplicateJob:
            pass
        else:
            raise AssertionError("a key held within the push did not raise")
        worker = await bench.worker()
        assert await worker.claimed() == []

    @promise
    async def test_a_key_is_held_while_its_job_lives(self, bench: Bench) -> None:
        """A key stays held while its job runs, and while it waits for its next attempt."""
        [holder] = await bench.push(keyed())
        worker = await bench.worker()
        claimed = await worker.one()
        assert await bench.push(keyed()) == [holder]
        await worker.recorded(ack(claimed, AckKind.RETRY, delay=600))
        assert await bench.push(keyed()) == [holder]

    @promise
    async def test_a_key_is_free_when_its_job_has_ended(self, bench: Bench) -> None:
        """However a job ended, its key is free for the next."""
        worker = await bench.worker()
        for kind in (AckKind.COMPLETE, AckKind.FAIL, AckKind.CANCEL):
            [pushed] = await bench.storage.apush([keyed()])
            assert pushed.created, "the key is still held"
            await bench.finish(await worker.one(), worker, kind)
        [waiting] = await bench.storage.apush([keyed()])
        assert waiting.created, "the key is still held after the ack of a cancel"
        assert await bench.storage.acancel([waiting.id], by="test") == 1
        [last] = await bench.storage.apush([keyed()])
        assert last.created, "the key is still held by a job that was cancelled while it waited"

    @promise
    async def test_eight_pushes_of_one_key_at_once(self, bench: Bench) -> None:
        """Of eight pushes of one key at the same time exactly one stores its job, and all name it."""
        start = Barrier(8)

        def push(_: int) -> list[Pushed]:
            start.wait(self.patience)
            return list(bench.storage.push([keyed(f"order:{number}") for number in range(20)]))

        def push_all() -> list[list[Pushed]]:
            with ThreadPoolExecutor(8) as pool:
                return list(pool.map(push, range(8)))

        for answers in zip(*await call(push_all), strict=True):
            assert len({answer.id for answer in answers}) == 1
            assert sum(answer.created for answer in answers) == 1


class WindowPromises(ConformanceBase):
    """A unique key with a window is held for so long, whatever becomes of its job."""

    @promise
    async def test_a_key_with_a_window_outlives_its_job(self, bench: Bench) -> None:
        """However its job ended, a key is held until its window is over, and raises when asked."""
        worker = await bench.worker()
        for kind in (AckKind.COMPLETE, AckKind.FAIL, AckKind.CANCEL):
            spec = keyed(kind, window=600)
            [holder] = await bench.push(spec)
            await bench.finish(await worker.one(), worker, kind)
            [kept] = await bench.storage.apush([spec])
            assert (kept.id, kept.created) == (holder, False)
            try:
                await bench.storage.apush([job(), keyed(kind, window=600, on_conflict="raise")])
            except DuplicateJob as error:
                assert error.job_id == holder
            else:
                raise AssertionError("a key held for a window did not raise")
        assert await worker.claimed() == []

    @promise
    async def test_a_window_ends(self, bench: Bench) -> None:
        """When the window is over, the next job of the key is stored, beside the first if that still lives."""
        [first] = await bench.push(keyed(window=0.1))
        deadline = monotonic() + bench.patience
        while not (pushed := (await bench.storage.apush([keyed(window=600)]))[0]).created:
            assert pushed.id == first
            assert monotonic() < deadline, "the key is still held after its window"
            await asyncio.sleep(0.005)
        assert await bench.push(keyed(window=600)) == [pushed.id]
        worker = await bench.worker()
        assert [claimed.id for claimed in await worker.collect(2)] == [first, pushed.id]

    @promise
    async def test_keys_with_and_without_a_window_are_apart(self, bench: Bench) -> None:
        """The same text with and without a window are two keys."""
        answers = [(await bench.storage.apush([spec]))[0] for spec in (keyed(), keyed(window=600), keyed(), keyed())]
        assert [answer.created for answer in answers] == [True, True, False, False]
        assert answers[2].id == answers[3].id == answers[0].id

    @promise
    async def test_a_push_that_fails_takes_no_window(self, bench: Bench) -> None:
        """The key of a job that was not stored after all is free."""
        await bench.push(keyed())
        try:
            await bench.storage.apush([keyed(window=600), keyed(on_conflict="raise")])
        except DuplicateJob:
            pass
        else:
            raise AssertionError("a held unique key did not raise")
        [pushed] = await bench.storage.apush([keyed(window=600)])
        assert pushed.created

    @promise
    async def test_a_sweep_forgets_keys_whose_window_is_over(self, bench: Bench) -> None:
        """A sweep forgets keys whose window is over and counts them; those that are held stay held."""
        await bench.push(*(keyed(f"short:{number}", window=0.05) for number in range(3)), keyed("long", window=600))
        worker = await bench.worker()
        await _sweep_keys(bench, worker, 3)
        assert await call(worker.pulse.sweep_keys) == 0
        short, long = await bench.storage.apush([keyed("short:0", window=600), keyed("long", window=600)])
        assert (short.created, long.created) == (True, False)

    @promise
    async def test_eight_pushes_of_a_key_whose_window_is_over(self, bench: Bench) -> None:
        """Of eight pushes that find the same key's window over exactly one stores its job."""
        await bench.push(*(keyed(f"{number}", window=0.001) for number in range(20)))
        await bench.push(keyed("the last", window=0.001))
        while not (await bench.storage.apush([keyed("the last", window=600)]))[0].created:
            await asyncio.sleep(0.001)
        start = Barrier(8)

        def push(_: int) -> list[Pushed]:
            start.wait(self.patience)
            return [bench.storage.push([keyed(f"{number}", window=600)])[0] for number in range(20)]

        def push_all() -> list[list[Pushed]]:
            with ThreadPoolExecutor(8) as pool:
                return list(pool.map(push, range(8)))

        for answers in zip(*await call(push_all), strict=True):
            assert sum(answer.created for answer in answers) == 1
            assert len({answer.id for answer in answers}) == 1


async def _sweep_keys(bench: Bench, worker: StandIn, number: int) -> None:
    deadline = monotonic() + bench.patience
    swept = 0
    while (swept := swept + await call(worker.pulse.sweep_keys)) < number:
        assert monotonic() < deadline, f"only {swept} of {number} keys were swept in time"
        await asyncio.sleep(0.005)
    assert swept == number
