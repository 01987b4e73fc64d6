"""How a claimed job's handler is called: arguments decoded, the function called, its result encoded.

What stands around a handler, from outside to inside: the middleware, the first added outermost; the arguments are
decoded; the job's async resources; its plain resources; the handler. A handler that is a plain function runs in a
thread, its plain resources with it, and all else in the event loop. Where there is nothing around a handler, nothing is
paid for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

from prinia.context import Context, WorkerContext
from prinia.errors import NotStorable
from prinia.job import ClaimedJob
from prinia.middleware import CallNext, Middleware
from prinia.outcome import Completed, Fail, Failed, Outcome
from prinia.resources import Needs, Plan
from prinia.task import Task
from prinia.worker.failure import failed
from prinia.worker.opened import Values, open_here, open_in_loop, pick
from prinia.worker.pool import Place
from prinia.worker.threads import Slot
from prinia.worker.wire import RaisedThere


class Handler:
    """A task as the runner uses it, looked up once: properties would cost as much per job as the rest."""

    __slots__ = ("call", "decode", "encode_result", "injects", "is_async", "is_isolated", "surrounded", "task")

    def __init__(self, task: Task[Any, Any], surrounded: Surrounded | None = None) -> None:
        """``surrounded`` calls it where something stands around it."""
        self.task = task
        self.is_isolated = task.isolation is not None
        self.is_async = task.is_async
        self.injects = surrounded is not None or bool(task.injected)
        self.surrounded = surrounded
        self.decode = task.decode
        self.call = task.call
        self.encode_result = task.encode_result

    def run_in_thread(self, job: ClaimedJob, context: Context | None) -> Outcome:
        """Call the handler, a plain function with nothing around it, in the thread that this is called from."""
        try:
            codec = job.codec
            return Completed(self.encode_result(self.call(self.decode(codec, job.args), context), codec))
        except BaseException as error:  # hurts this job alone
            return broken(error)


class Surrounded:
    """A handler with what stands around it in one worker."""

    __slots__ = ("_middleware", "_needs", "_task", "_values")

    def __init__(self, task: Task[Any, Any], needs: Needs, middleware: Sequence[Middleware], values: Values) -> None:
        """``values`` are the resources of the worker and the app: a live view."""
        self._task = task
        self._needs = needs
        self._middleware = middleware
        self._values = values

    async def run(self, job: ClaimedJob, context: Context, slot: Slot | Place | None) -> bytes | None:
        """The encoded result. With a ``slot`` the handler is called in that thread, or in that process. Raises what any
        part raises."""
        call: CallNext = partial(self._run_inside, job, context, slot)
        for one in reversed(self._middleware):
            call = partial(one.run, context, _once(call, one))
        return self._task.encode_result(await call(), job.codec)

    async def _run_inside(self, job: ClaimedJob, context: Context, slot: Slot | Place | None) -> Any:
        if isinstance(slot, Place):
            return self._task.decode_result(await slot.run(self._task, job, context.worker), job.codec)
        arguments = self._task.decode(job.codec, job.args)
        values = {**self._values, Context: context, WorkerContext: context.worker}
        async with AsyncExitStack() as stack:
            for provider in self._needs.in_loop:
                values[provider.type] = await open_in_loop(stack, provider, values)
            if slot is not None:
                return await slot.call(partial(self._run_in_thread, job, arguments, values, context))
            result = await self._call(arguments, values, context)
            self._refuse_unstorable(job, result)
            return result

    def _run_in_thread(
        self, job: ClaimedJob, arguments: dict[str, Any], values: dict[Any, Any], context: Context
    ) -> Any:
        with ExitStack() as stack:
            for provider in self._needs.in_thread:
                values[provider.type] = open_here(stack, provider, values)
            result = self._call(arguments, values, context)
            self._refuse_unstorable(job, result)
            return result

    def _call(self, arguments: dict[str, Any], values: Values, context: Context) -> Any:
        return self._task.call({**arguments, **pick(self._needs.parameters, values)}, context)

    def _refuse_unstorable(self, job: ClaimedJob, result: object) -> None:
        """While resources are open, so that a transaction among them is not committed for a job that then fails."""
        if self._needs.in_loop or self._needs.in_thread:
            self._task.encode_result(result, job.codec)


def surround(
    task: Task[Any, Any], *, plan: Plan, middleware: Sequence[Middleware], values: Values
) -> Surrounded | None:
    """What calls a task's handler in a worker where something stands around it, else None."""
    needs = plan.needs_of(task)
    return Surrounded(task, needs, middleware, values) if middleware or not needs.only_contexts else None


def broken(error: BaseException) -> Failed:
    """What a handler's exception means. A result that cannot be stored would be no better the next time."""
    if isinstance(error, NotStorable):
        return failed(Fail(f"result not storable: {error}"))
    return error.failed if isinstance(error, RaisedThere) else failed(error)


def _once(call: CallNext, one: Middleware) -> CallNext:
    """What middleware gets as its ``call_next``."""
    called = False

    async def call_next() -> Any:
        nonlocal called
        if called:
            raise RuntimeError(
                f"{type(one).__qualname__}.run called call_next() twice: a handler runs once per attempt; raise "
                f"Retry(...) to have it run again"
            )
        called = True
        return await call()

    return call_next
