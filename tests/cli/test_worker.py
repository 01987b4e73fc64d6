"""``prinia worker``: finding the app, saying what it serves, ending as it is told."""

from __future__ import annotations

import signal
import subprocess

import psycopg
import pytest

from prinia import Prinia
from tests.waiting import until

from .conftest import Cli


def workers(dsn: str) -> list[tuple[str, list[str], int]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        query = "select name, queues, concurrency from prinia.workers where died_at is null order by name"
        return connection.execute(query).fetchall()


def state(dsn: str, job: int) -> tuple[str, int]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute("select state, attempt from prinia.all_jobs where id = %s", (job,)).fetchall()[0]


def enqueue(dsn: str, task: str, queue: str) -> int:
    """A job of a task that the worker's own module has."""
    app = Prinia(dsn)

    async def greet(name: str) -> str:
        return name

    async def linger() -> None: ...

    if task == "greet":
        return app.task(name=task, queue=queue)(greet).enqueue("world").id
    return app.task(name=task, queue=queue)(linger).enqueue().id


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_what_it_serves_works_and_stops(cli: Cli, migrated: str, number: int) -> None:
    job = enqueue(migrated, "greet", "greetings")
    process = cli.start(
        "worker", "shop.jobs:app", "--name", "käse", "-c", "7", "--threads", "3", PRINIA_DATABASE_URL=migrated
    )
    until(lambda: state(migrated, job)[0] == "completed", what="the job's end")
    assert workers(migrated) == [("käse", ["greetings", "long"], 7)]
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert f"worker 'käse', process {process.pid}" in out
    assert "greetings, long" in out
    assert "greet, linger" in out
    assert "schema 'prinia'" in out
    assert "Traceback" not in err
    assert workers(migrated) == []


def test_queues_are_chosen_and_the_only_app_is_found(cli: Cli, migrated: str) -> None:
    process = cli.start("worker", "shop.jobs", "-q", "a", "--queue", "b c", PRINIA_DATABASE_URL=migrated)
    until(lambda: workers(migrated), what="registration")
    assert workers(migrated)[0][1] == ["a", "b c"]
    process.terminate()
    assert process.wait(30) == 0


def test_it_polls_alone_when_told_to(cli: Cli, migrated: str) -> None:
    started = ("worker", "shop.jobs", "-q", "greetings", "--poll", "0.05", "--claim-batch", "2")
    process = cli.start(*started, "--no-listen", PRINIA_DATABASE_URL=migrated)
    until(lambda: workers(migrated), what="registration")
    jobs = [enqueue(migrated, "greet", "greetings") for _ in range(5)]
    until(lambda: all(state(migrated, job)[0] == "completed" for job in jobs), what="the jobs' end")
    with psycopg.connect(migrated, autocommit=True) as connection:
        listening = "select count(*) from pg_stat_activity where application_name = 'prinia listener'"
        query = f"{listening} and datname = current_database()"
        assert connection.execute(query).fetchone() == (0,)
        claims = "select max(jobs) from (select count(*) as jobs from prinia.archive group by token) as claims"
        assert connection.execute(claims).fetchall()[0][0] <= 2
    process.terminate()
    assert process.wait(30) == 0


def test_a_second_signal_hands_back_what_runs(cli: Cli, migrated: str) -> None:
    job = enqueue(migrated, "linger", "long")
    process = cli.start("worker", "shop.jobs", "--stop-timeout", "500", PRINIA_DATABASE_URL=migrated)
    until((cli.folder / "shop" / "lingers").exists, what="the job's start")
    process.terminate()
    until(lambda: "stopping; once more to stop now" in read_line(process), what="the first signal's answer")
    assert state(migrated, job) == ("running", 1)
    process.terminate()
    assert process.wait(30) == 0
    assert state(migrated, job) == ("ready", 0)


ENDING = """
import atexit, os, signal
from prinia import INJECTED, Context, Prinia

app = Prinia()


@app.task(name="end")
async def end(ctx: Context = INJECTED) -> None:
    ctx.worker.stop()


atexit.register(os.kill, os.getpid(), signal.SIGTERM)
"""

DYING = """
import asyncio
from collections.abc import AsyncIterator
from prinia import INJECTED, Prinia

app = Prinia()


class Pool:
    lost: asyncio.Event


@app.provide
async def pool() -> AsyncIterator[Pool]:
    async with asyncio.TaskGroup() as group:
        one = Pool()
        one.lost = asyncio.Event()
        group.create_task(watch(one))
        yield one


async def watch(pool: Pool) -> None:
    await pool.lost.wait()
    raise ConnectionError("the server is gone")


@app.task(name="end")
async def end(pool: Pool = INJECTED) -> None:
    pool.lost.set()
"""


def test_a_signal_that_comes_when_it_has_ended_by_itself_changes_nothing(cli: Cli, migrated: str) -> None:
    cli.module("ending.py", ENDING)
    Prinia(migrated).enqueue_by_name("end", {})
    done = cli.run("worker", "ending", PRINIA_DATABASE_URL=migrated)
    assert (done.returncode, workers(migrated)) == (0, [])


def test_a_resource_that_dies_ends_it_with_its_error(cli: Cli, migrated: str) -> None:
    cli.module("dying.py", DYING)
    job = Prinia(migrated).enqueue_by_name("end", {}).id
    done = cli.run("worker", "dying", PRINIA_DATABASE_URL=migrated)
    assert (done.returncode, workers(migrated)) == (1, [])
    assert done.stderr.splitlines()[-1] == (
        "prinia: dying.pool, a resource of scope worker, could not be kept open: ExceptionGroup: unhandled errors in a "
        "TaskGroup (1 sub-exception): ConnectionError: the server is gone"
    )
    assert state(migrated, job) == ("completed", 1)


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def test_missing_tables_stop_it_with_the_command(cli: Cli, database: str) -> None:
    done = cli.run("worker", "shop.jobs", PRINIA_DATABASE_URL=database)
    assert done.returncode == 1
    assert done.stderr.endswith("prinia: there are no Prinia tables in schema 'prinia'. Run: prinia migrate\n")
    assert "Traceback" not in done.stderr


def test_no_database_is_said_before_anything_starts(cli: Cli) -> None:
    done = cli.run("worker", "shop.jobs")
    assert done.returncode == 1
    assert "prinia: no database is set" in done.stderr


def broken(cli: Cli) -> None:
    cli.module("broken.py", "import json\n\n\ndef f():\n    return {}['x']\n\n\nf()\n")
    cli.module("unimportable.py", "import nosuchthing\n")
    cli.module("exits.py", "import sys\nsys.exit(3)\n")
    cli.module(
        "twice.py",
        "from prinia import Prinia\napp = Prinia()\n\n\n@app.task(name='a')\ndef f() -> None: ...\n\n\n"
        "@app.task(name='a')\ndef g() -> None: ...\n",
    )
    cli.module("syntax.py", "def (:\n")
    cli.module("empty.py", "app = 1\n")
    cli.module("two.py", "from prinia import Prinia\none = Prinia()\nother = Prinia()\n")
    cli.module("alias.py", "from shop.jobs import app as first\nsecond = first\n")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nosuch", "there is no module 'nosuch', looked for in "),
        ("shop.nosuch:app", "there is no module 'shop.nosuch'"),
        ("shop/jobs.py", "'shop/jobs.py' is a file; write the module: shop.jobs:app"),
        ("./shop/jobs.py:app", "is a file; write the module: shop.jobs:app"),
        (":app", "names no module"),
        ("shop.jobs:nope", "module shop.jobs has no 'nope'. It has shop.jobs:app"),
        ("shop.jobs:greet", "shop.jobs:greet is of type AsyncTask, not a Prinia app. It has shop.jobs:app"),
        ("broken:app", "importing broken failed: KeyError: 'x' ("),
        ("unimportable", "importing unimportable failed: ModuleNotFoundError: No module named 'nosuchthing'"),
        ("syntax", "importing syntax failed: SyntaxError: invalid syntax (syntax.py, line 1)"),
        ("exits", "importing exits ended the program: it calls sys.exit(3) ("),
        ("exits:app", "exits.py, line 2); keep that under: if __name__ == '__main__'"),
        ("empty", "module empty has no app; it needs: app = Prinia()"),
        ("two", "module two has several apps; say which one: It has two:one, two:other"),
    ],
)
def test_an_app_that_is_not_found(cli: Cli, target: str, said: str) -> None:
    broken(cli)
    done = cli.run("worker", target, PRINIA_DATABASE_URL="postgresql://127.0.0.1:1/none")
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.startswith("prinia: ")
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_place_of_an_import_error_is_told(cli: Cli) -> None:
    broken(cli)
    assert "broken.py, line 5)" in cli.run("worker", "broken").stderr
    said = cli.run("worker", "twice").stderr
    assert "a task named a exists already" in said
    assert "twice.py, line 9); PRINIA_DEBUG=1" in said


def test_a_database_url_that_makes_no_sense_is_told_as_by_migrate(cli: Cli) -> None:
    said = [cli.run(*arguments, PRINIA_DATABASE_URL="garbage") for arguments in (["migrate"], ["worker", "shop.jobs"])]
    assert [done.returncode for done in said] == [1, 1]
    assert said[0].stderr == said[1].stderr
    assert said[0].stderr.startswith("prinia: the database URL makes no sense: ")


def test_an_app_under_two_names_is_one(cli: Cli, database: str) -> None:
    broken(cli)
    done = cli.run("worker", "alias", PRINIA_DATABASE_URL=database)
    assert "Run: prinia migrate" in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--name", "x" * 300], ["--name", ""], ["-q", ""], ["-q", "a", "-q", "\t"], ["-c", "0"], ["--threads", "0"],
        ["--stop-timeout", "nan"], ["--stop-timeout", "inf"], ["--stop-timeout", "-1"],
        ["--poll", "0"], ["--poll", "nan"], ["--poll", "soon"], ["--claim-batch", "0"], ["--claim-batch", "501"],
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(cli: Cli, options: list[str]) -> None:
    done = cli.run("worker", "shop.jobs", *options, PRINIA_DATABASE_URL="postgresql://127.0.0.1:1/none")
    assert done.returncode == 2
    assert "Error: Invalid value for '" in done.stderr
    assert "Traceback" not in done.stderr


def test_modules_with_tasks_can_be_named(cli: Cli, migrated: str) -> None:
    cli.module("shop/mail.py", "from shop.jobs import app\n\n\n@app.task(name='mail')\ndef mail() -> None: ...\n")
    cli.module("shop/sums.py", "from shop.jobs import app\n\n\n@app.task(name='sums')\ndef sums() -> None: ...\n")
    job = Prinia(migrated).enqueue_by_name("mail", {}).id
    process = cli.start(
        "worker", "shop.jobs", "--import", "shop.mail", "--import", "shop.sums", PRINIA_DATABASE_URL=migrated
    )
    until(lambda: state(migrated, job)[0] == "completed", what="the job's end")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert "greet, linger, mail, sums" in out


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("nosuch", "prinia: there is no module 'nosuch', looked for in "),
        ("broken", "prinia: importing broken failed: KeyError: 'x' ("),
        ("shop/mail.py", "prinia: import: 'shop/mail.py' is no name of a module; write it as in: shop.jobs"),
    ],
)
def test_a_module_that_cannot_be_imported(cli: Cli, module: str, said: str) -> None:
    broken(cli)
    done = cli.run("worker", "shop.jobs", "--import", module, PRINIA_DATABASE_URL="postgresql://127.0.0.1:1/none")
    assert done.returncode == 2
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1
