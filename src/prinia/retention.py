"""How long finished jobs are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from prinia.errors import ConfigurationError

DAY = 86_400.0
#: The longest that can be asked for, other than for ever.
LONGEST = 600 * DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How many seconds a queue's finished jobs are kept, by the state they ended in; ``math.inf`` is for ever.

    They are kept at least as long, and go within about a day; those kept longer than 31 days within about a month.

    Example::

        Retention(completed=3600)     # failed and cancelled jobs are kept as by default
    """

    completed: float = DAY
    failed: float = 30 * DAY
    cancelled: float = 7 * DAY

    def of(self, state: str) -> float:
        """Seconds for jobs that ended in this state."""
        return {"completed": self.completed, "failed": self.failed, "cancelled": self.cancelled}[state]


#: Of a queue for which nothing else was said.
DEFAULT = Retention()


def read_retention(
    completed: timedelta | float | None, failed: timedelta | float | None, cancelled: timedelta | float | None
) -> Retention:
    """A `Retention` of what a user gave; None is the default. Raises `ConfigurationError`."""
    return Retention(
        completed=_seconds("completed", completed, DEFAULT.completed),
        failed=_seconds("failed", failed, DEFAULT.failed),
        cancelled=_seconds("cancelled", cancelled, DEFAULT.cancelled),
    )


def _seconds(name: str, given: object, default: float) -> float:
    if given is None:
        return default
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    fits = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds >= 0  # which NaN is not
    if not fits or (seconds > LONGEST and seconds != math.inf):  # type: ignore[operator]
        raise ConfigurationError(
            f"{name}={given!r} must be seconds or a timedelta, from 0 to {LONGEST / DAY:.0f} days, or math.inf for"
            " ever, or None for the default"
        )
    return float(seconds)  # type: ignore[arg-type]
