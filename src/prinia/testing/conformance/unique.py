"""Unique keys: one live job per key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from prinia.errors import DuplicateJob
from prinia.job import JobSpec, OnConflict, Pushed, UniqueKey
from prinia.outcome import AckKind
from prinia.testing.conformance.bench import Bench, ConformanceBase, ack, call, job, promise


def keyed(text: str = "order:9", *, on_conflict: OnConflict = "keep", queue: str = "default") -> JobSpec:
    """A job with a unique key."""
    return job(queue=queue, unique=UniqueKey(text.encode().ljust(16, b"."), text, on_conflict))


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
