"""What is stored comes back as it was given: arguments, options, results, texts."""

from __future__ import annotations

from prinia.job import MAX_RESULT_BYTES, AttemptError, JobState
from prinia.outcome import AckKind
from prinia.retry import Delays, Exponential, Fixed
from prinia.testing.conformance.bench import Bench, ConformanceBase, ack, call, job, promise

JSON_ARGS = (
    b"{}",
    b'{"b": 1, "a":  2, "B":3}',
    b'{"n": 123456789012345678901234567890, "f": 1.10, "e": 1E+400, "z": -0.0}',
    '{"text": "naïve 😀 \u2028 \\u00e9 \\ud83d\\ude00"}'.encode(),
    b'{"sql": "%s %(x)s %% :p $1 \\\\ \' \\" -- /* ?"}',
    b'{"twice": 1, "twice": 2}',
)
NASTY = "a\x00b \ud800 \udfff \\u0000 %s {x} \u2028 é 😀"
BYTES = (b"", b"\x00", b"null", b"\xff\xfe\x00\x80", bytes(range(256)))


class StoringPromises(ConformanceBase):
    """The storage carries; it does not read, sort, round or trim."""

    @promise
    async def test_json_arguments_come_back_verbatim(self, bench: Bench) -> None:
        """JSON arguments come back byte for byte: key order, spaces, big numbers, escapes, placeholders."""
        ids = await bench.push(*(job(args=args) for args in JSON_ARGS))
        assert [record.args for record in await bench.storage.afind(ids)] == list(JSON_ARGS)
        worker = await bench.worker()
        assert [claimed.args for claimed in await worker.collect(len(ids))] == list(JSON_ARGS)

    @promise
    async def test_a_nul_escape_in_json_arguments(self, bench: Bench) -> None:
        r"""JSON may say ``\u0000``; arguments that do are stored like any others."""
        args = rb'{"text": "a\u0000b"}'
        id = await bench.push_one(args=args)
        worker = await bench.worker()
        assert (await worker.one()).args == args
        assert (await bench.find(id)).args == args

    @promise
    async def test_bytes_of_other_codecs_come_back_verbatim(self, bench: Bench) -> None:
        """Arguments of another codec than JSON are any bytes at all, and the codec's name comes with them."""
        ids = await bench.push(*(job(args=args, codec="msgpack") for args in BYTES))
        worker = await bench.worker()
        for claimed, args in zip(await worker.collect(len(ids)), BYTES, strict=True):
            assert claimed.args == args
            assert claimed.extras is not None
            assert claimed.extras.codec == "msgpack"
        assert [(record.args, record.codec) for record in await bench.storage.afind(ids)] == [
            (args, "msgpack") for args in BYTES
        ]

    @promise
    async def test_a_plain_job_has_no_extras(self, bench: Bench) -> None:
        """A claim of a job without options says so with None, and its counters start at their beginning."""
        id = await bench.push_one(task="shop.greet", args=b'{"a":1}', priority=3, max_attempts=7)
        worker = await bench.worker()
        claimed = await worker.one()
        assert (claimed.id, claimed.token) == (id, worker.tokens[-1])
        assert (claimed.task, claimed.queue, claimed.priority) == ("shop.greet", "default", 3)
        assert (claimed.attempt, claimed.max_attempts, claimed.crashes) == (1, 7, 0)
        assert claimed.args == b'{"a":1}'
        assert claimed.extras is None

    @promise
    async def test_options_reach_the_worker(self, bench: Bench) -> None:
        """Timeout, retry policy, tags and meta arrive with the claim as they were given."""
        meta = {"trace": "00-ab", "nested": {"z": [1, 2.5, None, True], "a": "é"}}
        worker = await bench.worker()
        for policy in (Fixed(2.5), Exponential(start=1, cap=9), Delays((1, 10))):
            await bench.push(job(timeout=2.5, retry=policy, tags=("b", "a", "it's"), meta=meta))
            extras = (await worker.one()).extras
            assert extras is not None
            assert (extras.timeout, extras.retry, extras.tags) == (2.5, policy, ("b", "a", "it's"))
            assert extras.meta == meta
            assert not extras.expired
            assert extras.codec == "json"

    @promise
    async def test_a_waiting_job_reads_as_it_was_pushed(self, bench: Bench) -> None:
        """A waiting job is found with what it was pushed with; what does not apply is None or empty."""
        id = await bench.push_one(
            task="shop.greet", queue="email", priority=-5, max_attempts=2, tags=("t",), meta={"k": 1}, args=b'{"a":1}'
        )
        record = await bench.in_state(id, JobState.READY)
        assert (record.id, record.task, record.queue, record.priority) == (id, "shop.greet", "email", -5)
        assert (record.attempt, record.max_attempts, record.crashes) == (0, 2, 0)
        assert (record.args, record.codec, record.tags, record.meta) == (b'{"a":1}', "json", ("t",), {"k": 1})
        assert record.created_at.utcoffset() is not None
        assert record.scheduled_at is not None
        assert (record.started_at, record.finished_at, record.owner) == (None, None, None)
        assert (record.result, record.errors, record.reason) == (None, (), None)

    @promise
    async def test_find_answers_in_the_order_asked(self, bench: Bench) -> None:
        """Live and finished jobs are found in one go, in the order of the ids; unknown ids are left out."""
        ids = await bench.push(*(job() for _ in range(4)))
        worker = await bench.worker()
        first, *_ = await worker.claimed(2)
        await bench.finish(first, worker)
        asked = [ids[3], ids[0], ids[-1] + 1000, ids[1]]
        expected = [(ids[3], JobState.READY), (ids[0], JobState.COMPLETED), (ids[1], JobState.RUNNING)]
        for records in (await bench.storage.afind(asked), await call(bench.storage.find, asked)):
            assert [(record.id, record.state) for record in records] == expected
        assert await bench.storage.afind([]) == []

    @promise
    async def test_results_are_any_bytes(self, bench: Bench) -> None:
        """A result is any bytes of any content, up to a mebibyte; an empty one is not None."""
        results = [*BYTES, b"\x00\xff" * (MAX_RESULT_BYTES // 2), None]
        ids = await bench.push(*(job() for _ in results))
        worker = await bench.worker()
        jobs = await worker.collect(len(ids))
        pairs = zip(jobs, results, strict=True)
        await worker.recorded(*(ack(claimed, AckKind.COMPLETE, result=result) for claimed, result in pairs))
        assert [record.result for record in await bench.storage.afind([claimed.id for claimed in jobs])] == results

    @promise
    async def test_arguments_of_ended_jobs_are_kept(self, bench: Bench) -> None:
        """A failed or cancelled job keeps its arguments, however big, so that it can be run again."""
        args = b'{"text": "' + b"x" * 200_000 + b'"}'
        worker = await bench.worker()
        for kind in (AckKind.FAIL, AckKind.CANCEL):
            id = await bench.push_one(args=args)
            await bench.finish(await worker.one(), worker, kind)
            assert (await bench.find(id)).args == args

    @promise
    async def test_error_texts_may_hold_anything(self, bench: Bench) -> None:
        """Errors with NUL characters and lone surrogates are kept, the rest of their text unharmed."""
        error = AttemptError(attempt=1, kind="Bad\x00Error", message=NASTY, traceback=NASTY)
        worker = await bench.worker()
        for kind, last in ((AckKind.RETRY, JobState.RETRYING), (AckKind.FAIL, JobState.FAILED)):
            id = await bench.push_one()
            await worker.recorded(ack(await worker.one(), kind, error=error, delay=600))
            [kept] = (await bench.in_state(id, last)).errors
            assert kept.message.startswith("a")
            assert kept.message.endswith("%s {x} \u2028 é 😀")
            assert kept.traceback is not None
            assert kept.traceback.endswith("é 😀")
            assert "\x00" not in kept.message + kept.kind

    @promise
    async def test_reasons_may_hold_anything(self, bench: Bench) -> None:
        """A reason with NUL characters and lone surrogates is kept, the handler's and the canceller's."""
        worker = await bench.worker()
        handled, waiting = await bench.push(job(), job(delay=600))
        await worker.recorded(ack(await worker.one(), AckKind.CANCEL, reason=NASTY))
        assert await bench.storage.acancel([waiting], by=NASTY) == 1
        for id in (handled, waiting):
            record = await bench.in_state(id, JobState.CANCELLED)
            assert record.reason is not None
            assert record.reason.endswith("é 😀")

    @promise
    async def test_huge_error_texts_do_not_hurt(self, bench: Bench) -> None:
        """An error text of megabytes is kept, cut at the end if need be, and its neighbours are recorded."""
        huge = AttemptError(attempt=1, kind="ValueError", message="é" * 2_000_000, traceback="x" * 2_000_000)
        first, second = await bench.push(job(), job())
        worker = await bench.worker()
        big, small = await worker.collect(2)
        await worker.recorded(ack(big, AckKind.FAIL, error=huge), ack(small, AckKind.COMPLETE))
        record = await bench.in_state(first, JobState.FAILED)
        assert record.errors[-1].message.startswith("é" * 1000)
        await bench.in_state(second, JobState.COMPLETED)
