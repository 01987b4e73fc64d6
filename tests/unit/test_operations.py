"""What an app refuses before anything is changed, and what its operations, pauses and audit look like from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from prinia import ColourError, InvalidQuery, Operated, Prinia, WorkerNotFound
from prinia.job import JobState
from prinia.storage.memory import MemoryStorage

Call = Callable[[Prinia], Any]

OPERATIONS: dict[str, tuple[Any, ...]] = {
    "cancel": (),
    "retry": (),
    "run_now": (),
    "reprioritise": (5,),
    "move": ("other",),
    "delete": (),
}


@pytest.fixture
def app() -> Prinia:
    app = Prinia(storage=MemoryStorage())

    @app.task(name="greet", aliases=["hello"])
    def greet(name: str) -> None: ...

    return app


def enqueue(app: Prinia, number: int = 1, **options: Any) -> list[int]:
    return [app.enqueue_by_name("greet", {"name": "Ada"}, **options).id for _ in range(number)]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_query_without_conditions_has_to_be_meant(app: Prinia, operation: str) -> None:
    enqueue(app, delay=60)
    with pytest.raises(InvalidQuery, match=r"every job there is.*everything=True"):
        getattr(app.jobs(), operation)(*OPERATIONS[operation])
    assert app.audit() == ()
    done = getattr(app.jobs(everything=True), operation)(*OPERATIONS[operation], dry_run=True)
    assert done.matched == (0 if operation == "retry" else 1)
    assert app.audit() == ()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda app: app.jobs(ids=[1]).reschedule(), "one of the two"),
        (lambda app: app.jobs(ids=[1]).reschedule(at=datetime.now(UTC), delay=1), "one of the two"),
        (lambda app: app.jobs(ids=[1]).reschedule(at=datetime(2026, 1, 1)), "time zone"),  # noqa: DTZ001
        (lambda app: app.jobs(ids=[1]).reschedule(at="tomorrow"), "time zone"),
        (lambda app: app.jobs(ids=[1]).reschedule(delay=-1), "from 0 to"),
        (lambda app: app.jobs(ids=[1]).reschedule(delay=float("nan")), "from 0 to"),
        (lambda app: app.jobs(ids=[1]).reschedule(delay=True), "from 0 to"),
        (lambda app: app.jobs(ids=[1]).reprioritise(101), "-100 to 100"),
        (lambda app: app.jobs(ids=[1]).reprioritise(1.0), "-100 to 100"),
        (lambda app: app.jobs(ids=[1]).move(""), "queue"),
        (lambda app: app.jobs(ids=[1]).move("a\0"), "queue"),
        (lambda app: app.jobs(state="failed").cancel(), "have not ended"),
        (lambda app: app.pause(), "one of the three"),
        (lambda app: app.pause(queue="a", task="b"), "one of the three"),
        (lambda app: app.pause(queue="a", everything=True), "one of the three"),
        (lambda app: app.resume(queue=""), "queue"),
        (lambda app: app.pause(task=7), "task"),
        (lambda app: app.audit(limit=0), "1 to 1,000"),
        (lambda app: app.audit(before="x"), "id of an audit entry"),
        (lambda app: app.audit(by=7), "must be a str"),
    ],
)
def test_what_makes_no_sense_is_refused(app: Prinia, call: Call, message: str) -> None:
    enqueue(app)
    with pytest.raises(InvalidQuery, match=message):
        call(app)
    assert app.audit() == ()
    assert app.pauses() == ()


@pytest.mark.parametrize("who", ["", 7, None])
def test_who_does_it_has_to_be_said_in_words(app: Prinia, who: Any) -> None:
    for call in (app.jobs(ids=[1]).cancel, app.jobs(ids=[1]).delete):
        with pytest.raises(TypeError, match="who does it"):
            call(by=who)
    with pytest.raises(TypeError, match="who does it"):
        app.pause(queue="a", by=who)
    with pytest.raises(TypeError, match="who does it"):
        app.stop_worker(uuid4(), by=who)


@pytest.mark.parametrize("instance", ["", "web-1", "3f0c6a0e", 7, UUID(int=1), str(UUID(int=1))])
@pytest.mark.parametrize("verb", ["quiet", "pause", "resume", "stop"])
def test_a_worker_that_is_not_there(app: Prinia, verb: str, instance: Any) -> None:
    with pytest.raises(WorkerNotFound, match=r"app\.workers\(\)"):
        getattr(app, f"{verb}_worker")(instance)
    with pytest.raises(WorkerNotFound):
        asyncio.run(getattr(app, f"a{verb}_worker")(instance))


def test_blocking_forms_are_refused_in_a_loop(app: Prinia) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: app.jobs(ids=[1]).cancel(),
        lambda: app.pause(queue="a"),
        lambda: app.resume(queue="a"),
        app.pauses,
        app.audit,
        lambda: app.stop_worker(uuid4()),
        lambda: app.quiet_worker(uuid4()),
        lambda: app.pause_worker(uuid4()),
        lambda: app.resume_worker(uuid4()),
    ]

    async def main() -> None:
        for call in calls:
            with pytest.raises(ColourError, match=r"await"):
                call()

    asyncio.run(main())


def test_operations_in_both_colours(app: Prinia) -> None:
    for colour in ("", "a"):
        ids = enqueue(app, 3, delay=600)
        query = app.jobs(ids=ids)

        def call(name: str, *args: Any, query: Any = query, colour: str = colour, **kwargs: Any) -> Operated:
            answer = getattr(query, colour + name)(*args, by="Ada", **kwargs)
            done = asyncio.run(answer) if colour else answer
            assert isinstance(done, Operated)
            return done

        assert call("run_now").changed == 3
        assert call("reschedule", delay=timedelta(hours=1)).changed == 3
        assert call("reprioritise", 5).changed == 3
        assert call("move", "other").changed == 3
        assert {(job.queue, job.priority, job.state) for job in query} == {("other", 5, JobState.SCHEDULED)}
        assert call("cancel").changed == 3
        assert call("cancel") == Operated(matched=3, skipped={"cancelled": 3})
        assert call("retry") == Operated(matched=3, skipped={"cancelled": 3})
        query = app.jobs(ids=ids, state="cancelled")
        assert call("retry", query=query).changed == 3
        assert call("delete", query=app.jobs(ids=[*ids, 999])) == Operated(matched=3, changed=3, missing=(999,))
        assert str(call("delete", query=app.jobs(ids=ids))) == (
            f"0 of 0 jobs changed; not found: {ids[0]}, {ids[1]}, {ids[2]}"
        )


def test_more_than_a_step(app: Prinia) -> None:
    app.enqueue_many(app.job_by_name("greet", {"name": "Ada"}, delay=600) for _ in range(2500))
    told: list[Operated] = []
    done = app.jobs(queue="default").run_now(progress=told.append)
    assert done == Operated(matched=2500, changed=2500)
    assert [one.changed for one in told] == [1000, 2000, 2500]
    [entry] = app.audit()
    assert (entry.operation, entry.changed, entry.by) == ("run_now", 2500, "the application")


def test_a_task_is_paused_by_all_its_names(app: Prinia) -> None:
    assert app.pause(task="hello", by="Ada")
    assert not app.pause(task="greet", by="Ada")
    assert [(pause.kind, pause.name, pause.by) for pause in app.pauses()] == [
        ("task", "greet", "Ada"), ("task", "hello", "Ada"),
    ]  # fmt: skip
    assert asyncio.run(app.aresume(task="greet"))
    assert app.pauses() == asyncio.run(app.apauses()) == ()
    assert app.pause(task="somewhere.else")
    assert asyncio.run(app.apause(everything=True))
    assert [pause.kind for pause in app.pauses()] == ["everything", "task"]


def test_the_audit_in_pages(app: Prinia) -> None:
    for number in range(5):
        app.pause(queue=f"queue {number}", by="Ada" if number % 2 else "Bob")
    newest = app.audit(limit=2)
    older = asyncio.run(app.aaudit(before=newest[-1].id))
    assert [entry.target["queue"] for entry in (*newest, *older)] == [f"queue {number}" for number in (4, 3, 2, 1, 0)]
    assert {entry.by for entry in app.audit(by="Bob", operation="pause")} == {"Bob"}
