"""What docs/deploying-workers.md says to type runs as it stands there, and does what it says."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.error import URLError

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from prinia import JobState, Prinia
from prinia.embedded import find_binaries
from tests.waiting import until

PAGE = (Path(__file__).parents[2] / "docs" / "deploying-workers.md").read_text(encoding="utf-8")
WORKERS = "select name, pid from prinia.workers order by name, pid"


def block(language: str, having: str) -> str:
    """The one block of the page in this language with this text in it; lists indent theirs."""
    blocks = re.findall(rf"^ *```{language}\n(.*?)^ *```", PAGE, re.MULTILINE | re.DOTALL)
    [found] = [text for text in blocks if having in text]
    return str(found)


class Machine:
    """A folder with the page's ``shop.py``, a database, and processes that are killed at the end."""

    def __init__(self, folder: Path, dsn: str) -> None:
        (folder / "shop.py").write_text(block("python", "# shop.py"))
        self.folder, self.dsn = folder, dsn
        self.place = {key: str(value) for key, value in conninfo_to_dict(dsn).items()}
        path = f"{Path(sys.executable).parent}:{find_binaries().bin}:{os.environ['PATH']}"
        names = {"PGHOST": "host", "PGPORT": "port", "PGUSER": "user", "PGPASSWORD": "password"}
        self.environment = os.environ | {"PATH": path, "PRINIA_DATABASE_URL": dsn}
        self.environment |= {name: self.place[key] for name, key in names.items() if key in self.place}
        self._started: list[subprocess.Popen[str]] = []
        self.app = Prinia(dsn)

        @self.app.task(name="send", queue="email")
        async def send(to: str, seconds: float = 0) -> str:
            raise NotImplementedError

        self.send = send

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command in a session of its own."""
        process = subprocess.Popen(
            command, cwd=self.folder, env=self.environment | environment, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self._started.append(process)
        return process

    def shell(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a script to its end; the first command that fails ends it."""
        process = self.start("bash", "-e", "-o", "pipefail", "-c", script, **environment)
        out, err = process.communicate(timeout=90)
        return subprocess.CompletedProcess(script, process.returncode, out, err)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """What a statement answers."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def registered(self, number: int) -> list[tuple[Any, ...]]:
        """Names and process ids, once so many workers are on the register."""
        until(lambda: len(self.rows(WORKERS)) == number, what=f"{number} workers")
        return self.rows(WORKERS)

    def end(self) -> None:
        """Kill what still runs, and what it started."""
        for process in self._started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def machine(migrated: str, tmp_path: Path) -> Iterator[Machine]:
    """A machine on a database of its own."""
    machine = Machine(tmp_path, migrated)
    yield machine
    machine.end()


def stopped(process: subprocess.Popen[str]) -> int:
    """Ends a process as Kubernetes and ECS do; its exit code."""
    process.terminate()
    return process.wait(60)


def test_several_instances_of_one_command(machine: Machine) -> None:
    several = machine.start("bash", "-c", block("sh", "--name email &"))
    found = machine.registered(3)
    assert [name for name, _ in found] == ["email"] * 3
    seen = machine.shell(block("sh", "app.workers()"))
    assert (seen.returncode, seen.stderr) == (0, "")
    lines = [line.split() for line in seen.stdout.splitlines()]
    assert {(line[0], int(line[3]), line[4]) for line in lines} == {(name, pid, "email") for name, pid in found}
    assert len({line[1] for line in lines}) == 3
    os.killpg(several.pid, signal.SIGTERM)
    until(lambda: not machine.rows(WORKERS), what="all have left")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except (URLError, ConnectionError):
        return False


def test_kubernetes(machine: Machine) -> None:
    """Three replicas, of which one is replaced with a job in its hands."""
    manifest = block("yaml", "kind: Deployment")
    [command] = re.findall(r"command: (\[.*\])", manifest)
    [grace] = re.findall(r"terminationGracePeriodSeconds: (\d+)", manifest)
    [limit] = re.findall(r'"--stop-timeout", "(\d+)"', command)
    assert int(grace) >= int(limit) + 10
    assert "replicas: 3" in manifest

    def pod(name: str) -> subprocess.Popen[str]:
        port = free_port()
        words = json.loads(command.replace("$(POD_NAME)", name).replace('"8080"', f'"{port}"'))
        process = machine.start(*words, POD_NAME=name)
        until(lambda: ready(port), what=f"{name} is ready")
        return process

    old, *_ = (pod(f"email-worker-7c9-{letter}") for letter in "abc")
    assert [name for name, _ in machine.registered(3)] == [f"email/email-worker-7c9-{letter}" for letter in "abc"]
    machine.app.enqueue_many(machine.send.job("ada", seconds=2) for _ in range(300))
    running = f"select 1 from prinia.jobs j join prinia.workers w on w.id = j.owner where w.pid = {old.pid}"
    until(lambda: machine.rows(running), what="it runs jobs")
    pod("email-worker-8d1-a")
    assert [name for name, _ in machine.registered(4)][3] == "email/email-worker-8d1-a"
    assert stopped(old) == 0
    until(lambda: not machine.rows("select 1 from prinia.jobs"), what="all are sent")
    ended = "select state, attempt, crashes, count(*) from prinia.archive group by 1, 2, 3"
    assert machine.rows(ended) == [("completed", 1, 0, 300)]


class Metadata(BaseHTTPRequestHandler):
    """What the metadata endpoint of an ECS task answers."""

    def do_GET(self) -> None:
        assert self.path == "/v4/0a1b/task"
        self.send_response(200)
        self.end_headers()
        self.wfile.write(
            b'{"Cluster": "c", "TaskARN": "arn:aws:ecs:eu-west-1:1:task/shop/158d1c8083dd49d6b527399fd6414f5c"}'
        )

    def log_message(self, *_: object) -> None:
        pass


def test_ecs(machine: Machine) -> None:
    """The label has the task's id, and the signal reaches the worker."""
    container = json.loads(block("json", "stopTimeout"))
    assert container["stopTimeout"] >= 55
    with HTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}/v4/0a1b"
        task = machine.start(*container["command"], ECS_CONTAINER_METADATA_URI_V4=endpoint)
        assert machine.registered(1) == [("email/158d1c8083dd49d6b527399fd6414f5c", task.pid)]
        server.shutdown()
    assert stopped(task) == 0


def test_migrate(machine: Machine) -> None:
    """As it stands in the list of steps, by itself."""
    step = block("sh", "   prinia migrate\n")
    assert step.strip() == "prinia migrate"
    done = machine.shell(step)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_restored_database(machine: Machine, server: str) -> None:
    async def serve() -> None:
        async with machine.app.worker():
            pass

    asyncio.run(serve())
    kept, mail = machine.app.enqueue_by_name("other", {}, queue="other"), machine.send.enqueue("ada")
    copy = make_conninfo(machine.dsn, dbname="copy")
    try:
        done = machine.shell(block("sh", "pg_dump"))
        assert done.returncode == 1
        said = " ".join(block("text", "has come here").split())
        told = " ".join(done.stderr.splitlines()[-1].split()).replace(f"'{machine.place['dbname']}'", "'shop'")
        assert re.sub(r"since \S+ \S+ UTC", "since THEN UTC", told) == re.sub(
            r"since \S+ \S+ UTC", "since THEN UTC", said
        )
        assert Prinia(copy).enqueue_by_name("other", {}, queue="other").info().state is JobState.READY

        done = machine.shell(block("sh", "--adopt"))
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("1 of 1 job changed\n")
        assert done.stdout.endswith("it has 2 live jobs.\n")
        states = {job.id: job.state for job in Prinia(copy).storage.find([kept.id, mail.id])}
        assert states == {kept.id: JobState.READY, mail.id: JobState.CANCELLED}
        last = machine.shell("prinia worker shop:app --until-empty", PRINIA_DATABASE_URL=copy)
        assert last.returncode == 0
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("drop database if exists copy with (force)")
    assert mail.info().state is JobState.READY, "the original is as it was"


def test_retention(machine: Machine) -> None:
    done = machine.shell(block("sh", "set_retention"))
    assert (done.returncode, done.stdout) == (
        0, "Retention(completed=3600.0, failed=7776000.0, cancelled=inf)\n"
    ), done.stderr  # fmt: skip


def test_a_role_for_workers(machine: Machine) -> None:
    """Which does not own the tables: with these rights a worker does all of its work."""
    machine.rows("create role shop_worker")
    try:
        machine.rows(block("sql", "shop_worker"))
        dsn = make_conninfo(machine.dsn, options="-c role=shop_worker")
        jobs = [
            machine.send.enqueue("ada"),
            machine.send.options(max_attempts=1, timeout=0.1).enqueue("bob", seconds=60),
        ]
        done = machine.shell("prinia worker shop:app --until-empty", PRINIA_DATABASE_URL=dsn)
        assert done.returncode == 0, done.stderr
        assert [job.info().state for job in jobs] == [JobState.COMPLETED, JobState.FAILED]
        assert "ERROR" not in done.stderr
    finally:
        machine.rows("drop owned by shop_worker")
        machine.rows("drop role shop_worker")
