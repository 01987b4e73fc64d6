"""When awaited jobs are looked at: pure, with times made up.

Seen to fail with: the pause not doubled, or the longest one the same with and without an announcement; a look of an
older pause not forgotten; what was dropped still looked at; an announcement asked for at the first look, or never anew.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from prinia.waiting.agenda import FIRST, LONGEST, LONGEST_HEARD, RENEW, Agenda


def looks(agenda: Agenda, until: float, *, listening: bool = False) -> list[float]:
    """When the one job is looked at; it never ends. What is worth an announcement gets one."""
    times: list[float] = []
    while (at := agenda.next()) is not None and at <= until:
        times.append(at)
        ids = agenda.due(at)
        agenda.put_off(ids, at, listening=listening)
        if listening and (wanted := agenda.to_expect(ids, at)):
            agenda.expecting(wanted, at)
    return times


def pauses(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


def test_a_new_job_is_looked_at_at_once_and_ever_less_often() -> None:
    agenda = Agenda()
    agenda.add(7, 100.0)
    assert pauses(looks(agenda, 102.5)) == pytest.approx([0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.5])


def test_what_would_be_heard_is_looked_at_rarely() -> None:
    agenda = Agenda()
    agenda.add(7, 0.0)
    assert pauses(looks(agenda, 60.0, listening=True))[-3:] == pytest.approx([LONGEST_HEARD] * 3)


def test_an_announcement_is_asked_for_when_it_takes_long_and_then_anew() -> None:
    agenda = Agenda()
    agenda.add(7, 0.0)
    asked = []
    while (at := agenda.next()) is not None and at < 2.5 * RENEW:
        ids = agenda.due(at)
        agenda.put_off(ids, at, listening=True)
        if agenda.to_expect(ids, at):
            asked.append(at)
            agenda.expecting(ids, at)
    assert 0.05 < asked[0] < 0.2
    assert len(asked) == 3
    assert all(RENEW <= pause <= RENEW + LONGEST_HEARD for pause in pauses(asked))


def test_who_cannot_listen_asks_for_nothing_longer_than_it_looks() -> None:
    agenda = Agenda()
    agenda.add(7, 0.0)
    assert max(pauses(looks(agenda, 30.0))) == pytest.approx(LONGEST)


def test_what_was_heard_of_is_looked_at_at_once() -> None:
    agenda = Agenda()
    for id in (1, 2, 3):
        agenda.add(id, 0.0)
    agenda.put_off(agenda.due(0.0), 0.0, listening=True)
    assert agenda.due(0.0) == []
    assert agenda.heard([2, 99], 0.001)
    assert agenda.due(0.001) == [2]
    assert not agenda.heard([99], 0.001)


def test_after_a_gap_in_hearing_all_are_looked_at() -> None:
    agenda = Agenda()
    for id in (3, 1, 2):
        agenda.add(id, 0.0)
    agenda.put_off(agenda.due(0.0), 0.0, listening=True)
    assert agenda.heard(None, 0.001)
    assert agenda.due(0.001) == [1, 2, 3]


def test_a_job_has_one_look_ahead() -> None:
    agenda = Agenda()
    agenda.add(7, 0.0)
    agenda.put_off(agenda.due(0.0), 0.0, listening=False)
    agenda.add(7, 0.001)  # somebody else awaits it too
    assert agenda.due(10.0) == [7]
    assert agenda.due(10.0) == []
    agenda.put_off([7], 10.0, listening=False)
    assert agenda.next() == pytest.approx(10.0 + FIRST)


def test_what_was_dropped_is_looked_at_no_more() -> None:
    agenda = Agenda()
    agenda.add(7, 0.0)
    agenda.add(8, 0.0)
    agenda.drop(7)
    assert (agenda.due(1.0), len(agenda)) == ([8], 1)
    agenda.put_off([7, 8], 1.0, listening=False)
    agenda.drop(8)
    assert agenda.next() is None
    assert agenda.due(100.0) == []
