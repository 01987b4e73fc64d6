"""The examples of supervisor and process pool."""

from __future__ import annotations

import signal

import psycopg

from tests.waiting import until

from .conftest import Start


def test_supervisor(start: Start, migrated: str) -> None:
    process = start("supervisor.py")
    assert process.stdout is not None
    said = [process.stdout.readline().rstrip() for _ in range(3)]
    assert said == [
        "shaky, run 0, has failed",
        "shaky, run 1, has failed",
        "order 9 was sent by shaky, run 2",
    ]
    with psycopg.connect(migrated, autocommit=True) as connection:
        workers = "select name, run from prinia.workers order by name"
        until(lambda: len(connection.execute(workers).fetchall()) == 2, what="both workers")
        assert connection.execute(workers).fetchall() == [("shaky", 2), ("steady", 0)]
        process.send_signal(signal.SIGTERM)
        out, complained = process.communicate(timeout=60)
        assert process.returncode == 0
        assert out == "steady has stopped\n"
        assert complained.count("no route to the mail server") >= 2
        assert connection.execute(workers).fetchall() == []


def test_process_pool(start: Start) -> None:
    said, complained = start("process_pool.py").communicate(timeout=90)
    assert complained == ""
    never, crashed = said.splitlines()[3:]
    assert said.splitlines()[:3] == ["[2, 2, 2, 3, 3, 5]", "[997]", "[2, 2, 2, 2, 2, 2, 3, 643]"]
    assert never.startswith("process_pool.never_ends: ")
    assert "timeout after 1 s" in never
    assert "its process was killed by SIGSEGV" in crashed
