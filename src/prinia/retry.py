"""Retry policies: pure data, stored with the job, so that any worker computes the same delays.

A policy answers one question: how many seconds after failed attempt *n* may the job start again?
Randomness is passed in, so tests are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Literal, Protocol, TypeAlias

import msgspec

from prinia.errors import InvalidOptions

#: No delay is ever longer than this, whatever the policy says: a year, in seconds.
LONGEST_DELAY = 366 * 86400.0


def _check(name: str, value: object, highest: float, *, lowest: float = 0) -> None:
    """Raise `InvalidOptions` for what is no number from lowest to highest. When a stored policy is decoded, msgspec
    makes its own error of that."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
        raise InvalidOptions(f"{name}={value!r} must be a number from {lowest:g} to {highest:,.0f}")


class Exponential(msgspec.Struct, frozen=True, kw_only=True, tag="exponential", tag_field="kind"):
    """``start * factor ** (attempt - 1)`` seconds, at most ``cap``, then up to ``jitter`` (a fraction) longer.

    Raises `InvalidOptions` for a number that is out of range.

    Example::

        @app.task(retry=Exponential(start=1, cap=60))
        async def fetch(url: str) -> None: ...
    """

    start: float = 3.0
    factor: float = 2.0
    cap: float = 3600.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        _check("Exponential: start", self.start, LONGEST_DELAY)
        _check("Exponential: factor", self.factor, 100, lowest=1)
        _check("Exponential: cap", self.cap, LONGEST_DELAY)
        _check("Exponential: jitter", self.jitter, 1)

    def delay(self, attempt: int, random: float) -> float:
        """Seconds to wait after failed attempt number ``attempt``; ``random`` is in [0, 1)."""
        # factor ** 1000 overflows a float: past 64 doublings every sensible cap has been reached.
        base = min(self.cap, self.start * self.factor ** min(max(attempt - 1, 0), 64))
        return base * (1 + self.jitter * random)


class Fixed(msgspec.Struct, frozen=True, tag="fixed", tag_field="kind"):
    """The same number of seconds after every failed attempt. Raises `InvalidOptions` when it is out of range.

    Example::

        @app.task(retry=Fixed(10))
        async def poll() -> None: ...
    """

    seconds: float

    def __post_init__(self) -> None:
        _check("Fixed: seconds", self.seconds, LONGEST_DELAY)

    def delay(self, attempt: int, random: float) -> float:
        """``seconds``, whatever the attempt."""
        return self.seconds


class Delays(msgspec.Struct, frozen=True, tag="delays", tag_field="kind"):
    """A tuple of seconds, 1 to 100 of them, one per failed attempt; the last one repeats.

    Raises `InvalidOptions` when they are more or fewer, or one is out of range.

    Example::

        @app.task(retry=Delays((1, 10, 300)))
        async def call_bank() -> None: ...
    """

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        given: object = self.seconds  # which should be a tuple, but may not
        if not isinstance(given, tuple | list) or not 1 <= len(given) <= 100:
            raise InvalidOptions(f"Delays: seconds={given!r} must be a tuple of 1 to 100 numbers, such as (1, 10, 300)")
        for index, seconds in enumerate(given):
            _check(f"Delays: seconds[{index}]", seconds, LONGEST_DELAY)

    def delay(self, attempt: int, random: float) -> float:
        """The entry for this attempt, or the last one."""
        return self.seconds[min(max(attempt, 1), len(self.seconds)) - 1]


RetryPolicy = Exponential | Fixed | Delays

#: Used where neither the task nor the job names a policy.
DEFAULT_RETRY = Exponential()

#: Of the error and the number of the failed attempt: seconds or a policy to try again by, None for the default policy,
#: False for no further attempt.
RetryFunction: TypeAlias = Callable[[Exception, int], RetryPolicy | timedelta | float | Literal[False] | None]


class RetryMapping(Protocol):
    """A mapping that a task takes as ``retry``: a policy by the type of the error, or False for no further attempt.

    The most specific type counts. As an annotation it is for a mapping in a variable that holds policies and False, or
    policies of several kinds: what type checkers make of that by themselves is a mapping to objects.

    Example::

        RULES: RetryMapping = {ConnectionError: Fixed(1), ValueError: False}

        @app.task(retry=RULES)
        async def fetch(url: str) -> None: ...
    """

    # Not a Mapping: that one is invariant in its keys, and dict[type[OSError], Fixed] would be none.
    def items(self) -> Iterable[tuple[type[Exception], RetryPolicy | bool]]:
        """The types, each with its policy or False."""
        ...


#: What a task may have instead of a policy. It is code: asked by the worker at the failure, and not stored.
RetryRule: TypeAlias = RetryFunction | Mapping[type[Exception], RetryPolicy | Literal[False]]


def follow(rule: RetryRule, error: Exception, attempt: int) -> RetryPolicy | Literal[False]:
    """The policy that the rule gives for this error, or False for no further attempt.

    Raises what a function raises, and `TypeError` or `InvalidOptions` for an answer that is none.

    Example::

        follow({OSError: Fixed(1), Exception: False}, TimeoutError(), attempt=1)   # Fixed(1)
    """
    if isinstance(rule, Mapping):
        for kind in type(error).__mro__:
            if kind in rule:
                return rule[kind]
        return DEFAULT_RETRY
    answer = rule(error, attempt)
    if answer is None:
        return DEFAULT_RETRY
    if answer is False:
        return False
    if isinstance(answer, Exponential | Fixed | Delays):
        return answer
    if (seconds := seconds_of(answer)) is None:
        raise TypeError(f"{answer!r} must be seconds, a timedelta, a policy, None or False")
    return Fixed(float(seconds))


def seconds_of(value: object) -> float | None:
    """The seconds of a number or a timedelta; None for what is neither, True and False included."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    return number if isinstance(number, int | float) and not isinstance(number, bool) else None


_encoder = msgspec.json.Encoder()


def encode_policy(policy: RetryPolicy) -> bytes:
    """The policy as JSON, as it is stored."""
    return _encoder.encode(policy)
