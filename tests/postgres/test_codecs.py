"""Codecs on PostgreSQL: what is in the rows, and that one bad codec hurts its own jobs only."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import psycopg
import pytest

from prinia import Fixed, InvalidArguments, JobFailed, JobState, JsonCodec, MessagePackCodec, Prinia
from prinia.worker import claim
from tests.engine.kit import until


class Compressed:
    """JSON, compressed, unless it is told to lie."""

    name = "json-zlib"
    lie: BaseException | None = None

    def encode(self, value: object) -> bytes:
        return zlib.compress(msgspec.json.encode(value))

    def decode(self, data: bytes) -> object:
        if self.lie is not None:
            raise self.lie
        return msgspec.json.decode(zlib.decompress(data))


def stored(dsn: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        query = "select task, codec, args, result from prinia.all_jobs order by id"
        return [(task, codec, bytes(args), result) for task, codec, args, result in connection.execute(query)]


async def test_each_job_is_read_by_its_own_codec(migrated: str) -> None:
    app = Prinia(migrated, codecs=[Compressed()])

    @app.task(name="zlib", codec=Compressed())
    async def compressed(data: bytes) -> bytes:
        return data

    @app.task(name="msgpack", codec=MessagePackCodec())
    async def packed(data: bytes) -> bytes:
        return data

    @app.task(name="json")
    async def plain(data: bytes) -> bytes:
        return data

    async with app:
        jobs = await app.aenqueue_many([task.job(b"\0\xff") for task in (compressed, packed, plain)])
        jobs = [*jobs, await app.aenqueue_by_name("json", packed.job(b"\0\xff").spec.args, codec="msgpack")]
        async with app.worker():
            assert [await job.aresult(timeout=20) for job in jobs] == [b"\0\xff"] * 4
    packed_args, text = b"\x81\xa4data\xc4\x02\0\xff", b'"AP8="'
    assert stored(migrated) == [
        ("zlib", "json-zlib", zlib.compress(b'{"data":"AP8="}'), zlib.compress(text)),
        ("msgpack", "msgpack", packed_args, b"\xc4\x02\0\xff"),
        ("json", "json", b'{"data":"AP8="}', text),
        ("json", "msgpack", packed_args, b"\xc4\x02\0\xff"),
    ]


@pytest.mark.parametrize(
    "data", [b'{"number":1}', b' {"number" :\n1}\t', b'{"number":1, "number":2.0}', b'{"number":1e2}']
)
def test_encoded_arguments_are_stored_to_the_letter(migrated: str, data: bytes) -> None:
    app = Prinia(migrated)

    @app.task(name="send")
    def send(number: float) -> None: ...

    app.enqueue_by_name("send", data)
    app.enqueue_many([send.job_encoded(data)] * 2)
    with psycopg.connect(migrated) as connection:
        app.within(connection).enqueue_many([send.job_encoded(data)])
        app.within(connection).enqueue_by_name("send", data)
    assert stored(migrated) == [("send", "json", data, None)] * 5


async def test_a_job_by_name_is_part_of_the_callers_transaction(migrated: str) -> None:
    app = Prinia(migrated)
    async with await psycopg.AsyncConnection.connect(migrated) as connection:
        job = await app.within(connection).aenqueue_by_name("far", {"a": 1}, queue="q")
        await connection.rollback()
        kept = await app.within(connection).aenqueue_by_name("far", {"a": 2}, queue="q")
        await connection.commit()
    assert stored(migrated) == [("far", "json", b'{"a":2}', None)]
    assert kept.id != job.id


async def test_a_codec_that_lies_hurts_its_own_job(migrated: str) -> None:
    codec = Compressed()
    app = Prinia(migrated, codec=codec)

    @app.task(name="lying", max_attempts=2, retry=Fixed(0))
    async def lying() -> int:
        return 1

    @app.task(name="fine", codec=JsonCodec())
    async def fine() -> int:
        return 2

    async with app:
        jobs = await app.aenqueue_many([fine.job(), lying.job(), fine.job()])
        codec.lie = SystemExit(3)
        with pytest.raises(InvalidArguments, match=r"codec 'json-zlib' cannot decode it: SystemExit: 3"):
            await lying.aenqueue()
        async with app.worker():
            assert [await jobs[at].aresult(timeout=20) for at in (0, 2)] == [2, 2]
            with pytest.raises(JobFailed, match=r"codec 'json-zlib' cannot decode it: SystemExit: 3"):
                await jobs[1].aresult(timeout=20)
            record = await jobs[1].ainfo()
            assert (record.state, record.attempt, len(record.errors)) == (JobState.FAILED, 2, 2)
            assert await (await fine.aenqueue()).aresult(timeout=20) == 2
    assert len(stored(migrated)) == 4


async def test_an_unknown_codec_waits_for_the_code_that_knows_it(
    migrated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = Prinia(migrated, codec=Compressed()), Prinia(migrated)

    async def double(number: int) -> int:
        return 2 * number

    monkeypatch.setattr(claim, "CODEC_AGAIN", 0.05)
    task = new.task(name="double", max_attempts=1)(double)
    old.task(name="double")(double)
    async with new, old:
        job = await task.aenqueue(4)
        async with old.worker() as worker:
            await until(lambda: worker.stats.handed_back >= 3)
        before = await job.ainfo()
        assert (before.attempt, before.errors) == (0, ())
        async with new.worker():
            assert await job.aresult(timeout=20) == 8
