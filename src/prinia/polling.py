"""What ``poll=`` of a worker takes: when it looks for work without being rung."""

from __future__ import annotations

import math
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from prinia.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class PollBackoff:
    """Look ever less often while nothing is found; start over when something is.

    The wait after ``n`` looks that found nothing is ``start * factor ** n`` seconds, at most ``cap``, then up to
    ``jitter`` (a fraction) longer, so that workers do not all look at once. Raises `ConfigurationError` for a number
    that is out of range.

    Example::

        app.worker(listen=False, poll=PollBackoff(start=0.1, cap=10))
    """

    start: float = 0.1
    factor: float = 2.0
    cap: float = 30.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        for name, value in (("start", self.start), ("cap", self.cap)):
            if not _is_number(value) or value <= 0:
                raise ConfigurationError(f"PollBackoff: {name}={value!r} must be seconds, more than 0")
        if self.cap < self.start:
            raise ConfigurationError(f"PollBackoff: cap={self.cap!r} must not be below start={self.start!r}")
        for name, value, low, high in (("factor", self.factor, 1, 100), ("jitter", self.jitter, 0, 1)):
            if not _is_number(value) or not low <= value <= high:
                raise ConfigurationError(f"PollBackoff: {name}={value!r} must be a number from {low} to {high}")

    def wait(self, empty: int, random: float) -> float:
        """Seconds to wait after so many looks that found nothing; ``random`` is in [0, 1)."""
        # A float overflows somewhere: past 64 doublings every sensible cap has been reached.
        return min(self.cap, self.start * self.factor ** min(empty, 64)) * (1 + self.jitter * random)


#: One source of looks: seconds or timedelta, a back-off, or an async iterator of which each item means "look now".
PollSource: TypeAlias = float | timedelta | PollBackoff | AsyncIterable[object]

#: A source, or several of which the first wakes the worker.
Poll: TypeAlias = PollSource | Sequence[PollSource]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
