"""``prinia jobs list`` and ``prinia jobs show``."""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from prinia import Prinia
from prinia.storage.postgres import listing

from .conftest import Cli, Inside
from .stock import Stock


def ids(found: dict[str, list[dict[str, int]]]) -> list[int]:
    return [job["id"] for job in found["jobs"]]


def test_list_in_text(reader: Inside, stock: Stock) -> None:
    header, *rows = reader("jobs").stdout.splitlines()
    assert header.split() == ["id", "state", "task", "queue", "attempt", "enqueued", "time", "note"]
    assert [int(row.split()[0]) for row in rows] == stock.ids
    by_id = {int(row.split()[0]): " ".join(row.split()) for row in rows}

    def matches(id: int, pattern: str) -> None:
        assert re.fullmatch(f"{id} {pattern}", by_id[id]), by_id[id]

    matches(stock.ready.id, r"ready send email 0/5 \d+s ago waits \d+s")
    matches(stock.scheduled.id, r"scheduled send email 0/5 \d+s ago due in 59m\d+s")
    matches(stock.retrying.id, r"retrying send email 1/5 \d+s ago due in 59m\d+s ValueError: no such\\x1b\[31m address")
    matches(stock.failed.id, r"failed send email 1/1 \d+s ago ended \d+s ago ValueError: no such\\x1b\[31m address")
    matches(stock.cancelled.id, r"cancelled send email 0/5 \d+s ago ended \d+s ago cancelled by ada")
    matches(stock.completed.id, r"completed send email 1/5 \d+s ago ended \d+s ago")
    assert "swordfish" not in reader("jobs").output
    assert len(set(map(len, (line[: line.index("send")] for line in rows if "send" in line)))) == 1, "aligned"


def test_list_in_json_has_all_but_arguments_results_and_tracebacks(reader: Inside, stock: Stock) -> None:
    found = reader.json("jobs", "list", "--state", "failed", "--state", "completed", "--queue", "email")
    assert (found["next"], found["conditions"]) == (None, {"queue": ["email"], "state": ["completed", "failed"]})
    failed, completed = found["jobs"]
    record = stock.failed.info()
    assert failed == {
        "id": record.id, "task": "send", "queue": "email", "state": "failed", "priority": 0, "attempt": 1,
        "max_attempts": 1, "crashes": 0, "codec": "json", "created_at": failed["created_at"],
        "scheduled_at": failed["scheduled_at"], "started_at": failed["started_at"],
        "finished_at": failed["finished_at"], "owner": str(record.owner), "reason": record.reason, "tags": [],
        "meta": {"tenant": "acme"},
        "errors": [{"attempt": 1, "kind": "ValueError", "message": "no such\x1b[31m address",
                    "at": failed["errors"][0]["at"]}],
    }  # fmt: skip
    assert datetime.fromisoformat(failed["finished_at"]) == record.finished_at
    assert (completed["id"], completed["tags"]) == (stock.completed.id, ["vip", "trial"])


def test_each_filter(reader: Inside, stock: Stock) -> None:
    owner = stock.completed.info().owner
    now = datetime.now(UTC)
    hour = timedelta(hours=1)
    for arguments, expected in [
        (["--id", str(stock.ready.id), "--id", str(stock.failed.id), "--id", "999"], [stock.ready, stock.failed]),
        (["--queue", "bulk"], [stock.packed]),
        (["-q", "bulk", "-q", "nosuch"], [stock.packed]),
        (["--task", "pack"], [stock.packed]),
        (["--tag", "vip", "--tag", "trial"], [stock.completed]),
        (["--tag", "vip", "--tag", "other"], []),
        (["--error", "ValueError", "--state", "failed"], [stock.failed]),
        (["--worker", str(owner), "--queue", "bulk"], [stock.packed]),
        (["--created-since", (now + hour).isoformat()], []),
        (["--finished-since", f"{now - hour:%Y-%m-%dT%H:%MZ}", "--task", "pack"], [stock.packed]),
        (["--finished-since", "2h30m", "--task", "pack"], [stock.packed]),
        (["--finished-before", "90s"], []),
        (["--created-before", "1d"], []),
        (["--queue", "nosuch"], []),
    ]:  # fmt: skip
        wanted = sorted((job.id for job in expected), reverse=True)
        assert ids(reader.json("jobs", "list", *arguments)) == wanted, arguments
        assert reader.json("jobs", *arguments, "--count") == {"count": len(wanted), "exact": True}, arguments
    assert ids(reader.json("jobs", "--created-since", "1h")) == stock.ids, "a filter that all jobs meet"
    assert ids(reader.json("jobs", "--oldest-first")) == stock.ids[::-1]
    assert reader("jobs", "--count").stdout == f"{len(stock.ids)}\n"
    assert reader("jobs", "--queue", "nosuch").stdout == "No job meets the filters.\n"


def test_an_estimate_is_marked(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LONGEST_STRETCH", 5_000)
    app = Prinia(inside.dsn)
    app.enqueue_many(app.job_by_name("many", {}) for _ in range(16_000))
    said = inside("jobs", "--count").stdout
    assert re.fullmatch(r"~\d+,\d{3}\n", said)
    assert inside.json("jobs", "--count") == {"count": int(re.sub(r"[^\d]", "", said)), "exact": False}
    queues = inside("queues").stdout.splitlines()
    assert re.fullmatch(r"default +~\d+,\d{3} +0 .*nobody serves it", queues[1])


def test_pages(reader: Inside, stock: Stock) -> None:
    first = reader.json("jobs", "--limit", "3")
    assert ids(first) == stock.ids[:3]
    second = reader.json("jobs", "--limit", "3", "--after", first["next"])
    assert ids(second) == stock.ids[3:6]
    assert ids(reader.json("jobs", "--after", second["next"])) == stock.ids[6:]
    said = reader("jobs", "--limit", "3").stdout
    assert said.endswith(f"\nMore with: --after {first['next']}\n")


def test_a_page_among_jobs_of_an_age(reader: Inside, stock: Stock) -> None:
    """The age is another moment a second later, so the page says which moment it was."""
    said = reader("jobs", "--created-since", "2h", "--limit", "3").stdout
    match = re.search(r"^More with: (--created-since (\S+) --after (\S+))$", said, re.MULTILINE)
    assert match is not None
    assert ids(reader.json("jobs", *match[1].split())) == stock.ids[3:]
    refused = reader.refusal("jobs", "--created-since", "2h", "--after", match[3], code=2)
    assert refused.startswith("prinia: --created-since: an age is another moment now")
    conditions = reader.json("jobs", "--created-since", "2h", "--limit", "3")["conditions"]
    assert datetime.fromisoformat(conditions["created_since"]).tzinfo is not None


def test_filters_that_make_no_sense(reader: Inside) -> None:
    for arguments, said in [
        (["--state", "faild"], "prinia: state='faild' is no state of a job; did you mean failed?\n"),
        (["--state", "x"], "prinia: state='x' is no state of a job; there are: scheduled, retrying, ready"),
        (["--id", "0"], "prinia: ids=0 must be ids of jobs"),
        (["--after", "nonsense"], "prinia: after='nonsense' is no cursor; give what an earlier page"),
        (["--after", "17-0123456789abn"], "prinia: after='17-0123456789abn' is a cursor of another query"),
        (["--count", "--after", "17-0123456789abn"], "prinia: --count counts all jobs"),
        (["--worker", "nobody"], "prinia: there is no worker 'nobody'; none is on the register\n"),
        (["--created-since", "yesterday"], "'yesterday' is neither an age, such as 15m, 2h or 3d, nor a time, such"),
        (["--created-since", "2026-12-01T09:30"], "has no time zone; write 2026-12-01T09:30Z for UTC"),
        (["--created-since", "2026-13-01"], "'2026-13-01' is no time; write one such as 20"),
        (["--created-since", "99999999999w"], "'99999999999w' is before the year 1"),
        (["--created-since", "2026-12-02T00Z", "--created-before", "2026-12-01T00Z"], "no job can be both"),
        (["--id", "x"], "'x' is not a valid integer"),
        (["--limit", "0"], "0 is not in the range x>=1"),
        (["lst"], "No such command 'lst'. Did you mean 'list'?"),
    ]:  # fmt: skip
        refused = reader.refusal("jobs", *arguments, code=1 if "--worker" in arguments else 2)
        assert said in refused
        if said.startswith("prinia:"):
            assert refused.count("\n") == 1


def test_show_in_text(reader: Inside, stock: Stock) -> None:
    owner = stock.completed.info().owner
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(\d+s ago\)"
    assert re.fullmatch(
        rf"""job        {stock.completed.id}
state      completed
task       send
queue      email
priority   0
attempt    1 of 5
enqueued   {moment}
due        {moment}
started    {moment}
ended      {moment}
worker     {owner}
tags       vip, trial
arguments  \{{"to": "ada"\}}
result     \{{"to": "ada"\}}
""",
        reader("jobs", "show", str(stock.completed.id)).stdout,
    )
    failed = reader("jobs", str(stock.failed.id)).stdout
    assert re.search(r'^meta +\{"tenant": "acme"\}$', failed, re.MULTILINE)
    assert re.search(rf"^error +attempt 1, {moment}\n +ValueError: no such\\x1b\[31m address$", failed, re.MULTILINE)
    assert re.search(r"^ +raise ValueError\(", failed, re.MULTILINE)
    assert "result" not in failed
    packed = reader("jobs", str(stock.packed.id)).stdout
    assert re.search(r"^arguments  \d+ bytes, msgpack$", packed, re.MULTILINE)
    assert "swordfish" not in packed
    for job in (stock.ready, stock.scheduled, stock.retrying):
        assert reader("jobs", str(job.id)).stdout.endswith(f"\n\nWhy it waits: prinia explain {job.id}\n")
    for job in (stock.completed, stock.failed, stock.cancelled):
        assert "explain" not in reader("jobs", str(job.id)).stdout


def test_show_in_json(reader: Inside, stock: Stock) -> None:
    failed = reader.json("jobs", "show", str(stock.failed.id))
    listed = reader.json("jobs", "--id", str(stock.failed.id))["jobs"][0]
    assert set(failed) - set(listed) == {"args", "args_bytes", "result", "result_bytes"}
    assert {name: failed[name] for name in listed if name != "errors"} == {
        name: listed[name] for name in listed if name != "errors"
    }
    assert "no such" in failed["errors"][0]["traceback"]
    assert (failed["args"], failed["args_bytes"]) == ({"to": "nobody"}, len('{"to":"nobody"}'))
    completed = reader.json("jobs", "show", str(stock.completed.id))
    assert (completed["result"], completed["result_bytes"]) == ({"to": "ada"}, len('{"to":"ada"}'))
    packed = reader.json("jobs", "show", str(stock.packed.id))
    assert (packed["args"], packed["codec"]) == (None, "msgpack")
    assert packed["args_bytes"] > 0


def test_arguments_are_shown_to_the_letter_and_broken_ones_as_bytes(inside: Inside) -> None:
    job = Prinia(inside.dsn).enqueue_by_name("t", b'{"z":1,"a":12345678901234567890123,"x":1.10}')
    shown = inside("jobs", "show", str(job.id), "--json").stdout
    assert '"args":{"z":1,"a":12345678901234567890123,"x":1.10}' in shown
    with psycopg.connect(inside.dsn) as connection:
        connection.execute(r"update prinia.jobs set args = '\x7bff'")
    assert inside.json("jobs", "show", str(job.id))["args"] is None
    assert "arguments  2 bytes, json\n" in inside("jobs", "show", str(job.id)).stdout


def test_a_job_that_is_not_there(reader: Inside) -> None:
    said = reader.refusal("jobs", "show", "999", code=1)
    assert said.startswith("prinia: there is no job 999: its transaction was rolled back or has not committed, or")
    assert reader.refusal("jobs", "show", "0", code=1).startswith("prinia: there is no job 0: ids are whole numbers")
    assert "'x' is not a valid integer" in reader.refusal("jobs", "show", "x", code=2)


def test_nothing_there_yet(inside: Inside) -> None:
    assert inside("jobs").stdout == "There is no job.\n"
    assert inside.json("jobs") == {"jobs": [], "next": None, "conditions": {}}
    assert inside.json("jobs", "--count") == {"count": 0, "exact": True}


COMMANDS = [
    ["jobs"], ["jobs", "--count"], ["jobs", "show", "1"], ["jobs", "cancel", "1"], ["queues"], ["pause", "email"],
    ["resume", "--all"], ["workers"], ["workers", "stop", "x"], ["audit"], ["enqueue", "t"],
]  # fmt: skip


def test_no_database_and_no_tables(inside: Inside, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands that need one say so in one line, and keep the password."""
    inside.folder.joinpath("tiny.py").write_text(
        "from prinia import Prinia\napp = Prinia()\n@app.task(name='t')\ndef t() -> None: ...\n"
    )
    monkeypatch.setenv("PRINIA_APP", "tiny:app")
    for url, expected in [
        (database, "prinia: Prinia's tables in schema 'prinia' are missing or older than this version ("),
        ("postgresql://shop:geheim@127.0.0.1:1/orders", "prinia: no connection to the database: "),
        ("", "prinia: no database is set: set PRINIA_DATABASE_URL"),
    ]:
        monkeypatch.setenv("PRINIA_DATABASE_URL", url)
        for command in COMMANDS:
            sys.modules.pop("tiny", None)
            said = inside.refusal(*command, code=1)
            assert said.startswith(expected), command
            assert said.count("\n") == 1
            assert "geheim" not in said
            assert url != database or said.endswith("; run: prinia migrate\n")


def test_as_a_process(cli: Cli, migrated: str) -> None:
    """Without the app's code, from the environment; the tables have another schema's name to be found by."""
    job = Prinia(migrated).enqueue_by_name("greet", {"name": "Ada"}, queue="greetings")
    listed = cli.run("jobs", "list", "--json", "--queue", "greetings", PRINIA_DATABASE_URL=migrated)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert [one["id"] for one in json.loads(listed.stdout)["jobs"]] == [job.id]
