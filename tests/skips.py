"""Tests that may be skipped where the gate runs, each with its reason. Any other skipped test fails the run there."""

from __future__ import annotations

from tests.users import NEEDS_ROOT, NO_PYTHON

_NO_TRANSACTIONS = "the memory storage has no transactions of the caller's to push in"

#: A part of the test's id, or the reason that it gives itself; and why it may be skipped.
ALLOWED = {
    "TestMemory::test_a_committed_push_is_claimed": _NO_TRANSACTIONS,
    "TestMemory::test_a_rolled_back_push_leaves_nothing": _NO_TRANSACTIONS,
    "TestMemory::test_a_push_in_flight_is_not_slept_through": _NO_TRANSACTIONS,
    "TestMemory::test_a_sleeper_is_woken_by_the_commit": _NO_TRANSACTIONS,
    "TestMemory::test_a_transaction_is_in_progress_until_it_ends": _NO_TRANSACTIONS,
    "TestMemory::test_a_replacement_is_in_progress_and_a_kept_job_is_not": _NO_TRANSACTIONS,
    "TestMemory::test_a_committed_completion_ends_the_job": _NO_TRANSACTIONS,
    "TestMemory::test_a_rolled_back_completion_changes_nothing": _NO_TRANSACTIONS,
    "TestMemory::test_a_completion_by_another_claim_changes_nothing": _NO_TRANSACTIONS,
    NEEDS_ROOT: "only root can be another user; who is not root has no need of what is tested there",
    NO_PYTHON: "root's own Python can be in root's home, where no other user can run it",
}
