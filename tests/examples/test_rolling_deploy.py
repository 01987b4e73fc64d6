"""The rolling deploy: workers of one name overlap, restart and are killed, and every job is recorded once.

Seen to fail with: a register on which a name is there once; a start that waits for the one before it to be off the
register; a crash whose jobs do not come back.
"""

from __future__ import annotations

import re
import subprocess
from typing import Any

import psycopg
import pytest

from tests.waiting import until

from .conftest import Start

STORY = """\
process A sends the newsletter, which takes 20 s
process B started its first job N s after it had registered
2 instances of one name, 'mailer', are registered; both work
SIGTERM to process A; process C starts under the same name
process C started its first job N s after it had registered, while process A finishes the newsletter
SIGKILL to process B with H e-mails in hand; process D starts under the same name
process D started its first job N s after it had registered
the H e-mails are sent again, the last N s after the kill
exit codes: 0, -9, 0, 0
J jobs ordered, J completed, 0 of them recorded twice
no error in any log
"""


def rows(dsn: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()


def pattern() -> str:
    """The story as a regular expression: what stands for itself, and groups that must be the same each time."""
    groups = {"A": r"\d+", "B": r"\d+", "C": r"\d+", "D": r"\d+", "H": r"[1-5]", "J": r"\d+"}
    seen: set[str] = set()

    def group(match: re.Match[str]) -> str:
        name = match[0]
        if name == "N":
            return r"[\d.]+"
        if name in seen:
            return f"(?P={name})"
        seen.add(name)
        return f"(?P<{name}>{groups[name]})"

    return re.sub(r"\b[A-DHJN]\b", group, re.escape(STORY).replace(r"\ ", " ").replace(r"\-", "-"))


def read_to(process: subprocess.Popen[str], text: str) -> str:
    """The output up to a line that has this text."""
    assert process.stdout is not None
    said = ""
    while text not in said:
        line = process.stdout.readline()
        assert line, f"it ended before it said {text!r}: {said}"
        said += line
    return said


@pytest.mark.timeout(180)
def test_rolling_deploy(start: Start, migrated: str) -> None:
    process = start("rolling_deploy/deploy.py")
    said = read_to(process, "are registered")
    names = "select name, count(distinct id) > 1, count(distinct pid) > 1 from prinia.workers group by name"
    assert until(lambda: rows(migrated, names), what="the register") == [("mailer", True, True)]
    # Not `communicate`, which would read past what the lines above left in the buffer.
    assert process.stdout is not None and process.stderr is not None
    rest, complained = process.stdout.read(), process.stderr.read()
    process.wait(timeout=30)
    print(said + rest)
    assert (process.returncode, complained) == (0, "")
    story = re.fullmatch(pattern(), said + rest)
    assert story is not None, said + rest
    a, b, c, d = (int(story[name]) for name in "ABCD")
    assert len({a, b, c, d}) == 4

    begun = "select min(started_at) from rolling_deploy_deliveries where process = "
    [(newsletter_ended,)] = rows(
        migrated, f"select max(finished_at) from rolling_deploy_deliveries where process = {a}"
        " and task = 'mailer.send_newsletter'"
    )  # fmt: skip
    assert rows(migrated, f"{begun} {c}")[0][0] < newsletter_ended, "the new one worked beside the one that stopped"
    [(sent_again,)] = rows(
        migrated, f"select min(again.started_at) from rolling_deploy_deliveries lost, rolling_deploy_deliveries again"
        f" where lost.process = {b} and lost.finished_at is null and again.job = lost.job and again.process <> {b}"
    )  # fmt: skip
    assert rows(migrated, f"{begun} {d}")[0][0] < sent_again, "the new one worked before the killed one was missed"

    jobs = int(story["J"])
    assert rows(migrated, "select count(*), count(distinct id) from prinia.archive") == [(jobs, jobs)]
    assert rows(migrated, "select state, attempt from prinia.archive group by 1, 2") == [("completed", 1)]
    assert rows(migrated, "select count(*) from prinia.archive where crashes > 0")[0][0] >= int(story["H"])
    assert rows(
        migrated, "select count(distinct job) from rolling_deploy_deliveries where finished_at is not null"
    ) == [(jobs,)]
    newsletter = (
        "select process, count(*) from rolling_deploy_deliveries where task = 'mailer.send_newsletter' group by 1"
    )
    assert rows(migrated, newsletter) == [(a, 1)], "a stop lets running jobs finish"
    assert rows(migrated, "select count(*) from prinia.workers") == [(0,)]
    assert rows(migrated, "select count(*) from prinia.jobs") == [(0,)]
