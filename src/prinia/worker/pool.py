"""A bounded set of processes for the functions of tasks with ``process=True``.

Each is made when it is first needed, runs one function at a time, and is kept. It can be killed, which is what a time
limit and a cancellation do, and what it dies of hurts one attempt of one job.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from prinia.context import WorkerContext
from prinia.errors import ConfigurationError, ProcessDied
from prinia.isolation import Isolation
from prinia.job import ClaimedJob
from prinia.payload.signature import importable_name
from prinia.task import Task
from prinia.worker.wire import HEAD, Call, Hello, Raised, Ready, Reference, Reply, Returned, as_error, frame, read_reply

#: Seconds for killed processes to be gone.
GRACE = 5.0


class Pool:
    """Up to ``size`` processes. Used from the event loop's thread.

    Example::

        pool = Pool(4, modules=["shop.jobs"], hooks=[])
        place = pool.reserve()
        data = await place.run(task, job, worker)
        place.release()
    """

    def __init__(self, size: int, *, modules: Sequence[str], hooks: Sequence[Reference]) -> None:
        """``modules`` are imported in each process, then ``hooks`` are called."""
        self.size = size
        self._modules = list(modules)
        self._hooks = list(hooks)
        self._busy = 0
        self._closed = False
        self._idle: list[_Process] = []
        #: Called each time a process has become free.
        self.freed: Callable[[], None] = _nobody_waits

    @property
    def free(self) -> int:
        """How many functions can start at once."""
        return self.size - self._busy

    def reserve(self) -> Place:
        """Keep a process for a call that comes later."""
        self._busy += 1
        return Place(self)

    def release(self) -> None:
        """Give back what was reserved."""
        self._busy -= 1
        self.freed()

    async def close(self) -> None:
        """End all processes. Those of functions that run still are killed as these are cancelled."""
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*(process.end() for process in idle))

    async def run(self, call: Call) -> bytes | None:
        """Run a job in a process; the encoded result. Raises what the function does, and `ProcessDied`."""
        process = await self._take()
        kept = False
        try:
            reply = await process.ask(call)
            kept = not (self._closed or (isinstance(reply, Raised) and reply.spoiled))
        finally:
            if kept:
                self._idle.append(process)
            else:
                await process.end()
        if isinstance(reply, Raised):
            raise as_error(reply)
        return reply.result if isinstance(reply, Returned) else None

    async def _take(self) -> _Process:
        while self._idle:
            process = self._idle.pop()
            if process.alive:
                return process
            await process.end()
        process = _Process()
        try:
            ready = await process.ask(Hello(sys.path, sys.argv, self._modules, self._hooks))
            if isinstance(ready, Ready) and ready.error is not None:
                raise ProcessDied(f"a process for it could not be set up: {ready.error}")
        except BaseException:
            await process.end()
            raise
        return process


class Place:
    """One process reserved, as a `prinia.worker.threads.Slot` is for a thread; its function can be ended."""

    __slots__ = ("_pool", "_released", "given_up")

    #: Whether nobody can end what runs there.
    busy = False

    def __init__(self, pool: Pool) -> None:
        """Made by `Pool.reserve`."""
        self._pool = pool
        self._released = False
        self.given_up = False

    async def run(self, task: Task[Any, Any], job: ClaimedJob, worker: WorkerContext) -> bytes | None:
        """The encoded result of the job's function. Cancelled, it has killed the process when it raises."""
        return await self._pool.run(_call_of(task, job, worker))

    def release(self) -> None:
        """Let others have the process."""
        if not self._released:
            self._released = True
            self._pool.release()


class _Process:
    """One process, and the line to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._socket = ours
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            # In this thread: a start that is cancelled half way would leave a process behind. It takes a millisecond.
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from prinia.worker.child import main; main({theirs.fileno()})"],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def ask(self, order: Hello | Call) -> Reply:
        """Send an order and wait for its reply. Raises `ProcessDied`."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_unix_connection(sock=self._socket)
            reader, writer = self._streams
            writer.write(frame(order))
            await writer.drain()
            head = await reader.readexactly(HEAD)
            return read_reply(await reader.readexactly(int.from_bytes(head, "big")))
        except (asyncio.IncompleteReadError, OSError):
            raise ProcessDied(await self._cause()) from None

    async def end(self) -> None:
        """Kill it with all that it has started, and wait until it is gone."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        try:
            with suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(self._process.wait, GRACE)
        finally:
            if self._streams is None:
                self._socket.close()
            else:
                self._streams[1].close()

    async def _cause(self) -> str:
        """What it died of, in words."""
        try:
            code = await asyncio.to_thread(self._process.wait, GRACE)
        except subprocess.TimeoutExpired:
            return "its process does not answer any more"
        if code >= 0:
            return f"the function ended its process with exit code {code}"
        name = signal.Signals(-code).name if -code in {one.value for one in signal.Signals} else f"signal {-code}"
        hint = ", perhaps by the system for want of memory" if -code == signal.SIGKILL else ""
        return f"its process was killed by {name}{hint}"


def references(functions: Iterable[Callable[..., Any]]) -> list[Reference]:
    """Where another process finds these functions."""
    return [Reference(importable_name(function.__module__), function.__qualname__) for function in functions]


def check_tasks(tasks: Mapping[str, Task[Any, Any]]) -> None:
    """Raise `ConfigurationError` for a task with ``process=True`` that another process would not find."""
    for task in set(tasks.values()):
        if task.isolation is None:
            continue
        function = task.definition.function
        module = sys.modules.get(function.__module__)
        found: object = getattr(module, function.__qualname__, None)
        if not isinstance(found, Task) or found.definition.function is not function:
            raise ConfigurationError(
                f"{task.name}: process=True: {function.__module__}.{function.__qualname__} is not the task itself, so "
                "another process cannot find it: decorate the function, @app.task(process=True), and keep its name"
            )
        if importable_name(function.__module__) == "__main__":
            raise ConfigurationError(
                f"{task.name}: process=True: another process cannot import the program it is in; put it in a module"
            )


def _call_of(task: Task[Any, Any], job: ClaimedJob, worker: WorkerContext) -> Call:
    extras = job.extras
    isolation = task.isolation or Isolation()
    [reference] = references([task.definition.function])
    return Call(
        task=reference, job_id=job.id, name=job.task, queue=job.queue, priority=job.priority,
        attempt=job.attempt, max_attempts=job.max_attempts, crashes=job.crashes, args=job.args, codec=job.codec,
        tags=extras.tags if extras is not None else (), meta=dict(extras.meta) if extras is not None else {},
        worker=worker.name, instance=worker.instance, run=worker.run, memory_limit=isolation.memory_limit,
    )  # fmt: skip


def _nobody_waits() -> None:
    """Before the first caller wants to know."""
