"""Promises 2 and 3 with real processes at default settings: a worker killed with SIGKILL in mid-work."""

from __future__ import annotations

import psycopg
import pytest

from prinia.job import JobSpec
from prinia.storage.postgres import PostgresStorage
from tests.crash.processes import Ledger, WorkerProcess
from tests.waiting import until

WARMING, QUICK, HOLD, RUNNING = 1000, 600, 100, 20
#: Seconds within which the work of a killed worker runs again (promise 3).
PROMISED = 20.0


def jobs(task: str, number: int, priority: int = 0) -> list[JobSpec]:
    return [JobSpec(task=task, args=b"{}", priority=priority, max_attempts=1) for _ in range(number)]


def push(dsn: str, *specs: JobSpec) -> list[int]:
    return [pushed.id for pushed in PostgresStorage(dsn).push(specs)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "a follower"])
def test_work_of_a_killed_worker_runs_again(migrated: str, leads: bool) -> None:
    """20 jobs run, 80 are claimed, an ack is in flight: all run again, within 20 s, and none is recorded twice."""
    with Ledger(migrated) as ledger, psycopg.connect(migrated) as blocker:
        watcher = WorkerProcess(migrated, "-q", "nothing")
        doomed = WorkerProcess(migrated, "-c", str(RUNNING), HOLD="1")
        first, second = (doomed, watcher) if leads else (watcher, doomed)
        with first:
            until(lambda: ledger.one("select instance from prinia.leader"), seconds=30, what="somebody leads")
            with second:
                until(lambda: ledger.workers() == 2, seconds=30, what="both are registered")
                push(migrated, *jobs("quick", WARMING))  # a process that has just started claims little ahead
                until(lambda: ledger.finished() == WARMING, seconds=30, what="the worker is warm")
                blocker.execute("lock table prinia.archive in share mode")  # acks wait, claims do not
                # In one push: between two the worker could forget how fast jobs start, and claim nothing ahead.
                held = push(migrated, *jobs("quick", QUICK, priority=1), *jobs("hold", HOLD))[QUICK:]
                until(
                    lambda: (
                        ledger.one("select count(*) from effects where job_id = any (%s)", held) >= RUNNING
                        and ledger.one(
                            "select count(*) from prinia.jobs where claimed_at is not null and task = 'hold'"
                        )
                        == HOLD
                        and ledger.one("select count(*) from pg_locks where not granted and locktype = 'relation'")
                    ),
                    seconds=30,
                    what="20 running, 80 claimed, an ack in flight",
                )
                doomed.kill()
                killed_at = ledger.one("select clock_timestamp()")
                blocker.rollback()  # now the ack in flight commits, and nobody is there to hear of it
                with WorkerProcess(migrated):
                    until(lambda: ledger.finished() == WARMING + QUICK + HOLD, seconds=60, what="all jobs completed")
                late = ledger.one("select max(at) - %s from effects", killed_at)
                assert late.total_seconds() < PROMISED
        assert ledger.recorded_twice() == 0
        assert ledger.one("select count(distinct job_id) from effects") == HOLD
        assert ledger.one("select max(crashes) from prinia.archive where task = 'hold'") == 1
        assert ledger.one("select max(attempt) from prinia.archive") == 1, "a crash costs no attempt"


@pytest.mark.timeout(300)
def test_a_poison_job_takes_no_innocents_with_it(migrated: str) -> None:
    """One job kills its worker each time, among 99 with ``max_attempts=1``: all 99 complete, the poison fails."""
    with Ledger(migrated) as ledger, WorkerProcess(migrated, "-q", "nothing"):
        poison = push(migrated, *jobs("innocent", 49), *jobs("poison", 1), *jobs("innocent", 50))[49]
        deaths = 0
        while ledger.finished() < 99 or ledger.finished("failed") < 1:
            with WorkerProcess(migrated) as worker:
                until(
                    lambda worker=worker: (
                        worker.ended  # type: ignore[misc]
                        or (ledger.finished() == 99 and ledger.finished("failed") == 1)
                    ),
                    seconds=120,
                    what="the worker dies of the poison, or all is done",
                )
                deaths += worker.ended
        assert deaths == 4, "max_crashes is 3: the fourth crash is one too many"
        record = PostgresStorage(migrated).find([poison])[0]
        assert record.errors[-1].kind == "WorkerLost"
        assert "worker lost" in record.errors[-1].message
        assert ledger.recorded_twice() == 0
        assert ledger.one("select max(attempt) from prinia.archive where state = 'completed'") == 1
