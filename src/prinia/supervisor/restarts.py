"""When something that failed is started anew, and when that is given up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from prinia.errors import ConfigurationError
from prinia.worker.outage import Backoff

#: The exit code of what was started anew too often.
EXIT_GAVE_UP = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How failures are answered; times are seconds. Raises `ConfigurationError` for what makes no sense.

    Each wait is longer than the one before, from about ``delay`` to ``longest_delay``, and spread by chance.
    ``max_restarts`` failures in a row are answered by a new start, the next one ends it all. A run of ``reset_after``
    seconds or more ends the row.
    """

    max_restarts: int = 5
    delay: float = 1.0
    longest_delay: float = 60.0
    reset_after: float = 60.0

    def __post_init__(self) -> None:
        restarts: object = self.max_restarts
        if not isinstance(restarts, int) or isinstance(restarts, bool) or restarts < 0:
            raise ConfigurationError(f"supervisor: max_restarts={restarts!r} must be a whole number, 0 or more")
        for name in ("delay", "longest_delay", "reset_after"):
            check_seconds(name, getattr(self, name))


class Restarts:
    """The failures of one thing that is started anew.

    Example::

        restarts = Restarts(RestartPolicy(), random.random)
        restarts.failed(ran=0.2)    # about 0.8: wait so long, then start it anew; None: give up
    """

    def __init__(self, policy: RestartPolicy, random: Callable[[], float]) -> None:
        self._policy = policy
        self._backoff = Backoff(random, first=policy.delay, longest=policy.longest_delay)
        self.failures = 0

    def failed(self, *, ran: float) -> float | None:
        """It failed after it ran for so many seconds: how long to wait, None for no more."""
        if ran >= self._policy.reset_after:
            self.failures = 0
            self._backoff.reset()
        self.failures += 1
        return self._backoff.next() if self.failures <= self._policy.max_restarts else None


def check_seconds(name: str, number: object) -> None:
    """Raise `ConfigurationError` unless it is a number of seconds, 0 or more."""
    fits = isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
    if not fits or number < 0:  # type: ignore[operator]
        raise ConfigurationError(f"supervisor: {name}={number!r} must be seconds, 0 or more")
