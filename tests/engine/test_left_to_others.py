"""What this worker does not know, a task or a codec, is left to workers that do: a rolling deploy has both kinds."""

from __future__ import annotations

import zlib

import pytest

from prinia import EventKind, JsonCodec, Prinia
from prinia.job import JobState
from prinia.worker import Worker
from prinia.worker import claim as claim_module
from tests.engine.heard import Heard
from tests.engine.kit import Shop, until


class Compressed:
    name = "json-zlib"

    def encode(self, value: object) -> bytes:
        return zlib.compress(JsonCodec().encode(value))

    def decode(self, data: bytes) -> object:
        return JsonCodec().decode(zlib.decompress(data))


async def double(number: int) -> int:
    return 2 * number


async def test_an_unknown_task_is_left_to_a_worker_that_knows_it(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    @shop.app.task(name="known")
    async def known() -> None: ...

    new = Shop()
    new.storage, new.app = shop.storage, type(shop.app)(storage=shop.storage)

    @new.app.task(name="brand.new")
    async def brand_new() -> None: ...

    async with shop.worker(name="old") as old:
        jobs = await shop.app.aenqueue_many(
            [brand_new.job(), brand_new.job(), known.job()]  # in one claim, or in more
        )
        await shop.until(JobState.COMPLETED, jobs[2].id)
        await until(lambda: old.stats.handed_back == 2 and old.stats.unrecorded == 0)
        job = await brand_new.aenqueue()
        await (await known.aenqueue()).aresult(timeout=10)
        assert old.stats.handed_back == 2, "excluded from the first sight on"
        assert [shop.record(id).attempt for id in (jobs[0].id, jobs[1].id, job.id)] == [0, 0, 0]
        async with Worker(shop.storage, new.app.tasks, name="new"):
            await shop.until(JobState.COMPLETED, jobs[0].id, jobs[1].id, job.id)
    assert sum("'brand.new', which this worker does not know" in text for text in caplog.messages) == 1


async def test_a_codec_is_left_to_a_worker_that_knows_it(
    shop: Shop, heard: Heard, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_module, "CODEC_AGAIN", 0.02)
    new = Prinia(storage=shop.storage, codec=Compressed())
    task = new.task(name="double", max_attempts=1)(double)
    known = shop.app.task(name="double", max_attempts=1)(double)
    async with shop.worker(on_event=heard) as old:
        jobs = await new.aenqueue_many(task.job(number) for number in range(5))
        assert await (await known.aenqueue(7)).aresult(timeout=10) == 14
        await until(lambda: old.stats.handed_back >= 15, "for each to be looked at a few times")
        assert await (await known.aenqueue(8)).aresult(timeout=10) == 16, "its task is not left alone for that"
        async with new.worker():
            assert [await job.aresult(timeout=10) for job in jobs] == [0, 2, 4, 6, 8]
    for job in jobs:
        assert (shop.record(job.id).attempt, shop.record(job.id).errors) == (1, ())
    assert sum("needs codec 'json-zlib', which this worker does not know" in text for text in caplog.messages) == 1
    event = heard.only(EventKind.ERROR)
    assert event.job is not None
    assert event.reason == "this worker does not know codec 'json-zlib'; such jobs are left to others"


async def test_a_job_of_an_unknown_codec_waits_a_while_between_two_looks(shop: Shop) -> None:
    new = Prinia(storage=shop.storage, codec=Compressed())
    task = new.task(name="double")(double)
    shop.app.task(name="double")(double)
    job = await task.aenqueue(1)
    async with shop.worker() as old:
        await until(lambda: old.stats.handed_back == 1 and not old.stats.unrecorded)
    assert (shop.state(job.id), shop.record(job.id).attempt) == (JobState.SCHEDULED, 0)


async def test_a_codec_of_the_task_alone_is_known(shop: Shop) -> None:
    task = shop.app.task(name="double", codec=Compressed())(double)
    async with shop.worker():
        assert await (await task.aenqueue(4)).aresult(timeout=10) == 8
