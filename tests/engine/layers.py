"""Middleware that the tests of both sides use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from prinia import CallNext, Context, Middleware, NewJob

R = TypeVar("R")
TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


class Layer(Middleware):
    """Writes down when it is entered and left."""

    def __init__(self, name: str, steps: list[str]) -> None:
        self.name = name
        self.steps = steps

    def prepare(self, job: NewJob[R]) -> NewJob[R]:
        self.steps.append(f"{self.name} prepares {job.task}")
        return job

    @contextmanager
    def _around(self) -> Iterator[None]:
        self.steps.append(f"{self.name} begins to enqueue")
        try:
            yield
        except BaseException as error:
            self.steps.append(f"{self.name} sees {type(error).__name__}")
            raise
        self.steps.append(f"{self.name} has enqueued")

    def enqueue(self) -> AbstractContextManager[None]:
        return self._around()

    async def run(self, ctx: Context, call_next: CallNext) -> Any:
        self.steps.append(f"{self.name} begins to run")
        try:
            return await call_next()
        finally:
            self.steps.append(f"{self.name} has run")


class OnlyEnqueue(Middleware):
    """Marks jobs with the tenant that enqueues them."""

    def prepare(self, job: NewJob[R]) -> NewJob[R]:
        return job.options(meta={**job.meta, "tenant": TENANT.get()}, queue=f"{job.queue}-eu")
