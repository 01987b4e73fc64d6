"""What a worker and the processes of its pool say to each other: one frame each, its length before it.

Arguments and results are in it as bytes, by the codec of their job. Nothing is pickled.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

from prinia.outcome import Cancel, Fail, Failed, Retry, Snooze
from prinia.retry import Delays, Exponential, Fixed, RetryPolicy

#: Bytes that a frame's length takes.
HEAD = 4


class Reference(msgspec.Struct, frozen=True):
    """A name at the top level of a module."""

    module: str
    name: str


class Hello(msgspec.Struct, tag=True):
    """How a new process is set up: ``path`` and ``argv`` are Python's, ``hooks`` are called in this order."""

    path: list[str]
    argv: list[str]
    modules: list[str]
    hooks: list[Reference]


class Call(msgspec.Struct, tag=True):
    """Run a job. ``memory_limit`` is in MB."""

    task: Reference
    job_id: int
    name: str
    queue: str
    priority: int
    attempt: int
    max_attempts: int
    crashes: int
    args: bytes
    codec: str
    tags: tuple[str, ...]
    meta: dict[str, Any]
    worker: str
    instance: UUID | None
    run: int
    memory_limit: int | None


class Ready(msgspec.Struct, tag=True):
    """The process is set up, or could not be because of ``error``."""

    error: str | None = None


class Returned(msgspec.Struct, tag=True):
    """The function returned; ``result`` is encoded."""

    result: bytes | None


class Raised(msgspec.Struct, tag=True):
    """The function raised. ``steering`` is the name of the exception if it steers, with its ``delay``; ``policy`` what
    the task's retry rule said. After a failure that leaves the process in doubt, it is ``spoiled``.
    """

    kind: str
    message: str
    traceback: str | None
    steering: Literal["Retry", "Snooze", "Fail", "Cancel"] | None = None
    delay: float | None = None
    policy: Exponential | Fixed | Delays | Literal[False] | None = None
    spoiled: bool = False


Order: TypeAlias = Hello | Call
Reply: TypeAlias = Ready | Returned | Raised

_encoder = msgspec.msgpack.Encoder()
_orders = msgspec.msgpack.Decoder(Hello | Call)
_replies = msgspec.msgpack.Decoder(Ready | Returned | Raised)


def frame(message: Order | Reply) -> bytes:
    """The message as it is sent."""
    data = _encoder.encode(message)
    return len(data).to_bytes(HEAD, "big") + data


def read_order(data: bytes) -> Order:
    """What a worker says to a process."""
    order: Order = _orders.decode(data)
    return order


def read_reply(data: bytes) -> Reply:
    """What a process says to its worker."""
    reply: Reply = _replies.decode(data)
    return reply


def raised(outcome: Failed, policy: RetryPolicy | Literal[False] | None, *, spoiled: bool) -> Raised:
    """A failure, to be sent."""
    steering = outcome.steering
    return Raised(
        outcome.kind,
        outcome.message,
        outcome.traceback,
        steering=type(steering).__name__ if steering is not None else None,  # type: ignore[arg-type]
        delay=steering.delay if isinstance(steering, Retry | Snooze) else None,
        policy=policy,
        spoiled=spoiled,
    )


class RaisedThere(Exception):
    """A function raised in its process: what is recorded of it is ``failed``."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(f"{failed.kind}: {failed.message}")
        self.failed = failed


def as_error(reply: Raised) -> Exception:
    """What is raised in the worker in place of the function's exception: itself, where it steers."""
    match reply.steering:
        case "Retry":
            return Retry(reply.message, delay=reply.delay)
        case "Snooze":
            return Snooze(reply.delay or 0.0)
        case "Fail":
            return Fail(reply.message)
        case "Cancel":
            return Cancel(reply.message)
        case None:
            return RaisedThere(Failed(reply.kind, reply.message, reply.traceback, policy=reply.policy))
