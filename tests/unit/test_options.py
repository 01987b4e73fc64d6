"""Options: what each becomes, and what a wrong one is told."""

from __future__ import annotations

import subprocess
import sys
import unicodedata
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from prinia import Fixed, InvalidOptions, MessagePackCodec
from prinia.job import JobSpec
from prinia.options import JobOptions, TaskOptions, job_fields, task_fields, unique_key
from prinia.retry import LONGEST_DELAY

NAIVE = datetime(2030, 1, 2)  # noqa: DTZ001
AWARE = datetime(2030, 1, 2, tzinfo=UTC)


def fields(**given: Any) -> dict[str, Any]:
    return job_fields("shop.send", {}, given)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"queue": "email"}, {"queue": "email"}),
        ({"queue": "é" * 200}, {"queue": "é" * 200}),
        ({"priority": -100}, {"priority": -100}),
        ({"priority": 100}, {"priority": 100}),
        ({"delay": 0}, {"delay": 0.0, "scheduled_at": None}),
        ({"delay": timedelta(minutes=1)}, {"delay": 60.0, "scheduled_at": None}),
        ({"delay": LONGEST_DELAY}, {"delay": LONGEST_DELAY, "scheduled_at": None}),
        ({"scheduled_at": AWARE}, {"delay": None, "scheduled_at": AWARE}),
        ({"expires": 5}, {"expires_in": 5.0, "expires_at": None}),
        ({"expires": AWARE}, {"expires_in": None, "expires_at": AWARE}),
        ({"max_attempts": 1}, {"max_attempts": 1}),
        ({"retry": Fixed(1)}, {"retry": Fixed(1)}),
        ({"timeout": timedelta(seconds=1.5)}, {"timeout": 1.5}),
        ({"tags": ["a", "b"]}, {"tags": ("a", "b")}),
        ({"tags": ()}, {"tags": ()}),
        ({"meta": {"a": (1, None)}}, {"meta": {"a": [1, None]}}),
        ({}, {}),
    ],
)
def test_options_become_fields_of_the_job(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert fields(**given) == expected
    assert JobSpec(task="t", args=b"{}", **expected)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"queue": ""}, "queue='' must have 1 to 200 characters, not 0"),
    ({"queue": "x" * 201}, "must have 1 to 200 characters, not 201"),
    ({"queue": 5}, "queue=5 must be a str"),
    ({"queue": "a\0"}, r"queue='a\x00' must have no control characters"),
    ({"queue": "a\n"}, r"queue='a\n' must have no control characters"),
    ({"queue": "a\x9f"}, "must have no control characters"),
    ({"queue": "a\ud800"}, "contains a lone surrogate"),
    ({"priority": 101}, "priority=101 must be a whole number from -100 to 100"),
    ({"priority": -101}, "from -100 to 100"),
    ({"priority": True}, "priority=True must be a whole number"),
    ({"priority": 1.0}, "priority=1.0 must be a whole number"),
    ({"priority": "high"}, "priority='high' must be a whole number"),
    ({"delay": -1}, "delay=-1 must be 0 to 31,622,400 seconds (366 days)"),
    ({"delay": float("nan")}, "delay=nan must be 0 to"),
    ({"delay": float("inf")}, "delay=inf must be 0 to"),
    ({"delay": LONGEST_DELAY + 1}, "must be 0 to"),
    ({"delay": 10**400}, "must be 0 to"),
    ({"delay": True}, "delay=True must be seconds"),
    ({"delay": "5"}, "delay='5' must be seconds (int or float) or a timedelta"),
    ({"delay": timedelta.max}, "must be 0 to"),
    ({"delay": 1, "scheduled_at": AWARE}, "delay and scheduled_at both say"),
    ({"scheduled_at": NAIVE}, "has no time zone"),
    ({"scheduled_at": 5}, "scheduled_at=5 must be a datetime"),
    ({"scheduled_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))}, "is outside the years 1 to 9999"),
    ({"expires": 0}, "expires=0 must be above 0 to"),
    ({"expires": NAIVE}, "has no time zone"),
    ({"expires": 5, "delay": 5}, "expires (5.0) is not after delay (5.0): the job would never start"),
    ({"expires": AWARE, "scheduled_at": AWARE}, "is not after scheduled_at"),
    ({"max_attempts": 0}, "max_attempts=0 must be a whole number from 1 to 10,000"),
    ({"retry": 5}, "retry=5 must be a policy: Exponential(...), Fixed(seconds) or Delays"),
    ({"timeout": 0}, "timeout=0 must be above 0 to"),
    ({"unique": ""}, "unique='' must have 1 to 1,000 characters"),
    ({"unique": "x" * 1001}, "must have 1 to 1,000 characters, not 1,001"),
    ({"unique": 9}, "unique=9 must be a str"),
    ({"unique": "a", "on_conflict": "drop"}, 'on_conflict=\'drop\' must be "keep", "raise" or "replace"'),
    ({"unique": "a", "on_conflict": ["keep"]}, 'must be "keep", "raise" or "replace"'),
    ({"unique": "a", "unique_for": 0}, "unique_for=0 must be above 0"),
    ({"unique": "a", "unique_for": float("inf")}, "unique_for=inf must be above 0"),
    ({"unique": "a", "unique_for": "1 h"}, "must be seconds (int or float) or a timedelta"),
    ({"unique_for": 60}, "unique_for says more of a unique key; give unique=... too"),
    ({"on_conflict": "raise"}, "give unique=... too"),
    ({"tags": "abc"}, "tags='abc' must be a list of str, such as tags=['abc']"),
    ({"tags": [1]}, "tags=1 must be a str"),
    ({"tags": ["a"] * 65}, "tags must be at most 64, not 65"),
    ({"tags": 5}, "tags=5 must be a list of str"),
    ({"meta": [1]}, "meta=[1] must be a dict"),
    ({"meta": {"a": float("nan")}}, "meta: $.a: NaN has no place in JSON"),
    ({"meta": {"a": "\0"}}, "meta: $.a: contains a NUL"),
    ({"meta": {"a": object()}}, "meta: $.a: an object cannot be stored"),
    ({"meta": {"a": [NAIVE]}}, "meta: $.a[0]: has no time zone"),
    ({"meta": {"a": "x" * 8192}}, "meta is 8,200 bytes as JSON, the limit is 8,192"),
    ({"prio": 1}, "prio is not an option of a job; did you mean priority?"),
    ({"zzz": 1}, "zzz is not an option of a job; there are: delay, expires, max_attempts"),
    ({"limit_key": "a"}, "limits by key are not part of this version"),
    ({"name": "a"}, "name is not an option of a job"),
]


@pytest.mark.parametrize(("given", "text"), BAD)
def test_wrong_options_name_option_value_and_range(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOptions) as caught:
        fields(**given)
    assert text in str(caught.value)


def test_every_option_has_a_wrong_value_above() -> None:
    tried = {name for given, _ in BAD for name in given}
    assert tried >= set(JobOptions.__annotations__)


def test_later_options_change_what_they_name_and_keep_the_rest() -> None:
    first = job_fields("t", {"queue": "a", "max_attempts": 3}, {"delay": 5, "priority": 1})
    second = job_fields("t", first, {"scheduled_at": AWARE, "priority": 2})
    assert second == {"queue": "a", "max_attempts": 3, "priority": 2, "delay": None, "scheduled_at": AWARE}
    assert first["priority"] == 1


def test_an_expiry_of_the_task_is_held_against_the_delay_of_the_job() -> None:
    with pytest.raises(InvalidOptions, match="would never start"):
        job_fields("t", task_fields({"expires": 60}), {"delay": 120})


def test_moments_are_stored_in_utc() -> None:
    there = timezone(timedelta(hours=2))
    stored = fields(scheduled_at=datetime(2030, 1, 1, 1, tzinfo=there))["scheduled_at"]
    assert stored.tzinfo is UTC
    assert stored == datetime(2029, 12, 31, 23, tzinfo=UTC)


def test_meta_is_a_copy() -> None:
    meta: dict[str, Any] = {"a": [1]}
    stored = fields(meta=meta)["meta"]
    meta["a"].append(2)
    assert stored == {"a": [1]}


def test_unique_keys_are_per_task_and_the_same_for_what_looks_the_same() -> None:
    keys = [unique_key(task, key) for task, key in (("a", "bc"), ("ab", "c"), ("a", "c"), ("b", "bc"))]
    assert len({key.hash for key in keys}) == 4
    assert {len(key.hash) for key in keys} == {16}
    composed, decomposed = "é", unicodedata.normalize("NFD", "é")
    assert composed != decomposed
    assert unique_key("t", composed) == unique_key("t", decomposed)


def test_the_same_key_has_the_same_hash_in_another_process() -> None:
    code = "from prinia.options import unique_key; print(unique_key('shop.send', 'order:9').hash.hex())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == unique_key("shop.send", "order:9").hash.hex()


def test_a_window_makes_another_key() -> None:
    live = fields(unique="a")["unique"]
    window = fields(unique="a", unique_for=timedelta(hours=1), on_conflict="replace")["unique"]
    assert (live.window, window.window) == (None, 3600.0)
    assert live.hash != window.hash
    assert fields(unique="a", unique_for=60)["unique"].hash == window.hash
    later = job_fields("shop.send", {"unique": live}, {"unique_for": 60})["unique"]
    assert (later.hash, later.window, later.on_conflict) == (window.hash, 60.0, "keep")
    other = job_fields("shop.send", {"unique": window}, {"unique": "b"})["unique"]
    assert (other.text, other.window, other.on_conflict) == ("b", 3600.0, "replace")


def test_on_conflict_may_come_later() -> None:
    first = fields(unique="a")
    assert first["unique"].on_conflict == "keep"
    later = job_fields("shop.send", first, {"on_conflict": "raise"})
    assert later["unique"].on_conflict == "raise"
    assert later["unique"].hash == first["unique"].hash
    assert job_fields("shop.send", later, {"unique": "b"})["unique"].on_conflict == "raise"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"que": "a"}, "que is not an option of a task; did you mean queue?"),
        ({"name": ""}, "name='' must have 1 to 200 characters"),
        ({"name": None}, "name=None must be a str"),
        ({"name": "a\0"}, "must have no control characters"),
        ({"aliases": "old"}, "aliases='old' must be a list of str, such as aliases=['old']"),
        ({"expires": AWARE}, "expires of a task must be seconds or a timedelta"),
        ({"rerun_after_crash": 0}, "rerun_after_crash=0 must be True or False"),
        ({"max_crashes": -1}, "max_crashes=-1 must be a whole number from 0 to 1,000"),
        ({"unique": "a"}, "unique is not an option of a task"),
    ],
)
def test_wrong_task_options_are_refused(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidOptions) as caught:
        task_fields(given)
    assert text in str(caught.value)


def test_every_task_option_is_read() -> None:
    given: TaskOptions = {
        "name": "n",
        "aliases": ["o"],
        "queue": "q",
        "priority": 1,
        "max_attempts": 2,
        "retry": Fixed(1),
        "timeout": 3,
        "expires": 4,
        "rerun_after_crash": False,
        "max_crashes": 0,
        "tags": ["t"],
        "codec": MessagePackCodec(),
        "on_success": print,
        "on_failure": print,
        "process": True,
        "memory_limit": 64,
    }
    assert set(given) == set(TaskOptions.__annotations__)
    spec = JobSpec(task="n", args=b"{}", **task_fields(dict(given)))
    assert (spec.queue, spec.priority, spec.max_attempts, spec.retry, spec.timeout) == ("q", 1, 2, Fixed(1), 3.0)
    assert (spec.expires_in, spec.rerun_after_crash, spec.max_crashes, spec.tags) == (4.0, False, 0, ("t",))
