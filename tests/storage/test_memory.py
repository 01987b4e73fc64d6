"""The memory storage: the public suite, and what only it can be asked."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from prinia.errors import ConnectionKindError, InvalidOptions
from prinia.job import ClaimedJob, Instance, JobState
from prinia.outcome import Ack, AckKind
from prinia.storage.memory import MemoryStorage
from prinia.storage.memory.consumer import MemoryConsumer
from prinia.storage.protocol import Storage
from prinia.testing import ManualClock
from prinia.testing.conformance import StorageConformance, job

DAY = 86400.0


class TestMemory(StorageConformance):
    """All promises, on memory."""

    def make_storage(self) -> Storage:
        return MemoryStorage()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def storage(clock: ManualClock) -> MemoryStorage:
    return MemoryStorage(clock=clock)


async def opened(storage: MemoryStorage) -> MemoryConsumer:
    consumer = storage.consumer(
        Instance(
            id=uuid4(), name="w", queues=("default",), tasks=(), host="localhost", pid=1, version="0", concurrency=1
        )
    )
    await consumer.open()
    return consumer


async def claim_one(consumer: MemoryConsumer, token: int = 1) -> ClaimedJob:
    [claimed] = (await consumer.claim(1, token=token)).jobs
    return claimed


async def test_time_is_the_clocks(storage: MemoryStorage, clock: ManualClock) -> None:
    [pushed] = storage.push([job(delay=3600)])
    consumer = await opened(storage)
    clock.advance(3599)
    claim = await consumer.claim(1, token=1)
    assert (list(claim.jobs), claim.next_due) == ([], 1.0)
    clock.advance(1)
    assert (await claim_one(consumer, 2)).id == pushed.id
    assert storage.find([pushed.id])[0].started_at == clock.now()


async def test_wake_ends_a_sleep_after_the_clock_was_moved(storage: MemoryStorage, clock: ManualClock) -> None:
    consumer = await opened(storage)
    await consumer.bell.arm()
    sleep = asyncio.create_task(consumer.bell.wait(30))
    await asyncio.sleep(0)
    clock.advance(3600)
    storage.wake()
    assert await sleep


async def test_a_sleep_that_is_cancelled_loses_no_ring(storage: MemoryStorage) -> None:
    consumer = await opened(storage)
    await consumer.bell.arm()
    sleep = asyncio.create_task(consumer.bell.wait(30))
    await asyncio.sleep(0)
    storage.push([job()])
    sleep.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sleep
    assert await consumer.bell.wait(30)


def test_a_push_rings_for_a_loop_that_is_gone(storage: MemoryStorage) -> None:
    async def sleep_and_go() -> None:
        consumer = await opened(storage)
        await consumer.bell.arm()
        sleeper = asyncio.ensure_future(consumer.bell.wait(30))
        await asyncio.sleep(0)
        # The loop closes under the sleeper: nothing runs its clean-up any more.
        asyncio.get_running_loop().stop()
        await sleeper

    loop = asyncio.new_event_loop()
    task = loop.create_task(sleep_and_go())
    loop.run_forever()
    [pushed] = storage.push([job()])
    assert pushed.created
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    storage.push([job()])


@pytest.mark.parametrize(
    ("kind", "days"), [(AckKind.COMPLETE, 1), (AckKind.CANCEL, 7), (AckKind.FAIL, 30)], ids=["done", "cancel", "fail"]
)
async def test_finished_jobs_are_forgotten_by_state(
    storage: MemoryStorage, clock: ManualClock, kind: AckKind, days: int
) -> None:
    [pushed] = storage.push([job()])
    consumer = await opened(storage)
    claimed = await claim_one(consumer)
    await consumer.ack([Ack(claimed.id, claimed.token, kind)])
    pulse = storage.pulse(
        Instance(id=uuid4(), name="l", queues=(), tasks=(), host="", pid=1, version="0", concurrency=1)
    )
    clock.advance(days * DAY - 1)
    pulse.sweep_archive()
    assert [record.id for record in storage.find([pushed.id])] == [pushed.id]
    clock.advance(1)
    pulse.sweep_archive()
    assert storage.find([pushed.id]) == []
    # Retention never stops acks: one that is sent again is merely lost.
    assert (await consumer.ack([Ack(claimed.id, claimed.token, kind)])).lost == {pushed.id}


async def test_a_completed_job_drops_big_arguments(storage: MemoryStorage) -> None:
    small, big = storage.push([job(args=b"x" * 2048), job(args=b"x" * 2049)])
    consumer = await opened(storage)
    claim = await consumer.claim(2, token=1)
    await consumer.ack([Ack(claimed.id, 1, AckKind.COMPLETE) for claimed in claim.jobs])
    assert [record.args for record in storage.find([small.id, big.id])] == [b"x" * 2048, None]


async def test_meta_is_nobodys_but_the_storages(storage: MemoryStorage) -> None:
    meta: dict[str, Any] = {"tags": [1]}
    [pushed] = storage.push([job(meta=meta)])
    meta["tags"].append(2)
    claimed = await claim_one(await opened(storage))
    assert claimed.extras is not None
    assert claimed.extras.meta == {"tags": [1]}
    claimed.extras.meta["tags"].append(3)
    assert storage.find([pushed.id])[0].meta == {"tags": [1]}


def test_meta_that_is_no_json_is_refused(storage: MemoryStorage) -> None:
    with pytest.raises(InvalidOptions, match=r"shop.greet"):
        storage.push([job(), job(task="shop.greet", meta={"lock": object()})])
    assert storage.find([1, 2]) == []


def test_a_connection_is_refused_with_the_way_out(storage: MemoryStorage) -> None:
    with pytest.raises(ConnectionKindError, match="without a connection, or use a PostgreSQL storage"):
        storage.push_within(object(), [job()])


async def test_excluded_jobs_that_left_are_not_due(storage: MemoryStorage) -> None:
    later, excluded = storage.push([job(delay=60), job(task="unknown", delay=30)])
    consumer = await opened(storage)
    consumer.exclude("unknown")
    assert (await consumer.claim(1, token=1)).next_due == 60.0
    storage.cancel([later.id], by="test")
    assert (await consumer.claim(1, token=2)).next_due is None
    assert storage.find([excluded.id])[0].state is JobState.SCHEDULED
