"""psycopg."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

import psycopg
from psycopg.rows import dict_row

from .base import AsyncUser, User


class Psycopg(User):
    kind = "psycopg"
    options: ClassVar[dict[str, Any]] = {}

    def open(self) -> None:
        self.within: psycopg.Connection[Any] = psycopg.connect(self.dsn, **self.options)

    def loosen(self) -> None:
        self.within.autocommit = True

    def execute(self, statement: str) -> None:
        psycopg.Cursor(self.within).execute(statement.encode())


class PsycopgDicts(Psycopg):
    kind = "psycopg-dicts"
    options: ClassVar[dict[str, Any]] = {"row_factory": dict_row}


class PsycopgRaw(Psycopg):
    kind = "psycopg-raw"
    options: ClassVar[dict[str, Any]] = {"cursor_factory": psycopg.RawCursor}


class PsycopgClient(Psycopg):
    kind = "psycopg-client"
    options: ClassVar[dict[str, Any]] = {"cursor_factory": psycopg.ClientCursor}


class PsycopgAutocommit(Psycopg):
    """Transactions by ``with connection.transaction()``."""

    kind = "psycopg-autocommit"
    options: ClassVar[dict[str, Any]] = {"autocommit": True}

    def begin(self) -> None:
        self._transaction = self.within.transaction()
        self._transaction.__enter__()

    def commit(self) -> None:
        self._transaction.__exit__(None, None, None)

    def rollback(self) -> None:
        error = psycopg.Rollback()
        self._transaction.__exit__(psycopg.Rollback, error, None)


class PsycopgPipeline(PsycopgAutocommit):
    kind = "psycopg-pipeline"

    def begin(self) -> None:
        self._scope = self.within.pipeline()
        self._pipeline = self._scope.__enter__()
        super().begin()

    def commit(self) -> None:
        super().commit()
        self._scope.__exit__(None, None, None)

    def rollback(self) -> None:
        super().rollback()
        self._scope.__exit__(None, None, None)

    def fail(self) -> None:
        super().fail()
        with contextlib.suppress(psycopg.Error):
            self._pipeline.sync()


class PsycopgAsync(AsyncUser):
    kind = "psycopg-async"

    def open(self) -> None:
        self.within = self.run(psycopg.AsyncConnection.connect(self.dsn, row_factory=dict_row))

    def loosen(self) -> None:
        self.run(self.within.set_autocommit(True))

    def execute(self, statement: str) -> None:
        self.run(self.within.execute(statement.encode()))
