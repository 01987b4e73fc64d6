"""The engine's pure parts: pace, watch, deadlines, back-off, ledger, failure texts, settings."""

from __future__ import annotations

import asyncio
import logging
from uuid import uuid4

import pytest

from prinia import INJECTED, Cancel, ConfigurationError, Fail, Prinia, Retry, Snooze, StorageUnavailable
from prinia.errors import StorageError
from prinia.job import MAX_ERROR_BYTES
from prinia.maintenance import Watch
from prinia.storage.memory import MemoryStorage
from prinia.worker import Worker
from prinia.worker.deadlines import Deadlines
from prinia.worker.failure import failed
from prinia.worker.ledger import Ledger
from prinia.worker.outage import Backoff, Outage
from prinia.worker.pace import LARGEST_CLAIM, Pace
from tests.engine.kit import until


class TestPace:
    def steady(self, pace: Pace, per_second: int) -> None:
        for tick in range(100):
            pace.sample(started=per_second * tick // 20, now=tick / 20)

    def test_starts_with_the_free_slots(self) -> None:
        pace = Pace(concurrency=100)
        assert pace.room(running=0, waiting=0) == 100
        assert pace.room(running=70, waiting=5) == 25
        assert pace.room(running=100, waiting=0) == 0

    def test_claims_nothing_ahead_of_slow_handlers(self) -> None:
        pace = Pace(concurrency=100)
        self.steady(pace, 50)
        assert pace.room(running=100, waiting=0) == 0
        assert pace.room(running=99, waiting=0) == 1

    def test_claims_large_batches_ahead_of_fast_handlers(self) -> None:
        pace = Pace(concurrency=100)
        self.steady(pace, 50_000)
        assert pace.room(running=100, waiting=0) == LARGEST_CLAIM
        assert pace.room(running=100, waiting=900) == 0

    def test_claims_what_can_start_within_a_second(self) -> None:
        pace = Pace(concurrency=1)
        self.steady(pace, 40)
        assert 30 <= pace.room(running=1, waiting=0) <= 40

    def test_forgets_its_lead_when_nothing_starts(self) -> None:
        pace = Pace(concurrency=10)
        self.steady(pace, 5_000)
        pace.stalled()
        assert pace.room(running=10, waiting=0) == 0


class TestWatch:
    def test_finds_dead_who_stood_still_for_the_whole_time(self) -> None:
        watch, me, other = Watch(dead_after=12), uuid4(), uuid4()
        for tick in range(12):
            assert watch.feed({me: tick, other: 7}, float(tick)) == {}
        assert watch.feed({me: 12, other: 7}, 12.0) == {other: 7}

    def test_starts_anew_when_the_counter_moves(self) -> None:
        watch, other = Watch(dead_after=12), uuid4()
        for tick in range(12):
            watch.feed({other: 7}, float(tick))
        assert watch.feed({other: 8}, 12.0) == {}
        assert watch.feed({other: 8}, 17.0) == {}

    @pytest.mark.parametrize("gap", [6.5, 3600.0])
    def test_a_pause_of_everything_kills_nobody(self, gap: float) -> None:
        watch, other = Watch(dead_after=12), uuid4()
        for tick in range(12):
            watch.feed({other: 7}, float(tick))
        assert watch.feed({other: 7}, 11 + gap) == {}
        assert watch.feed({other: 7}, 11 + gap + 5.9) == {}

    def test_forgets_after_a_lost_connection(self) -> None:
        watch, other = Watch(dead_after=12), uuid4()
        for tick in range(12):
            watch.feed({other: 7}, float(tick))
        watch.reset()
        assert watch.feed({other: 7}, 12.0) == {}

    def test_a_returning_instance_is_watched_anew(self) -> None:
        watch, other = Watch(dead_after=4), uuid4()
        watch.feed({other: 7}, 0.0)
        watch.feed({}, 2.0)
        assert watch.feed({other: 7}, 4.0) == {}

    def test_tells_when_the_next_verdict_is_due(self) -> None:
        watch, first, second = Watch(dead_after=12), uuid4(), uuid4()
        assert watch.next_verdict(0.0) is None
        watch.feed({first: 1}, 0.0)
        watch.feed({first: 1, second: 1}, 4.0)
        assert watch.next_verdict(5.0) == 7.0
        for tick in range(5, 13):
            watch.feed({first: 1, second: 1}, float(tick))
        assert watch.next_verdict(12.0) == 4.0  # the first is dead already, and is no reason to hurry


class TestDeadlines:
    async def test_expire_in_order_of_time(self) -> None:
        expired: list[str] = []
        deadlines = Deadlines(asyncio.get_running_loop(), expired.append)
        deadlines.add("late", 0.03)
        deadlines.add("soon", 0.01)
        deadlines.add("now", 0.0)
        await until(lambda: len(expired) == 3)
        assert expired == ["now", "soon", "late"]

    async def test_a_dropped_one_does_not_expire(self) -> None:
        expired: list[str] = []
        deadlines = Deadlines(asyncio.get_running_loop(), expired.append)
        deadlines.drop(deadlines.add("dropped", 0.01))
        deadlines.add("kept", 0.02)
        await until(lambda: expired)
        assert expired == ["kept"]

    async def test_dropped_ones_do_not_pile_up(self) -> None:
        deadlines: Deadlines[int] = Deadlines(asyncio.get_running_loop(), lambda number: None)
        for number in range(20_000):
            deadlines.drop(deadlines.add(number, 3600))
        assert len(deadlines) < 3000
        deadlines.close()

    async def test_one_may_add_another_when_it_expires(self) -> None:
        expired: list[int] = []

        def expire(number: int) -> None:
            expired.append(number)
            if number < 3:
                deadlines.add(number + 1, 0.0)

        deadlines = Deadlines(asyncio.get_running_loop(), expire)
        deadlines.add(1, 0.0)
        await until(lambda: len(expired) == 3)


class TestBackoff:
    def test_doubles_up_to_the_longest(self) -> None:
        backoff = Backoff(lambda: 1.0, first=1.0, longest=10.0)
        assert [backoff.next() for _ in range(6)] == [1, 2, 4, 8, 10, 10]

    def test_is_never_a_busy_loop(self) -> None:
        backoff = Backoff(lambda: 0.0, first=1.0, longest=10.0)
        assert [backoff.next() for _ in range(3)] == [0.5, 0.5, 0.5]

    def test_starts_anew_after_success(self) -> None:
        backoff = Backoff(lambda: 1.0, first=1.0, longest=10.0)
        for _ in range(5000):
            backoff.next()
        backoff.reset()
        assert backoff.next() == 1.0


class TestOutage:
    def test_logs_once_per_outage(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "prinia.worker")
        outage = Outage("web-1")
        for _ in range(5):
            outage.began("claim", StorageUnavailable("refused"))
            outage.began("record outcomes", StorageUnavailable("refused"))
        outage.ended("claim")
        outage.ended("claim")
        outage.ended("record outcomes")
        outage.ended("send a heartbeat")
        assert caplog.messages == [
            "worker web-1: database unreachable: refused; trying again",
            "worker web-1: the database is back",
        ]

    def test_a_refusal_is_an_error(self, caplog: pytest.LogCaptureFixture) -> None:
        Outage("web-1").began("claim", StorageError("permission denied for table jobs"))
        assert "refused to claim: permission denied for table jobs" in caplog.text
        assert caplog.records[0].levelno == logging.ERROR


class TestLedger:
    def test_a_token_is_in_flight_until_each_of_its_jobs_is_accounted_for(self) -> None:
        ledger = Ledger()
        first, second = ledger.new_token(), ledger.new_token()
        assert ledger.tokens() == [first, second] == [1, 2]
        ledger.answered(first, 2)
        ledger.answered(second, 0)
        assert ledger.tokens() == [first]
        ledger.settled({first: 1})
        assert ledger.tokens() == [first]
        ledger.settled({first: 1})
        assert ledger.tokens() == []

    def test_a_doubtful_token_is_in_flight_until_cleared(self) -> None:
        ledger = Ledger()
        token = ledger.new_token()
        ledger.doubt(token)
        assert ledger.tokens() == ledger.doubtful == [token]
        ledger.cleared([token])
        assert ledger.tokens() == ledger.doubtful == []


class Awkward(Exception):
    def __init__(self, one: int, two: int) -> None:
        self.one, self.two = one, two

    def __str__(self) -> str:
        raise RuntimeError("no text for you")

    __repr__ = __str__


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


class TestFailure:
    def test_has_type_message_and_traceback(self) -> None:
        failure = failed(raised(ValueError("no such order")))
        assert (failure.kind, failure.message) == ("ValueError", "no such order")
        assert failure.traceback is not None
        assert "raise error" in failure.traceback
        assert failure.traceback.endswith("ValueError: no such order\n")

    def test_names_foreign_types_with_their_module(self) -> None:
        assert failed(Awkward(1, 2)).kind == f"{__name__}.Awkward"

    def test_survives_a_str_that_raises(self) -> None:
        assert failed(Awkward(1, 2)).message == "<Awkward.__str__ raised RuntimeError>"

    def test_cuts_a_huge_message(self) -> None:
        failure = failed(raised(ValueError("x" * 50_000_000)))
        assert sum(len(text.encode()) for text in (failure.kind, failure.message, failure.traceback or "")) <= (
            MAX_ERROR_BYTES
        )
        assert failure.message.endswith("…")

    @pytest.mark.parametrize("text", ["a\0b", "a\ud800b", "\0" * 50_000, "\udcff" * 50_000, "ü" * 50_000])
    def test_is_storable_and_bounded(self, text: str) -> None:
        failure = failed(raised(ValueError(text)))
        whole = failure.kind + failure.message + (failure.traceback or "")
        assert "\0" not in whole
        assert len(whole.encode()) <= MAX_ERROR_BYTES

    def test_survives_a_ring_of_causes(self) -> None:
        first, second = ValueError("first"), KeyError("second")
        first.__cause__, second.__cause__ = second, first
        text = failed(raised(first)).traceback or ""
        assert text.count("ValueError: first") == text.count("KeyError: 'second'") == 1

    def test_shows_causes_and_members_of_groups(self) -> None:
        group = ExceptionGroup("both", [ValueError("one"), ExceptionGroup("inner", [KeyError("two")])])
        group.__cause__ = OSError("root")
        text = failed(raised(group)).traceback or ""
        for part in ("OSError: root", "ValueError: one", "KeyError: 'two'"):
            assert part in text

    def test_bounds_groups_and_chains(self) -> None:
        error: Exception = ValueError("0")
        for number in range(2000):
            members: list[Exception] = [error, ValueError("y" * 5000)]
            error = ExceptionGroup(f"g{number}", members)
        for number in range(500):
            cause, error = error, RuntimeError(f"chain {number}")
            error.__cause__ = cause
        assert len((failed(raised(error)).traceback or "").encode()) <= MAX_ERROR_BYTES

    def test_bounds_a_deep_recursion(self) -> None:
        def dive(depth: int) -> None:
            dive(depth + 1)

        with pytest.raises(RecursionError) as caught:
            dive(0)
        failure = failed(caught.value)
        assert failure.kind == "RecursionError"
        assert len((failure.traceback or "").encode()) <= MAX_ERROR_BYTES

    @pytest.mark.parametrize("steering", [Retry("later"), Snooze(3), Fail("gone"), Cancel("withdrawn")])
    def test_keeps_what_steers_and_spares_its_traceback(self, steering: Retry | Snooze | Fail | Cancel) -> None:
        failure = failed(raised(steering))
        assert failure.steering is steering
        assert failure.traceback is None


class TestSettings:
    @pytest.fixture
    def app(self) -> Prinia:
        app = Prinia(storage=MemoryStorage())

        @app.task(name="email", queue="email")
        async def email() -> None: ...

        @app.task(name="report", queue="reports", aliases=("old.report",))
        async def report() -> None: ...

        return app

    def test_serves_the_queues_of_its_tasks(self, app: Prinia) -> None:
        worker = Worker(app.storage, app.tasks)
        assert worker.queues == ("email", "reports")
        assert worker.name
        assert worker.instance.tasks == ("email", "old.report", "report")

    def test_names_are_labels(self, app: Prinia) -> None:
        one, two = Worker(app.storage, app.tasks, name="w"), Worker(app.storage, app.tasks, name="w")
        assert one.instance.id != two.instance.id

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"concurrency": 0}, "concurrency=0 must be a whole number, 1 or more"),
            ({"concurrency": 1.5}, "concurrency=1.5"),
            ({"concurrency": True}, "concurrency=True"),
            ({"threads": 0}, "threads=0"),
            ({"heartbeat": 0}, "heartbeat=0 must be seconds"),
            ({"heartbeat": float("nan")}, "heartbeat=nan"),
            ({"poll": -1}, "poll=-1"),
            ({"listen": 0}, "listen=0 must be True or False"),
            ({"claim_batch": 0}, "claim_batch=0 must be a whole number, 1 to 500"),
            ({"claim_batch": 501}, "claim_batch=501"),
            ({"stop_timeout": float("inf")}, "stop_timeout=inf"),
            ({"stop_timeout": "5"}, "stop_timeout='5'"),
            ({"heartbeat": 4, "dead_after": 9}, "make it 10 or more"),
            ({"queues": "email"}, r"write queues=\['email'\]"),
            ({"queues": []}, "no queue to serve"),
            ({"queues": [""]}, "queue ''"),
            ({"name": "a\0b"}, "name"),
        ],
    )
    def test_refuses_what_makes_no_sense(self, app: Prinia, options: dict[str, object], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            Worker(app.storage, app.tasks, **options)  # type: ignore[arg-type]

    def test_refuses_to_work_without_tasks(self, app: Prinia) -> None:
        with pytest.raises(ConfigurationError, match="no tasks"):
            Worker(app.storage, {})

    def test_refuses_a_task_that_needs_what_nobody_provides(self, app: Prinia) -> None:
        @app.task(name="needy")
        async def needy(http: dict[str, int] = INJECTED) -> None: ...

        with pytest.raises(ConfigurationError, match=r"task needy wants http: dict\[str, int\] injected, but nothing"):
            Worker(app.storage, app.tasks)
