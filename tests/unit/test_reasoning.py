"""Every reason why a job does not run, from a situation alone.

Seen to fail with: pauses of others counted; a queue served by the dead; a worker that was told something taken for one
that claims; deadlines compared with the wrong time; reasons in the order in which they were found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from prinia import AttemptError, Explanation, JobRecord, JobState, Pause, ReasonCode, WorkerRecord
from prinia.reasoning import explain
from prinia.situation import AHEAD_LIMIT, Situation

NOW = datetime(2026, 12, 1, 9, 30, tzinfo=UTC)
FINAL = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def job(state: JobState = JobState.READY, **fields: Any) -> JobRecord:
    values: dict[str, Any] = {
        "id": 7, "task": "shop.send", "queue": "email", "state": state, "priority": 0, "attempt": 0, "max_attempts": 5,
        "crashes": 0, "args": b"{}", "codec": "json", "created_at": ago(60), "scheduled_at": ago(60),
    }  # fmt: skip
    return JobRecord(**values | fields)


def worker(name: str = "w1", **fields: Any) -> WorkerRecord:
    values: dict[str, Any] = {
        "id": uuid4(), "name": name, "host": "web-1", "pid": 41, "run": 0, "version": "1", "queues": ("email",),
        "tasks": ("shop.send",), "concurrency": 2, "running": (), "started_at": ago(600), "beat_at": ago(1),
        "beat_age": 1.0, "listener": "listening",
    }  # fmt: skip
    return WorkerRecord(**values | fields)


def asked(given: JobRecord | None, **around: Any) -> Explanation:
    explanation = explain(7, Situation(**{"now": NOW, "job": given, "workers": [worker()]} | around))
    assert explanation.reasons, "there is always a reason"
    assert all(reason.text.endswith(".") and reason.advice for reason in explanation.reasons)
    return explanation


def codes(given: JobRecord | None, **around: Any) -> list[str]:
    return [reason.code.value for reason in asked(given, **around).reasons]


def text(given: JobRecord | None, **around: Any) -> str:
    """Of the only reason."""
    [reason] = asked(given, **around).reasons
    return f"{reason.text} {reason.advice}"


def test_no_such_job() -> None:
    assert codes(None) == ["not_found"]
    assert str(asked(None)) == "job 7: There is no job 7."


@pytest.mark.parametrize(
    ("record", "code", "words"),
    [
        (job(JobState.COMPLETED, finished_at=ago(5)), "completed", "completed at 2026-12-01 09:29:55 UTC"),
        (
            job(JobState.FAILED, attempt=5, errors=(AttemptError(attempt=5, kind="ValueError", message="no\n ink."),)),
            "failed",
            "after 5 attempts of 5; the last error was ValueError: no ink. Mend the cause.",
        ),
        (job(JobState.FAILED, attempt=1, reason="given up"), "failed", "after 1 attempt of 5 (given up)."),
        (job(JobState.CANCELLED, reason="cancelled by Ada"), "cancelled", "as cancelled (cancelled by Ada)."),
        (job(JobState.CANCELLED, reason="expired"), "expired", "had not started by its start deadline"),
    ],
)
def test_a_job_that_has_ended(record: JobRecord, code: str, words: str) -> None:
    assert codes(record) == [code]
    assert words in text(record)


def test_a_long_message_is_cut() -> None:
    error = AttemptError(attempt=1, kind="ValueError", message="x" * 1000)
    assert len(text(job(JobState.FAILED, errors=(error,)))) < 400


# -- it runs ----------------------------------------------------------------------------------------------------------


def running(owner: UUID | None, **fields: Any) -> JobRecord:
    return job(JobState.RUNNING, owner=owner, started_at=ago(30), attempt=1, **fields)


def test_a_running_job_names_its_worker() -> None:
    one = worker(running=(7,))
    assert codes(running(one.id), workers=[one]) == ["running"]
    told = text(running(one.id), workers=[one])
    assert f"since 2026-12-01 09:29:30 UTC (30s ago) in worker w1 (pid 41 on web-1, instance {one.id})" in told
    # Pauses and other workers are nothing to a job that runs.
    pauses = [Pause(kind="everything", at=ago(5))]
    assert codes(running(one.id), workers=[one], pauses=pauses, ahead=3, expires_at=ago(1)) == ["running"]


def test_a_job_that_was_claimed_and_has_not_started() -> None:
    one = worker(running=(5, 6), beat_at=ago(2), beat_age=2.0)
    assert codes(running(one.id), workers=[one]) == ["claimed"]
    assert "2 of 2 jobs ran there" in text(running(one.id), workers=[one])
    # A beat from before the claim does not know of it.
    assert codes(running(one.id), workers=[worker(id=one.id, beat_at=ago(31), beat_age=5.0)]) == ["running"]


def test_a_running_job_whose_worker_ails() -> None:
    one = worker(running=(7,))
    ailments: tuple[tuple[dict[str, Any], str], ...] = (
        ({"beat_age": 11.0}, "worker_late"),
        ({"alive": False, "beat_age": 30.0}, "worker_dead"),
        ({"blocked": 6.0}, "worker_blocked"),
        ({"blocked": 0.2}, "running"),
    )
    for fields, code in ailments:
        assert codes(running(one.id), workers=[worker(id=one.id, running=(7,), **fields)]) == [code]
    assert codes(running(uuid4()), workers=[one]) == ["owner_unknown"]


def test_a_dead_worker_is_somebody_elses_work() -> None:
    dead = worker(alive=False, beat_age=30.0)
    assert "Nothing has to be done" in text(running(dead.id), workers=[dead, worker("w2", queues=("other",))])
    for others in ([], [worker("w2", alive=False)], [worker("w2", beat_age=99.0)]):
        assert "start one" in text(running(dead.id), workers=[dead, *others])
    late = worker(beat_age=30.0)
    assert "start one" in text(running(late.id), workers=[late])


def test_a_job_that_somebody_wants_cancelled() -> None:
    one = worker(running=(7,))
    record = running(one.id, reason="cancel requested by Ada")
    assert codes(record, workers=[one]) == ["cancel_requested", "running"]
    assert "cancel requested by Ada" in asked(record, workers=[one]).reasons[0].text


# -- it waits ---------------------------------------------------------------------------------------------------------


def test_a_job_that_is_due_later() -> None:
    later = NOW + timedelta(seconds=90)
    assert codes(job(JobState.SCHEDULED, scheduled_at=later)) == ["scheduled"]
    assert "2026-12-01 09:31:30 UTC (in 1m30s)" in text(job(JobState.SCHEDULED, scheduled_at=later))
    error = AttemptError(attempt=2, kind="SMTPError", message="451")
    retrying = job(JobState.RETRYING, scheduled_at=later, attempt=2, errors=(error,))
    assert codes(retrying) == ["retrying"]
    assert "Attempt 2 of 5 has failed" in text(retrying)
    assert "SMTPError: 451" in text(retrying)
    assert codes(job(JobState.BLOCKED, scheduled_at=None)) == ["blocked"]


def test_pauses_that_hold_it_and_those_that_do_not() -> None:
    pauses = [
        Pause(kind="everything", at=ago(5)),
        Pause(kind="queue", name="email", at=ago(3600), by="Ada"),
        Pause(kind="queue", name="shop.send", at=ago(5)),
        Pause(kind="task", name="shop.send", at=ago(5), by="Bob"),
        Pause(kind="task", name="email", at=ago(5)),
    ]
    found = asked(job(), pauses=pauses)
    assert [reason.code for reason in found.reasons] == ["everything_paused", "queue_paused", "task_paused"]
    assert 'Its queue "email" is paused by Ada, since 2026-12-01 08:30:00 UTC (1h ago).' in found.reasons[1].text
    assert [reason.advice.partition(": ")[2] for reason in found.reasons] == [
        "prinia resume --all", "prinia resume email", "prinia resume --task shop.send",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("workers", "code", "words"),
    [
        ([], "unserved", "no worker is live at all"),
        ([worker(alive=False)], "unserved", "no worker is live at all"),
        ([worker(queues=("sms", "fax"))], "unserved", 'serve "fax", "sms" only'),
        ([worker(tasks=("shop.bill",)), worker("w2", tasks=())], "task_unknown", "knows the task shop.send: w1, w2."),
        ([worker(tasks=()), worker("w2", queues=("sms",))], "task_unknown", 'It is known to w2, for "sms"'),
        ([worker(command="quiet", commanded_by="Ada")], "workers_told", "claim nothing: w1 (quiet by Ada)."),
        ([worker(command="stop")], "workers_told", "w1 (stop). Start others."),
        ([worker(beat_age=40.0), worker("w2", beat_age=50.0)], "workers_late", "w1, w2, 40s ago or longer"),
        ([worker(blocked=9.0)], "workers_blocked", "blocked: w1."),
        ([worker(running=(1, 2))], "workers_full", "full: 2 of 2 slots are taken (w1)"),
        ([worker(listener="polling")], "next", "w1 can claim it when they look next: they poll"),
        ([worker(listener="polling"), worker("w2")], "next", "w1, w2 can claim it in a moment"),
    ],
)
def test_who_could_run_it(workers: Sequence[WorkerRecord], code: str, words: str) -> None:
    assert codes(job(), workers=workers) == [code]
    assert words in text(job(), workers=workers)
    # One that can is enough.
    assert codes(job(), workers=[*workers, worker("w9")]) == ["next"]


def test_a_worker_that_could_go_on_is_named() -> None:
    stopping, quiet = worker(command="stop"), worker("w2", command="quiet")
    assert f"prinia workers resume {quiet.id}" in text(job(), workers=[stopping, quiet])


def test_its_place_in_the_queue() -> None:
    assert codes(job(), ahead=3) == ["behind"]
    assert "due time: 3 jobs. It has priority 0." in text(job(), ahead=3)
    assert "due time: more than 10,000 jobs." in text(job(), ahead=AHEAD_LIMIT + 1)
    assert codes(job(), ahead=3, workers=[worker(running=(1, 2))]) == ["workers_full", "behind"]


def test_a_suspect_waits_for_a_worker_to_itself() -> None:
    suspect = job(crashes=2)
    assert codes(suspect, workers=[worker(running=(1,))]) == ["suspect"]
    assert "2 crashes of workers" in text(suspect, workers=[worker(running=(1,))])
    assert "those that could take it run 1 job." in text(suspect, workers=[worker(running=(1,))])
    assert codes(suspect, workers=[]) == ["unserved", "suspect"]


def test_deadlines() -> None:
    near, far, due = NOW + timedelta(seconds=30), NOW + timedelta(hours=2), NOW + timedelta(hours=3)
    assert codes(job(), expires_at=ago(1)) == ["deadline_passed"]
    assert codes(job(), expires_at=NOW) == ["deadline_passed"]
    assert codes(job(), expires_at=far) == ["next"]
    assert codes(job(), expires_at=near) == ["deadline_near"]
    assert codes(job(JobState.SCHEDULED, scheduled_at=due), expires_at=far) == ["deadline_before_due", "scheduled"]
    assert codes(job(JobState.BLOCKED, scheduled_at=None), expires_at=near) == ["blocked", "deadline_near"]


def test_what_has_to_be_mended_comes_first() -> None:
    found = codes(
        job(JobState.SCHEDULED, scheduled_at=NOW + timedelta(hours=1)),
        workers=[],
        pauses=[Pause(kind="task", name="shop.send", at=ago(1)), Pause(kind="queue", name="email", at=ago(1))],
        expires_at=NOW + timedelta(seconds=30),
    )
    assert found == ["queue_paused", "task_paused", "unserved", "deadline_before_due", "scheduled"]


def test_every_code_is_given_by_some_situation() -> None:
    """The tests of this module, run once more for what they see."""
    seen: set[str] = set()

    def see(*args: Any, **around: Any) -> Explanation:
        explanation = explain(7, Situation(**{"now": NOW, "job": args[0], "workers": [worker()]} | around))
        seen.update(reason.code.value for reason in explanation.reasons)
        return explanation

    one = worker(running=(7,))
    for state in JobState:
        reason = "expired" if state is JobState.CANCELLED else None
        see(job(state, scheduled_at=None if state is JobState.BLOCKED else NOW, reason=reason, owner=one.id))
    see(None)
    see(job(JobState.CANCELLED))
    ailing = [
        replace(one, beat_age=99.0),
        replace(one, alive=False),
        replace(one, blocked=9.0),
        replace(one, running=()),
    ]
    for other in (one, *ailing):
        see(running(one.id, reason="cancel requested"), workers=[other])
    see(running(uuid4()))
    pauses = [Pause(kind="everything", at=NOW), Pause(kind="queue", name="email", at=NOW),
              Pause(kind="task", name="shop.send", at=NOW)]  # fmt: skip
    see(job(crashes=2), pauses=pauses, expires_at=ago(1))
    for workers in (
        [], [worker(tasks=())], [worker(command="stop")], [worker(beat_age=99.0)], [worker(blocked=9.0)],
        [worker(running=(1, 2))],
    ):  # fmt: skip
        see(job(), workers=workers, ahead=1, expires_at=NOW + timedelta(seconds=9))
    see(job(JobState.SCHEDULED, scheduled_at=NOW + timedelta(hours=1)), expires_at=NOW + timedelta(seconds=9))
    assert seen == {code.value for code in ReasonCode}
