"""What an app can be told of retention."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from prinia import ColourError, ConfigurationError, Prinia, Retention
from prinia.storage.memory import MemoryStorage

DAY = 86_400.0


@pytest.fixture
def app() -> Prinia:
    return Prinia(storage=MemoryStorage())


def test_the_default(app: Prinia) -> None:
    assert app.retention("email") == Retention(completed=DAY, failed=30 * DAY, cancelled=7 * DAY) == Retention()


def test_what_is_given_is_kept_and_the_rest_is_as_by_default(app: Prinia) -> None:
    app.set_retention("email", completed=3600, failed=timedelta(days=90))
    assert app.retention("email") == Retention(completed=3600, failed=90 * DAY)
    app.set_retention("email", cancelled=math.inf)
    assert app.retention("email") == Retention(cancelled=math.inf)
    app.set_retention("email")
    assert app.retention("email") == Retention()


async def test_both_colours(app: Prinia) -> None:
    await app.aset_retention("email", completed=0, failed=600 * DAY, cancelled=timedelta(hours=1))
    assert await app.aretention("email") == Retention(completed=0, failed=600 * DAY, cancelled=3600)
    assert await app.aretention("other") == Retention()
    with pytest.raises(ColourError, match=r"await app\.aset_retention"):
        app.set_retention("email")
    with pytest.raises(ColourError, match=r"await app\.aretention"):
        app.retention("email")


@pytest.mark.parametrize("given", [-1, math.nan, -math.inf, 600 * DAY + 1, timedelta(days=-1), True, "1d"])
@pytest.mark.parametrize("state", ["completed", "failed", "cancelled"])
def test_values_that_make_no_sense(app: Prinia, state: str, given: Any) -> None:
    with pytest.raises(ConfigurationError, match=rf"{state}=.* must be seconds or a timedelta, from 0 to 600 days"):
        app.set_retention("email", **{state: given})
    assert app.retention("email") == Retention()


@pytest.mark.parametrize("queue", ["", "q" * 201, "a\0b", 7])
def test_queues_that_cannot_be(app: Prinia, queue: Any) -> None:
    with pytest.raises(ConfigurationError, match="queue="):
        app.set_retention(queue, completed=1)
