"""How moments, time spans, numbers and lists of names stand in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
#: So many names of a list are shown.
_SHOWN = 5


def span(seconds: float) -> str:
    """A time span in its two largest units; what is below zero counts as none.

    Example::

        span(95), span(7200.4), span(0.2)      # "1m35s", "2h", "0s"
    """
    left, parts = max(int(seconds), 0), []
    for unit, size in _UNITS:
        number, left = divmod(left, size)
        parts.append((number, unit))
    first = next((at for at, (number, _) in enumerate(parts) if number), len(parts) - 1)
    return "".join(f"{number}{unit}" for number, unit in parts[first : first + 2] if number) or "0s"


def moment(at: datetime, *, now: datetime) -> str:
    """A moment and how far it is from now: "2026-12-01 09:30:00 UTC (3m ago)"."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({distance(at, now=now)})"


def distance(at: datetime, *, now: datetime) -> str:
    """How far a moment is from now: "3m ago", "in 2h"."""
    seconds = (at - now).total_seconds()
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"


def plural(number: int, noun: str) -> str:
    """ "1 job", "1,200 jobs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: Iterable[str]) -> str:
    """Some names, each once, and how many more there are: "a, b, c, d, e and 7 more"."""
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - _SHOWN
    return ", ".join(distinct[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def quoted(names: Sequence[str]) -> str:
    """`listed`, each in quotation marks."""
    return listed(f'"{name}"' for name in names)
