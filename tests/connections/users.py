"""How the users of each library write a transaction: one class per kind of connection, all with the same methods.

They are blocking, so that one test serves both colours: what has to be awaited runs on a loop of the user's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, ClassVar
from uuid import UUID

import asyncpg  # type: ignore[import-untyped, unused-ignore]
import psycopg
import psycopg2  # type: ignore[import-untyped, unused-ignore]
import psycopg2.extras  # type: ignore[import-untyped, unused-ignore]
import sqlalchemy as sa
from psycopg import conninfo
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from prinia import Job, NewJob, Prinia, SyncTask
from prinia.connection import is_async
from prinia.storage.protocol import Storage

BAD = "select 1/0"


class User:
    """A user with a connection. ``within`` is what is handed to Prinia."""

    kind: ClassVar[str]
    within: Any

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.parts: dict[str, Any] = {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items()}
        self.open()

    # -- what each kind says -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect."""
        raise NotImplementedError

    def close(self) -> None:
        """Disconnect."""
        raise NotImplementedError

    def loosen(self) -> None:
        """From now on every statement commits by itself."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin a transaction where that takes anything."""

    def commit(self) -> None:
        raise NotImplementedError

    def rollback(self) -> None:
        raise NotImplementedError

    def execute(self, statement: str) -> None:
        raise NotImplementedError

    def savepoint(self) -> Any:
        """A savepoint, begun; it is ended by `release` or `undo`."""
        self.execute("savepoint mine")

    def release(self, savepoint: Any) -> None:
        self.execute("release savepoint mine")

    def undo(self, savepoint: Any) -> None:
        self.execute("rollback to savepoint mine")

    # -- the same for all --------------------------------------------------------------------------------------

    @property
    def is_async(self) -> bool:
        return is_async(self.within)

    def run(self, awaitable: Awaitable[Any]) -> Any:
        raise NotImplementedError

    def fail(self) -> None:
        """Spoil the transaction."""
        with contextlib.suppress(Exception):
            self.execute(BAD)

    def enqueue(self, task: SyncTask[[int], int], number: int) -> Job[int]:
        if self.is_async:
            job: Job[int] = self.run(task.within(self.within).aenqueue(number))
            return job
        blocking: Job[int] = task.within(self.within).enqueue(number)
        return blocking

    def enqueue_many(self, app: Prinia, jobs: Iterable[NewJob[int]]) -> list[Job[int]]:
        if self.is_async:
            return list(self.run(app.within(self.within).aenqueue_many(jobs)))
        return list(app.within(self.within).enqueue_many(jobs))

    def complete(self, storage: Storage, instance: UUID, id: int, token: int, result: bytes | None = None) -> bool:
        if self.is_async:
            ours: bool = self.run(storage.acomplete_within(self.within, instance, id, token, result))
            return ours
        return storage.complete_within(self.within, instance, id, token, result)


class AsyncUser(User):
    """A user with an event loop."""

    def __init__(self, dsn: str) -> None:
        self._runner = asyncio.Runner()
        super().__init__(dsn)

    def run(self, awaitable: Awaitable[Any]) -> Any:
        async def on_loop() -> Any:
            return await awaitable

        return self._runner.run(on_loop())

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call that needs a running loop, and await its answer if it is to be awaited."""

        async def on_loop() -> Any:
            answer = function(*args, **kwargs)
            return await answer if isinstance(answer, Awaitable) else answer

        return self._runner.run(on_loop())

    def shut(self) -> None:
        self._runner.close()


# -- psycopg ----------------------------------------------------------------------------------------------------------


class Psycopg(User):
    kind = "psycopg"
    options: ClassVar[dict[str, Any]] = {}

    def open(self) -> None:
        self.within: psycopg.Connection[Any] = psycopg.connect(self.dsn, **self.options)

    def close(self) -> None:
        self.within.close()

    def loosen(self) -> None:
        self.within.autocommit = True

    def commit(self) -> None:
        self.within.commit()

    def rollback(self) -> None:
        self.within.rollback()

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

    def close(self) -> None:
        self.run(self.within.close())

    def loosen(self) -> None:
        self.run(self.within.set_autocommit(True))

    def commit(self) -> None:
        self.run(self.within.commit())

    def rollback(self) -> None:
        self.run(self.within.rollback())

    def execute(self, statement: str) -> None:
        self.run(self.within.execute(statement.encode()))


# -- psycopg2 ---------------------------------------------------------------------------------------------------------


class Psycopg2(User):
    kind = "psycopg2"

    def open(self) -> None:
        self.within = psycopg2.connect(self.dsn, cursor_factory=psycopg2.extras.RealDictCursor)

    def close(self) -> None:
        self.within.close()

    def loosen(self) -> None:
        self.within.autocommit = True

    def commit(self) -> None:
        self.within.commit()

    def rollback(self) -> None:
        self.within.rollback()

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


# -- asyncpg ----------------------------------------------------------------------------------------------------------


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

    def close(self) -> None:
        self.run(self.within.close())

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


# -- SQLAlchemy -------------------------------------------------------------------------------------------------------


class SQLAlchemy(User):
    """With a connection."""

    kind = "sqlalchemy-psycopg"
    driver = "psycopg"

    def engine(self) -> sa.Engine:
        return sa.create_engine(f"postgresql+{self.driver}://", connect_args=self.parts, poolclass=sa.NullPool)

    def open(self) -> None:
        self.within: Any = self.engine().connect()

    def close(self) -> None:
        self.within.close()

    def loosen(self) -> None:
        self.within.execution_options(isolation_level="AUTOCOMMIT")

    def commit(self) -> None:
        self.within.commit()

    def rollback(self) -> None:
        self.within.rollback()

    def execute(self, statement: str) -> None:
        self.within.execute(sa.text(statement))

    def savepoint(self) -> Any:
        return self.within.begin_nested()

    def release(self, savepoint: Any) -> None:
        savepoint.commit()

    def undo(self, savepoint: Any) -> None:
        savepoint.rollback()


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


class SQLAlchemyAsync(AsyncUser):
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
        self.within: Any = self.run(self._connect())

    def close(self) -> None:
        self.run(self.within.close())

    def loosen(self) -> None:
        self.run(self.within.execution_options(isolation_level="AUTOCOMMIT"))

    def commit(self) -> None:
        self.run(self.within.commit())

    def rollback(self) -> None:
        self.run(self.within.rollback())

    def execute(self, statement: str) -> None:
        self.run(self.within.execute(sa.text(statement)))

    def savepoint(self) -> Any:
        return self.run(self.within.begin_nested())

    def release(self, savepoint: Any) -> None:
        self.run(savepoint.commit())

    def undo(self, savepoint: Any) -> None:
        self.run(savepoint.rollback())


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


# -- Django -----------------------------------------------------------------------------------------------------------


class Django(User):
    kind = "django-psycopg"
    options: ClassVar[dict[str, Any]] = {}
    _aliases = itertools.count(1)

    def open(self) -> None:
        import django  # type: ignore[import-untyped, unused-ignore]
        from django.conf import settings  # type: ignore[import-untyped, unused-ignore]

        if not settings.configured:
            settings.configure(DATABASES={}, USE_TZ=True)
            django.setup()
        from django.db import connections  # type: ignore[import-untyped, unused-ignore]

        parts = self.parts
        self.alias = f"shop{next(self._aliases)}"
        told = {
            "ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], "USER": parts.get("user", ""),
            "HOST": parts.get("host", ""), "PORT": parts.get("port", ""), "PASSWORD": parts.get("password", ""),
            "OPTIONS": self.options,
        }  # fmt: skip
        settled = connections.configure_settings({"default": {}, self.alias: told})[self.alias]
        connections.settings[self.alias] = settled
        connections[self.alias] = self.wrapper()(settled, self.alias)
        self.within = connections[self.alias]

    def wrapper(self) -> Any:
        from django.db.backends.postgresql.base import DatabaseWrapper  # type: ignore[import-untyped, unused-ignore]

        return DatabaseWrapper

    def close(self) -> None:
        self.within.close()

    def loosen(self) -> None:
        """It is loose outside an atomic block."""

    def begin(self) -> None:
        from django.db import transaction

        self._atomic = transaction.atomic(using=self.alias)
        self._atomic.__enter__()

    def commit(self) -> None:
        self._atomic.__exit__(None, None, None)

    def rollback(self) -> None:
        self._atomic.__exit__(OSError, OSError(), None)

    def execute(self, statement: str) -> None:
        with self.within.cursor() as cursor:
            cursor.execute(statement)

    def savepoint(self) -> Any:
        from django.db import transaction

        inner = transaction.atomic(using=self.alias)
        inner.__enter__()
        return inner

    def release(self, savepoint: Any) -> None:
        savepoint.__exit__(None, None, None)

    def undo(self, savepoint: Any) -> None:
        savepoint.__exit__(OSError, OSError(), None)


class DjangoServerBinding(Django):
    kind = "django-server-binding"
    options: ClassVar[dict[str, Any]] = {"server_side_binding": True}


class DjangoProxy(Django):
    """``django.db.connection``, which stands for the connection of the thread."""

    kind = "django-proxy"

    def open(self) -> None:
        super().open()
        from django.db import connections
        from django.utils.connection import ConnectionProxy  # type: ignore[import-untyped, unused-ignore]

        self.within = ConnectionProxy(connections, self.alias)


class DjangoPsycopg2(Django):
    """Django's backend as it is where psycopg 3 is not installed."""

    kind = "django-psycopg2"
    _wrapper: ClassVar[Any] = None

    def wrapper(self) -> Any:
        if self._wrapper is None:
            type(self)._wrapper = _without_psycopg()
        return self._wrapper


def _without_psycopg() -> Any:
    """The backend imported anew, as a second copy that finds psycopg2 only."""
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_backend(name)}
    driver = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "psycopg"}
    sys.modules.update(dict.fromkeys(driver))  # type: ignore[arg-type]
    try:
        from django.db.backends.postgresql.base import DatabaseWrapper

        return DatabaseWrapper
    finally:
        for name in [name for name in sys.modules if _is_backend(name)]:
            del sys.modules[name]
        sys.modules.update(hidden | driver)


def _is_backend(name: str) -> bool:
    return name.startswith("django.db.backends.postgresql")


KINDS: tuple[type[User], ...] = (
    Psycopg, PsycopgAutocommit, PsycopgPipeline, PsycopgAsync, Psycopg2, Asyncpg, AsyncpgPool,
    SQLAlchemy, SQLAlchemySession, SQLAlchemyAsync, SQLAlchemyAsyncPsycopg, SQLAlchemyAsyncSession,
    SQLAlchemyAsyncSessionPsycopg, SQLAlchemyRunSync, Django, DjangoPsycopg2,
)  # fmt: skip

#: The same kinds, set up or used in another way.
FLAVOURS: tuple[type[User], ...] = (
    PsycopgDicts, PsycopgRaw, PsycopgClient, Psycopg2Begun, AsyncpgBegun, SQLAlchemyPsycopg2, SQLAlchemyScoped,
    SQLAlchemyAsyncScoped, DjangoServerBinding, DjangoProxy,
)  # fmt: skip
