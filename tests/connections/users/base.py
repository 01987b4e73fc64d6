"""A user of any library, and one who awaits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, ClassVar
from uuid import UUID

from psycopg import conninfo

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

    def loosen(self) -> None:
        """From now on every statement commits by itself."""
        raise NotImplementedError

    def begin(self) -> None:
        """Begin a transaction where that takes anything."""

    def close(self) -> None:
        self.run(self.within.close())

    def commit(self) -> None:
        self.run(self.within.commit())

    def rollback(self) -> None:
        self.run(self.within.rollback())

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

    def run(self, answer: Any) -> Any:
        """The answer of a call; who awaits, awaits it."""
        return answer

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

    def run(self, answer: Any) -> Any:
        async def on_loop() -> Any:
            return await answer

        return self._runner.run(on_loop())

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call that needs a running loop, and await its answer if it is to be awaited."""

        async def on_loop() -> Any:
            answer = function(*args, **kwargs)
            return await answer if isinstance(answer, Awaitable) else answer

        return self._runner.run(on_loop())

    def shut(self) -> None:
        self._runner.close()
