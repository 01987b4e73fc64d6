"""Jobs as rows of PostgreSQL's binary COPY format: each field is its length and its bytes. The columns, in their order,
are those of ``queries/bulk_copy.sql``."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from operator import attrgetter

from prinia.errors import StorageError
from prinia.job import JobSpec
from prinia.retry import encode_policy
from prinia.storage.postgres.specs import encode_meta

#: What a COPY begins and ends with.
HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

_FIELDS = 16
_NULL = b"\xff\xff\xff\xff"
_TEXT_OID = 25
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_HEAD = struct.Struct(">hiqi").pack

#: All of a job but its arguments, for comparing.
options_of = attrgetter(*(name for name in JobSpec.__struct_fields__ if name != "args"))


def micros(moment: datetime) -> int:
    """A time as PostgreSQL counts it."""
    return (moment - _EPOCH) // _MICROSECOND


def encode_head(id: int, args: bytes) -> bytes:
    """The start of a row, up to the arguments, which come next as they are, and after them the options."""
    return _HEAD(_FIELDS, 8, id, len(args))


def encode_options(spec: JobSpec, now: int) -> bytes:
    """The rest of a row: the same for all jobs that are alike but for their arguments. Raises `StorageError` for what
    the server's types do not hold."""
    try:
        numbers = _encode_numbers(spec, now)
    except (struct.error, ArithmeticError, ValueError, TypeError) as error:
        raise StorageError(
            f"task {spec.task!r}: a job has a number or a time that the database cannot hold, one of"
            f" priority={spec.priority!r}, max_attempts={spec.max_attempts!r}, max_crashes={spec.max_crashes!r},"
            f" delay={spec.delay!r}, expires_in={spec.expires_in!r}, timeout={spec.timeout!r},"
            f" scheduled_at={spec.scheduled_at!r}, expires_at={spec.expires_at!r}; nothing was stored"
        ) from error
    return numbers + b"".join(
        (
            _field(spec.queue.encode()),
            _field(spec.task.encode()),
            _field(spec.codec.encode()),
            _NULL if spec.retry is None else _field(encode_policy(spec.retry)),
            _encode_tags(spec.tags),
            _NULL if not spec.meta else _field(b"\x01" + encode_meta(spec.meta)),
        )
    )


def _encode_numbers(spec: JobSpec, now: int) -> bytes:
    due = _moment(spec.scheduled_at, spec.delay or 0, now)
    expires = None
    if spec.expires_at is not None or spec.expires_in is not None:
        expires = _moment(spec.expires_at, spec.expires_in or 0, now)
    return b"".join(
        (
            struct.pack(">iqiq", 8, max(due, now), 8, now),
            _NULL if expires is None else struct.pack(">iq", 8, expires),
            struct.pack(">iiihih", 4, spec.max_attempts, 2, spec.priority, 2, spec.max_crashes),
            struct.pack(">i?", 1, spec.rerun_after_crash),
            _NULL if spec.timeout is None else struct.pack(">id", 8, spec.timeout),
        )
    )


def _moment(moment: datetime | None, seconds: float, now: int) -> int:
    return now + round(seconds * 1_000_000) if moment is None else micros(moment)


def _field(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _encode_tags(tags: tuple[str, ...]) -> bytes:
    if not tags:
        return _NULL
    head = struct.pack(">iiiii", 1, 0, _TEXT_OID, len(tags), 1)  # dimensions, nulls, type, size, first index
    return _field(head + b"".join(_field(tag.encode()) for tag in tags))
