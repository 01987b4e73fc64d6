"""``prinia worker -p N``, and what goes with it: real processes, real signals, real deaths."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from prinia import Prinia
from tests.waiting import until

from .conftest import Cli

JOBS = """
import asyncio, os, signal, time
from prinia import INJECTED, Context, Prinia

app = Prinia()

@app.task(name="pid", queue="q")
async def pid(ctx: Context = INJECTED) -> list[int]:
    await asyncio.sleep(0.01)
    return [os.getpid(), ctx.worker.run]

@app.task(name="linger", queue="q")
async def linger() -> None:
    await asyncio.sleep(600)

@app.task(name="block", queue="q")
async def block() -> None:
    time.sleep(600)

@app.task(name="grow", queue="q")
async def grow(megabytes: int) -> None:
    kept.append(b"x" * megabytes * 1024 * 1024)

@app.task(name="stop", queue="q")
async def stop(ctx: Context = INJECTED) -> None:
    ctx.worker.stop()

@app.task(name="apart", queue="q", process=True)
def apart(path: str) -> None:
    with open(path + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".new", path)
    time.sleep(600)

kept = []
"""


@pytest.fixture
def crew(cli: Cli, migrated: str) -> Iterator[Cli]:
    """A folder with the app, its database set; whatever is left of a crew is killed."""
    cli.module("crew.py", JOBS)
    yield cli
    for pid in pids(migrated):
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)


def query(dsn: str, sql: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(sql.encode()).fetchall()


def pids(dsn: str) -> list[int]:
    return [pid for (pid,) in query(dsn, "select pid from prinia.workers where died_at is null order by started_at")]


def runs(dsn: str) -> list[int]:
    return [run for (run,) in query(dsn, "select run from prinia.workers where died_at is null order by run")]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_working(dsn: str, size: int) -> list[int]:
    until(lambda: len(pids(dsn)) == size, seconds=60, what=f"{size} processes at work")
    return pids(dsn)


def push(dsn: str, task: str, number: int = 1, **arguments: Any) -> list[int]:
    app = Prinia(dsn)
    jobs = [app.job_by_name(task, arguments, queue="q", max_attempts=1) for _ in range(number)]
    return [job.id for job in app.enqueue_many(jobs)]


def count(dsn: str, state: str) -> int:
    return int(query(dsn, f"select count(*) from prinia.all_jobs where state = '{state}'")[0][0])


def start(cli: Cli, dsn: str, *options: str, **environment: str) -> subprocess.Popen[str]:
    return cli.start("worker", "crew:app", *options, PRINIA_DATABASE_URL=dsn, **environment)


def get(path: str, probe: str) -> tuple[int, dict[str, Any]]:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(path)
        client.sendall(f"GET /{probe} HTTP/1.1\r\n\r\n".encode())
        answer = b""
        while part := client.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def test_several_processes_work_are_healthy_and_are_stopped_together(crew: Cli, migrated: str) -> None:
    address = str(crew.scratch / "health.sock")
    process = start(crew, migrated, "-p", "2", "--health", f"unix:{address}")
    working = until_working(migrated, 2)
    assert process.pid not in working
    push(migrated, "pid", 300)
    until(lambda: count(migrated, "completed") == 300, seconds=60, what="all jobs")
    until(lambda: get(address, "ready")[0] == 200, seconds=60, what="all ready")
    status, said = get(address, "ready")
    assert (status, said["ok"]) == (200, True)
    assert [(one["number"], one["run"], one["ok"]) for one in said["processes"]] == [(1, 0, True), (2, 0, True)]
    assert {one["pid"] for one in said["processes"]} == set(working)
    assert [worker["listener"] for one in said["processes"] for worker in one["workers"]] == ["listening"] * 2
    assert get(address, "live")[0] == 200
    until(lambda: all(lag is not None for (lag,) in query(migrated, "select lag from prinia.workers")), what="vitals")
    assert query(migrated, "select distinct listener from prinia.workers") == [("listening",)]
    process.terminate()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert f"2 processes of crew:app under process {process.pid}" in out
    assert "Traceback" not in err
    assert not any(map(is_running, working))
    assert pids(migrated) == []
    assert not os.path.exists(address)


def test_a_process_that_dies_is_followed_by_another(crew: Cli, migrated: str) -> None:
    process = start(crew, migrated, "-p", "2")
    doomed, other = until_working(migrated, 2)
    os.kill(doomed, signal.SIGKILL)
    until(lambda: len(pids(migrated)) == 3, seconds=60, what="a successor, long before the dead one is missed")
    assert other in pids(migrated)
    assert runs(migrated) == [0, 0, 1]
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert re.search(rf"process \d \(pid {doomed}, run 0\) ended with SIGKILL, another one is started in ", err)


def test_the_parents_death_ends_the_processes(crew: Cli, migrated: str) -> None:
    process = start(crew, migrated, "-p", "2")
    working = until_working(migrated, 2)
    process.kill()
    process.wait()
    until(lambda: not any(map(is_running, working)), seconds=60, what="the end of the processes")
    assert pids(migrated) == [], "they have left in order"


def test_the_workers_death_ends_the_processes_of_its_pool(crew: Cli, migrated: str) -> None:
    """In the middle of a function too."""
    path = crew.scratch / "apart"
    process = start(crew, migrated)
    push(migrated, "apart", path=str(path))
    until(path.exists, seconds=60, what="the function to start")
    assert is_running(int(path.read_text()))
    process.kill()
    process.wait()
    until(lambda: not is_running(int(path.read_text())), seconds=60, what="its end")


def test_a_stop_lets_jobs_finish_and_the_second_signal_is_now(crew: Cli, migrated: str) -> None:
    jobs = push(migrated, "linger", 4)
    process = start(crew, migrated, "-p", "2", "-c", "2", "--stop-timeout", "500")
    working = until_working(migrated, 2)
    until(lambda: count(migrated, "running") == len(jobs), seconds=60, what="all run")
    process.terminate()
    until(lambda: "once more to stop now" in read_line(process), what="the first signal's answer")
    assert all(map(is_running, working))
    process.terminate()
    assert process.wait(60) == 0
    assert query(migrated, "select distinct state, attempt from prinia.all_jobs") == [("ready", 0)]


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def test_a_signal_to_all_at_once_is_no_hurry(crew: Cli, migrated: str) -> None:
    """A service manager may signal parent and processes alike: each job still has its time."""
    [job] = push(migrated, "linger")
    process = start(crew, migrated, "-p", "2", "--stop-timeout", "500")
    working = until_working(migrated, 2)
    until(lambda: count(migrated, "running") == 1, seconds=60, what="it runs")
    for pid in (process.pid, *working):
        os.kill(pid, signal.SIGTERM)
    until(lambda: len(pids(migrated)) == 1, seconds=60, what="the idle one's end")
    assert query(migrated, f"select state from prinia.all_jobs where id = {job}") == [("running",)]
    process.terminate()
    assert process.wait(60) == 0


def test_what_does_not_end_is_killed(crew: Cli, migrated: str) -> None:
    """A handler that blocks its event loop makes a process deaf to its stop."""
    crew.module(
        "impatient.py",
        "import asyncio, sys\nfrom prinia.supervisor import Crew\n"
        "crew = Crew([sys.executable, '-m', 'prinia', 'worker', 'crew:app'], 2, stop_timeout=0.1, farewell=0.1)\n"
        "sys.exit(asyncio.run(crew.run()))\n",
    )
    push(migrated, "block")
    process = crew.program("impatient.py", PRINIA_DATABASE_URL=migrated)
    working = until_working(migrated, 2)
    until(lambda: count(migrated, "running") == 1, seconds=60, what="it blocks")
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "has not ended in time, it is killed; its jobs run again" in err
    assert not any(map(is_running, working))


def test_a_third_signal_ends_all_at_once(crew: Cli, migrated: str) -> None:
    push(migrated, "block")
    process = start(crew, migrated, "-p", "2")
    working = until_working(migrated, 2)
    until(lambda: count(migrated, "running") == 1, seconds=60, what="it blocks")
    for said in ("once more to stop now", "stopping now"):
        process.send_signal(signal.SIGINT)
        until(lambda said=said: said in read_line(process), what="an answer")  # type: ignore[misc]
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    until(lambda: not any(map(is_running, working)), what="their end")


@pytest.mark.parametrize(
    ("options", "task", "arguments"),
    [(("--max-jobs", "5"), "pid", {}), (("--max-rss", "150"), "grow", {"megabytes": 100})],
)
def test_a_tired_process_is_replaced_without_a_gap(
    crew: Cli, migrated: str, options: tuple[str, ...], task: str, arguments: dict[str, Any]
) -> None:
    """Also of one process: its successor works before it goes."""
    process = start(crew, migrated, *options)
    [first] = until_working(migrated, 1)
    push(migrated, task, 6, **arguments)
    fewest = 1

    def replaced() -> bool:
        nonlocal fewest
        now = pids(migrated)
        fewest = min(fewest, len(now))
        return len(now) == 1 and first not in now

    until(replaced, seconds=60, what="its successor")
    assert fewest == 1
    assert runs(migrated) == [1]
    until(lambda: count(migrated, "completed") == 6, seconds=60, what="all jobs")
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert re.search(rf"\(pid {first}, run 0\) is tired, it is replaced", err)


def test_until_empty(crew: Cli, migrated: str) -> None:
    push(migrated, "pid", 50)
    later = Prinia(migrated).job_by_name("pid", {}, queue="q", delay=600)
    Prinia(migrated).enqueue_many([later])
    assert start(crew, migrated, "-p", "2", "--until-empty").wait(60) == 0
    assert (count(migrated, "completed"), count(migrated, "scheduled")) == (50, 1)


def test_a_worker_stopped_by_its_handler_is_not_started_anew(crew: Cli, migrated: str) -> None:
    process = start(crew, migrated, "-p", "2")
    until_working(migrated, 2)
    push(migrated, "stop")
    until(lambda: len(pids(migrated)) == 1, seconds=60, what="one to stop")
    push(migrated, "stop")
    assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("target", "code", "said"),
    [("nosuch:app", 2, "there is no module 'nosuch'"), ("crew:app", 1, "Run: prinia migrate")],
)
def test_what_cannot_start_says_so_once(crew: Cli, database: str, target: str, code: int, said: str) -> None:
    done = crew.run("worker", target, "-p", "3", PRINIA_DATABASE_URL=database)
    assert done.returncode == code
    assert done.stderr.count(said) == 1
    assert f"giving up, all processes are stopped: process 1 (pid " in done.stderr  # noqa: F541
    assert "Traceback" not in done.stderr


def test_a_process_that_fails_too_often_ends_the_crew(crew: Cli, migrated: str) -> None:
    crew.module(
        "capped.py",
        "import asyncio, sys\nfrom prinia.supervisor import Crew\n"
        "from prinia.supervisor.restarts import RestartPolicy\n"
        "policy = RestartPolicy(max_restarts=1, delay=0.01)\n"
        "crew = Crew([sys.executable, '-m', 'prinia', 'worker', 'crew:app'], 2, policy=policy)\n"
        "sys.exit(asyncio.run(crew.run()))\n",
    )
    process = crew.program("capped.py", PRINIA_DATABASE_URL=migrated)
    doomed, steady = until_working(migrated, 2)
    os.kill(doomed, signal.SIGKILL)
    until(lambda: len(pids(migrated)) == 3, seconds=60, what="a successor")
    [successor] = set(pids(migrated)) - {doomed, steady}
    os.kill(successor, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert "ended with SIGKILL, the 2. failure in a row" in err
    assert not is_running(steady)


@pytest.mark.parametrize("size", ["1", "2"])
def test_a_port_in_use(crew: Cli, migrated: str, size: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = crew.run("worker", "crew:app", "-p", size, "--health", address, PRINIA_DATABASE_URL=migrated)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"prinia: health: {address} is in use by another process")
    assert "Traceback" not in done.stderr
    assert pids(migrated) == []
