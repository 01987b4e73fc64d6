"""Push: order, atomicity, chunks, both colours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

from prinia.errors import DuplicateJob
from prinia.job import ClaimedExtras, JobRecord, JobSpec, JobState, UniqueKey
from prinia.retry import Delays, Exponential
from prinia.testing.conformance.bench import Bench, ConformanceBase, call, job, promise

#: More than two chunks of a push.
MANY = 2600
OTHER = "other \u00e9 \\N"
PAST, FUTURE = datetime(2020, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"queue": OTHER, "task": "t\U0001f600"},
    {"priority": -100, "max_attempts": 10_000, "max_crashes": 0, "rerun_after_crash": False},
    {"priority": 100, "timeout": 0.1},
    {"delay": 600.000001},
    {"scheduled_at": FUTURE, "expires_at": FUTURE},
    {"scheduled_at": PAST - timedelta(1), "expires_in": 3600.5},
    {"expires_at": PAST, "codec": "msgpack"},
    {"retry": Exponential(start=7)},
    {"retry": Delays((1, 2.5))},
    {"tags": ("", "a,b", '"{}\\', "\u00e9")},
    {"meta": {"deep": [1, {"\u00e9": None}], "text": "\\"}},
    {"meta": {"n": 1}},
    {"meta": {"n": True}},
)
#: Jobs with every option there is, numbered by their arguments.
VARIED = [job(args=b"%d" % number, **fields) for number, fields in enumerate(_OPTIONS)]


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
    async def test_thousands_are_stored_as_one_is(self, bench: Bench) -> None:
        """Every option of every job of a push of thousands is kept, as it is when the job is pushed alone."""
        alone = [await bench.find(id) for spec in VARIED for id in await bench.push(spec)]
        pushed = await bench.storage.apush(VARIED[number % len(VARIED)] for number in range(MANY))
        assert all(answer.created for answer in pushed)
        records = await bench.storage.afind([answer.id for answer in pushed])
        for number, record in enumerate(records):
            one = alone[number % len(VARIED)]
            assert _due(record) == _due(one)
            assert repr(record.meta) == repr(one.meta)  # 1 is equal to True
            assert replace(record, id=one.id, created_at=one.created_at, scheduled_at=one.scheduled_at) == one
        worker = await bench.worker("default", OTHER)
        extras: dict[bytes, list[ClaimedExtras | None]] = {}
        for claimed in await worker.collect(sum(record.state is JobState.READY for record in [*alone, *records])):
            extras.setdefault(claimed.args, []).append(claimed.extras)
        assert len(extras) == len(VARIED) - 2
        assert all(one == of_job[0] for of_job in extras.values() for one in of_job)

    @promise
    async def test_thousands_in_one_push_wake_a_sleeper(self, bench: Bench) -> None:
        """A push of thousands rings like any other, for every queue in it."""
        for queue in ("default", "other"):
            worker = await bench.worker(queue)
            deadline = monotonic() + bench.patience
            while not await worker.consumer.bell.arm():
                assert monotonic() < deadline, "the bell could not be armed"
                await asyncio.sleep(0.005)
            await bench.storage.apush(job(queue=("default", "other")[number % 2]) for number in range(MANY))
            assert await worker.consumer.bell.wait(bench.patience), "slept through a push of thousands"

    @promise
    async def test_a_due_time_in_the_past_becomes_now(self, bench: Bench) -> None:
        """A job due long ago is due when it was pushed: it does not overtake those that wait."""
        yesterday = datetime.now(UTC) - timedelta(days=1)
        id = await bench.push_one(scheduled_at=yesterday)
        record = await bench.in_state(id, JobState.READY)
        assert record.scheduled_at is not None
        assert record.scheduled_at > yesterday + timedelta(hours=1)


def _due(record: JobRecord) -> datetime | int:
    """When a job is due: the time itself when that is far off, else in how many seconds."""
    assert record.scheduled_at is not None
    return FUTURE if record.scheduled_at == FUTURE else round((record.scheduled_at - record.created_at).total_seconds())
