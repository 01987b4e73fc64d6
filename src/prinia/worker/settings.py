"""A worker's numbers, checked once."""

from __future__ import annotations

import math
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prinia.errors import ConfigurationError
from prinia.job import MAX_NAME_LENGTH
from prinia.task import Task
from prinia.worker.pace import LARGEST_CLAIM
from prinia.worker.waking import Sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a worker was told. Times are seconds. Raises `ConfigurationError` for what makes no sense."""

    name: str
    queues: tuple[str, ...]
    concurrency: int
    threads: int
    pool: int
    stop_timeout: float
    poll: Sources
    listen: bool
    claim_batch: int
    heartbeat: float
    dead_after: float
    strict: bool
    until_empty: bool

    def __post_init__(self) -> None:
        _check_text("name", self.name)
        if not self.queues:
            raise ConfigurationError("worker: there is no queue to serve; give queues=[...] or leave it out")
        for queue in self.queues:
            _check_text("queue", queue)
        _check_count("concurrency", self.concurrency)
        _check_count("threads", self.threads)
        _check_count("pool", self.pool)
        _check_seconds("stop_timeout", self.stop_timeout, zero=True)
        _check_flag("listen", self.listen)
        _check_flag("until_empty", self.until_empty)
        _check_count("claim_batch", self.claim_batch, highest=LARGEST_CLAIM)
        _check_seconds("heartbeat", self.heartbeat)
        _check_seconds("dead_after", self.dead_after)
        if self.dead_after < 2.5 * self.heartbeat:
            raise ConfigurationError(
                f"worker: dead_after={self.dead_after} is too short for heartbeat={self.heartbeat}: one late beat "
                f"would look like a crash; make it {2.5 * self.heartbeat:g} or more"
            )


def default_name() -> str:
    """The label of a worker that was given none: the machine's name."""
    return socket.gethostname()[:MAX_NAME_LENGTH] or "worker"


def known_tasks(tasks: Mapping[str, Task[Any, Any]]) -> dict[str, Task[Any, Any]]:
    """Every name and alias under which a job of these tasks may be stored. Raises `ConfigurationError`."""
    if not tasks:
        raise ConfigurationError("worker: there are no tasks; import the modules that define them first")
    known: dict[str, Task[Any, Any]] = dict(tasks)
    for task in tasks.values():
        for name in (task.name, *task.aliases):
            if known.setdefault(name, task) is not task:
                raise ConfigurationError(f"worker: two tasks go by the name {name!r}; rename one or drop the alias")
    return known


def served_queues(queues: Sequence[str] | None, tasks: Iterable[Task[Any, Any]]) -> tuple[str, ...]:
    """The queues asked for, or those of the tasks, sorted and each once."""
    if isinstance(queues, str):
        raise ConfigurationError(f"worker: queues={queues!r} is one text; write queues=[{queues!r}]")
    return tuple(sorted({task.queue for task in tasks} if queues is None else set(queues)))


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str) or not 0 < len(text) <= MAX_NAME_LENGTH or "\0" in text:
        raise ConfigurationError(f"worker: {what} {text!r} must be a text of 1 to {MAX_NAME_LENGTH} characters")


def _check_count(what: str, number: object, *, highest: int | None = None) -> None:
    fits = isinstance(number, int) and not isinstance(number, bool) and number >= 1
    if not fits or (highest is not None and number > highest):  # type: ignore[operator]
        bounds = "1 or more" if highest is None else f"1 to {highest}"
        raise ConfigurationError(f"worker: {what}={number!r} must be a whole number, {bounds}")


def _check_flag(what: str, flag: object) -> None:
    if not isinstance(flag, bool):
        raise ConfigurationError(f"worker: {what}={flag!r} must be True or False")


def _check_seconds(what: str, number: object, *, zero: bool = False) -> None:
    fits = isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
    if not fits or number < 0 or (number == 0 and not zero):  # type: ignore[operator]
        raise ConfigurationError(f"worker: {what}={number!r} must be seconds, {'0 or more' if zero else 'more than 0'}")
