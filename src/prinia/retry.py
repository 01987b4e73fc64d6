"""Retry policies: pure data, stored with the job, so that any worker computes the same delays.

A policy answers one question: how many seconds after failed attempt *n* may the job start again?
Randomness is passed in, so tests are exact.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from prinia.errors import InvalidOptions

#: No delay is ever longer than this, whatever the policy says: a year, in seconds.
LONGEST_DELAY = 366 * 86400.0

Seconds = Annotated[float, msgspec.Meta(ge=0, le=LONGEST_DELAY)]


class Exponential(msgspec.Struct, frozen=True, kw_only=True, tag="exponential", tag_field="kind"):
    """``start * factor ** (attempt - 1)`` seconds, at most ``cap``, then up to ``jitter`` (a fraction) longer.

    Example::

        @app.task(retry=Exponential(start=1, cap=60))
        async def fetch(url: str) -> None: ...
    """

    start: Seconds = 3.0
    factor: Annotated[float, msgspec.Meta(ge=1, le=100)] = 2.0
    cap: Seconds = 3600.0
    jitter: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.2

    def delay(self, attempt: int, random: float) -> float:
        """Seconds to wait after failed attempt number ``attempt``; ``random`` is in [0, 1)."""
        # factor ** 1000 overflows a float: past 64 doublings every sensible cap has been reached.
        base = min(self.cap, self.start * self.factor ** min(max(attempt - 1, 0), 64))
        return base * (1 + self.jitter * random)


class Fixed(msgspec.Struct, frozen=True, tag="fixed", tag_field="kind"):
    """The same number of seconds after every failed attempt.

    Example::

        @app.task(retry=Fixed(10))
        async def poll() -> None: ...
    """

    seconds: Seconds

    def delay(self, attempt: int, random: float) -> float:
        """``seconds``, whatever the attempt."""
        return self.seconds


class Delays(msgspec.Struct, frozen=True, tag="delays", tag_field="kind"):
    """A list of seconds, one per failed attempt; the last one repeats.

    Example::

        @app.task(retry=Delays((1, 10, 300)))
        async def call_bank() -> None: ...
    """

    seconds: Annotated[tuple[Seconds, ...], msgspec.Meta(min_length=1, max_length=100)]

    def delay(self, attempt: int, random: float) -> float:
        """The entry for this attempt, or the last one."""
        return self.seconds[min(max(attempt, 1), len(self.seconds)) - 1]


RetryPolicy = Exponential | Fixed | Delays

#: Used where neither the task nor the job names a policy.
DEFAULT_RETRY = Exponential()

_decoder = msgspec.json.Decoder(RetryPolicy)
_encoder = msgspec.json.Encoder()


def encode_policy(policy: RetryPolicy) -> bytes:
    """The policy as JSON, as it is stored. Raises `InvalidOptions` when a number is out of range."""
    data = _encoder.encode(policy)
    try:
        _decoder.decode(data)  # msgspec checks ranges when it decodes only
    except msgspec.ValidationError as error:
        raise InvalidOptions(f"retry policy {policy!r}: {error}") from error
    return data
