"""Steering and retry policies: what they take and what they refuse."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from prinia import Delays, Exponential, Fixed, InvalidOptions, Retry, RetryPolicy, Snooze
from prinia.retry import LONGEST_DELAY, encode_policy

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("given", "seconds"), [(0, 0.0), (2.5, 2.5), (timedelta(minutes=1), 60.0), (366 * 86400, LONGEST_DELAY)]
)
def test_delays_are_seconds_or_timedeltas(given: Any, seconds: float) -> None:
    assert Retry(delay=given).delay == Snooze(given).delay == seconds


def test_without_a_delay_the_policy_decides() -> None:
    assert Retry().delay is None


@pytest.mark.parametrize("steer", [lambda delay: Retry(delay=delay), lambda delay: Snooze(delay)])
@pytest.mark.parametrize(
    ("delay", "kind"),
    [
        ("5", TypeError), (True, TypeError), ([], TypeError),
        (-5, ValueError), (NAN, ValueError), (INF, ValueError), (LONGEST_DELAY + 1, ValueError),
        (timedelta(seconds=-1), ValueError), (timedelta.max, ValueError), (10**400, ValueError),
    ],
)  # fmt: skip
def test_a_delay_that_is_none_is_refused(steer: Callable[[Any], object], delay: Any, kind: type[Exception]) -> None:
    with pytest.raises(
        kind, match=r"delay=.* must be .*; write for example (Retry\(delay=60\)|Snooze\(60\))"
    ) as caught:
        steer(delay)
    assert type(caught.value) is kind


def test_a_delay_in_the_place_of_the_reason() -> None:
    with pytest.raises(TypeError, match=r"the first argument is the reason.*: Retry\(delay=60\)"):
        Retry(60)  # type: ignore[arg-type]


def test_steering_can_be_pickled() -> None:
    """It may come out of a process pool that the handler uses."""
    retry, snooze = pickle.loads(pickle.dumps((Retry("busy", delay=5), Snooze(300))))
    assert (str(retry), retry.delay, str(snooze), snooze.delay) == ("busy", 5.0, "snoozed for 300 s", 300.0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Fixed(-1), "Fixed: seconds=-1 must be a number from 0 to 31,622,400"),
        (lambda: Fixed("x"), "Fixed: seconds='x'"),  # type: ignore[arg-type]
        (lambda: Fixed(True), "Fixed: seconds=True"),
        (lambda: Delays((1, NAN)), "Delays: seconds[1]=nan"),
        (lambda: Delays(()), "Delays: seconds=() must be a tuple of 1 to 100 numbers"),
        (lambda: Delays(5), "Delays: seconds=5 must be a tuple"),  # type: ignore[arg-type]
        (lambda: Delays((1,) * 101), "must be a tuple of 1 to 100"),
        (lambda: Exponential(start=-1), "Exponential: start=-1"),
        (lambda: Exponential(factor=0.5), "Exponential: factor=0.5 must be a number from 1 to 100"),
        (lambda: Exponential(cap=INF), "Exponential: cap=inf"),
        (lambda: Exponential(jitter=2), "Exponential: jitter=2 must be a number from 0 to 1"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_when_it_is_made(make: Callable[[], RetryPolicy], said: str) -> None:
    with pytest.raises(InvalidOptions) as caught:
        make()
    assert said in str(caught.value)


@pytest.mark.parametrize("policy", [Fixed(2), Delays((1, 2.5)), Exponential(start=1, cap=9)])
def test_a_policy_is_stored_and_read(policy: RetryPolicy) -> None:
    assert msgspec.json.decode(encode_policy(policy), type=RetryPolicy) == policy


@pytest.mark.parametrize(
    "stored",
    [
        b'{"kind":"fixed","seconds":-1}', b'{"kind":"fixed","seconds":"x"}', b'{"kind":"fixed"}',
        b'{"kind":"delays","seconds":[]}', b'{"kind":"exponential","jitter":7}', b'{"kind":"other"}',
    ],
)  # fmt: skip
def test_a_stored_policy_that_makes_no_sense_is_an_error_of_the_decoder(stored: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(stored, type=RetryPolicy)
