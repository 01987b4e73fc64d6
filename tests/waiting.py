"""Patience instead of sleep, for tests without an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], *, seconds: float = 30.0, what: str = "what is waited for") -> T:
    """Ask until the answer is true, and return it; fail with ``what`` after so many seconds."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)
    return answer
