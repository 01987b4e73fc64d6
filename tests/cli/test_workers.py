"""``prinia workers``."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Sequence
from uuid import UUID

import psycopg

from prinia import Prinia, WorkerRecord

from .conftest import Inside

HEADER = ["instance", "name", "host", "pid", "run", "queues", "running", "heard", "listener", "lag", "blocked", "note"]


async def registered(app: Prinia) -> Sequence[WorkerRecord]:
    return await app.aworkers()


async def test_list_and_words_to_workers(inside: Inside) -> None:
    app = Prinia(inside.dsn)

    @app.task(name="send", queue="email")
    async def send() -> None: ...

    async def run(*arguments: str, code: int = 0) -> str:
        done = await asyncio.to_thread(inside, *arguments, code=code)
        return done.stdout if code == 0 else done.stderr

    async with app.worker(name="mail", queues=["email", "bulk"]), app.worker(name="mail"), app.worker(name="other"):
        workers = await app.aworkers()
        ids = {worker.name: worker.id for worker in workers}
        header, *rows = (await run("workers")).splitlines()
        assert header.split() == HEADER
        assert [row.split()[:2] for row in rows] == [[str(one.id)[:8], one.name] for one in workers]
        assert re.fullmatch(
            rf"{str(ids['other'])[:8]}  other  \S+ +{os.getpid()}  0 +email +0/100 +\ds ago( +listening)?.*", rows[2]
        ), rows[2]  # fmt: skip
        found = (await asyncio.to_thread(inside.json, "workers", "list"))["workers"]
        assert [(one["id"], one["pid"], one["command"]) for one in found] == [
            (str(worker.id), os.getpid(), None) for worker in workers
        ]

        prefix = str(ids["other"])[:8]
        told = await run("workers", "quiet", prefix)
        assert re.fullmatch(rf"other on \S+, process {os.getpid()} \({ids['other']}\): told to quiet\n", told)
        assert (await run("workers", "quiet", "other")).endswith(": was told to quiet already\n")
        assert (await run("workers")).splitlines()[3].endswith("told to quiet")
        assert (await run("workers", "pause", str(ids["other"]).upper())).endswith(": told to pause\n")
        assert (await run("workers", "resume", "other")).endswith(": told to resume\n")
        assert (await run("workers", "resume", "other")).endswith(": was not told anything\n")

        several = await run("workers", "stop", "mail", code=2)
        assert several.startswith("prinia: 'mail' may be any of 2 workers; say which by its id:\n")
        assert re.fullmatch(rf"  {str(workers[0].id)[:8]}  mail on \S+, process {os.getpid()}", several.splitlines()[1])
        unknown = await run("workers", "stop", "other", "nosuch", code=1)
        assert unknown.startswith("prinia: there is no worker 'nosuch'; there are:\n")
        assert len(unknown.splitlines()) == 4
        assert all(worker.command is None for worker in await app.aworkers()), "all are found before one is told"

        jobs = await run("jobs", "--worker", "other")
        assert jobs == "No job meets the filters.\n"
        stopped = await asyncio.to_thread(inside.json, "workers", "stop", "other", prefix, "--by", "ada")
        assert stopped == {
            "command": "stop", "workers": [{"instance": str(ids["other"]), "name": "other", "new": True}]
        }  # fmt: skip
        entries = await app.aaudit()
        assert [(entry.operation, entry.by) for entry in entries][:1] == [("stop_worker", "ada")]


def test_nobody(inside: Inside) -> None:
    assert inside("workers").stdout == "No worker is on the register. Start one: prinia worker MODULE:APP\n"
    assert inside.json("workers") == {"workers": []}
    assert inside.refusal("workers", "stop", "x", code=1) == (
        "prinia: there is no worker 'x'; none is on the register\n"
    )
    assert "Missing argument 'INSTANCE...'" in inside.refusal("workers", "stop", code=2)


def register(dsn: str, *ids: str, dead: bool = False) -> None:
    with psycopg.connect(dsn) as connection:
        for id in ids:
            connection.execute(
                "insert into prinia.workers (id, name, queues, tasks, host, pid, version, concurrency, died_at) values"
                " (%s, 'w', '{q}', '{}', 'h', 7, '1', 5, case when %s then now() end)",
                [UUID(id), dead],
            )


def test_ids_that_begin_alike_are_shown_longer(inside: Inside) -> None:
    one, other = "12345678-1234-4aaa-8000-000000000000", "12345678-1234-4bbb-8000-000000000000"
    register(inside.dsn, one, other)
    _, *rows = inside("workers").stdout.splitlines()
    assert [row.split()[0] for row in rows] == [one[:16], other[:16]]
    assert inside("workers", "quiet", one[:16]).stdout.endswith(f"({one}): told to quiet\n")
    assert inside("workers", "quiet", one[:15], code=2).stderr.count("\n") == 3


def test_one_that_was_declared_dead(inside: Inside) -> None:
    id = "12345678-1234-4aaa-8000-000000000000"
    register(inside.dsn, id, dead=True)
    assert inside("workers").stdout.splitlines()[1].endswith("  declared dead, its jobs come back")
    said = inside.refusal("workers", "stop", id, code=1)
    assert said.startswith(f"prinia: there is no live worker instance {id}: it has stopped, was declared dead")
