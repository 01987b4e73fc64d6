"""Tests that may be skipped where the gate runs, each with its reason. Any other skipped test fails the run there."""

from __future__ import annotations

#: A part of the test's id, and why it may be skipped.
ALLOWED = {
    "TestMemory::test_a_push_within": "the memory storage has no transactions of the caller's to push in",
}
