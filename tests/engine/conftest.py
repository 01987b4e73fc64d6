"""Fixtures of the engine's tests."""

from __future__ import annotations

import pytest

from tests.engine.heard import Heard
from tests.engine.kit import Shop


@pytest.fixture
def shop() -> Shop:
    """An app on a fresh memory storage."""
    return Shop()


@pytest.fixture
def heard() -> Heard:
    """A listener that remembers what it was told."""
    return Heard()
