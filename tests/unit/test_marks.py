"""Marks: where claims start, and when a floor may move.

Seen to fail with: floors moved when noted; floors moved while an earlier transaction is open; caught up by a claim
that did not reach the lane, or that took only from below its tip; catching up again and again; turns that stand
still; a clock that steps back unseen.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from prinia.storage.postgres.marks import CATCH_UP_SHARE, FULL_SCAN_EVERY, FULL_SCAN_SHARE, SLACK, Lane, Marks, Position

START = datetime(2026, 1, 1, tzinfo=UTC)
A, B, C = ("q", 9), ("q", 5), ("q", 0)


def at(seconds: float, id: int = 0) -> tuple[datetime, int]:
    return START + timedelta(seconds=seconds), id


def marks(*keys: tuple[str, int]) -> Marks:
    made = Marks(("q",))
    made.add(keys)
    return made


def claim(
    made: Marks,
    tips: dict[tuple[str, int], Position],
    *,
    xid: int | None,
    xmin: int,
    short: bool = False,
    now: float = 0.0,
) -> None:
    """What a claim over all lanes does to the marks."""
    visited = [key for key, _ in made.in_order(made.queues)]
    made.note(xid=xid, now=now)
    made.advance(visited, tips, short=short)
    made.observe(server_now=now, xmin=xmin, now=now)


# -- tips --------------------------------------------------------------------------------------------------------


def test_a_lane_starts_at_its_start() -> None:
    assert marks(A).lanes[A].start is None


def test_the_tip_is_the_furthest_taken() -> None:
    made = marks(A)
    claim(made, {A: at(5, 7)}, xid=1, xmin=0)
    claim(made, {A: at(3, 1)}, xid=1, xmin=0)
    claim(made, {A: at(5, 8)}, xid=1, xmin=0)
    assert made.lanes[A].start == at(5, 8)


def test_a_jump_moves_the_tip_alone_and_never_back() -> None:
    made = marks(A)
    made.jump({A: at(5)})
    made.jump({A: at(4)})
    assert made.lanes[A] == Lane(tip=at(5))


# -- floors ------------------------------------------------------------------------------------------------------


def test_a_floor_moves_by_note_wait_and_scan() -> None:
    made = marks(A)
    claim(made, {A: at(10)}, xid=100, xmin=100)
    claim(made, {A: at(20)}, xid=101, xmin=101)  # notes 10
    assert made.lanes[A].floor is None
    assert made.lanes[A].start == at(20)
    claim(made, {A: at(30)}, xid=102, xmin=102)  # all up to 101 are over: scan next
    assert made.lanes[A].start is None
    assert made.lanes[A].floor is None
    claim(made, {A: at(40)}, xid=103, xmin=103)  # the scan
    assert made.lanes[A].floor == (at(10)[0] - SLACK, 0)
    assert made.lanes[A].start == at(40)


def test_an_open_transaction_holds_the_floor() -> None:
    made = marks(A)
    claim(made, {A: at(10)}, xid=100, xmin=99)
    for xid in range(101, 200):
        claim(made, {A: at(xid)}, xid=xid, xmin=101)
        assert made.lanes[A].start == at(xid)
    claim(made, {A: at(200)}, xid=200, xmin=102)
    assert made.lanes[A].catching


def test_a_claim_without_a_transaction_id_notes_nothing() -> None:
    made = marks(A)
    claim(made, {A: at(10)}, xid=100, xmin=100)
    claim(made, {A: at(10)}, xid=101, xmin=103)  # noted and over at once: scan
    claim(made, {}, xid=None, xmin=104, short=True)
    for _ in range(5):
        claim(made, {}, xid=None, xmin=200)
        assert not made.lanes[A].catching


def catching(*keys: tuple[str, int]) -> Marks:
    """Marks whose lanes are to scan from a floor of 1 with a tip at 50."""
    made = marks(*keys)
    for lane in made.lanes.values():
        lane.tip, lane.floor = at(50), at(1)
        lane.catch_up(at(1), at(40))
    return made


@pytest.mark.parametrize(
    ("tips", "short", "through"),
    [
        ({A: at(20)}, False, set()),
        ({A: at(60)}, False, {A}),
        ({B: at(20)}, False, {A}),
        ({B: at(60)}, False, {A, B}),
        ({C: at(20)}, False, {A, B}),
        ({A: at(20)}, True, {A, B, C}),
        ({}, True, {A, B, C}),
    ],
)
def test_what_counts_as_scanned(
    tips: dict[tuple[str, int], Position], short: bool, through: set[tuple[str, int]]
) -> None:
    made = catching(A, B, C)
    made.advance([A, B, C], tips, short=short)
    assert {key for key, lane in made.lanes.items() if not lane.catching} == through
    assert {key for key, lane in made.lanes.items() if lane.floor == at(40)} == through


def test_lanes_that_a_claim_did_not_visit_are_not_scanned() -> None:
    made = catching(A, B)
    made.advance([A], {}, short=True)
    assert made.lanes[B].catching
    assert made.lanes[B].start == at(1)


def test_a_scan_under_way_is_not_replaced() -> None:
    made = catching(A)
    made.lanes[A].catch_up(at(30), at(45))
    made.scan_floors()
    assert made.lanes[A].start == at(1)
    assert made.lanes[A].floor_after == at(40)


def test_a_floor_is_scanned_without_moving() -> None:
    made = marks(A)
    made.lanes[A].tip, made.lanes[A].floor = at(50), at(1)
    made.scan_floors()
    assert made.lanes[A].start == at(1)
    assert not made.catching
    made.advance([A], {}, short=True)
    assert made.lanes[A] == Lane(tip=at(50), floor=at(1), scan_from=at(1), floor_after=at(1))


def test_catching_up_takes_a_small_part_of_the_time() -> None:
    made = catching(A)
    assert made.catching
    made.advance([A], {A: at(60)}, short=False)
    made.caught_up(100.0, 2.0)
    again = 100.0 + 2.0 / CATCH_UP_SHARE
    for now, caught in ((again - 0.1, False), (again + 0.1, True)):
        claim(made, {A: at(now)}, xid=500, xmin=501, now=now)
        assert made.catching is caught


# -- full scans --------------------------------------------------------------------------------------------------


def test_full_scans_come_by_the_clock() -> None:
    made = marks(A)
    assert not made.scan_all_if_due(1e9)
    claim(made, {A: at(10)}, xid=1, xmin=0, now=1000.0)
    assert not made.scan_all_if_due(1000.0 + FULL_SCAN_EVERY - 1)
    assert made.scan_all_if_due(1000.0 + FULL_SCAN_EVERY)
    assert made.lanes[A].start is None
    made.scanned_all(2000.0, 0.001)
    assert not made.scan_all_if_due(2000.0 + FULL_SCAN_EVERY - 1)
    assert made.scan_all_if_due(2000.0 + FULL_SCAN_EVERY)


def test_dear_full_scans_come_rarely() -> None:
    made = marks(A)
    made.scanned_all(0.0, 3.0)
    assert not made.scan_all_if_due(3.0 / FULL_SCAN_SHARE - 1)
    assert made.scan_all_if_due(3.0 / FULL_SCAN_SHARE)


def test_a_full_scan_does_not_move_the_floor() -> None:
    made = marks(A)
    made.lanes[A].tip, made.lanes[A].floor = at(50), at(1)
    made.scanned_all(0.0, 0.0)
    made.scan_all_if_due(FULL_SCAN_EVERY)
    made.advance([A], {}, short=True)
    assert made.lanes[A].floor == at(1)


# -- dropping ----------------------------------------------------------------------------------------------------


def test_a_clock_that_steps_back_drops_the_marks() -> None:
    made = marks(A)
    claim(made, {A: at(10)}, xid=1, xmin=0, now=1000.0)
    claim(made, {A: at(11)}, xid=2, xmin=0, now=1000.0)
    assert made.lanes
    claim(made, {A: at(12)}, xid=3, xmin=0, now=999.9)
    assert not made.lanes


def test_what_was_noted_before_a_drop_is_forgotten() -> None:
    made = marks(A)
    claim(made, {A: at(10)}, xid=1, xmin=0)
    claim(made, {A: at(20)}, xid=2, xmin=0)
    made.drop()
    made.add([A])
    made.scan_floors()
    claim(made, {A: at(1)}, xid=3, xmin=100, short=True)
    assert made.lanes[A].floor is None
    assert not made.scan_all_if_due(FULL_SCAN_EVERY - 1)


# -- turns and gaps ----------------------------------------------------------------------------------------------


def test_queues_take_turns() -> None:
    made = Marks(("a", "b", "c"))
    assert [made.turns() for _ in range(4)] == [["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"], ["b", "c", "a"]]
    assert Marks(("a",)).turns() == ["a"]


def test_lanes_in_order() -> None:
    made = Marks(("a", "b"))
    made.add([("a", 0), ("b", 5), ("a", 9), ("b", -5)])
    assert [key for key, _ in made.in_order(["b", "a"])] == [("b", 5), ("b", -5), ("a", 9), ("a", 0)]


@pytest.mark.parametrize(
    ("known", "gaps"),
    [
        ([], [(-101, 101)]),
        ([0], [(-101, 0), (0, 101)]),
        ([-100, 100], [(-100, 100)]),
        ([5, 6, 8], [(-101, 5), (6, 8), (8, 101)]),
        (list(range(-100, 101)), []),
    ],
)
def test_gaps(known: list[int], gaps: list[tuple[int, int]]) -> None:
    made = marks(*(("q", priority) for priority in known))
    assert made.gaps() == [("q", low, high) for low, high in gaps]


def test_known_lanes_are_not_begun_anew() -> None:
    made = marks(A)
    made.jump({A: at(5)})
    made.add([A, B])
    assert made.lanes == {A: Lane(tip=at(5)), B: Lane()}
