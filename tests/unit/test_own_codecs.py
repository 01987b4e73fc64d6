"""Codecs other than JSON: MessagePack, those of applications, and those that lie."""

from __future__ import annotations

import asyncio
import enum
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple, NoReturn
from uuid import UUID

import msgspec
import pytest

from prinia import (
    Codec,
    ConfigurationError,
    DecodeError,
    InvalidArguments,
    InvalidOptions,
    JobFailed,
    JsonCodec,
    MessagePackCodec,
    NotStorable,
    PayloadTooLarge,
    Prinia,
    Tasks,
)
from prinia.job import MAX_RESULT_BYTES
from prinia.storage.memory import MemoryStorage

NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001


class Own:
    """A codec that does what it is told, and remembers what it was given."""

    def __init__(
        self,
        encode: Callable[[Any], Any] = pickle.dumps,
        decode: Callable[[bytes], Any] = pickle.loads,
        name: Any = "own",
    ) -> None:
        self.name = name
        self._encode, self._decode = encode, decode
        self.given: list[Any] = []

    def encode(self, value: Any, /) -> bytes:
        self.given.append(value)
        data: bytes = self._encode(value)
        return data

    def decode(self, data: bytes, /) -> Any:
        return self._decode(data)


class Other(Own): ...


def raising(error: BaseException) -> Callable[[Any], NoReturn]:
    def codec(given: Any) -> NoReturn:
        raise error

    return codec


class Colour(enum.Enum):
    RED = "red"


class Marked(str): ...


class Point(NamedTuple):
    x: float
    y: float


@dataclass
class Everything:
    at: datetime
    day: date
    id: UUID
    price: Decimal
    data: bytes
    colour: Colour
    point: Point
    numbers: set[int]
    by_number: dict[int, str]
    nothing: None = None


EVERYTHING = Everything(
    datetime(2030, 1, 2, tzinfo=UTC), date(2030, 1, 2), UUID(int=7), Decimal("1.10"), b"\xff\0", Colour.RED,
    Point(1.0, 2.5), {3}, {4: Marked("four")},
)  # fmt: skip


def new_app(**settings: Any) -> Prinia:
    return Prinia(storage=MemoryStorage(), **settings)


@pytest.mark.parametrize(
    "codec", [MessagePackCodec(), Own(), Own(msgspec.json.encode, msgspec.json.decode), JsonCodec()]
)
async def test_arguments_and_results_keep_their_types(codec: Codec) -> None:
    app = new_app(codec=codec)

    @app.task
    def send(value: Everything, values: list[Everything] | None = None, *, number: float = 0) -> Everything:
        assert (value, values, number) == (EVERYTHING, [EVERYTHING], 3)
        return value

    job = await send.aenqueue(EVERYTHING, [EVERYTHING], number=3)
    assert (await job.ainfo()).codec == codec.name
    async with app.worker():
        assert await job.aresult(timeout=10) == EVERYTHING
    assert send.decode_result((await job.ainfo()).result, codec.name) == EVERYTHING


def test_an_own_codec_is_given_plain_values() -> None:
    codec = Own()
    app = new_app(codec=codec)

    @app.task
    def send(value: Everything, anything: Any, left_out: int = 3) -> None: ...

    send.job(EVERYTHING, {1: (Marked("a"), None)})
    assert codec.given == [
        {
            "value": {
                "at": EVERYTHING.at, "day": "2030-01-02", "id": str(UUID(int=7)), "price": "1.10", "data": b"\xff\0",
                "colour": "red", "point": (1.0, 2.5), "numbers": [3], "by_number": {"4": "four"}, "nothing": None,
            },
            "anything": {"1": ("a", None)},
        }
    ]  # fmt: skip
    plain = {dict, str, bytes, datetime, tuple, list, float, int, type(None)}
    stack = [codec.given]
    while stack:
        value: Any = stack.pop()
        assert type(value) in plain
        stack.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ())


class TestMessagePack:
    """What MessagePack can and cannot hold."""

    def test_what_json_cannot_hold(self) -> None:
        app = new_app(codec=MessagePackCodec())

        @app.task
        def send(number: float, text: str, anything: Any) -> None: ...

        at = datetime(2030, 1, 1, tzinfo=UTC)
        data = send.job(float("inf"), "\0", {"at": at, "bytes": b"\xff", 1: 2}).spec.args
        assert send.decode("msgpack", data) == {
            "number": float("inf"), "text": "\0", "anything": {"at": at, "bytes": b"\xff", 1: 2},
        }  # fmt: skip

    @pytest.mark.parametrize(
        ("value", "said"),
        [
            ([float("nan"), 2**70], r"argument anything\[1\]: cannot be stored: can't serialize ints"),
            ({"a": "a\ud800"}, r"argument anything\.a: contains a lone surrogate"),
            ([object()], r"argument anything\[0\]: an object cannot be stored"),
            ([[NAIVE]], r"argument anything\[0\]\[0\]: has no time zone"),
        ],
    )
    def test_what_it_refuses(self, value: Any, said: str) -> None:
        app = new_app()

        @app.task(codec=MessagePackCodec())
        def send(anything: Any, at: datetime | None = None) -> None: ...

        with pytest.raises(InvalidArguments, match=said):
            send.job(value)
        with pytest.raises(InvalidArguments, match=r"argument at: has no time zone"):
            send.job(1, NAIVE)

    def test_arguments_above_the_limit(self) -> None:
        app = new_app(codec=MessagePackCodec(), max_args_bytes=10)

        @app.task
        def send(text: str) -> None: ...

        with pytest.raises(PayloadTooLarge, match=r"the arguments are 12 bytes as MessagePack, the limit is 10"):
            send.job("abcde")

    def test_damaged_bytes(self) -> None:
        with pytest.raises(DecodeError, match=r"malformed|truncated"):
            MessagePackCodec().decode(b"\x81\xa1", dict[str, int])
        with pytest.raises(DecodeError, match=r"\$\[\.\.\.\]: expected int, got str"):
            MessagePackCodec().decode(MessagePackCodec().encode({"a": "b"}), dict[str, int])


class TestLies:
    """A codec that lies hurts the job at hand, with a clear error, and nothing else."""

    @pytest.mark.parametrize(
        ("codec", "said"),
        [
            (Own(encode=lambda value: None), "codec 'own' returned NoneType where it should return bytes"),
            (Own(encode=lambda value: "text"), "codec 'own' returned str where it should return bytes"),
            (Own(encode=raising(ValueError("no"))), "codec 'own' cannot encode it: ValueError: no"),
            (Own(encode=raising(SystemExit(3))), "codec 'own' cannot encode it: SystemExit: 3"),
            (Own(encode=raising(GeneratorExit())), "codec 'own' cannot encode it: GeneratorExit"),
            (Own(encode=raising(asyncio.CancelledError())), "codec 'own' cannot encode it: CancelledError"),
            (Own(decode=raising(SystemExit(3))), "codec 'own' cannot decode it: SystemExit: 3"),
            (Own(decode=lambda data: [1]), "expected object, got array"),
            (Own(decode=lambda data: {"order": "9"}), "argument order: expected int, got str"),
            (Own(decode=lambda data: {"order": 9, "more": 1}), "object contains unknown field more"),
            (Own(decode=lambda data: object()), "expected object, got object"),
        ],
    )
    def test_at_enqueue_nothing_is_stored(self, codec: Own, said: str) -> None:
        app = new_app(codec=codec)

        @app.task(name="send")
        def send(order: int) -> None: ...

        for call in (lambda: send.enqueue(9), lambda: asyncio.run(_await(send, 9))):
            with pytest.raises(InvalidArguments) as caught:
                call()
            assert str(caught.value).startswith("send: argument")
            assert said in str(caught.value)
        with pytest.raises(InvalidArguments):
            app.enqueue_many([Prinia().task(name="fine")(_fine).job(), *(send.job(n) for n in (1,))])
        assert list(app.storage.find([1])) == []

    def test_what_is_huge_is_refused(self) -> None:
        app = new_app(codec=Own(encode=lambda value: bytes(3_000_000)))

        @app.task
        def send(order: int) -> None: ...

        with pytest.raises(PayloadTooLarge, match=r"the arguments are 3,000,000 bytes as own, the limit is 1,048,576"):
            send.enqueue(9)

    def test_an_interrupt_is_no_fault_of_the_codec(self) -> None:
        app = new_app(codec=Own(encode=raising(KeyboardInterrupt())))
        app.task(name="fine")(_fine)
        with pytest.raises(KeyboardInterrupt):
            app.enqueue_by_name("fine", {})
        assert list(app.storage.find([1])) == []

    @pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
    @pytest.mark.parametrize("is_async", [True, False])
    async def test_arguments_that_do_not_decode_fail_that_attempt(self, error: BaseException, is_async: bool) -> None:
        lies = False
        codec = Own(decode=lambda data: raising(error)(data) if lies else pickle.loads(data))
        app = new_app(codec=codec)

        async def hello() -> int:
            return 1

        lying = app.task(name="lying", max_attempts=1)(hello if is_async else _one)
        fine = app.task(name="fine", codec=JsonCodec())(hello if is_async else _one)
        jobs = [await fine.aenqueue(), await lying.aenqueue(), await fine.aenqueue()]
        lies = True
        async with app.worker():
            assert [await jobs[n].aresult(timeout=10) for n in (0, 2)] == [1, 1]
            with pytest.raises(JobFailed):
                await jobs[1].aresult(timeout=10)
        (failure,) = (await jobs[1].ainfo()).errors
        if not isinstance(error, KeyboardInterrupt):
            assert (
                failure.message == f"lying: stored arguments do not fit: codec 'own' cannot decode it: {_told(error)}"
            )

    @pytest.mark.parametrize(
        ("encode", "said"),
        [
            (raising(SystemExit(3)), "codec 'own' cannot encode it: SystemExit: 3"),
            (lambda value: 5, "codec 'own' returned int where it should return bytes"),
            (lambda value: bytes(MAX_RESULT_BYTES + 1), "1,048,577 bytes as own, the limit is 1,048,576"),
        ],
    )
    async def test_results_that_do_not_encode_fail_that_job(self, encode: Callable[[Any], Any], said: str) -> None:
        lies = False
        app = new_app(codec=Own(encode=lambda value: encode(value) if lies else pickle.dumps(value)))
        lying, fine = app.task(name="lying")(_one), app.task(name="fine", codec=JsonCodec())(_one)
        jobs = [await lying.aenqueue(), await fine.aenqueue()]
        lies = True
        async with app.worker():
            assert await jobs[1].aresult(timeout=10) == 1
            with pytest.raises(JobFailed, match=said):
                await jobs[0].aresult(timeout=10)
        assert (await jobs[0].ainfo()).attempt == 1

    async def test_a_result_that_does_not_come_back_is_an_error_of_its_reader(self) -> None:
        lies = False
        app = new_app(codec=Own(decode=lambda data: "lie" if lies else pickle.loads(data)))
        job = await app.task(name="one")(_one).aenqueue()
        async with app.worker():
            assert await job.aresult(timeout=10) == 1
        lies = True
        with pytest.raises(DecodeError, match=r"one: the stored result does not fit the return type: expected int"):
            await job.aresult(timeout=10)


async def _await(task: Any, *args: Any) -> Any:
    return await task.aenqueue(*args)


def _fine() -> None: ...


def _one() -> int:
    return 1


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class TestKnown:
    """Which codecs an app knows, and by which names."""

    async def test_the_jobs_own_codec_decides_not_the_apps(self) -> None:
        storage = MemoryStorage()
        before = Prinia(storage=storage, codec=Own())
        after = Prinia(storage=storage, codec=MessagePackCodec(), codecs=[Own()])
        tasks = Tasks()
        tasks.task(name="one")(_one)
        tasks.task(name="two", codec=JsonCodec())(_one)
        before.include(tasks)
        after.include(tasks)
        jobs = [await app.aenqueue_by_name(name, {}) for app in (before, after) for name in ("one", "two")]
        assert [(await job.ainfo()).codec for job in jobs] == ["own", "json", "msgpack", "json"]
        async with after.worker():
            assert [await job.aresult(timeout=10) for job in jobs] == [1] * 4
        results = [(await job.ainfo()).result for job in jobs]
        assert results == [pickle.dumps(1), b"1", b"\x01", b"1"]

    @pytest.mark.parametrize(
        ("codec", "said"),
        [
            (MessagePackCodec, "codec MessagePackCodec is a class; give an instance: MessagePackCodec()"),
            ("msgpack", "str is no codec, it has no method decode()"),
            (object(), "object is no codec, it has no method encode()"),
            (Own(name="json"), "the name of codec Own is 'json', which is taken by json itself"),
            (Own(name="msgpack"), "which is taken by msgpack itself"),
            *(
                (Own(name=name), "it must be 1 to 32 of a-z, 0-9")
                for name in ("", "Own", "a b", "x" * 33, 7, "1a", None)
            ),
        ],
    )
    def test_what_is_no_codec(self, codec: Any, said: str) -> None:
        for settings in ({"codec": codec}, {"codecs": [codec]}):
            with pytest.raises(ConfigurationError) as caught:
                new_app(**settings)
            assert said in str(caught.value)
        with pytest.raises(InvalidOptions) as refused:
            new_app().task(codec=codec)
        assert said in str(refused.value)
        assert str(refused.value).startswith("codec: ")

    def test_two_of_one_name(self) -> None:
        with pytest.raises(ConfigurationError, match=r"two codecs have the name 'own': Own and Other"):
            new_app(codec=Other(), codecs=[Own()])
        assert new_app(codec=Own(), codecs=[Own(), JsonCodec(), MessagePackCodec()]).tasks == {}

    def test_a_task_may_not_clash_with_the_app_and_then_nothing_is_included(self) -> None:
        app, tasks = new_app(codecs=[Own()]), Tasks()
        tasks.task(name="fine")(_one)
        tasks.task(name="clash", codec=Other())(_one)
        for call in (lambda: app.include(tasks), lambda: app.task(codec=Other())(_one)):
            with pytest.raises(ConfigurationError, match="two codecs have the name 'own': Own and Other"):
                call()
        assert dict(app.tasks) == {}

    async def test_the_codec_of_a_task_needs_no_word_to_the_app(self) -> None:
        app, tasks = new_app(), Tasks()
        task = tasks.task(name="one", codec=Own())(_one)
        app.include(tasks)
        job = await task.aenqueue()
        async with app.worker():
            assert await job.aresult(timeout=10) == 1
        assert (await job.ainfo()).result == pickle.dumps(1)
        assert await app.get_job(job.id).aresult(timeout=10) == 1

    def test_codecs_are_a_list(self) -> None:
        with pytest.raises(ConfigurationError, match="must be a list of codecs"):
            new_app(codecs=MessagePackCodec())

    def test_the_codec_is_no_option_of_a_job(self) -> None:
        task = new_app().task(_one)
        with pytest.raises(InvalidOptions, match=r"codec is not an option of a job"):
            task.options(codec=JsonCodec())  # type: ignore[call-arg]


class TestEncoded:
    """Arguments that are encoded already."""

    @pytest.mark.parametrize("data", [b'{"number": 1}', b' {"number":\n1}\t', b'{"number":1,"number":2}'])
    def test_they_are_stored_to_the_letter(self, data: bytes) -> None:
        app = new_app()
        task = app.task(name="send", priority=3)(_send)
        (job,) = app.enqueue_many([task.options(tags=["a"]).job_encoded(data)])
        record = job.info()
        assert (record.args, record.codec, record.priority, record.tags) == (data, "json", 3, ("a",))

    def test_the_codec_is_the_tasks_or_the_one_named(self) -> None:
        app = new_app(codec=MessagePackCodec(), codecs=[Own()])
        task = app.task(name="send")(_send)
        for name, data in [("own", pickle.dumps({"number": 1})), ("json", b'{"number":1}')]:
            spec = task.job_encoded(data, codec=name).spec
            assert (spec.codec, spec.args) == (name, data)
        assert task.job_encoded(b"\x81\xa6number\x01").spec.codec == "msgpack"
        with pytest.raises(InvalidArguments, match=r"send: codec 'nosuch' is not known here"):
            task.job_encoded(b"{}", codec="nosuch")

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (b'{"number":"1"}', "send: the encoded arguments do not fit: number: expected int, got str"),
            (b'{"number":1,"more":1}', "the encoded arguments do not fit: object contains unknown field more"),
            (b"{}", "the encoded arguments do not fit: object missing required field number"),
            (b"[1]", "the encoded arguments do not fit: expected object, got array"),
            (b"{", "the encoded arguments do not fit: Input data was truncated"),
            (b"\xff", "the encoded arguments do not fit: JSON is malformed"),
            (b'{"number":1,"text":"\\u0000"}', "send: argument text: contains a NUL character"),
            (b'{"number":1,"at":"2030-01-01T00:00:00"}', "send: argument at: has no time zone"),
            ('{"number":1}', "send: encoded arguments are bytes, not str"),
        ],
    )
    def test_they_are_checked(self, data: Any, said: str) -> None:
        task = new_app().task(name="send")(_send)
        with pytest.raises(InvalidArguments) as caught:
            task.job_encoded(data)
        assert said in str(caught.value)

    def test_a_limit_holds_for_them_too(self) -> None:
        task = new_app(max_args_bytes=12).task(name="send")(_send)
        assert task.job_encoded(b'{"number":1}').spec.args == b'{"number":1}'
        with pytest.raises(PayloadTooLarge, match=r"send: the arguments are 13 bytes as JSON, the limit is 12"):
            task.job_encoded(b'{"number": 1}')

    def test_a_text_about_nul_is_no_nul(self) -> None:
        task = new_app().task(name="send")(_send)
        assert task.job_encoded(b'{"number":1,"text":"\\\\u0000"}').spec.args.endswith(b'\\\\u0000"}')


def _send(number: int, text: str = "", at: datetime | None = None) -> None: ...


def test_errors_of_an_own_codec_name_what_cannot_be_made_plain() -> None:
    task = new_app(codec=Own()).task(name="send")(lambda_any)
    with pytest.raises(InvalidArguments, match=r"send: argument value\.a: an object cannot be stored"):
        task.job({"a": object()})
    with pytest.raises(NotStorable, match=r"\$\.a: an object cannot be stored"):
        task.encode_result({"a": object()}, "own")
    with pytest.raises(InvalidArguments, match=r"send: argument value\[0\]: has no time zone"):
        task.job([NAIVE])


def lambda_any(value: Any) -> Any: ...
