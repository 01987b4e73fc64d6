"""A process of a worker's pool: runs one function at a time, until its worker hangs up.

It has a session of its own and is deaf to SIGINT and SIGTERM, which a terminal or a service manager may send to
everybody: its worker decides when it ends, and kills it. When the worker dies it ends at once, in the middle of a
function too, with all that it has started.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, Literal, NoReturn

from prinia.connection import AnyAsync, SyncConn
from prinia.context import Context, WorkerContext
from prinia.discovery import import_module
from prinia.errors import ConfigurationError, NotStorable
from prinia.outcome import Fail, Failed
from prinia.retry import RetryPolicy, follow
from prinia.task import Task
from prinia.worker.failure import failed
from prinia.worker.wire import (
    HEAD,
    Call,
    Hello,
    Order,
    Raised,
    Ready,
    Reference,
    Reply,
    Returned,
    frame,
    raised,
    read_order,
)

_NOT_HERE = "a function in a process of its own (process=True)"


class _NotHere:
    """`prinia.context.Completes` for a process that has no part in how its job is recorded."""

    def refuse_loose(self, connection: Any, /) -> None:
        raise ConfigurationError(
            f"ctx.complete() is not there for {_NOT_HERE}: its worker records the result. Leave process=True where the "
            f"job must be completed in its own transaction"
        )

    def complete(self, connection: SyncConn, result: Any, /) -> None: ...

    async def acomplete(self, connection: AnyAsync, result: Any, /) -> None: ...


def _no_stop() -> NoReturn:
    raise ConfigurationError(f"ctx.worker.stop() is not there for {_NOT_HERE}")


def main(number: int) -> None:
    """Serve the worker at the other end of this socket."""
    for deaf_to in (signal.SIGINT, signal.SIGTERM):
        signal.signal(deaf_to, signal.SIG_IGN)
    os.set_inheritable(number, False)
    line = socket.socket(fileno=number)
    orders: SimpleQueue[Order] = SimpleQueue()
    threading.Thread(target=_listen, args=(line, orders), name="prinia-orders", daemon=True).start()
    while True:
        order = orders.get()
        reply: Reply = _set_up(order) if isinstance(order, Hello) else _run(order)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # they may be closed, or replaced by anything
                stream.flush()
        line.sendall(frame(reply))


def _listen(line: socket.socket, orders: SimpleQueue[Order]) -> None:
    """Beside the function, so that the worker's death is noticed while it runs."""
    with suppress(OSError), line.makefile("rb") as stream:
        while head := stream.read(HEAD):
            orders.put(read_order(stream.read(int.from_bytes(head, "big"))))
    os.killpg(0, signal.SIGKILL)


def _set_up(hello: Hello) -> Ready:
    sys.path[:] = hello.path
    sys.argv[:] = hello.argv
    try:
        for module in hello.modules:
            import_module(module)
        for hook in hello.hooks:
            getattr(import_module(hook.module), hook.name)()
    except BaseException as error:  # down to SystemExit: the worker is told of it
        outcome = failed(error)
        return Ready(f"{outcome.kind}: {outcome.message}")
    return Ready()


def _run(call: Call) -> Reply:
    task: Task[Any, Any] | None = None
    try:
        task = find_task(call.task)
        with _memory_limit(call.memory_limit):
            result = task.call(task.decode(call.codec, call.args), _context(call))
            return Returned(task.encode_result(result, call.codec))
    except BaseException as error:  # as in a worker: it hurts this job alone
        return _raised(call, task, error)


def _raised(call: Call, task: Task[Any, Any] | None, error: BaseException) -> Raised:
    if isinstance(error, NotStorable):
        error = Fail(f"result not storable: {error}")
    outcome = failed(error)
    out_of_memory = isinstance(error, MemoryError)
    if out_of_memory and call.memory_limit is not None:
        told = f"it needed more than its memory_limit of {call.memory_limit} MB"
        outcome = Failed(outcome.kind, f"{told}: {outcome.message}" if outcome.message else told, outcome.traceback)
    return raised(outcome, _policy(task, error, call.attempt), spoiled=out_of_memory)


def _policy(task: Task[Any, Any] | None, error: BaseException, attempt: int) -> RetryPolicy | Literal[False] | None:
    """What the task's rule says of the error, which cannot be sent itself."""
    if task is None or task.reactions.retry is None or not isinstance(error, Exception):
        return None
    try:
        return follow(task.reactions.retry, error, attempt)
    except BaseException as broken:  # whatever a rule does, the job's failure is recorded
        print(f"{task.name}: its retry= raised {broken!r}; the default policy counts", file=sys.stderr)
        return None


def find_task(reference: Reference) -> Task[Any, Any]:
    """The task of that name. Raises `ConfigurationError`."""
    found: object = getattr(import_module(reference.module), reference.name, None)
    if not isinstance(found, Task):
        raise ConfigurationError(
            f"{reference.module}.{reference.name} is not the task itself, so that another process cannot find it: "
            f"decorate the function, @app.task(process=True), and keep its name"
        )
    return found


def _context(call: Call) -> Context:
    return Context(
        job_id=call.job_id,
        task=call.name,
        queue=call.queue,
        priority=call.priority,
        attempt=call.attempt,
        max_attempts=call.max_attempts,
        crashes=call.crashes,
        tags=call.tags,
        meta=call.meta,
        worker=WorkerContext(name=call.worker, instance=call.instance, run=call.run, _stop=_no_stop),
        _completes=_NotHere(),
    )


@contextmanager
def _memory_limit(megabytes: int | None) -> Iterator[None]:
    """Let allocations fail that go so far beyond what the process has now. Linux only: elsewhere nothing is limited."""
    has = _data_bytes()
    if megabytes is None or has is None:
        yield
        return
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = has + megabytes * 1024 * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if before[1] < 0 else min(wanted, before[1]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _data_bytes() -> int | None:
    """What the process has of the memory that RLIMIT_DATA limits."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
