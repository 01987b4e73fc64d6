"""Push: order, atomicity, chunks, both colours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta

from prinia.errors import DuplicateJob
from prinia.job import JobSpec, JobState, UniqueKey
from prinia.testing.conformance.bench import Bench, ConformanceBase, call, job, promise

#: More than two chunks of a push.
MANY = 2600


class PushPromises(ConformanceBase):
    """What is pushed is stored whole and in order, or not at all."""

    @promise
    async def test_answers_come_in_the_order_given(self, bench: Bench) -> None:
        """A push answers with one id per job, ascending, and each id is of the job in that place."""
        tags = [f"tag-{number}" for number in range(7)]
        answers = await bench.storage.apush([job(tags=(tag,)) for tag in tags])
        ids = [answer.id for answer in answers]
        assert ids == sorted(set(ids))
        assert all(answer.created for answer in answers)
        assert [record.tags for record in await bench.storage.afind(ids)] == [(tag,) for tag in tags]

    @promise
    async def test_an_empty_push_stores_nothing(self, bench: Bench) -> None:
        """A push of no jobs is answered with nothing."""
        assert list(await bench.storage.apush([])) == []
        assert list(await call(bench.storage.push, [])) == []

    @promise
    async def test_all_ways_to_give_jobs(self, bench: Bench) -> None:
        """Blocking and awaited, list, generator and async generator: the jobs get in all the same."""

        def some() -> Iterator[JobSpec]:
            yield from (job(), job())

        async def later() -> AsyncIterator[JobSpec]:
            for spec in some():
                yield spec

        storage = bench.storage
        pushed = [
            *await call(storage.push, [job(), job()]),
            *await call(storage.push, some()),
            *await storage.apush(some()),
            *await storage.apush(later()),
        ]
        ids = {answer.id for answer in pushed}
        assert len(ids) == 8
        assert {record.id for record in await call(storage.find, list(ids))} == ids

    @promise
    async def test_an_iterable_that_raises_midway_leaves_nothing(self, bench: Bench) -> None:
        """When the iterable of a push raises, also after thousands of jobs, none of them is stored."""

        def broken() -> Iterator[JobSpec]:
            yield job(unique=UniqueKey(b"0" * 16, "key"))
            yield from (job() for _ in range(MANY))
            raise OSError("the file ended")

        async def broken_later() -> AsyncIterator[JobSpec]:
            for spec in broken():
                yield spec

        for jobs in (broken(), broken_later()):
            try:
                await bench.storage.apush(jobs)
            except OSError as error:
                assert str(error) == "the file ended"
            else:
                raise AssertionError("the error of the iterable was swallowed")
        worker = await bench.worker()
        assert await worker.claimed() == []
        [answer] = await bench.storage.apush([job(unique=UniqueKey(b"0" * 16, "key"))])
        assert answer.created, "the unique key of a job that was not stored is still held"

    @promise
    async def test_an_error_in_a_later_chunk_leaves_nothing(self, bench: Bench) -> None:
        """When a job far down in a push is refused, the thousands before it are not stored either."""
        [holder] = await bench.push(job(queue="other", unique=UniqueKey(b"1" * 16, "key")))
        refused = job(unique=UniqueKey(b"1" * 16, "key", on_conflict="raise"))
        try:
            await bench.storage.apush([*(job() for _ in range(MANY)), refused])
        except DuplicateJob as error:
            assert error.job_id == holder
        else:
            raise AssertionError("a held unique key was not refused")
        worker = await bench.worker()
        assert await worker.claimed() == []

    @promise
    async def test_thousands_in_one_push(self, bench: Bench) -> None:
        """A push of thousands is stored whole, its ids ascend, and it is claimed in its order."""
        ids = [answer.id for answer in await bench.storage.apush(job() for _ in range(MANY))]
        assert len(ids) == MANY
        assert ids == sorted(set(ids))
        worker = await bench.worker()
        assert [claimed.id for claimed in await worker.collect(MANY)] == ids

    @promise
    async def test_a_due_time_in_the_past_becomes_now(self, bench: Bench) -> None:
        """A job due long ago is due when it was pushed: it does not overtake those that wait."""
        yesterday = datetime.now(UTC) - timedelta(days=1)
        id = await bench.push_one(scheduled_at=yesterday)
        record = await bench.in_state(id, JobState.READY)
        assert record.scheduled_at is not None
        assert record.scheduled_at > yesterday + timedelta(hours=1)
