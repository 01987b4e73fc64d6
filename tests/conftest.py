"""One PostgreSQL server for the whole run, a fresh database for each test that asks for one.

The server is Prinia's own embedded one, in memory where the machine has that, shared by all processes of the run;
PRINIA_TEST_DATABASE_URL names another to use, as a superuser.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from prinia import embedded
from prinia.storage.postgres.migrate import migrate
from tests.skips import ALLOWED

SERVER_OPTIONS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "300",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
}


@pytest.fixture(autouse=True)
def _no_foreign_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test may meet a database, a setting or a colour of the person who runs it."""
    for name in list(os.environ):
        if name.startswith(("PRINIA_", "PG")) and name not in ("PRINIA_TEST_DATABASE_URL", "PRINIA_PG_BIN"):
            monkeypatch.delenv(name)
    monkeypatch.delenv("DATABASE_URL", raising=False)


@pytest.fixture(scope="session")
def server(testrun_uid: str) -> Iterator[str]:
    """A connection string for the server, as a superuser."""
    given = os.environ.get("PRINIA_TEST_DATABASE_URL")
    if given:
        yield given
        return
    memory = Path("/dev/shm")
    home = memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    folder = home / f"prinia-tests-{os.getuid()}-{testrun_uid}"
    attached = embedded.attach(folder, options=SERVER_OPTIONS)
    yield attached.dsn
    if attached.detach(wait=10):
        shutil.rmtree(folder, ignore_errors=True)


class Databases:
    """Makes databases on the server and drops them again."""

    def __init__(self, server: str, prefix: str) -> None:
        self._server = server
        self._prefix = prefix
        self._numbers = itertools.count(1)
        self._template: str | None = None
        with psycopg.connect(server) as connection:
            # Copying files beats logging every page of the copy; 15 and newer can be told.
            self._strategy = "strategy file_copy" if connection.info.server_version >= 150000 else ""

    def empty(self) -> str:
        """The connection string of a new, empty database."""
        return self._create("template0", "")

    def migrated(self) -> str:
        """The connection string of a new database with Prinia's tables."""
        if self._template is None:
            dsn = self._create("template0", "")
            migrate(dsn)
            self._template = conninfo.conninfo_to_dict(dsn)["dbname"]  # type: ignore[assignment]
        return self._create(str(self._template), self._strategy)

    def _create(self, template: str, strategy: str) -> str:
        name = f"{self._prefix}_{next(self._numbers)}"
        self._execute(f'create database "{name}" template "{template}" {strategy}')
        return conninfo.make_conninfo(self._server, dbname=name)

    def drop(self, dsn: str) -> None:
        """Drop one of them, whoever is still connected."""
        self._execute(f'drop database if exists "{conninfo.conninfo_to_dict(dsn)["dbname"]}" with (force)')

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(statement.encode())


@pytest.fixture(scope="session")
def databases(server: str, worker_id: str) -> Databases:
    """Where databases for tests come from."""
    return Databases(server, f"test_{worker_id}_{os.getpid()}")


@pytest.fixture
def database(databases: Databases) -> Iterator[str]:
    """A fresh, empty database."""
    dsn = databases.empty()
    yield dsn
    databases.drop(dsn)


@pytest.fixture
def migrated(databases: Databases) -> Iterator[str]:
    """A fresh database with Prinia's tables in schema prinia."""
    dsn = databases.migrated()
    yield dsn
    databases.drop(dsn)


@pytest.fixture
def new_migrated(databases: Databases) -> Iterator[Callable[[], str]]:
    """Makes as many migrated databases as a test asks for."""
    made: list[str] = []

    def make() -> str:
        made.append(databases.migrated())
        return made[-1]

    yield make
    for dsn in made:
        databases.drop(dsn)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where the gate runs, a test that is skipped without a listed reason is a failure."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("CI") or reporter is None or hasattr(session.config, "workerinput"):
        return
    skipped = [(report.nodeid, str(report.longrepr)) for report in reporter.stats.get("skipped", [])]
    unlisted = [id for id, reason in skipped if not any(part in id or part in reason for part in ALLOWED)]
    if unlisted:
        reporter.write_line(f"skipped without a reason in tests/skips.py: {', '.join(unlisted)}", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
