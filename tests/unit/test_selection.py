"""Selections: what is taken, what is refused and how it is said, and which jobs meet them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from prinia.errors import InvalidQuery
from prinia.job import AttemptError, JobRecord, JobState
from prinia.selection import FINAL_STATES, LIVE_STATES, MAX_IDS, Conditions, Selection, select

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
WORKER = UUID("00000000-0000-0000-0000-00000000000a")
OTHER = UUID("00000000-0000-0000-0000-00000000000b")

FAILED = JobRecord(
    id=7,
    task="shop.send",
    queue="email",
    state=JobState.FAILED,
    priority=0,
    attempt=2,
    max_attempts=2,
    crashes=0,
    args=b"{}",
    codec="json",
    created_at=NOON,
    scheduled_at=NOON,
    started_at=NOON,
    finished_at=NOON + timedelta(hours=1),
    owner=WORKER,
    errors=(
        AttemptError(attempt=1, kind="OSError", message="gone"),
        AttemptError(attempt=2, kind="ValueError", message="boom"),
    ),
    tags=("vip", "eu"),
)


@pytest.mark.parametrize(
    ("condition", "meets", "misses"),
    [
        ("ids", 7, 8),
        ("queue", "email", "sms"),
        ("task", "shop.send", "shop.sen"),
        ("state", "failed", "ready"),
        ("instance", WORKER, OTHER),
        ("error", "ValueError", "OSError"),
    ],
)
def test_one_of_several_must_fit(condition: str, meets: Any, misses: Any) -> None:
    assert select(**{condition: [misses, meets]}).matches(FAILED)
    assert not select(**{condition: [misses]}).matches(FAILED)
    assert not select(**{condition: []}).matches(FAILED)
    assert select(**{condition: None}).matches(FAILED)


def test_every_condition_must_be_met() -> None:
    assert select(queue="email", task="shop.send", state=JobState.FAILED, ids=[7]).matches(FAILED)
    assert not select(queue="email", task="shop.bill").matches(FAILED)


def test_all_tags_must_be_there() -> None:
    assert select(tag="vip").matches(FAILED)
    assert select(tag=["eu", "vip"]).matches(FAILED)
    assert not select(tag=["eu", "new"]).matches(FAILED)
    assert not select(tag=[]).matches(FAILED)


def test_since_includes_the_moment_and_before_does_not() -> None:
    moment = timedelta(microseconds=1)
    for what, at in (("created", FAILED.created_at), ("finished", FAILED.finished_at)):
        assert at is not None
        assert select(**{f"{what}_since": at}).matches(FAILED)
        assert not select(**{f"{what}_since": at + moment}).matches(FAILED)
        assert select(**{f"{what}_before": at + moment}).matches(FAILED)
        assert not select(**{f"{what}_before": at}).matches(FAILED)


def test_what_a_job_has_not_meets_nothing() -> None:
    waiting = replace(FAILED, state=JobState.READY, finished_at=None, owner=None, errors=())
    assert not select(finished_since=NOON).matches(waiting)
    assert not select(finished_before=NOON).matches(waiting)
    assert not select(instance=WORKER).matches(waiting)
    assert not select(error="ValueError").matches(waiting)


@pytest.mark.parametrize(
    ("conditions", "live", "finished"),
    [
        ({}, True, True),
        ({"queue": "email"}, True, True),
        ({"state": "failed"}, False, True),
        ({"state": ["ready", "running"]}, True, False),
        ({"state": ["ready", "failed"]}, True, True),
        ({"finished_since": NOON}, False, True),
        ({"finished_before": NOON}, False, True),
        ({"state": "ready", "finished_before": NOON}, False, False),
        ({"ids": []}, False, False),
        ({"tag": []}, False, False),
    ],
)
def test_where_it_may_match(conditions: dict[str, Any], live: bool, finished: bool) -> None:
    selection = select(**conditions)
    assert (selection.may_match_live, selection.may_match_finished) == (live, finished)


def test_states_are_live_or_final() -> None:
    assert set(JobState) == FINAL_STATES | LIVE_STATES
    assert not FINAL_STATES & LIVE_STATES


def test_without_conditions_every_job_meets_it() -> None:
    assert select().unconditional
    assert select(queue=None).unconditional
    assert select().matches(FAILED)
    assert not select(ids=[]).unconditional
    assert not select(queue="email").unconditional


def test_equal_selections_are_told_by_their_fingerprint() -> None:
    berlin = timezone(timedelta(hours=1))
    one = select(queue=["a", "b", "a"], ids=[3, 1], created_since=NOON)
    two = select(ids=(1, 3, 3), created_since=NOON.astimezone(berlin), queue=("b", "a"))
    assert one == two
    assert one.fingerprint == two.fingerprint
    others = [select(queue=["a", "b"]), select(task=["a", "b"]), select(queue=["ab"]), select(ids=[]), select()]
    assert len({one.fingerprint, *(other.fingerprint for other in others)}) == 6


def test_as_json_has_what_was_given() -> None:
    selection = select(ids=[2, 1], state=["failed", "ready"], instance=str(WORKER), created_before=NOON, tag="vip")
    assert selection.as_json() == {
        "ids": [1, 2],
        "state": ["ready", "failed"],
        "instance": [str(WORKER)],
        "created_before": "2026-01-02T12:00:00+00:00",
        "tag": ["vip"],
    }
    assert select().as_json() == {}


def test_every_condition_has_a_field() -> None:
    assert list(Conditions.__annotations__) == list(Selection.__dataclass_fields__)


@pytest.mark.parametrize(
    ("conditions", "text"),
    [
        ({"state": "faild"}, "state='faild' is no state of a job; did you mean failed"),
        ({"state": "x"}, "there are: scheduled, retrying, ready, blocked, running, completed, failed, cancelled"),
        ({"state": [3]}, "state=3 is no state"),
        ({"state": 3}, "state=3 is no state"),
        ({"queu": "a"}, "queu is no condition on jobs; did you mean queue"),
        ({"nothing": "a"}, "nothing is no condition on jobs; there are: ids, queue"),
        ({"queue": 3}, r'queue=3 must be a str or several, such as queue="one"'),
        ({"queue": ""}, "queue='' must be a str"),
        ({"queue": b"email"}, "queue=b'email' must be a str"),
        ({"queue": {"a": 1}}, "must be a str"),
        ({"task": ["a", None]}, "task=None must be a str"),
        ({"tag": "a\0"}, "tag='a.x00' must be a str"),
        ({"error": "\ud800"}, "error='.ud800' must be a str"),
        ({"ids": "17"}, "ids='17' must be ids of jobs"),
        ({"ids": 17.0}, r"ids=17.0 must be ids of jobs"),
        ({"ids": [0]}, "ids=0 must be ids of jobs"),
        ({"ids": [True]}, "ids=True must be ids of jobs"),
        ({"ids": [2**63]}, "must be ids of jobs"),
        ({"ids": range(1, MAX_IDS + 2)}, "ids has more than 10,000 values, which is the limit"),
        ({"ids": count(1)}, "ids has more than 10,000 values"),
        ({"queue": [["a"]]}, r"queue=\['a'\] must be a str"),
        ({"instance": [[]]}, "must be the id of a worker instance"),
        ({"state": [[]]}, "is no state of a job"),
        ({"tag": map(str, range(1001))}, "tag has more than 1,000 values"),
        ({"instance": "web-1"}, "instance='web-1' must be the id of a worker instance"),
        ({"instance": [3]}, "must be the id of a worker instance"),
        ({"created_since": NOON.replace(tzinfo=None)}, r"created_since=.* has no time zone; write for example"),
        ({"created_since": "2026-01-01"}, "created_since='2026-01-01' must be a datetime with a time zone"),
        (
            {"finished_before": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))},
            "is outside the years 1 to 9999",
        ),
        (
            {"created_since": NOON, "created_before": NOON},
            "created_since=2026-01-02T12:00:00.00:00 is not before created_before",
        ),
    ],
)
def test_what_is_refused(conditions: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidQuery, match=text):
        select(**conditions)
