"""Times as people type and read them: 2h, 3d, 1h30m, 2026-12-01T09:30Z."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import click

from prinia import wording

T = TypeVar("T")

_UNITS = {"w": 604_800.0, "d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw])")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment that was given, as a time or as an ``age``, which is another moment each time it is given."""

    at: datetime
    age: bool = False


def read_duration(text: str) -> float:
    """Seconds: of a plain number, or of numbers with units, such as 90s, 2h, 1h30m, 3d, 1w. Raises `ValueError`."""
    if _DURATION.fullmatch(text):
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", text):
        return float(text)
    raise ValueError(f"{text!r} is no time span; write seconds, or with a unit: 90s, 15m, 2h, 1h30m, 3d")


def read_time(text: str) -> datetime:
    """A time in ISO 8601 with its zone. Raises `ValueError`, which says what to write."""
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time; write one such as {_example()}") from None
    if given.utcoffset() is None:
        shown = given.isoformat(timespec="minutes")
        raise ValueError(f"{text!r} has no time zone; write {shown}Z for UTC, or for example {shown}+02:00")
    return given


def read_moment(text: str) -> Moment:
    """A time, or how long ago it is. Raises `ValueError`."""
    if not _DURATION.fullmatch(text):
        if not re.match(r"\d{4}-\d", text):
            raise ValueError(f"{text!r} is neither an age, such as 15m, 2h or 3d, nor a time, such as {_example()}")
        return Moment(read_time(text))
    try:
        return Moment(datetime.now(UTC) - timedelta(seconds=read_duration(text)), age=True)
    except OverflowError:
        raise ValueError(f"{text!r} is before the year 1") from None


def checked(read: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str | None], T | None]:
    """The callback of an option whose text this function reads."""

    def callback(context: click.Context, parameter: click.Parameter, given: str | None) -> T | None:
        try:
            return None if given is None else read(given)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return callback


def distance(moment: datetime) -> str:
    """How far a moment is from now: "3m ago", "in 2h"."""
    return wording.distance(moment, now=datetime.now(UTC))


def shown(moment: datetime) -> str:
    """A moment with its distance: 2026-12-01 09:30:00 UTC (3m ago)."""
    return wording.moment(moment, now=datetime.now(UTC))


def _example() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%MZ}"
