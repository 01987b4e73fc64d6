"""An app's word to its queues, tasks and workers while they run: pauses, commands to single workers, and the audit."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from prinia.changes import SOMEBODY, AuditEntry, Pause, PauseKind, WorkerCommand
from prinia.colour import refuse_in_loop
from prinia.course import check_who
from prinia.errors import InvalidOptions, InvalidQuery, WorkerNotFound
from prinia.options import text
from prinia.storage.protocol import Storage
from prinia.task import Task

#: So many entries of the audit may be read at once.
MAX_ENTRIES = 1000


class Controlling:
    """What `prinia.Prinia` has of it."""

    __slots__ = ()

    @property
    @abstractmethod
    def storage(self) -> Storage:
        """Where the jobs live."""

    @property
    @abstractmethod
    def tasks(self) -> Mapping[str, Task[Any, Any]]:
        """The registered tasks by name."""

    def pause(
        self, *, queue: str | None = None, task: str | None = None, everything: bool = False, by: str = SOMEBODY
    ) -> bool:
        """Let no job of a queue, of a task, or at all be claimed any more, by any worker, from this moment on.

        One of the three. Running jobs go on; what a worker has claimed and not started it hands back within a second.
        Jobs can be enqueued all the while. Pauses are kept in the database, and each by itself: a job runs when neither
        its queue nor its task nor everything is paused. A task of this app is paused under its aliases too. ``by`` says
        who does it, for the audit. Returns whether that is new.

        Raises `InvalidQuery` for what makes no sense, `ColourError` inside a running event loop.

        Example::

            app.pause(queue="email", by="Ada")
            app.pause(task="shop.send_reminder", by="Ada")
        """
        refuse_in_loop("app.pause()", "app.apause(...)")
        targets, by = self._targets(queue, task, everything), check_who(by)
        return True in [self.storage.pause(kind, name, by=by) for kind, name in targets]

    async def apause(
        self, *, queue: str | None = None, task: str | None = None, everything: bool = False, by: str = SOMEBODY
    ) -> bool:
        """`pause`, awaited."""
        targets, by = self._targets(queue, task, everything), check_who(by)
        return True in [await self.storage.apause(kind, name, by=by) for kind, name in targets]

    def resume(
        self, *, queue: str | None = None, task: str | None = None, everything: bool = False, by: str = SOMEBODY
    ) -> bool:
        """Undo a `pause` of the same: workers go on at once. Returns whether it was paused."""
        refuse_in_loop("app.resume()", "app.aresume(...)")
        targets, by = self._targets(queue, task, everything), check_who(by)
        return True in [self.storage.resume(kind, name, by=by) for kind, name in targets]

    async def aresume(
        self, *, queue: str | None = None, task: str | None = None, everything: bool = False, by: str = SOMEBODY
    ) -> bool:
        """`resume`, awaited."""
        targets, by = self._targets(queue, task, everything), check_who(by)
        return True in [await self.storage.aresume(kind, name, by=by) for kind, name in targets]

    def pauses(self) -> tuple[Pause, ...]:
        """What is paused, since when and by whom: everything first, then queues, then tasks.

        Example::

            for pause in app.pauses():
                print(pause.kind, pause.name, pause.by)
        """
        refuse_in_loop("app.pauses()", "app.apauses()")
        return tuple(self.storage.pauses())

    async def apauses(self) -> tuple[Pause, ...]:
        """`pauses`, awaited."""
        return tuple(await self.storage.apauses())

    def quiet_worker(self, instance: UUID | str, *, by: str = SOMEBODY) -> bool:
        """Tell a worker to claim nothing more. What it has claimed it runs to the end. See `resume_worker`.

        ``instance`` is the id of one life of it, as ``app.workers()`` and its log show. It claims nothing from this
        moment on, and hears of it within a second. Returns whether that is new. One that was declared dead and goes on
        as another instance keeps to it; one that is started anew does not.

        Raises `WorkerNotFound` when no live worker is that instance, `ColourError` inside a running event loop.

        Example::

            for worker in app.workers():
                if worker.host == "old-host":
                    app.quiet_worker(worker.id, by="Ada")
        """
        refuse_in_loop("app.quiet_worker()", "app.aquiet_worker(...)")
        return self.storage.command_worker(_instance(instance), WorkerCommand.QUIET, by=check_who(by))

    async def aquiet_worker(self, instance: UUID | str, *, by: str = SOMEBODY) -> bool:
        """`quiet_worker`, awaited."""
        return await self.storage.acommand_worker(_instance(instance), WorkerCommand.QUIET, by=check_who(by))

    def pause_worker(self, instance: UUID | str, *, by: str = SOMEBODY) -> bool:
        """`quiet_worker`, and what it has claimed and not started it hands back at once, for others to run."""
        refuse_in_loop("app.pause_worker()", "app.apause_worker(...)")
        return self.storage.command_worker(_instance(instance), WorkerCommand.PAUSE, by=check_who(by))

    async def apause_worker(self, instance: UUID | str, *, by: str = SOMEBODY) -> bool:
        """`pause_worker`, awaited."""
        return await self.storage.acommand_worker(_instance(instance), WorkerCommand.PAUSE, by=check_who(by))

    def resume_worker(self, instance: UUID | str, *, by: str = SOMEBODY) -> bool:
        """Let a worker that was told to be quiet or to pause go on claiming. One that is stopping stops."""
        refuse_in_loop("app.resume_worker()", "app.aresume_worker(...)")
        return self.storage.command_worker(_instance(instance), None, by=check_who(by))

    async def aresume_worker(self, instance: UUID | str, *, by: str = SOMEBODY) -> bool:
        """`resume_worker`, awaited."""
        return await self.storage.acommand_worker(_instance(instance), None, by=check_who(by))

    def stop_worker(self, instance: UUID | str, *, by: str = SOMEBODY) -> bool:
        """Stop a worker as a first SIGTERM would: it hands back what has not started and lets running jobs finish for
        its ``stop_timeout``. It cannot be taken back. A `Supervisor` does not start it anew; whoever runs the process
        may, when that ends. Arguments, answer and errors as of `quiet_worker`.
        """
        refuse_in_loop("app.stop_worker()", "app.astop_worker(...)")
        return self.storage.command_worker(_instance(instance), WorkerCommand.STOP, by=check_who(by))

    async def astop_worker(self, instance: UUID | str, *, by: str = SOMEBODY) -> bool:
        """`stop_worker`, awaited."""
        return await self.storage.acommand_worker(_instance(instance), WorkerCommand.STOP, by=check_who(by))

    def audit(
        self, *, before: int | None = None, limit: int = 50, by: str | None = None, operation: str | None = None
    ) -> tuple[AuditEntry, ...]:
        """What was done from outside, latest first: operations on jobs, pauses, commands to workers.

        ``before`` is the id of an entry: only older ones, for the next page. ``limit`` is 1,000 at most. ``by`` and
        ``operation`` are texts that an entry has to have. Raises `InvalidQuery`, `ColourError` inside a running loop.

        Example::

            page = app.audit(by="Ada")
            older = app.audit(by="Ada", before=page[-1].id)
        """
        refuse_in_loop("app.audit()", "app.aaudit(...)")
        _check_page(before, limit, by=by, operation=operation)
        return tuple(self.storage.audit(before=before, limit=limit, by=by, operation=operation))

    async def aaudit(
        self, *, before: int | None = None, limit: int = 50, by: str | None = None, operation: str | None = None
    ) -> tuple[AuditEntry, ...]:
        """`audit`, awaited."""
        _check_page(before, limit, by=by, operation=operation)
        return tuple(await self.storage.aaudit(before=before, limit=limit, by=by, operation=operation))

    def _targets(self, queue: str | None, task: str | None, everything: bool) -> list[tuple[PauseKind, str]]:
        if (queue is not None) + (task is not None) + (everything is True) != 1 or everything not in (True, False):
            raise InvalidQuery("say what: queue=..., task=..., or everything=True, one of the three")
        if everything:
            return [("everything", "")]
        try:
            if queue is not None:
                return [("queue", text("queue", queue))]
            return [("task", name) for name in self._names(text("task", task))]
        except InvalidOptions as error:
            raise InvalidQuery(str(error)) from None

    def _names(self, name: str) -> tuple[str, ...]:
        """All names of the task that goes by this one."""
        known = (task for task in self.tasks.values() if name in (task.name, *task.aliases))
        return next(((task.name, *task.aliases) for task in known), (name,))


def _instance(given: object) -> UUID:
    if isinstance(given, UUID):
        return given
    try:
        return UUID(given if isinstance(given, str) else "")
    except ValueError:
        raise WorkerNotFound(
            f"{given!r} is no id of a worker instance: app.workers() shows them, such as "
            "3f0c6a0e-8d5b-4f0e-9b1a-2f7a3c1d5e60"
        ) from None


def _check_page(before: object, limit: object, **texts: object) -> None:
    if before is not None and (not isinstance(before, int) or isinstance(before, bool)):
        raise InvalidQuery(f"before={before!r} must be the id of an audit entry, or None for the latest")
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= MAX_ENTRIES:
        raise InvalidQuery(f"limit={limit!r} must be a whole number from 1 to {MAX_ENTRIES:,}")
    for name, given in texts.items():
        if given is not None and (not isinstance(given, str) or "\0" in given):
            raise InvalidQuery(f"{name}={given!r} must be a str, or None for any")
