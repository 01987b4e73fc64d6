"""The stories of the texts that Prinia was made from: their programs, what they say and the rows they leave."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.waiting import until

from .conftest import Start

LISTENING = """
select count(*) from pg_stat_activity where datname = current_database() and application_name = 'prinia listener'
"""


def rows(dsn: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()


def test_basic(start: Start, migrated: str) -> None:
    said, complained = start("basic.py").communicate(timeout=60)
    assert complained == ""
    assert said.splitlines() == [
        "10 jobs are enqueued",
        *(f"reminder {item} was sent by worker-1" for item in range(1, 11)),
    ]
    done = rows(migrated, "select task, queue, priority, state, attempt, started_at >= created_at + interval '1 s'"
                          " from prinia.archive order by id")  # fmt: skip
    assert done == [("basic.send_reminder", "reminders", 2, "completed", 1, True)] * 10
    assert rows(migrated, "select count(*) from prinia.jobs") == [(0,)]
    assert rows(migrated, "select count(*) from prinia.workers") == [(0,)]


@pytest.mark.parametrize("poll", ["5", "600"])
def test_pubsub(start: Start, migrated: str, poll: str) -> None:
    said, complained = start("pubsub.py", "--poll", poll).communicate(timeout=60)
    assert complained == ""
    assert said.splitlines() == ["committing", *(f"started {item}" for item in range(20, 0, -1))]
    done = rows(migrated, "select priority, state, queue, convert_from(args, 'UTF8') from prinia.archive"
                          " order by started_at, priority desc")  # fmt: skip
    assert done == [(item, "completed", "my-queue", f'{{"item":{item}}}') for item in range(20, 0, -1)]
    claims = rows(migrated, "select count(*) from prinia.archive group by started_at order by min(id)")
    assert max(jobs for (jobs,) in claims) <= 5, "no claim takes more than claim_batch"


def test_shared(start: Start, migrated: str) -> None:
    process = start("shared.py")
    running = "select count(*) from prinia.jobs where claimed_at is not null"
    until(lambda: rows(migrated, running) == [(2,)], what="both handlers run")
    assert rows(migrated, LISTENING) == [(1,)], "one LISTEN connection serves both workers"
    said, complained = process.communicate(timeout=60)
    assert (process.returncode, complained) == (0, "")
    assert sorted(said.splitlines()[:-1]) == ["rango-tango-1 got a dict: {}", "rango-tango-2 got a number: 99"]
    assert said.splitlines()[-1] == "both workers have stopped"
    done = rows(migrated, "select task, queue, state, attempt from prinia.archive order by task")
    assert done == [
        ("shared.remind_map", "maps", "completed", 1),
        ("shared.remind_number", "numbers", "completed", 1),
    ]
    assert rows(migrated, "select count(*) from prinia.workers") == [(0,)]
    assert rows(migrated, LISTENING) == [(0,)]
