"""psycopg2."""

from __future__ import annotations

import psycopg2  # type: ignore[import-untyped, unused-ignore]
import psycopg2.extras  # type: ignore[import-untyped, unused-ignore]

from .base import User


class Psycopg2(User):
    kind = "psycopg2"

    def open(self) -> None:
        self.within = psycopg2.connect(self.dsn, cursor_factory=psycopg2.extras.RealDictCursor)

    def loosen(self) -> None:
        self.within.autocommit = True

    def execute(self, statement: str) -> None:
        with self.within.cursor() as cursor:
            cursor.execute(statement)


class Psycopg2Begun(Psycopg2):
    """In autocommit, with transactions that are begun by a statement."""

    kind = "psycopg2-begun"

    def open(self) -> None:
        super().open()
        self.within.autocommit = True

    def begin(self) -> None:
        self.execute("begin")

    def commit(self) -> None:
        self.execute("commit")

    def rollback(self) -> None:
        self.execute("rollback")
