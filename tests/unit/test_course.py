"""How an operation goes through its jobs, without a storage: what it asks for, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from prinia.changes import Batch, Change, ChangeKind, Operated, Step
from prinia.course import AGAIN, Course, check_who
from prinia.errors import InvalidQuery, StorageUnavailable
from prinia.job import JobState
from prinia.selection import select

CANCEL, RETRY, DELETE = (Change(kind=kind) for kind in (ChangeKind.CANCEL, ChangeKind.RETRY, ChangeKind.DELETE))
NOW = datetime.now(UTC)


def play(course: Course, answer: Callable[[Step], Batch]) -> list[Step | float]:
    """What the course asked for."""
    asked: list[Step | float] = []
    while (one := course.next()) is not None:
        asked.append(one)
        if isinstance(one, Step):
            course.answer(answer(one))
    return asked


def steps(course: Course, answer: Callable[[Step], Batch] = lambda step: Batch()) -> list[Step]:
    return [one for one in play(course, answer) if isinstance(one, Step)]


@pytest.mark.parametrize(
    ("change", "conditions", "halves"),
    [
        (CANCEL, {"queue": "email"}, [False]),
        (CANCEL, {"ids": [1]}, [False, True]),
        (CANCEL, {"state": ["ready", "failed"]}, [False]),
        (RETRY, {"queue": "email"}, [False, True]),
        (RETRY, {"state": "failed"}, [True]),
        (DELETE, {"queue": "email"}, [False, True]),
        (DELETE, {"state": "completed"}, [True]),
        (DELETE, {"state": "ready"}, [False]),
        (DELETE, {"ids": []}, []),
    ],
)
def test_it_looks_where_the_operation_can_do_something(
    change: Change, conditions: dict[str, object], halves: list[bool]
) -> None:
    assert [step.ended for step in steps(Course(change, select(**conditions), by="Ada"))] == halves


def test_a_retry_without_a_state_is_about_what_failed_and_what_waits_to_be_retried() -> None:
    [live, ended] = steps(Course(RETRY, select(queue="email"), by="Ada"))
    assert live.selection.state == ended.selection.state == (JobState.RETRYING, JobState.FAILED)
    [live, ended] = steps(Course(RETRY, select(ids=[1]), by="Ada"))
    assert live.selection.state is None
    [ended] = steps(Course(RETRY, select(state="cancelled"), by="Ada"))
    assert ended.selection.state == (JobState.CANCELLED,)


@pytest.mark.parametrize("kind", [kind for kind in ChangeKind if not kind.reaches_ended])
@pytest.mark.parametrize("conditions", [{"state": "failed"}, {"finished_since": NOW}])
def test_what_no_job_can_be_is_refused(kind: ChangeKind, conditions: dict[str, object]) -> None:
    with pytest.raises(InvalidQuery, match=rf"{kind}\(\) is for jobs that have not ended.*retry\(\)"):
        Course(Change(kind=kind), select(**conditions), by="Ada")


def test_steps_go_on_and_are_counted() -> None:
    answers = {0: Batch(matched=[3, 5], changed=1, skipped={"running": 1}, note=8, after=5), 5: Batch(note=8, after=90)}
    told: list[Operated] = []
    course = Course(CANCEL, select(queue="email"), by="Ada", progress=told.append)
    asked = steps(course, lambda step: answers.get(step.after, Batch(matched=[91], changed=1, note=8)))
    assert [(step.after, step.note) for step in asked] == [(0, None), (5, 8), (90, 8)]
    assert course.operated == told[-1] == Operated(matched=3, changed=2, skipped={"running": 1})
    assert [one.changed for one in told] == [1, 1, 2]


def test_ids_that_no_job_has_are_missing_and_none_is_looked_for_twice() -> None:
    course = Course(CANCEL, select(ids=[1, 2, 3, 4]), by="Ada")
    asked = steps(
        course, lambda step: Batch(matched=[2], skipped={"failed": 1}) if step.ended else Batch(matched=[1], changed=1)
    )
    assert [step.selection.ids for step in asked] == [(1, 2, 3, 4), (2, 3, 4)]
    assert course.operated == Operated(matched=2, changed=1, skipped={"failed": 1}, missing=(3, 4))


def test_what_was_locked_is_tried_again() -> None:
    course = Course(CANCEL, select(queue="email"), by="Ada")
    seen: list[tuple[int, ...] | None] = []

    def answer(step: Step) -> Batch:
        seen.append(step.selection.ids)
        if len(seen) == 1:
            return Batch(matched=[1, 2, 3], changed=1, left=[2, 3], note=8)
        if len(seen) == 2:
            return Batch(matched=[2], left=[2])
        if step.ended:
            return Batch()  # 3 has gone away meanwhile
        return Batch(matched=[2], changed=1)

    asked = play(course, answer)
    assert seen == [None, (2, 3), (3,), (2,)]
    assert asked[1] == AGAIN[0][0]
    assert course.operated == Operated(matched=3, changed=2, skipped={"changed meanwhile": 1})


def test_what_stays_locked_is_skipped_in_the_end() -> None:
    course = Course(DELETE, select(state="ready"), by="Ada")
    asked = play(course, lambda step: Batch(matched=[7], left=[7]))
    assert [one for one in asked if isinstance(one, float)] == [pause for pause, _ in AGAIN]
    assert course.operated == Operated(matched=1, skipped={"locked": 1})


def test_it_waits_seconds_and_not_minutes_for_what_is_locked() -> None:
    assert 3 < sum(pause for pause, _ in AGAIN) < 10
    assert AGAIN[-1][1] == 1


def test_steps_get_smaller_until_one_in_the_way_holds_up_itself_alone() -> None:
    course = Course(DELETE, select(state="ready"), by="Ada")
    ids = list(range(1, 25))

    def answer(step: Step) -> Batch:
        wanted = ids if step.selection.ids is None else list(step.selection.ids)
        if 13 in wanted:
            return Batch(matched=wanted, left=wanted)
        return Batch(matched=wanted, changed=len(wanted))

    play(course, answer)
    assert course.operated == Operated(matched=24, changed=23, skipped={"locked": 1})


def test_an_error_says_how_far_it_had_come() -> None:
    course = Course(CANCEL, select(queue="email"), by="Ada")
    assert course.next() is not None
    course.answer(Batch(matched=[1], changed=1, after=1))
    course.next()
    with pytest.raises(StorageUnavailable) as caught, course.told():
        raise StorageUnavailable("gone")
    assert "had changed 1 jobs before" in caught.value.__notes__[0]
    with pytest.raises(StorageUnavailable) as caught, Course(CANCEL, select(ids=[1]), by="Ada").told():
        raise StorageUnavailable("gone")
    assert not hasattr(caught.value, "__notes__")


@pytest.mark.parametrize("who", ["", None, 7])
def test_who_does_it_is_a_text(who: object) -> None:
    with pytest.raises(TypeError, match="says who does it"):
        check_who(who)


def test_what_was_done_in_words() -> None:
    assert str(Operated()) == "no job meets the query: nothing to change"
    assert str(Operated(matched=1, changed=1)) == "1 of 1 job changed"
    assert str(Operated(matched=1203, changed=1200, skipped={"running": 2, "locked": 1}, dry_run=True)) == (
        "1,200 of 1,203 jobs would be changed (dry run); skipped: 2 running, 1 locked"
    )
    assert str(Operated(missing=(1, 2))) == "0 of 0 jobs changed; not found: 1, 2"
    assert str(Operated(matched=1, missing=tuple(range(1, 9)))).endswith("not found: 1, 2, 3, 4, 5 and 3 more")
