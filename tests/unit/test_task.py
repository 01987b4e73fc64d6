"""Tasks: called like functions, enqueued as jobs."""

from __future__ import annotations

import asyncio
import enum
import inspect
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NoReturn, TypedDict
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from prinia import (
    INJECTED,
    Context,
    DecodeError,
    InvalidArguments,
    InvalidOptions,
    JobNotFound,
    JobRecord,
    JobState,
    NotStorable,
    Prinia,
    TaskDefinitionError,
)
from prinia.job import MAX_RESULT_BYTES
from prinia.storage.memory import MemoryStorage


class Client: ...


class Mailer:
    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send(self, to: str) -> int:
        self.sent.append(to)
        return len(self.sent)


@dataclass
class Receipt:
    id: UUID
    at: datetime


class Colour(enum.Enum):
    RED = "red"


class Size(TypedDict):
    width: int


@pytest.fixture
def app() -> Prinia:
    return Prinia(storage=MemoryStorage())


def record(task: str, result: bytes | None) -> JobRecord:
    now = datetime.now(UTC)
    return JobRecord(
        id=7, task=task, queue="q", state=JobState.COMPLETED, priority=0, attempt=1, max_attempts=5, crashes=0,
        args=b"{}", codec="json", created_at=now, scheduled_at=now, result=result,
    )  # fmt: skip


async def test_calling_a_task_calls_the_function(app: Prinia) -> None:
    @app.task(queue="q")
    async def double(number: int, ctx: Context = INJECTED) -> str:
        return f"{number * 2} {ctx.attempt} {ctx.queue} {ctx.job_id}"

    assert await double(21) == "42 1 q 0"
    assert await double(21, Context(attempt=3)) == "42 3  0"
    assert await double(number=1, ctx=Context(job_id=5)) == "2 1  5"


def test_other_injected_parameters_must_be_given_in_a_call(app: Prinia) -> None:
    @app.task(name="fetch")
    def fetch(url: str, client: Client = INJECTED, *, ctx: Context = INJECTED) -> tuple[str, Client, str]:
        return url, client, ctx.task

    client = Client()
    assert fetch("a", client) == ("a", client, "fetch")
    assert fetch("a", client=client, ctx=Context(task="t")) == ("a", client, "t")
    with pytest.raises(TypeError, match="fetch: client is injected in a worker only; give it in a direct call"):
        fetch("a")
    assert dict(fetch.injected) == {"client": Client, "ctx": Context}


def test_a_task_looks_like_its_function(app: Prinia) -> None:
    async def send(order: int, note: str = "x") -> str:
        """Send it."""
        return ""

    task = app.task(send)
    assert (task.__name__, task.__doc__, task.__qualname__, task.__module__) == (
        "send", "Send it.", send.__qualname__, __name__,
    )  # fmt: skip
    assert inspect.signature(task) == inspect.signature(send)
    assert task.is_async
    assert not app.task(name="sync")(lambda: None).is_async
    assert repr(task) == f"<AsyncTask {task.name}>"


async def test_a_bound_method_is_a_task(app: Prinia) -> None:
    mailer = Mailer()
    send = app.task(mailer.send)
    assert send.name == f"{__name__}.Mailer.send"
    assert await send("a@b") == 1
    assert send.job("x").spec.args == b'{"to":"x"}'
    assert mailer.sent == ["a@b"]


def test_names_are_given_or_the_functions_own(app: Prinia) -> None:
    @app.task(name="shop.send", aliases=["shop.mail"])
    async def send() -> None: ...

    assert (send.name, send.aliases) == ("shop.send", ("shop.mail",))
    assert app.task(lambda: 1).name == f"{__name__}.test_names_are_given_or_the_functions_own.<locals>.<lambda>"
    assert list(app.tasks) == ["shop.send", f"{__name__}.test_names_are_given_or_the_functions_own.<locals>.<lambda>"]
    assert app.tasks["shop.send"] is send


@pytest.mark.parametrize("options", [{"name": "a"}, {"name": "old"}, {"name": "c", "aliases": ["a"]}])
def test_no_two_tasks_share_a_name_or_an_alias(app: Prinia, options: dict[str, Any]) -> None:
    @app.task(name="a", aliases=["old"])
    async def first() -> None: ...

    with pytest.raises(TaskDefinitionError, match=r"exists already \(.*test_task.py:\d+\), and .*test_task.py:\d+"):
        app.task(**options)(first.__wrapped__)
    assert dict(app.tasks) == {"a": first}


def test_a_name_made_from_the_function_may_be_too_long(app: Prinia) -> None:
    def send() -> None: ...

    send.__qualname__ = "s" * 200
    with pytest.raises(TaskDefinitionError, match=r"must have 1 to 200 characters.*@app.task\(name='...'\)"):
        app.task(send)


def test_a_wrong_option_is_an_error_of_its_own_line(app: Prinia) -> None:
    with pytest.raises(InvalidOptions, match="que is not an option of a task; did you mean queue"):
        app.task(que="a")  # type: ignore[call-overload]
    with pytest.raises(TaskDefinitionError, match="not of a str"):
        app.task("name")  # type: ignore[call-overload]
    with pytest.raises(TaskDefinitionError, match="not both"):
        app.task(test_names_are_given_or_the_functions_own, queue="a")  # type: ignore[call-overload]


def test_types_of_the_surrounding_function_can_be_used(app: Prinia) -> None:
    @dataclass
    class Order:
        id: int

    @app.task
    async def bare(order: Order) -> None: ...

    @app.task(queue="q")
    async def with_options(order: Order) -> None: ...

    assert bare.job(Order(1)).spec.args == with_options.job(Order(1)).spec.args == b'{"order":{"id":1}}'


def test_a_job_is_a_value_with_everything_filled_in(app: Prinia) -> None:
    @app.task(name="send", queue="email", max_attempts=3, timeout=30)
    async def send(order: int) -> str:
        return ""

    job = send.options(priority=2, delay=1.5).options(unique="k", queue="fast").job(9)
    spec = job.spec
    assert (spec.task, spec.args, spec.codec, spec.queue, spec.priority) == ("send", b'{"order":9}', "json", "fast", 2)
    assert (spec.max_attempts, spec.timeout, spec.delay) == (3, 30.0, 1.5)
    assert spec.unique is not None
    assert spec.unique.text == "k"
    assert send.job(9).spec.queue == send.queue == "email"
    assert repr(job) == "<NewJob of send>"
    with pytest.raises(AttributeError):
        job.spec = spec  # type: ignore[misc]
    with pytest.raises(InvalidArguments):
        send.job("9")  # type: ignore[arg-type]


def test_options_give_a_task_of_the_same_kind(app: Prinia) -> None:
    @app.task
    def plain(x: int) -> int:
        return x

    other = plain.options(priority=1)
    assert type(other) is type(plain)
    assert other(3) == 3
    assert (other.name, other.queue) == (plain.name, "default")


async def test_a_worker_decodes_and_calls(app: Prinia) -> None:
    @app.task
    async def send(order: int, ctx: Context = INJECTED, note: str = "none") -> str:
        return f"{order} {note} {ctx.job_id}"

    arguments = send.decode("json", send.job(9).spec.args)
    assert arguments == {"order": 9}
    assert await send.call(arguments, Context(job_id=4)) == "9 none 4"
    assert arguments == {"order": 9}
    with pytest.raises(DecodeError, match="stored by codec 'pickle', which is not known here"):
        send.decode("pickle", b"")
    with pytest.raises(DecodeError, match="order: expected int, got str"):
        send.decode("json", b'{"order":"9"}')


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (None, None),
        (str, "a\0b"),
        (Receipt, Receipt(UUID(int=1), datetime(2030, 1, 1, tzinfo=UTC))),
        (dict[str, set[int]], {"a": {1, 2}}),
        (Colour, Colour.RED),
        (Size, {"width": 1}),
        (tuple[int, str], (1, "a")),
        (int | None, None),
        (bytes, b"\0\xff"),
        (Literal["a", "b"], "a"),
        (Any, {"a": [1, None]}),
        (datetime, datetime(2030, 1, 1)),  # noqa: DTZ001
    ],
)
def test_results_come_back_as_the_return_type(app: Prinia, kind: Any, value: object) -> None:
    def task() -> Any: ...

    task.__annotations__["return"] = kind
    made = app.task(task)
    stored = made.encode_result(value)
    assert stored is None if value is None else isinstance(stored, bytes)
    assert made.decode_result(stored) == value
    assert made.read_result(record(made.name, stored)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"a": [0, 1, 2, float("nan")]}, "$.a[3]: NaN has no place in JSON"),
        (["\ud800"], "$[0]: contains a lone surrogate at position 0"),
        ({"c": Client()}, f"$.c: a {__name__}.Client cannot be stored"),
        ("x" * MAX_RESULT_BYTES, "$: 1,048,578 bytes as JSON, the limit is 1,048,576"),
    ],
)
def test_results_that_cannot_be_stored_say_where(app: Prinia, value: object, text: str) -> None:
    task = app.task(lambda: None)
    with pytest.raises(NotStorable) as caught:
        task.encode_result(value)
    assert str(caught.value) == text or text in str(caught.value)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("kind", "stored", "text"),
    [
        (int, b'"a"', "expected int, got str"),
        (int, None, "expected int, got null"),
        (Receipt, b'{"id":1}', r"\$.id: expected uuid, got int"),
        (NoReturn, b"1", "not supported"),
    ],
)
def test_a_result_that_does_not_fit_the_return_type_is_an_error(
    app: Prinia, kind: Any, stored: bytes | None, text: str
) -> None:
    def task() -> Any: ...

    task.__annotations__["return"] = kind
    with pytest.raises(DecodeError, match=f"the stored result does not fit the return type: .*{text}"):
        app.task(task).decode_result(stored)


def test_a_job_of_another_task_has_no_result_here(app: Prinia) -> None:
    @app.task(name="a", aliases=["old"])
    async def a() -> str:
        return ""

    assert a.read_result(record("old", b'"x"')) == "x"
    with pytest.raises(JobNotFound, match="job 7 is of task b, not of a"):
        a.read_result(record("b", b'"x"'))


@pytest.mark.parametrize("id", [0, -1, 2**63, True, "7", None, 1.0])
def test_impossible_ids_are_refused(app: Prinia, id: Any) -> None:
    task = app.task(lambda: None)
    for get_job in (task.get_job, app.get_job):
        with pytest.raises(JobNotFound, match=f"there is no job {id!r}"):
            get_job(id)


def test_an_awaitable_that_is_dropped_is_logged_with_its_place(app: Prinia, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(name="send")
    async def send(order: int) -> None: ...

    with caplog.at_level(logging.ERROR, "prinia"):
        send.aenqueue(1)  # type: ignore[unused-coroutine]
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    (message,) = caplog.messages
    assert message.startswith("send.aenqueue(...) was never awaited, so nothing was enqueued. It was called at")
    assert f"test_task.py:{line}, in test_an_awaitable_that_is_dropped" in message


def test_every_dropped_form_is_logged_with_its_place(app: Prinia, caplog: pytest.LogCaptureFixture) -> None:
    send = app.task(name="send")(lambda: None)

    session = AsyncSession(create_async_engine("postgresql+psycopg://"))  # connects to nothing until it is used
    send.within(session).aenqueue()  # type: ignore[unused-coroutine]
    app.aenqueue_many([send.job()])  # type: ignore[unused-coroutine]
    app.within(session).aenqueue_many([send.job()])  # type: ignore[unused-coroutine]
    assert [message.partition(" was")[0] for message in caplog.messages] == [
        "send.within(...).aenqueue(...)", "aenqueue_many(...)", "within(...).aenqueue_many(...)",
    ]  # fmt: skip
    assert all("in test_every_dropped_form" in message for message in caplog.messages)


async def test_an_awaitable_does_what_a_coroutine_does(app: Prinia, caplog: pytest.LogCaptureFixture) -> None:
    @app.task
    async def send(order: int) -> None: ...

    jobs = [
        await send.aenqueue(1),
        await asyncio.create_task(send.aenqueue(2)),
        *await asyncio.gather(send.aenqueue(3), send.aenqueue(4)),
        await asyncio.wait_for(send.aenqueue(5), 5),
        await asyncio.to_thread(asyncio.run, send.aenqueue(6)),
    ]
    assert [job.id for job in jobs] == [1, 2, 3, 4, 5, 6]
    cancelled = asyncio.create_task(send.aenqueue(7))
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    send.aenqueue(8).close()
    assert caplog.messages == []


async def test_wrong_arguments_are_an_error_of_the_call_not_of_the_await(app: Prinia) -> None:
    @app.task
    async def send(order: int) -> None: ...

    with pytest.raises(InvalidArguments):
        send.aenqueue("1")  # type: ignore[arg-type, unused-coroutine]
