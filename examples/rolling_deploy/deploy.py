"""A rolling deploy, a restart and a crash of workers that all have one name.

A worker's name is a label: each start is an instance of its own, so nothing has to be made unique, and a new process
works at once, whether the one before it is still there, has just left, or was killed.

    PRINIA_DATABASE_URL=embedded:./data python examples/rolling_deploy/deploy.py

Customers order e-mails until the last process works, while

1. a second process joins the first one under the same name: both work;
2. the first one gets SIGTERM and a third one starts at once: the first finishes what it has begun, the third works;
3. the second one gets SIGKILL and a fourth one starts at once: it works, and what the killed one had in hand is sent
   again as soon as the others have found out, which takes 12 to 20 seconds.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from mailer import DELIVERIES, app, send_email, send_newsletter

NAME = "mailer"
CONCURRENCY = 5
#: Seconds that the newsletter takes: longer than the rolling restart, shorter than the 30 that a stop may take.
NEWSLETTER = 20
#: More than one process can send, so that there is always work for a new one.
ORDERS, ORDERS_EVERY = 20, 0.5


class Process:
    """One ``prinia worker`` in a process of its own."""

    def __init__(self) -> None:
        self.log = tempfile.TemporaryFile("a+", encoding="utf-8")  # noqa: SIM115 (closed by `end`)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "prinia", "worker", "mailer:app", "--name", NAME, "-c", str(CONCURRENCY)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=self.log,
            stderr=self.log,
        )
        self.pid = self._process.pid
        self.signalled = False

    def __str__(self) -> str:
        return f"process {self.pid}"

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        self.signalled = True
        self._process.send_signal(number)

    def said(self) -> str:
        """All that it has logged."""
        self.log.seek(0)
        return self.log.read()

    def complaints(self) -> list[str]:
        """The lines that nobody wants to see there."""
        return [line for line in self.said().splitlines() if re.search("ERROR|CRITICAL|Traceback", line)]

    def end(self) -> None:
        if self.exit_code is None:
            self._process.kill()
        self._process.wait()
        self.log.close()


class Deploy:
    """What is going on: the customers' orders, the processes, and a look at what they have done."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection
        self._order_at = 0.0
        self.ordered: list[int] = []
        self.processes: list[Process] = []

    def start(self) -> Process:
        """A new process, which nobody waits for."""
        self.processes.append(Process())
        return self.processes[-1]

    def ask(self, sql: str, *params: object) -> Any:
        """The first column of the first row."""
        row = self._connection.execute(sql.encode(), params).fetchone()
        return row and row[0]

    def until(self, condition: Callable[[], Any], what: str, *, seconds: float = 20, orders: bool = True) -> Any:
        """Wait for something, and return it, while customers go on ordering."""
        deadline = time.monotonic() + seconds
        while not (answer := condition()):
            if time.monotonic() > deadline:
                raise SystemExit("\n".join([f"not within {seconds:g} s: {what}", *map(Process.said, self.processes)]))
            if orders and time.monotonic() > self._order_at:
                self.order()
            time.sleep(0.02)
        return answer

    def order(self) -> None:
        """Some more e-mails."""
        self._order_at = time.monotonic() + ORDERS_EVERY
        jobs = app.enqueue_many(send_email.job(f"customer-{len(self.ordered) + n}@example.com") for n in range(ORDERS))
        self.ordered += [job.id for job in jobs]

    def begun(self, process: Process) -> int:
        """How many deliveries this process has begun."""
        return int(self.ask("select count(*) from rolling_deploy_deliveries where process = %s", process.pid))

    def works(self, process: Process) -> str:
        """Wait until a new process works; say how long after its registration the first job was started."""
        self.until(lambda: self.begun(process), f"{process} starts its first job")
        seconds = self.ask(
            "select extract(epoch from min(d.started_at) - min(w.started_at))::float8"
            " from rolling_deploy_deliveries d, prinia.workers w where d.process = %s and w.pid = d.process",
            process.pid,
        )
        return f"{process} started its first job {seconds:.2f} s after it had registered"


@contextmanager
def deploying() -> Iterator[Deploy]:
    with app, psycopg.connect(app.dsn, autocommit=True) as connection:
        connection.execute(DELIVERIES.encode())
        deploy = Deploy(connection)
        try:
            yield deploy
        finally:
            for process in deploy.processes:
                process.end()


def overlap(deploy: Deploy) -> tuple[Process, Process]:
    """Two processes of one name, the first of them busy with a newsletter."""
    first = deploy.start()
    newsletter = send_newsletter.enqueue(NEWSLETTER)
    deploy.ordered.append(newsletter.id)
    deploy.until(lambda: deploy.begun(first), f"{first} starts the newsletter", orders=False)
    say(f"{first} sends the newsletter, which takes {NEWSLETTER} s")
    second = deploy.start()
    say(deploy.works(second))
    instances = deploy.ask("select count(distinct id) from prinia.workers where name = %s and died_at is null", NAME)
    say(f"{instances} instances of one name, {NAME!r}, are registered; both work")
    return first, second


def restart(deploy: Deploy, old: Process) -> None:
    """SIGTERM to the old one, and a new one at once."""
    old.send(signal.SIGTERM)
    new = deploy.start()
    say(f"SIGTERM to {old}; {new} starts under the same name")
    say(f"{deploy.works(new)}, while {old} {'finishes the newsletter' if old.exit_code is None else 'has ended'}")


def crash(deploy: Deploy, victim: Process) -> None:
    """SIGKILL in mid-work, and a new one at once; what was in hand is sent again."""
    in_hand = "from rolling_deploy_deliveries where process = %s and finished_at is null"
    deploy.until(lambda: deploy.ask(f"select count(*) {in_hand}", victim.pid), f"{victim} has work in hand")
    victim.send(signal.SIGKILL)
    new = deploy.start()
    killed_at = deploy.ask("select clock_timestamp()")
    deploy.until(lambda: victim.exit_code is not None, f"{victim} is gone")
    lost = deploy.ask(f"select array_agg(job) {in_hand}", victim.pid) or []
    say(f"SIGKILL to {victim} with {len(lost)} e-mails in hand; {new} starts under the same name")
    say(deploy.works(new))
    again = "select count(distinct job) from rolling_deploy_deliveries where job = any (%s) and process <> %s"
    deploy.until(
        lambda: deploy.ask(again, lost, victim.pid) == len(lost), "they are sent again", seconds=30, orders=False
    )
    late = again.replace("count(distinct job)", "extract(epoch from max(started_at) - %s)::float8")
    seconds = deploy.ask(late, killed_at, lost, victim.pid)
    say(f"the {len(lost)} e-mails are sent again, the last {seconds:.1f} s after the kill")


def settle(deploy: Deploy) -> None:
    """No more orders: everything is sent, the processes end."""
    left = "select count(*) from prinia.jobs where id = any (%s)"
    deploy.until(lambda: deploy.ask(left, deploy.ordered) == 0, "all is sent", seconds=60, orders=False)
    for process in deploy.processes:
        if not process.signalled:  # a second SIGTERM would mean: now
            process.send(signal.SIGTERM)
    deploy.until(lambda: all(p.exit_code is not None for p in deploy.processes), "all have ended", orders=False)
    say("exit codes: " + ", ".join(str(process.exit_code) for process in deploy.processes))
    completed = "select count(*) from prinia.archive where state = 'completed' and id = any (%s)"
    distinct = completed.replace("(*)", "(distinct id)")
    say(
        f"{len(deploy.ordered)} jobs ordered, {deploy.ask(distinct, deploy.ordered)} completed,"
        f" {deploy.ask(completed, deploy.ordered) - deploy.ask(distinct, deploy.ordered)} of them recorded twice"
    )
    complaints = [line for process in deploy.processes for line in process.complaints()]
    say("\n".join(complaints) or "no error in any log")


def say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    app.migrate()
    with deploying() as deploy:
        first, second = overlap(deploy)
        restart(deploy, first)
        crash(deploy, second)
        settle(deploy)


if __name__ == "__main__":
    main()
