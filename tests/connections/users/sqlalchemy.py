"""SQLAlchemy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from prinia import Job, NewJob, Prinia, SyncTask
from prinia.storage.protocol import Storage

from .base import AsyncUser, User


class SQLAlchemy(User):
    """With a connection."""

    kind = "sqlalchemy-psycopg"
    driver = "psycopg"

    def engine(self) -> Any:
        return sa.create_engine(f"postgresql+{self.driver}://", connect_args=self.parts, poolclass=sa.NullPool)

    def open(self) -> None:
        self.within: Any = self.engine().connect()

    def loosen(self) -> None:
        self.run(self.within.execution_options(isolation_level="AUTOCOMMIT"))

    def execute(self, statement: str) -> None:
        self.run(self.within.execute(sa.text(statement)))

    def savepoint(self) -> Any:
        return self.run(self.within.begin_nested())

    def release(self, savepoint: Any) -> None:
        self.run(savepoint.commit())

    def undo(self, savepoint: Any) -> None:
        self.run(savepoint.rollback())


class SQLAlchemyPsycopg2(SQLAlchemy):
    kind = "sqlalchemy-psycopg2"
    driver = "psycopg2"


class SQLAlchemySession(SQLAlchemy):
    kind = "sqlalchemy-session"

    def open(self) -> None:
        self.within = Session(self.engine())

    def loosen(self) -> None:
        self.within.bind = self.within.bind.execution_options(isolation_level="AUTOCOMMIT")


class SQLAlchemyScoped(SQLAlchemySession):
    kind = "sqlalchemy-scoped"

    def open(self) -> None:
        self.within = scoped_session(sessionmaker(self.engine()))

    def close(self) -> None:
        self.within.remove()

    def loosen(self) -> None:
        self.within().bind = self.within().bind.execution_options(isolation_level="AUTOCOMMIT")


class SQLAlchemyAsync(AsyncUser, SQLAlchemy):
    kind = "sqlalchemy-async-asyncpg"
    driver = "asyncpg"

    def engine(self) -> Any:
        parts = dict(self.parts)
        if self.driver == "asyncpg":
            parts = {"database" if name == "dbname" else name: value for name, value in parts.items()}
        return create_async_engine(f"postgresql+{self.driver}://", connect_args=parts, poolclass=sa.NullPool)

    async def _connect(self) -> Any:
        return await self.engine().connect()

    def open(self) -> None:
        self.within = self.run(self._connect())


class SQLAlchemyAsyncPsycopg(SQLAlchemyAsync):
    kind = "sqlalchemy-async-psycopg"
    driver = "psycopg"


class SQLAlchemyAsyncSession(SQLAlchemyAsync):
    kind = "sqlalchemy-async-session-asyncpg"

    def open(self) -> None:
        self.within = AsyncSession(self.engine())

    def loosen(self) -> None:
        session = self.within.sync_session
        session.bind = session.bind.execution_options(isolation_level="AUTOCOMMIT")


class SQLAlchemyAsyncSessionPsycopg(SQLAlchemyAsyncSession):
    kind = "sqlalchemy-async-session-psycopg"
    driver = "psycopg"


class SQLAlchemyAsyncScoped(SQLAlchemyAsyncSession):
    kind = "sqlalchemy-async-scoped"

    def open(self) -> None:
        self.within = async_scoped_session(async_sessionmaker(self.engine()), scopefunc=lambda: None)

    def close(self) -> None:
        self.run(self.within.remove())

    def loosen(self) -> None:
        session = self.within().sync_session
        session.bind = session.bind.execution_options(isolation_level="AUTOCOMMIT")


class SQLAlchemyRunSync(SQLAlchemyAsyncSession):
    """Blocking code inside ``run_sync``, which gets a Session over an async driver."""

    kind = "sqlalchemy-run-sync"

    def open(self) -> None:
        super().open()
        self.session, self.within = self.within, self.within.sync_session

    def _inside(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.run(self.session.run_sync(lambda _: function(*args)))

    def close(self) -> None:
        self.run(self.session.close())

    def loosen(self) -> None:
        self.within.bind = self.within.bind.execution_options(isolation_level="AUTOCOMMIT")

    def commit(self) -> None:
        self._inside(self.within.commit)

    def rollback(self) -> None:
        self._inside(self.within.rollback)

    def execute(self, statement: str) -> None:
        self._inside(self.within.execute, sa.text(statement))

    def savepoint(self) -> Any:
        return self._inside(self.within.begin_nested)

    def release(self, savepoint: Any) -> None:
        self._inside(savepoint.commit)

    def undo(self, savepoint: Any) -> None:
        self._inside(savepoint.rollback)

    def enqueue(self, task: SyncTask[[int], int], number: int) -> Job[int]:
        job: Job[int] = self._inside(super().enqueue, task, number)
        return job

    def enqueue_many(self, app: Prinia, jobs: Iterable[NewJob[int]]) -> list[Job[int]]:
        many: list[Job[int]] = self._inside(super().enqueue_many, app, jobs)
        return many

    def complete(self, storage: Storage, instance: UUID, id: int, token: int, result: bytes | None = None) -> bool:
        ours: bool = self._inside(super().complete, storage, instance, id, token, result)
        return ours
