"""``prinia enqueue``."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from prinia import JobRecord, JobState, Prinia
from prinia.cli import progress

from .conftest import Cli, Inside

SHOP = """
from datetime import date
from typing import Any
from prinia import INJECTED, Codec, Context, JsonCodec, MessagePackCodec, Prinia, Tasks

class Sealed:
    name = "sealed"
    def encode(self, value: object) -> bytes:
        return bytes(255 - byte for byte in JsonCodec().encode(value))
    def decode(self, data: bytes) -> Any:
        return JsonCodec().decode(bytes(255 - byte for byte in data), Any)

app = Prinia()

@app.task(name="send", queue="email", aliases=["mail"])
async def send(to: str, day: date | None = None, ctx: Context = INJECTED, *, copies: int = 1) -> dict[str, object]:
    if to == "nobody":
        raise ValueError("no such address")
    return {"to": to, "day": day, "copies": copies}

@app.task(name="seal", codec=Sealed())
async def seal(secret: str, day: date) -> None: ...

@app.declare(name="billing.charge", queue="billing")
def charge(customer: int, cents: int) -> str:
    raise NotImplementedError
"""


@pytest.fixture
def shop(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> Inside:
    """With an app in ``counter.shop``."""
    folder = inside.folder / "counter"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "shop.py").write_text(SHOP, encoding="utf-8")
    (folder / "more.py").write_text(
        "from counter.shop import app\n@app.task(name='late')\ndef late() -> None: ...\n", encoding="utf-8"
    )
    monkeypatch.setenv("PRINIA_APP", "counter.shop:app")
    return inside


def job(shop: Inside, id: int) -> JobRecord:
    return Prinia(shop.dsn).get_job(id).info()


def latest(shop: Inside) -> JobRecord:
    return next(iter(Prinia(shop.dsn).jobs()))


@contextmanager
def worker(shop: Inside) -> Iterator[None]:
    """A worker in a thread, for commands that wait."""
    from importlib import import_module

    app = import_module("counter.shop").app
    started, stopping = threading.Event(), threading.Event()

    async def serve() -> None:
        async with app.worker():
            started.set()
            await asyncio.to_thread(stopping.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(30)
        yield
    finally:
        stopping.set()
        thread.join()


def test_by_name_and_by_position(shop: Inside) -> None:
    assert shop("enqueue", "send", '{"to": "ada", "copies": 2}').stdout == "job 1 enqueued\n"
    assert (job(shop, 1).args, job(shop, 1).queue) == (b'{"to": "ada", "copies": 2}', "email")
    assert shop.json("enqueue", "mail", '["ada", "2026-12-01"]') == {"id": 2, "created": True}
    assert (job(shop, 2).args, job(shop, 2).task) == (b'{"to":"ada","day":"2026-12-01"}', "send")
    assert shop.json("enqueue", "billing.charge", "[7, 1200]") == {"id": 3, "created": True}
    assert (job(shop, 3).args, job(shop, 3).queue) == (b'{"customer":7,"cents":1200}', "billing")


def test_arguments_are_encoded_as_the_task_says(shop: Inside) -> None:
    """So that what it keeps secret is not stored in clear."""
    shop("enqueue", "seal", '["swordfish", "2026-12-01"]')
    stored = latest(shop)
    assert stored.codec == "sealed"
    assert stored.args is not None
    assert b"swordfish" not in stored.args
    assert bytes(255 - byte for byte in stored.args) == b'{"secret":"swordfish","day":"2026-12-01"}'


def test_each_option(shop: Inside) -> None:
    before = datetime.now(UTC)
    shop(
        "enqueue", "send", '["ada"]', "--queue", "urgent", "--delay", "1h", "--priority", "7", "--max-attempts", "2",
        "--timeout", "5m", "--tag", "vip", "--tag", "trial", "--meta", '{"tenant": "acme"}', "--expires", "2h",
    )  # fmt: skip
    stored = latest(shop)
    assert (stored.queue, stored.priority, stored.max_attempts, stored.state) == ("urgent", 7, 2, JobState.SCHEDULED)
    assert (stored.tags, stored.meta) == (("vip", "trial"), {"tenant": "acme"})
    assert stored.scheduled_at is not None
    assert abs(stored.scheduled_at - before - timedelta(hours=1)) < timedelta(minutes=1)
    [(timeout, left)] = rows(shop, "select timeout, expires_at - created_at from prinia.jobs")
    assert (timeout, round(left / timedelta(hours=1), 3)) == (300, 2)
    shop("enqueue", "send", '["ada"]', "--at", "2100-01-02T03:04Z")
    assert latest(shop).scheduled_at == datetime(2100, 1, 2, 3, 4, tzinfo=UTC)


def rows(shop: Inside, sql: str) -> list[tuple[Any, ...]]:
    import psycopg

    with psycopg.connect(shop.dsn) as connection:
        return connection.execute(sql.encode()).fetchall()


def test_unique(shop: Inside) -> None:
    once = ["enqueue", "send", '["ada"]', "--unique", "ada", "--unique-for", "1h"]
    assert shop.json(*once) == {"id": 1, "created": True}
    assert shop.json(*once) == {"id": 1, "created": False}
    assert shop(*once).stdout == "job 1 has the unique key already\n"
    assert shop.refusal(*once, "--on-conflict", "raise", code=1).startswith("prinia: ")
    assert shop.refusal("enqueue", "send", '["a"]', "--unique-for", "1h", code=2) == (
        "prinia: unique_for says more of a unique key; give unique=... too\n"
    )


def test_many_from_standard_input(shop: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST", 0.0)
    monkeypatch.setattr(progress, "BETWEEN", 0.0)
    done = shop("enqueue", "send", "-", "-q", "bulk", input='["ada"]\n\n{"to": "bob"}\n["eve", "2026-12-01"]')
    assert done.stdout == "3 jobs enqueued: 1 to 3\n"
    assert done.stderr.splitlines()[0] == "enqueue: 1 job"
    assert [one.args for one in Prinia(shop.dsn).jobs(queue="bulk", oldest_first=True)] == [
        b'{"to":"ada"}', b'{"to": "bob"}', b'{"to":"eve","day":"2026-12-01"}'
    ]  # fmt: skip
    answer = shop.json("enqueue", "send", "-", "--unique", "one", input='["ada"]\n["bob"]\n')
    assert answer == {"enqueued": 1, "jobs": [{"id": 4, "created": True}, {"id": 4, "created": False}]}
    said = shop("enqueue", "send", "-", "--unique", "one", input='["ada"]').stdout
    assert said == "0 jobs enqueued; 1 unique key taken already\n"
    assert shop("enqueue", "send", "-", input="\n").stdout == "0 jobs enqueued\n"


def test_all_lines_or_none(shop: Inside) -> None:
    said = shop.refusal("enqueue", "send", "-", input='["ada"]\n' * 1_500 + '["bob", 7]\n', code=2)
    assert said == (
        "prinia: line 1501: send: the encoded arguments do not fit: day: expected date | null, got int. "
        "The task is send(to: str, day: datetime.date | None = None, *, copies: int = 1); nothing was enqueued\n"
    )
    bad = shop.refusal("enqueue", "send", "-", input=b'["ada"]\n["b\xff"]\n', code=2)
    assert bad.startswith("prinia: line 2: send: the encoded arguments do not fit: invalid UTF-8")
    assert list(Prinia(shop.dsn).jobs()) == []


def test_waiting_for_the_result(shop: Inside) -> None:
    late = shop("enqueue", "send", '["ada"]', "--delay", "1h", "--wait", "0.01", code=1)
    assert late.stdout == "job 1 enqueued\n"
    assert late.stderr.startswith("prinia: job 1 (send) is still scheduled after 0.01 s of waiting; it goes on")
    with worker(shop):
        done = shop("enqueue", "send", '["ada", "2026-12-01"]', "--wait", "30")
        assert (done.stdout, done.stderr) == (
            'job 2 completed: {"to": "ada", "day": "2026-12-01", "copies": 1}\n', ""
        )  # fmt: skip
        answer = shop.json("enqueue", "send", '["bob"]', "--wait", "1m")
        assert (answer["id"], answer["created"], answer["state"]) == (3, True, "completed")
        assert answer["result"] == {"to": "bob", "day": None, "copies": 1}
        failed = shop("enqueue", "send", '["nobody"]', "--max-attempts", "1", "--wait", "30", "--json", code=1)
        assert failed.stderr.startswith("prinia: job 4 (send) failed after 1 attempt")
        assert json.loads(failed.stdout)["state"] == "failed"


def test_what_makes_no_sense(shop: Inside) -> None:
    takes = "The task is send(to: str, day: datetime.date | None = None, *, copies: int = 1)\n"
    for arguments, said in [
        (["sned"], "prinia: the app has no task 'sned'; did you mean send?\n"),
        (["zzz"], "prinia: the app has no task 'zzz'; it has: billing.charge, seal, send\n"),
        (["billing.chrage"], "prinia: the app has no task 'billing.chrage'; did you mean billing.charge?\n"),
        (["late"], "prinia: the app has no task 'late'; "),
        (["send"], "prinia: send: the encoded arguments do not fit: object missing required field to. " + takes),
        (["send", '{"to": 7}'], f"to: expected str, got int. {takes}"),
        (["send", '{"to": "a", "cc": "b"}'], f"object contains unknown field cc. {takes}"),
        (["send", '["a", null, 3]'], f"3 arguments are given by position, and 2 at most can be. {takes}"),
        (["send", "ada"], "prinia: 'ada' is no JSON object and no array of arguments: JSON is malformed"),
        (["send", '"ada"'], "is no JSON object and no array of arguments: Expected `object | array`, got `str`"),
        (["send", '{"to": "%s"}' % ("x" * 1_048_576)], "send: the arguments are 1,048,586 bytes as JSON, the limit is"),
        (["send", '["a"]', "--delay", "1h", "--at", "2100-01-01T00Z"], "prinia: delay and scheduled_at both say when"),
        (["send", '["a"]', "--delay", "2h", "--expires", "1h"], "the job would never start"),
        (["send", '["a"]', "--meta", "[]"], "'[]' is no JSON object: Expected `object`, got `array`"),
        (["send", '["a"]', "--queue", ""], "prinia: queue='' must have 1 to 200 characters"),
        (["send", '["a"]', "--priority", "200"], "200 is not in the range -100<=x<=100"),
        (["send", "-", "--wait", "3"], "prinia: --wait is for a single job; leave it out\n"),
    ]:  # fmt: skip
        assert said in shop.refusal("enqueue", *arguments, code=2, input=""), arguments
    assert list(Prinia(shop.dsn).jobs()) == []


def test_modules_with_more_tasks(shop: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a worker: from the command line, the environment or the file."""
    (shop.folder / "pyproject.toml").write_text('[tool.prinia]\nimports = "counter.more"\n')
    assert shop.refusal("enqueue", "send", '["a"]', code=2).endswith(
        "[tool.prinia] imports = 'counter.more' must be a list\n"
    )
    (shop.folder / "pyproject.toml").write_text('[tool.prinia]\nimports = ["counter.nosuch"]\n')
    assert "there is no module 'counter.nosuch'" in shop.refusal("enqueue", "late", code=2)
    shop("enqueue", "late", "--import", "counter.more")
    assert latest(shop).task == "late"


def test_without_an_app(inside: Inside) -> None:
    assert inside.refusal("enqueue", "send", code=2) == (
        "prinia: which app has the task? Write --app MODULE:APP, or set PRINIA_APP, or app in [tool.prinia]\n"
    )
    assert "there is no module 'nosuch'" in inside.refusal("enqueue", "send", "--app", "nosuch:app", code=2)
    looking = inside.refusal("jobs", "--app", "nosuch:app", code=2)
    assert looking.startswith("prinia: there is no module 'nosuch'")
    assert looking.endswith("With --database-url URL it goes without the app\n")


def test_as_a_process(cli: Cli, migrated: str) -> None:
    done = cli.run(
        "enqueue", "greet", '{"name": "Ada"}', "--json", "--app", "shop.jobs:app", PRINIA_DATABASE_URL=migrated
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"id": 1, "created": True}
