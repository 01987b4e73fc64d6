"""Fixtures of the engine's tests."""

from __future__ import annotations

import pytest

from tests.engine.kit import Shop


@pytest.fixture
def shop() -> Shop:
    """An app on a fresh memory storage."""
    return Shop()
