"""What became of a push whose unique keys another transaction has as well."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prinia.errors import StorageUnavailable, UniqueBusy
from prinia.job import JobSpec
from prinia.storage.postgres.connection import sqlstate

_LOCK_NOT_AVAILABLE, _DEADLOCK = "55P03", "40P01"


@contextlib.contextmanager
def busy_keys(specs: list[JobSpec]) -> Iterator[None]:
    """Around the statement that stores these jobs: a lock that it did not get is a key's, if one of them has a key.

    Raises `UniqueBusy`, or `StorageUnavailable` where two transactions waited for each other; other errors are left as
    they are, the driver's or Prinia's.
    """
    try:
        yield
    except Exception as error:
        if all(spec.unique is None for spec in specs):
            raise
        cause: BaseException | None = error
        while cause is not None and sqlstate(cause) not in (_LOCK_NOT_AVAILABLE, _DEADLOCK):
            cause = cause.__cause__
        if cause is None:
            raise
        if sqlstate(cause) == _LOCK_NOT_AVAILABLE:
            raise UniqueBusy(
                "another transaction enqueued a job with the same unique key and is still open (lock_timeout ran out)"
            ) from cause
        # Keys are taken in one order within a statement; no order is known for all of an iterable's.
        raise StorageUnavailable(
            "this push and another transaction locked each other out, as they may where they share unique keys and"
            " one stores them by several statements, as a push of more than 1,000 jobs or 1 MiB does; nothing was"
            " stored: try again, a transaction of your own from its start"
        ) from cause
