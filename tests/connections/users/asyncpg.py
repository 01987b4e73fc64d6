"""asyncpg."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import asyncpg  # type: ignore[import-untyped, unused-ignore]

from .base import AsyncUser, User


class Asyncpg(AsyncUser):
    kind = "asyncpg"

    def connect(self) -> Awaitable[Any]:
        parts = self.parts
        connecting: Awaitable[Any] = asyncpg.connect(
            host=parts.get("host"), port=parts.get("port"), user=parts.get("user"), database=parts["dbname"],
            password=parts.get("password"),
        )  # fmt: skip
        return connecting

    def open(self) -> None:
        self.within = self.call(self.connect)

    def loosen(self) -> None:
        """It is loose outside a transaction."""

    def begin(self) -> None:
        self._transaction = self.within.transaction()
        self.run(self._transaction.start())

    def commit(self) -> None:
        self.run(self._transaction.commit())

    def rollback(self) -> None:
        self.run(self._transaction.rollback())

    def execute(self, statement: str) -> None:
        self.run(self.within.execute(statement))

    def savepoint(self) -> Any:
        inner = self.within.transaction()
        self.run(inner.start())
        return inner

    def release(self, savepoint: Any) -> None:
        self.run(savepoint.commit())

    def undo(self, savepoint: Any) -> None:
        self.run(savepoint.rollback())


class AsyncpgBegun(Asyncpg):
    """Transactions that are begun by a statement."""

    kind = "asyncpg-begun"

    def begin(self) -> None:
        self.execute("begin")

    def commit(self) -> None:
        self.execute("commit")

    def rollback(self) -> None:
        self.execute("rollback")

    def savepoint(self) -> Any:
        User.savepoint(self)

    def release(self, savepoint: Any) -> None:
        User.release(self, savepoint)

    def undo(self, savepoint: Any) -> None:
        User.undo(self, savepoint)


class AsyncpgPool(Asyncpg):
    """What a pool lends, with codecs of the user's own for JSON."""

    kind = "asyncpg-pool"

    async def _setup(self, connection: Any) -> None:
        import json

        for name in ("json", "jsonb"):
            await connection.set_type_codec(name, schema="pg_catalog", encoder=json.dumps, decoder=json.loads)

    async def _lend(self) -> Any:
        parts = self.parts
        self.pool = await asyncpg.create_pool(
            host=parts.get("host"), port=parts.get("port"), user=parts.get("user"), database=parts["dbname"],
            password=parts.get("password"), min_size=1, max_size=1, init=self._setup,
        )  # fmt: skip
        return await self.pool.acquire()

    def open(self) -> None:
        self.within = self.run(self._lend())

    def close(self) -> None:
        self.run(self.pool.release(self.within))

    def shut(self) -> None:
        self.pool.terminate()
        super().shut()
