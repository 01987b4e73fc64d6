"""Times as people type them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from prinia.cli.times import Moment, distance, read_duration, read_moment, read_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ("90s", 90), ("15m", 900), ("2h", 7200), ("1h30m", 5400), ("1.5h", 5400), ("3d", 259200),
     ("1w", 604800), ("0", 0)],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-5", "2 h", "h", "1e3", "inf", "2h ago", "1y", "2H", "٣"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is no time span; write seconds, or with a unit"):
        read_duration(text)


def test_moments() -> None:
    assert read_moment("2026-12-01T09:30+02:00") == Moment(datetime(2026, 12, 1, 7, 30, tzinfo=UTC))
    assert read_moment("2026-12-01 09:30Z").at == datetime(2026, 12, 1, 9, 30, tzinfo=UTC)
    ago = read_moment("2h")
    assert ago.age
    assert abs(datetime.now(UTC) - ago.at - timedelta(hours=2)) < timedelta(minutes=1)
    for text in ("3600", "20261201", "now", ""):
        with pytest.raises(ValueError, match="is neither an age, such as 15m, 2h or 3d, nor a time, such as 20"):
            read_moment(text)


def test_a_time_needs_a_zone() -> None:
    with pytest.raises(
        ValueError, match=r"has no time zone; write 2026-12-01T00:00Z for UTC, or for example 2026-12-01T00:"
    ):
        read_time("2026-12-01")


def test_distances() -> None:
    now = datetime.now(UTC)
    assert distance(now - timedelta(minutes=3, seconds=0.5)) == "3m ago"
    assert distance(now + timedelta(hours=2, seconds=30)) == "in 2h"
