"""Fixtures of the PostgreSQL storage's own tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from .kit import Lab


@pytest.fixture
async def lab(migrated: str) -> AsyncIterator[Lab]:
    """A storage on a fresh database, opened."""
    async with Lab(migrated) as lab:
        yield lab
