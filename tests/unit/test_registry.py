"""Tasks by name: registries without an app, tasks that live elsewhere, jobs of names alone."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

import pytest

from prinia import (
    ColourError,
    ConfigurationError,
    DecodeError,
    InvalidArguments,
    InvalidOptions,
    JobRecord,
    JobState,
    JsonCodec,
    MessagePackCodec,
    NewJob,
    PayloadTooLarge,
    Prinia,
    TaskDefinitionError,
    Tasks,
)
from prinia.job import MAX_NAME_LENGTH
from prinia.storage.memory import MemoryStorage


def new_app(**settings: Any) -> Prinia:
    return Prinia(storage=MemoryStorage(), **settings)


def double(number: int) -> int:
    return 2 * number


class JsonLines:
    """A codec with a setting."""

    name = "lines"

    def __init__(self, key: str) -> None:
        self.key = key

    def encode(self, value: object) -> bytes:
        return JsonCodec().encode(value) + self.key.encode()

    def decode(self, data: bytes) -> object:
        return JsonCodec().decode(data.removesuffix(self.key.encode()))


@pytest.fixture
def tasks() -> Tasks:
    return Tasks()


class TestInclude:
    """A `Tasks` is a registry without an app."""

    async def test_a_worker_of_the_app_runs_its_tasks(self, tasks: Tasks) -> None:
        task = tasks.task(name="double", queue="sums")(double)
        app = new_app()
        app.include(tasks)
        assert list(app.tasks) == ["double"]
        async with app.worker() as worker:
            assert worker.queues == ("sums",)
            assert await (await task.aenqueue(4)).aresult(timeout=10) == 8

    def test_what_was_taken_from_a_task_before_finds_the_app_too(self, tasks: Tasks) -> None:
        task = tasks.task(name="double")(double)
        later, job = task.options(delay=60), task.job(4)
        app = new_app()
        app.include(tasks)
        assert later.enqueue(4).info().task == "double"
        assert [one.info().args for one in app.enqueue_many([job])] == [b'{"number":4}']
        assert task.get_job(1).info().id == 1

    async def test_a_task_that_is_added_later_reaches_the_app(self, tasks: Tasks) -> None:
        app = new_app()
        app.include(tasks)
        task = tasks.task(name="double")(double)
        async with app.worker():
            assert await (await task.aenqueue(4)).aresult(timeout=10) == 8

    def test_without_an_app_it_says_what_to_do(self, tasks: Tasks) -> None:
        task = tasks.task(double)
        calls: list[Callable[[], object]] = [
            lambda: task.enqueue(1),
            lambda: task.get_job(1),
            lambda: asyncio.run(task.aenqueue(1)),
        ]
        for call in calls:
            with pytest.raises(ConfigurationError, match=r"no app includes this task.*app\.include\(tasks\)"):
                call()
        assert task(4) == 8
        assert task.job(4).spec.args == b'{"number":4}'

    def test_a_task_of_two_apps_must_be_bound(self, tasks: Tasks) -> None:
        task = tasks.task(name="double")(double)
        one, other = new_app(), new_app()
        one.include(tasks)
        other.include(tasks)
        with pytest.raises(ConfigurationError, match=r"2 apps include this task.*app\.bind\(task\)"):
            task.enqueue(1)
        with pytest.raises(ConfigurationError, match=r"2 apps"):
            task.options(priority=1).get_job(1)
        bound = other.bind(task.options(priority=7))
        assert bound.enqueue(5).info().priority == 7
        assert other.get_job(1).info().args == b'{"number":5}'
        assert list(one.storage.find([1])) == []
        assert task.job(1).spec.args == b'{"number":1}'

    def test_only_a_task_of_the_app_can_be_bound(self, tasks: Tasks) -> None:
        app = new_app()
        task = tasks.task(name="double")(double)
        with pytest.raises(ConfigurationError, match=r"double \(.*test_registry.py:\d+\) is no task of this app"):
            app.bind(task)

        @app.task(name="double")
        def other(number: int) -> int:
            return number

        with pytest.raises(ConfigurationError, match=r"is no task of this app"):
            app.bind(task)
        assert app.bind(other).enqueue(1).info().task == "double"

    def test_the_same_function_may_be_a_task_of_two_apps(self) -> None:
        one, other = new_app(), new_app()
        first, second = one.task(name="double")(double), other.task(name="double", queue="q")(double)
        first.enqueue(1)
        assert second.enqueue(2).info().queue == "q"
        assert other.bind(first).enqueue(3).id == 2

    def test_names_that_clash_include_nothing(self, tasks: Tasks) -> None:
        app = new_app()
        app.task(name="double")(double)
        tasks.task(name="fine")(double)
        tasks.task(name="new", aliases=["double"])(double)
        with pytest.raises(TaskDefinitionError, match=r"a task named double exists already \(.*test_registry.py:\d+\)"):
            app.include(tasks)
        assert list(app.tasks) == ["double"]
        with pytest.raises(ConfigurationError, match=r"no app includes"):
            tasks.task(name="another")(double).enqueue(1)

    def test_a_late_name_that_clashes_with_an_app_is_added_nowhere(self, tasks: Tasks) -> None:
        one, other = new_app(), new_app()
        one.include(tasks)
        other.include(tasks)
        other.task(name="double")(double)
        with pytest.raises(TaskDefinitionError, match=r"a task named double exists already"):
            tasks.task(name="double")(double)
        assert (list(one.tasks), list(other.tasks)) == ([], ["double"])

    def test_included_twice_is_included_once(self, tasks: Tasks) -> None:
        app = new_app()
        app.include(tasks)
        task = tasks.task(double)
        app.include(tasks)
        assert task.enqueue(1).id == 1

    @pytest.mark.parametrize("thing", [None, double, [Tasks()], new_app()])
    def test_only_tasks_can_be_included(self, thing: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"app\.include\(\) takes a Tasks, not"):
            new_app().include(thing)

    def test_it_takes_the_settings_of_its_app(self, tasks: Tasks) -> None:
        before = tasks.task(name="before")(double)
        app = new_app(codec=MessagePackCodec(), max_args_bytes=20)
        app.include(tasks)
        after = tasks.task(name="after")(double)
        assert [task.job(1).spec.codec for task in (before, after)] == ["msgpack"] * 2
        with pytest.raises(PayloadTooLarge, match=r"21 bytes as MessagePack, the limit is 20"):
            app.bind(tasks.task(name="long")(_long)).job("x" * 14)
        new_app(codec=MessagePackCodec()).include(tasks)
        assert before.job(1).spec.codec == "json"
        assert app.bind(before).job(1).spec.codec == "msgpack"

    @pytest.mark.parametrize("settings", [{"codec": MessagePackCodec()}, {"codec": JsonLines("a")}])
    async def test_a_job_that_its_rules_did_not_encode_is_refused(self, tasks: Tasks, settings: dict[str, Any]) -> None:
        task = tasks.task(name="double")(double)
        before = task.job(1)
        app, other = new_app(**settings), new_app()
        app.include(tasks)
        other.include(tasks)
        unbound, theirs, encoded = task.job(1), other.bind(task).job(1), task.job_encoded(b'{"number":1}')
        calls: list[Callable[[NewJob[int]], Coroutine[Any, Any, object]]] = [
            lambda job: app.aenqueue_many([job]),
            lambda job: app._client.aenqueue(job),
            lambda job: asyncio.to_thread(app._client.enqueue, job),
            lambda job: asyncio.to_thread(app.enqueue_many, [job]),
        ]
        for job in (before, unbound, theirs):
            for call in calls:
                with pytest.raises(ConfigurationError, match=r"double: .* are JSON, and this app writes .*app\.bind"):
                    await call(job)
            assert len(await other.aenqueue_many([job])) == 1
        assert list(await app.storage.afind([1])) == []
        own = tasks.task(name="own", codec=MessagePackCodec())(double)
        assert len(await app.aenqueue_many([app.bind(task).job(1), encoded, own.job(1), app.job_by_name("x", {})])) == 4

    def test_codecs_of_one_kind_are_told_apart(self, tasks: Tasks) -> None:
        task = tasks.task(name="double")(double)
        codec = JsonLines("key")
        one, same, other = (new_app(codec=codec) for codec in (codec, codec, JsonLines("another key")))
        one.include(tasks)
        assert len(same.enqueue_many([task.job(1)])) == 1
        with pytest.raises(ConfigurationError, match=r"app\.bind\(task\)\.job"):
            other.enqueue_many([task.job(1)])

    def test_the_limit_of_the_app_holds_for_jobs_made_without_it(self, tasks: Tasks) -> None:
        task = tasks.task(name="long")(_long)
        app = new_app(max_args_bytes=20)
        jobs = [
            task.job("x" * 10),
            task.job_encoded(b'{"text":"xxxxxxxxxx"}'),
            new_app().job_by_name("far", {"a": "x" * 13}),
        ]
        app.include(tasks)
        for job in jobs:
            with pytest.raises(PayloadTooLarge, match=r"the arguments are 21 bytes, the limit is 20"):
                app.enqueue_many([job])
        assert len(app.enqueue_many([task.job("x" * 9)])) == 1


def _long(text: str) -> None: ...


class TestDeclare:
    """A task whose code lives elsewhere."""

    def test_it_is_enqueued_checked_and_with_its_defaults(self) -> None:
        app = new_app()

        @app.declare(name="billing.charge", queue="billing", max_attempts=9)
        def charge(customer: int, cents: int = 100) -> str:
            raise AssertionError("never run")

        record = charge.options(priority=3).enqueue(7).info()
        assert (record.task, record.queue, record.priority, record.max_attempts) == ("billing.charge", "billing", 3, 9)
        assert record.args == b'{"customer":7}'
        with pytest.raises(InvalidArguments, match=r"billing.charge: argument customer: expected int, got str"):
            charge.enqueue("7")  # type: ignore[arg-type]
        with pytest.raises(TaskDefinitionError, match=r"billing.charge is declared here only"):
            charge(7)  # type: ignore[operator]

    async def test_workers_leave_it_to_others_and_read_its_result(self, caplog: pytest.LogCaptureFixture) -> None:
        storage = MemoryStorage()
        app, there = Prinia(storage=storage), Prinia(storage=storage)

        @app.declare(name="billing.charge")
        async def charge(customer: int) -> tuple[int, ...]:
            raise NotImplementedError

        @app.task
        def here() -> None: ...

        @there.task(name="billing.charge")
        def really(customer: int) -> list[int]:
            return [customer]

        assert list(app.tasks) == [here.name]
        caplog.set_level(logging.WARNING)
        async with app.worker():
            job = await charge.aenqueue(7)
            await (await here.aenqueue()).aresult(timeout=10)
            while not any("does not know" in record.message for record in caplog.records):
                await asyncio.sleep(0.01)
            async with there.worker():
                assert await job.aresult(timeout=10) == (7,)
                assert await app.get_job(job.id).aresult(timeout=10) == (7,)

    def test_its_name_is_needed_and_must_be_free(self, tasks: Tasks) -> None:
        app = new_app()
        with pytest.raises(TypeError, match=r"name"):
            app.declare(queue="q")  # type: ignore[call-arg]
        with pytest.raises(InvalidOptions, match=r"name=''"):
            app.declare(name="")
        with pytest.raises(InvalidOptions, match=r"qeue is not an option of a task; did you mean queue"):
            app.declare(name="x", qeue="q")  # type: ignore[call-arg]
        app.task(name="double")(double)
        tasks.declare(name="double")(double)
        with pytest.raises(TaskDefinitionError, match=r"a task named double exists already"):
            app.include(tasks)

    def test_a_tasks_may_declare_too(self, tasks: Tasks) -> None:
        declared = tasks.declare(name="double")(double)
        app = new_app()
        app.include(tasks)
        assert declared.enqueue(1).info().task == "double"
        assert dict(app.tasks) == {}
        assert app.bind(declared).enqueue(2).id == 2


class TestByName:
    """Jobs of tasks that are known by name, or not at all."""

    def test_a_known_name_is_checked_and_gets_its_defaults(self) -> None:
        app = new_app()
        app.task(name="double", aliases=["twice"], queue="sums")(double)
        app.declare(name="elsewhere", queue="far")(double)
        job = app.enqueue_by_name("double", {"number": 4}, priority=2)
        record = job.info()
        assert (record.task, record.queue, record.priority, record.args) == ("double", "sums", 2, b'{"number":4}')
        assert app.enqueue_by_name("twice", {"number": 4}).info().task == "double", "under the new name"
        assert app.enqueue_by_name("elsewhere", {"number": 4}).info().queue == "far"
        with pytest.raises(InvalidArguments, match=r"double: argument number: expected int, got str"):
            app.enqueue_by_name("double", {"number": "4"})
        with pytest.raises(InvalidArguments, match=r"double: missing a required argument: 'number'"):
            app.enqueue_by_name("double", {})
        with pytest.raises(InvalidOptions, match=r"prio is not an option"):
            app.enqueue_by_name("double", {"number": 4}, prio=1)  # type: ignore[call-arg]
        assert app.get_job(4).id == 4
        assert list(app.storage.find([4])) == []

    def test_an_unknown_name_takes_plain_values(self) -> None:
        app = new_app()
        record = app.enqueue_by_name("far.away", {"a": [1, None, {"b": 2.5}]}, queue="q", delay=60).info()
        assert (record.task, record.queue, record.codec, record.args) == (
            "far.away", "q", "json", b'{"a":[1,null,{"b":2.5}]}',
        )  # fmt: skip
        assert app.enqueue_by_name("x" * MAX_NAME_LENGTH, b'{"a": 1}').info().args == b'{"a": 1}'

    @pytest.mark.parametrize(
        ("name", "arguments", "said"),
        [
            ("far", {"a": float("nan")}, r"far: argument \$\.a: NaN has no place in JSON"),
            ("far", {"a": [object()]}, r"far: argument \$\.a\[0\]: an object cannot be stored"),
            ("far", {"a": "\0"}, "NUL"),
            ("far", {"a": [datetime(2030, 1, 1)]}, r"far: argument \$\.a\[0\]: has no time zone"),  # noqa: DTZ001
            ("far", {1: 2}, "far: arguments are given by name, and 1 is no str"),
            ("far", [1], "far: arguments are a mapping by name, or bytes, not list"),
            ("far", b"[1]", "far: the arguments are no JSON object"),
            ("far", b"{", "far: the arguments are no JSON object"),
            ("", {}, "name='' must have 1 to 200 characters"),
            (7, {}, "name=7 must be a str"),
        ],
    )
    def test_what_an_unknown_name_refuses(self, name: Any, arguments: Any, said: str) -> None:
        app = new_app()
        with pytest.raises((InvalidArguments, InvalidOptions), match=said):
            app.enqueue_by_name(name, arguments)
        assert list(app.storage.find([1])) == []

    def test_what_is_too_large_is_refused(self) -> None:
        with pytest.raises(PayloadTooLarge, match=r"far: the arguments are 17 bytes as JSON, the limit is 16"):
            new_app(max_args_bytes=16).enqueue_by_name("far", {"a": "x" * 9})

    def test_encoded_arguments_of_a_known_name_are_checked(self) -> None:
        app = new_app()
        app.task(name="double")(double)
        packed = MessagePackCodec().encode({"number": 3})
        record = app.enqueue_by_name("double", packed, codec="msgpack").info()
        assert (record.args, record.codec) == (packed, "msgpack")
        record = app.enqueue_by_name("far", packed, codec="msgpack").info()
        assert (record.args, record.codec) == (packed, "msgpack")
        with pytest.raises(InvalidArguments, match=r"double: the encoded arguments do not fit: number: expected int"):
            app.enqueue_by_name("double", b'{"number":"3"}')
        for name in ("double", "far"):
            with pytest.raises(InvalidArguments, match=r"codec 'nosuch',? (which )?is not known here"):
                app.enqueue_by_name(name, packed, codec="nosuch")
            with pytest.raises(InvalidArguments, match=r"they are not bytes, so leave it out"):
                app.enqueue_by_name(name, {"number": 1}, codec="json")

    async def test_both_colours_and_values(self) -> None:
        app = new_app()
        app.task(name="double")(double)
        with pytest.raises(ColourError, match=r"await app.aenqueue_by_name"):
            app.enqueue_by_name("double", {"number": 1})
        assert list(await app.storage.afind([1])) == []
        job = await app.aenqueue_by_name("double", {"number": 1})
        jobs = await app.aenqueue_many([app.job_by_name("double", {"number": 2}), app.job_by_name("far", {})])
        assert [one.id for one in (job, *jobs)] == [1, 2, 3]
        async with app.worker():
            assert await job.aresult(timeout=10) == 2

    def test_an_awaitable_that_is_dropped_is_logged_with_its_place(self, caplog: pytest.LogCaptureFixture) -> None:
        new_app().aenqueue_by_name("far", {})  # type: ignore[unused-coroutine]
        (message,) = caplog.messages
        assert message.startswith("aenqueue_by_name('far', ...) was never awaited")
        assert "test_registry.py" in message

    def test_the_result_of_an_unknown_task_is_plain(self) -> None:
        storage = MemoryStorage()
        app, there = Prinia(storage=storage), Prinia(storage=storage)
        there.task(name="far", codec=MessagePackCodec())(double)
        packed = MessagePackCodec().encode({"number": 3})
        job = app.enqueue_by_name("far", packed, codec="msgpack")

        async def work() -> None:
            async with there.worker():
                await app.get_job(job.id).aresult(timeout=10)

        thread = threading.Thread(target=lambda: asyncio.run(work()))
        thread.start()
        assert job.result(timeout=10) == 6
        thread.join()

    def test_a_result_of_an_unknown_codec_says_so(self) -> None:
        app = new_app()
        now = datetime.now(UTC)
        record = JobRecord(
            id=7, task="far", queue="q", state=JobState.COMPLETED, priority=0, attempt=1, max_attempts=5, crashes=0,
            args=b"{}", codec="nosuch", created_at=now, scheduled_at=now, result=b"x",
        )  # fmt: skip
        with pytest.raises(DecodeError, match=r"job 7 \(far\) is stored by codec 'nosuch', which is not known here"):
            app._registry.read_result(record)
