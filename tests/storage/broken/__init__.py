"""Storages that break one promise each, to see the conformance suite notice.

Each double is the memory storage with one mechanism switched off; its docstring is the bug.
"""

from __future__ import annotations

from . import (
    acks,
    announcements,
    bells,
    claims,
    completions,
    deaths,
    keys,
    lists,
    operations,
    pushes,
    reads,
    retention,
    situations,
    strays,
    watch,
)
from .base import Broken

__all__ = [
    "Broken",
    "acks",
    "announcements",
    "bells",
    "claims",
    "completions",
    "deaths",
    "keys",
    "lists",
    "operations",
    "pushes",
    "reads",
    "retention",
    "situations",
    "strays",
    "watch",
]
