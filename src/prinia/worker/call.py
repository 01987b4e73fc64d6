"""How a claimed job's handler is called: arguments decoded, the function called, its result encoded."""

from __future__ import annotations

from typing import Any

from prinia.context import Context
from prinia.errors import NotStorable
from prinia.job import ClaimedJob
from prinia.outcome import Completed, Fail, Failed, Outcome
from prinia.task import Task
from prinia.worker.failure import failed


class Handler:
    """A task as the runner uses it, looked up once: properties would cost as much per job as the rest."""

    __slots__ = ("call", "decode", "encode_result", "injects", "is_async")

    def __init__(self, task: Task[Any, Any]) -> None:
        self.is_async = task.is_async
        self.injects = bool(task.injected)
        self.decode = task.decode
        self.call = task.call
        self.encode_result = task.encode_result

    def run_in_thread(self, job: ClaimedJob, context: Context | None) -> Outcome:
        """Call the handler, a plain function, in the thread that this is called from."""
        try:
            arguments = self.decode(job.extras.codec if job.extras is not None else "json", job.args)
            return Completed(self.encode_result(self.call(arguments, context)))
        except BaseException as error:  # hurts this job alone
            return broken(error)


def broken(error: BaseException) -> Failed:
    """What a handler's exception means. A result that cannot be stored would be no better the next time."""
    if isinstance(error, NotStorable):
        return failed(Fail(f"result not storable: {error}"))
    return failed(error)
