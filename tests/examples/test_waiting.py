"""The example of waiting."""

from __future__ import annotations

import re

from .conftest import Start


def test_waiting(start: Start) -> None:
    said, complained = start("waiting.py").communicate(timeout=90)
    assert complained == ""
    *served, failed, late = said.splitlines()
    assert served == ["soup is served", "salad is served", "roast is served", "1000 eggs"]
    burnt = r"job \d+ \(waiting.burn\) failed after 1 attempt; last error: ValueError: the pie burnt"
    assert re.fullmatch(burnt, failed)
    assert re.fullmatch(r"job \d+ \(waiting.cook\) is still running after 0.5 s of waiting; it goes on", late)
