"""What a handler may know of the job it runs and of the worker it runs in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID


class _Injected:
    """The default of every parameter that Prinia fills in and nobody enqueues."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "INJECTED"


#: Give it as default to a parameter that is filled in when the job runs: ``ctx: Context = INJECTED``.
INJECTED: Any = _Injected()


@dataclass(slots=True, kw_only=True)
class Context:
    """The job and its worker, for a parameter written ``ctx: Context = INJECTED``.

    Made without arguments it is detached: what a handler gets when the task is called like a plain function.

    Example::

        @app.task
        async def resize(path: str, ctx: Context = INJECTED) -> None:
            print(ctx.job_id, ctx.attempt, "of", ctx.max_attempts)
    """

    job_id: int = 0
    task: str = ""
    queue: str = ""
    priority: int = 0
    attempt: int = 1
    max_attempts: int = 1
    crashes: int = 0
    tags: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    worker: str = ""
    instance: UUID | None = None
    #: The worker is stopping: a long handler does well to end soon.
    stopping: bool = False
    #: The job was taken from this worker (it was thought dead): nothing it returns is recorded.
    lost: bool = False
