"""``prinia jobs cancel``, ``retry``, ``run``, ``reschedule``, ``reprioritise``, ``move``, ``delete``."""

from __future__ import annotations

import getpass
import os
import pty
import re
import select
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from prinia import JobState, Prinia, StorageUnavailable
from prinia.changes import Step
from prinia.cli import progress
from prinia.storage.postgres import PostgresStorage
from tests.waiting import until

from .conftest import Inside
from .stock import Stock, make_stock


@pytest.fixture
def stock(inside: Inside) -> Stock:
    """Jobs in many states."""
    return make_stock(inside.dsn)


def test_cancel_by_ids_does_not_ask(inside: Inside, stock: Stock) -> None:
    ready, scheduled, completed = str(stock.ready.id), str(stock.scheduled.id), str(stock.completed.id)
    assert inside("jobs", "cancel", ready).stdout == "1 of 1 job changed\n"
    assert stock.ready.info().reason == f"cancelled by {getpass.getuser()} (prinia jobs)"
    assert inside.json("jobs", "cancel", "--id", scheduled, completed, "--by", "ada") == {
        "operation": "cancel", "matched": 2, "changed": 1, "skipped": {"completed": 1}, "missing": [],
        "dry_run": False,
    }  # fmt: skip
    assert stock.scheduled.info().reason == "cancelled by ada"
    assert inside("jobs", "cancel", ready).stdout == "0 of 1 job changed; skipped: 1 cancelled\n"


def test_ids_that_do_not_exist_are_said_and_the_rest_is_done(inside: Inside, stock: Stock) -> None:
    done = inside("jobs", "cancel", "999", str(stock.ready.id), code=1)
    assert done.stdout == "1 of 1 job changed; not found: 999\n"
    assert stock.ready.info().state is JobState.CANCELLED
    assert inside.json("jobs", "delete", "998", "999", code=1) == {
        "operation": "delete", "matched": 0, "changed": 0, "skipped": {}, "missing": [998, 999], "dry_run": False,
    }  # fmt: skip


def test_filters_that_match_nothing(inside: Inside, stock: Stock) -> None:
    done = inside("jobs", "cancel", "--queue", "nosuch", "--yes")
    assert done.stdout == "no job meets the query: nothing to change\n"
    assert inside.json("jobs", "retry", "--error", "KeyError", "--yes")["matched"] == 0


def test_everything(inside: Inside, stock: Stock) -> None:
    """It has to be said, and goes with no filter."""
    for refused, said in [
        (["cancel"], "prinia: say which jobs: their ids, filters such as --queue or --state, or --all\n"),
        (["cancel", "--all", "--queue", "email", "--yes"], "prinia: --all is for all jobs there are; leave it out"),
        (["cancel", "--all", "7"], "prinia: --all is for all jobs there are; leave it out"),
    ]:
        assert inside.refusal("jobs", *refused, code=2).startswith(said)
    assert inside("jobs", "cancel", "--all", "--dry-run").stdout == "3 of 3 jobs would be changed (dry run)\n"
    assert inside("jobs", "cancel", "--all", "--yes").stdout == "3 of 3 jobs changed\n"
    assert inside("jobs", "delete", "--all", "--yes").stdout == "7 of 7 jobs changed\n"
    assert inside("jobs").stdout == "There is no job.\n"


def test_without_a_terminal_filters_need_a_yes(inside: Inside, stock: Stock) -> None:
    said = inside.refusal("jobs", "delete", "--queue", "email", code=2)
    assert said == (
        "prinia: delete by filters asks first, and here is no terminal: write --yes to do it, or --dry-run to see what "
        "it would change; nothing was changed\n"
    )
    assert len(list(stock.app.jobs(queue="email"))) == 6
    assert inside.json("jobs", "delete", "--queue", "email", "--dry-run")["changed"] == 6
    assert len(list(stock.app.jobs(queue="email"))) == 6
    assert inside("jobs", "delete", str(stock.ready.id), "--state", "ready").stdout == "1 of 1 job changed\n"


def test_retry(inside: Inside, stock: Stock) -> None:
    assert inside("jobs", "retry", "--queue", "email", "--yes").stdout == "2 of 2 jobs changed\n"
    assert stock.failed.info().state is JobState.READY
    assert inside.json("jobs", "retry", str(stock.cancelled.id))["skipped"] == {"cancelled": 1}
    assert inside.json("jobs", "retry", str(stock.cancelled.id), "--state", "cancelled")["changed"] == 1
    assert stock.cancelled.info().state is JobState.READY


def test_run_now(inside: Inside, stock: Stock) -> None:
    assert inside("jobs", "run", str(stock.scheduled.id)).stdout == "1 of 1 job changed\n"
    assert stock.scheduled.info().state is JobState.READY
    assert inside.json("jobs", "run", str(stock.scheduled.id))["skipped"] == {"ready": 1}


def test_reschedule(inside: Inside, stock: Stock) -> None:
    id = str(stock.ready.id)
    inside("jobs", "reschedule", id, "--at", "2100-01-02T03:04+01:00")
    assert stock.ready.info().scheduled_at == datetime(2100, 1, 2, 2, 4, tzinfo=UTC)
    before = datetime.now(UTC)
    assert inside.json("jobs", "reschedule", id, "--delay", "1h30m")["changed"] == 1
    due = stock.ready.info().scheduled_at
    assert due is not None
    assert abs(due - before - timedelta(minutes=90)) < timedelta(minutes=1)
    for wrong, said in [
        ([], "prinia: say when: --at TIME or --delay SPAN, one of the two\n"),
        (["--at", "2100-01-02T00Z", "--delay", "5"], "prinia: say when: --at TIME or --delay SPAN, one of the two\n"),
        (["--at", "2100-01-02T03:04"], "'2100-01-02T03:04' has no time zone; write 2100-01-02T03:04Z for UTC"),
        (["--at", "2h"], "'2h' is no time; write one such as"),
        (["--delay", "soon"], "'soon' is no time span; write seconds, or with a unit: 90s, 15m, 2h, 1h30m, 3d"),
        (["--delay", "9999w"], "must be seconds or a timedelta, from 0 to 100 years"),
    ]:
        assert said in inside.refusal("jobs", "reschedule", id, *wrong, code=2)


def test_reprioritise(inside: Inside, stock: Stock) -> None:
    assert inside("jobs", "reprioritise", str(stock.ready.id), "--priority", "-7").stdout == "1 of 1 job changed\n"
    assert stock.ready.info().priority == -7
    assert inside.json("jobs", "reprioritise", str(stock.ready.id), "--priority", "-7")["skipped"] == {"unchanged": 1}
    assert "101 is not in the range" in inside.refusal("jobs", "reprioritise", "1", "--priority", "101", code=2)
    assert "Missing option '--priority'" in inside.refusal("jobs", "reprioritise", "1", code=2)


def test_move(inside: Inside, stock: Stock) -> None:
    assert inside("jobs", "move", "--queue", "email", "--to", "slow", "--yes").stdout == "3 of 3 jobs changed\n"
    assert stock.ready.info().queue == "slow"
    assert inside.json("jobs", "move", str(stock.ready.id), "--to", "slow")["skipped"] == {"unchanged": 1}
    assert inside.refusal("jobs", "move", "1", "--to", "", code=2).startswith("prinia: move(): queue='' must have 1")


def test_delete(inside: Inside, stock: Stock) -> None:
    assert inside("jobs", "delete", str(stock.failed.id), "-y").stdout == "1 of 1 job changed\n"
    assert inside.json("jobs", "delete", str(stock.ready.id))["changed"] == 1
    assert inside.json("jobs", "--count", "--queue", "email")["count"] == 4


def test_what_makes_no_sense(inside: Inside) -> None:
    for arguments, said in [
        (["cancel", "--state", "done", "--yes"], "prinia: state='done' is no state of a job; "),
        (["cancel", "--state", "failed", "--yes"], "prinia: cancel() is for jobs that have not ended, and this query"),
        (["cancel", "0"], "prinia: ids=0 must be ids of jobs"),
        (["cancel", "x"], "'x' is not a valid integer"),
        (["cancel", "1", "--by", ""], "--by'"),
        (["reprioritize", "1"], "No such command 'reprioritize'. Did you mean 'reprioritise'?"),
    ]:
        assert said in inside.refusal("jobs", *arguments, code=2)


def test_a_job_that_somebody_holds_is_told_and_is_a_failure(
    inside: Inside, stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prinia.course.AGAIN", ((0.0, 1),))
    with psycopg.connect(inside.dsn) as connection:
        connection.execute("select from prinia.jobs where id = %s for update", [stock.ready.id])
        done = inside("jobs", "cancel", str(stock.ready.id), str(stock.scheduled.id), code=1)
    assert done.stdout == "1 of 2 jobs changed; skipped: 1 locked\n"


def test_progress_of_a_long_one(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """In lines where nobody has a terminal, on standard error, so that JSON stays one document."""
    monkeypatch.setattr(progress, "FIRST", 0.0)
    monkeypatch.setattr(progress, "BETWEEN", 0.0)
    app = Prinia(inside.dsn)
    app.enqueue_many(app.job_by_name("many", {}) for _ in range(2_500))
    done = inside("jobs", "cancel", "--task", "many", "--yes", "--json")
    assert done.stderr.splitlines()[:3] == ["cancel: 1,000 jobs", "cancel: 2,000 jobs", "cancel: 2,500 jobs"]
    assert '"changed":2500' in done.stdout


def test_one_that_is_cut_off_says_how_far_it_came(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Prinia(inside.dsn)
    app.enqueue_many(app.job_by_name("many", {}) for _ in range(1_500))
    operate = PostgresStorage.operate

    def interrupted(self: PostgresStorage, step: Step) -> object:
        if step.after:
            signal.raise_signal(signal.SIGINT)
        return operate(self, step)

    monkeypatch.setattr(PostgresStorage, "operate", interrupted)
    done = inside("jobs", "cancel", "--task", "many", "--yes", code=130)
    assert done.stderr == (
        "prinia: 1,000 of 1,000 jobs changed; that stays, and the same command does the rest\nprinia: interrupted\n"
    )


def test_one_that_fails_midway_says_how_far_it_came(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    app = Prinia(inside.dsn)
    app.enqueue_many(app.job_by_name("many", {}) for _ in range(1_500))
    operate = PostgresStorage.operate

    def away(self: PostgresStorage, step: Step) -> object:
        if step.after:
            raise StorageUnavailable("the database is away")
        return operate(self, step)

    monkeypatch.setattr(PostgresStorage, "operate", away)
    done = inside("jobs", "cancel", "--task", "many", "--yes", code=1)
    assert done.stderr == (
        "prinia: the database is away; cancel had changed 1,000 jobs before, and that stays; made again, it does the "
        "rest\n"
    )


def test_who_where_the_user_has_no_name(inside: Inside, stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", nobody)
    inside("jobs", "cancel", str(stock.ready.id))
    assert stock.ready.info().reason == f"cancelled by user {os.getuid()} (prinia jobs)"


class Terminal:
    """A ``prinia`` whose standard input and error are a terminal."""

    def __init__(self, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "prinia", *arguments], stdin=theirs, stderr=theirs, stdout=subprocess.PIPE,
            text=True, env=os.environ | {"TERM": "xterm", "COLUMNS": "200"},
        )  # fmt: skip
        os.close(theirs)
        self.said = ""

    def hears(self, text: str) -> bool:
        while select.select([self._ours], [], [], 0)[0]:
            try:
                self.said += os.read(self._ours, 4096).decode()
            except OSError:  # the other end is closed
                break
        return text in self.said

    def answer(self, text: str) -> tuple[int, str]:
        """Type a line; the exit code and standard output."""
        os.write(self._ours, f"{text}\n".encode())
        out, _ = self.process.communicate(timeout=60)
        self.hears("")
        os.close(self._ours)
        return self.process.returncode, out


def test_on_a_terminal_it_says_how_many_and_asks(inside: Inside, stock: Stock) -> None:
    asking = [Terminal("jobs", "delete", "--queue", "email") for _ in range(2)]
    for one in asking:
        until(lambda one=one: one.hears("Go on? [y/N]"), what="the question")  # type: ignore[misc]
        assert "delete: 6 of 6 jobs would be changed (dry run)" in one.said
    assert asking[0].answer("n") == (1, "")
    assert "prinia: nothing was changed" in asking[0].said
    assert len(list(stock.app.jobs(queue="email"))) == 6
    assert asking[1].answer("y") == (0, "6 of 6 jobs changed\n")
    assert list(stock.app.jobs(queue="email")) == []
    app = Prinia(inside.dsn)
    app.enqueue_many(app.job_by_name("many", {}) for _ in range(2_500))
    bar, nothing = Terminal("jobs", "cancel", "--all"), Terminal("jobs", "delete", "--queue", "email", "--json")
    until(lambda: bar.hears("Go on? [y/N]"), what="the question")
    assert bar.answer("y") == (0, "2,500 of 2,500 jobs changed\n")
    assert re.search(r"cancel .*2500/2500", bar.said), "a bar"
    assert nothing.answer("")[0] == 0, "there is nothing to ask about"
