"""``prinia queues``, ``prinia pause``, ``prinia resume``, ``prinia audit``."""

from __future__ import annotations

import getpass
import re

from prinia import Prinia

from .conftest import Inside
from .stock import make_stock


def cells(line: str) -> list[str]:
    return re.split(r"\s{2,}", line)


def test_list(inside: Inside) -> None:
    stock = make_stock(inside.dsn)
    stock.app.pause(queue="email", by="ada")
    stock.app.pause(queue="empty", by="ada")
    header, *rows = inside("queues").stdout.splitlines()
    assert cells(header) == [
        "queue", "scheduled", "retrying", "ready", "running", "completed", "failed", "cancelled", "oldest ready",
        "workers", "note",
    ]  # fmt: skip
    assert [cells(row)[0] for row in rows] == ["bulk", "email", "empty"]
    assert re.fullmatch(r"bulk +0 +0 +0 +0 +1 +0 +0 +0", rows[0])
    assert re.fullmatch(r"email +1 +1 +1 +0 +1 +1 +1 +\ds +0 +paused, nobody serves it", rows[1])
    found = inside.json("queues", "list")
    assert [queue["name"] for queue in found["queues"]] == ["bulk", "email", "empty"]
    email = found["queues"][1]
    one = {"number": 1, "exact": True}
    assert email["counts"] == dict.fromkeys(
        ["scheduled", "retrying", "ready", "completed", "failed", "cancelled"], one
    )  # fmt: skip
    assert (email["paused"], email["unserved"], email["workers"]) == (True, True, [])
    assert email["age"] >= 0
    assert found["queues"][0]["unserved"] is False, "nothing waits in it"
    assert [(pause["kind"], pause["name"], pause["by"]) for pause in found["pauses"]] == [
        ("queue", "email", "ada"), ("queue", "empty", "ada")
    ]  # fmt: skip


def test_nothing_there_yet(inside: Inside) -> None:
    assert inside("queues").stdout == "There is no queue.\n"
    assert inside.json("queues") == {"queues": [], "pauses": []}
    assert inside("audit").stdout == "Nothing was done that fits.\n"
    assert inside.json("audit") == {"entries": [], "next": None}


def test_pause_and_resume(inside: Inside) -> None:
    stock = make_stock(inside.dsn)
    paused = inside("pause", "email", "-q", "bulk", "--task", "send")
    assert paused.stdout == "queue email paused\nqueue bulk paused\ntask send paused\n"
    assert paused.stderr == ""
    assert {(one.kind, one.name, one.by) for one in stock.app.pauses()} == {
        (kind, name, f"{getpass.getuser()} (prinia pause)")
        for kind, name in [("queue", "email"), ("queue", "bulk"), ("task", "send")]
    }
    assert inside.json("queues", "pause", "email", "--by", "ada") == {"done": [{"queue": "email", "new": False}]}
    assert inside("pause", "email").stdout == "queue email was paused already\n"
    assert inside.json("pause", "--all", "--by", "ada") == {"done": [{"everything": True, "new": True}]}
    said = inside("queues").stdout
    assert re.search(r"^Paused: everything, since .* UTC \(\ds ago\) by ada$", said, re.MULTILINE)
    assert re.search(r"^Paused: task send, since ", said, re.MULTILINE)
    assert inside("resume", "--all").stdout == (
        "everything goes on\nStill paused: queue bulk, queue email, task send\n"
    )
    assert inside.json("queues", "resume", "email", "bulk", "other")["done"] == [
        {"queue": "email", "new": True}, {"queue": "bulk", "new": True}, {"queue": "other", "new": False}
    ]  # fmt: skip
    assert inside("resume", "--task", "send", "email").stdout == "queue email was not paused\ntask send goes on\n"
    assert stock.app.pauses() == ()


def test_a_name_that_nobody_has_heard_of_is_paused_and_said(inside: Inside) -> None:
    make_stock(inside.dsn)
    done = inside("pause", "emial", "--task", "sent")
    assert done.stdout == "queue emial paused\ntask sent paused\n"
    assert done.stderr == (
        "prinia: no job and no worker has queue 'emial'; did you mean 'email'?\n"
        "prinia: no job and no worker has task 'sent'\n"
    )
    assert inside("pause", "emial").stderr != "", "a queue that is nothing but paused is not known by that"


def test_pauses_that_make_no_sense(inside: Inside) -> None:
    for command in ("pause", "resume"):
        for arguments, said in [
            ([], "prinia: say what: QUEUE, --task TASK, or --all\n"),
            (["--all", "email"], "prinia: --all is for everything; leave it out, or the queues and tasks\n"),
            ([""], "prinia: queue='' must have 1 to 200 characters, not 0\n"),
            (["email", "--by", ""], "by='' must have 1 to 200 characters"),
        ]:
            assert said in inside.refusal(command, *arguments, code=2)
    assert Prinia(inside.dsn).audit() == ()


def test_audit(inside: Inside) -> None:
    stock = make_stock(inside.dsn)
    inside("pause", "email", "--by", "bob")
    inside("jobs", "move", str(stock.ready.id), "--to", "slow", "--by", "ada (prinia jobs)")
    inside("jobs", "cancel", "--queue", "email", "--state", "ready", "--state", "scheduled", "--yes", "--by", "ada")
    header, *rows = inside("audit").stdout.splitlines()
    assert cells(header) == ["id", "at (UTC)", "by", "operation", "on", "values", "changed", "skipped"]
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
    assert re.fullmatch(
        rf"3 +{moment}  ada +cancel +queue email, state scheduled\|ready +1 +0", rows[0]
    ), rows[0]  # fmt: skip
    assert re.fullmatch(rf"2 +{moment}  ada \(prinia jobs\)  move +ids {stock.ready.id} +queue slow +1 +0", rows[1])
    assert re.fullmatch(rf"1 +{moment}  bob +pause +queue email", rows[2])

    def found(*arguments: str) -> list[int]:
        return [entry["id"] for entry in inside.json("audit", *arguments)["entries"]]

    assert found("--by", "ada") == [3, 2], "by whatever command"
    assert found("--by", "ada (prinia jobs)") == [2]
    assert found("--by", "ad") == []
    assert found("--operation", "pause") == [1]
    assert found("--before", "3") == [2, 1]
    page = inside.json("audit", "--limit", "2")
    assert (page["next"], page["entries"][0]["target"]) == (2, {"queue": ["email"], "state": ["scheduled", "ready"]})
    assert inside("audit", "--limit", "2").stdout.endswith("\nMore with: --before 2\n")
    assert "'paus' is not one of 'cancel'" in inside.refusal("audit", "--operation", "paus", code=2)
    assert "0 is not in the range" in inside.refusal("audit", "--before", "0", code=2)
