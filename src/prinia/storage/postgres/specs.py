"""Jobs to push as the JSON text that the enqueue function takes, in chunks."""

from __future__ import annotations

import base64
import itertools
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from prinia.errors import DuplicateJob
from prinia.job import DEFAULT_MAX_ATTEMPTS, DEFAULT_MAX_CRASHES, DEFAULT_QUEUE, JobSpec, Pushed
from prinia.retry import encode_policy

#: One statement takes at most so many jobs, and about so many bytes.
CHUNK_JOBS = 1000
CHUNK_BYTES = 1024 * 1024


class _Row(msgspec.Struct, omit_defaults=True):
    """One job as `enqueue` reads it; what is at its default is left out."""

    task: str
    args: msgspec.Raw | None = None
    args64: str | None = None
    codec: str = "json"
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    scheduled_at: Any = None
    delay: float | None = None
    expires_at: Any = None
    expires_in: float | None = None
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    max_crashes: int = DEFAULT_MAX_CRASHES
    rerun_after_crash: bool = True
    retry: msgspec.Raw | None = None
    timeout: float | None = None
    unique_key: str | None = None
    unique_for: float | None = None
    on_conflict: str = "keep"
    tags: tuple[str, ...] = ()
    meta: Any = None


#: Escapes that PostgreSQL's json refuses: a NUL, and surrogates, which may be lone ones.
_REFUSED = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")

_encode = msgspec.json.Encoder(decimal_format="string").encode


def _row(spec: JobSpec) -> _Row:
    unique = spec.unique
    # Space around a JSON value would be lost.
    verbatim = spec.codec == "json" and _REFUSED.search(spec.args) is None and spec.args.strip() == spec.args
    return _Row(
        task=spec.task,
        args=msgspec.Raw(spec.args) if verbatim else None,
        args64=None if verbatim else base64.b64encode(spec.args).decode(),
        codec=spec.codec,
        queue=spec.queue,
        priority=spec.priority,
        scheduled_at=spec.scheduled_at,
        delay=spec.delay,
        expires_at=spec.expires_at,
        expires_in=spec.expires_in,
        max_attempts=spec.max_attempts,
        max_crashes=spec.max_crashes,
        rerun_after_crash=spec.rerun_after_crash,
        retry=msgspec.Raw(encode_policy(spec.retry)) if spec.retry is not None else None,
        timeout=spec.timeout,
        unique_key=unique.text if unique is not None else None,
        unique_for=unique.window if unique is not None else None,
        # A key that is held raises here, not there: an error in mid transaction would take the caller's with it.
        on_conflict="replace" if unique is not None and unique.on_conflict == "replace" else "keep",
        tags=spec.tags,
        meta=spec.meta or None,
    )


def encode_specs(specs: list[JobSpec]) -> str:
    """The parameter of `enqueue` for these jobs."""
    return _encode([_row(spec) for spec in specs]).decode()


def encode_meta(meta: Mapping[str, Any]) -> bytes:
    """A job's meta as JSON."""
    return _encode(meta)


class _Chunker:
    """Collects jobs until a chunk is full."""

    def __init__(self) -> None:
        self.specs: list[JobSpec] = []
        self._bytes = 0

    def add(self, spec: JobSpec) -> bool:
        self.specs.append(spec)
        self._bytes += len(spec.args)
        return len(self.specs) >= CHUNK_JOBS or self._bytes >= CHUNK_BYTES

    def take(self) -> list[JobSpec]:
        specs, self.specs, self._bytes = self.specs, [], 0
        return specs


def chunks(specs: Iterable[JobSpec]) -> Iterator[list[JobSpec]]:
    """The jobs in lists that one statement each can take."""
    chunker = _Chunker()
    for spec in specs:
        if chunker.add(spec):
            yield chunker.take()
    if chunker.specs:
        yield chunker.take()


async def achunks(specs: Iterable[JobSpec] | AsyncIterable[JobSpec]) -> AsyncIterator[list[JobSpec]]:
    """`chunks` of an iterable of either colour."""
    if not isinstance(specs, AsyncIterable):
        for chunk in chunks(specs):
            yield chunk
        return
    chunker = _Chunker()
    async for spec in specs:
        if chunker.add(spec):
            yield chunker.take()
    if chunker.specs:
        yield chunker.take()


def answers(rows: Iterable[tuple[Any, ...]]) -> list[Pushed]:
    """What `enqueue` returned."""
    return list(itertools.starmap(Pushed, rows))


def checked(specs: list[JobSpec], pushed: list[Pushed]) -> list[Pushed]:
    """The answers to these jobs. Raises `DuplicateJob` for a key that is held where the job says so."""
    for spec, answer in zip(specs, pushed, strict=True):
        if not answer.created and spec.unique is not None and spec.unique.on_conflict == "raise":
            raise DuplicateJob(
                f"task {spec.task!r}: job {answer.id} already has the unique key {spec.unique.text!r}",
                job_id=answer.id,
            )
    return pushed
