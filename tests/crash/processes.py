"""Real worker processes, and a look at the database that they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import psycopg

ROOT = Path(__file__).parents[2]


class WorkerProcess:
    """One ``prinia worker``; killed at the end of the block if it still runs."""

    def __init__(self, dsn: str, *options: str, **environment: str) -> None:
        self._command = [sys.executable, "-m", "prinia", "worker", "tests.crash.app:app", *options]
        self._environment = os.environ | {"PRINIA_DATABASE_URL": dsn} | environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it; returns at once."""
        self._process = subprocess.Popen(self._command, cwd=ROOT, env=self._environment, stderr=subprocess.DEVNULL,
                                         stdout=subprocess.DEVNULL)  # fmt: skip
        return self

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def ended(self) -> bool:
        """Whether it runs no more."""
        return self.process.poll() is not None

    def kill(self) -> None:
        """kill -9, and reap it."""
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None and not self.ended:
            self.kill()


class Ledger:
    """The test's own look at the database."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg.connect(dsn, autocommit=True)
        self.connection.execute("create table effects (job_id bigint, at timestamptz default clock_timestamp())")

    def one(self, sql: str, *params: Any) -> Any:
        """The first column of the first row."""
        row = self.connection.execute(sql.encode(), params).fetchone()
        return row and row[0]

    def finished(self, state: str = "completed") -> int:
        """How many jobs ended so."""
        return int(self.one("select count(*) from prinia.archive where state = %s", state))

    def recorded_twice(self) -> int:
        """How many jobs are in the archive more than once, or still live as well."""
        return int(
            self.one("select count(*) from (select id from prinia.all_jobs group by id having count(*) > 1) as twice")
        )

    def workers(self) -> int:
        """How many instances are on the register."""
        return int(self.one("select count(*) from prinia.workers where died_at is null"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()
