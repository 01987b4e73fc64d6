"""Which worker is meant: by the id of its instance, the beginning of that, or its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from prinia.cli.failing import Failure, Misuse
from prinia.overview import WorkerRecord

#: The fewest characters of an id that are shown where all of it takes too much room.
_SHORTEST = 8
_LENGTH = 36


def read_id(given: str) -> UUID | None:
    """The id, if it is a whole one."""
    try:
        return UUID(given)
    except ValueError:
        return None


def find_worker(workers: Sequence[WorkerRecord], given: str) -> WorkerRecord:
    """The one that is meant. Raises `Failure` where there is none, `Misuse` where there are several."""
    meant = given.strip().lower()
    found = [worker for worker in workers if worker.name == given or (meant and str(worker.id).startswith(meant))]
    if len(found) == 1:
        return found[0]
    if found:
        raise Misuse(f"{given!r} may be any of {len(found)} workers; say which by its id:{_lines(found)}")
    there = f"there are:{_lines(workers)}" if workers else "none is on the register"
    raise Failure(f"there is no worker {given!r}; {there}")


def short_ids(workers: Sequence[WorkerRecord]) -> Mapping[UUID, str]:
    """The beginnings of their ids, as long as they must be to differ."""
    ids = [str(worker.id) for worker in workers]
    length = next(length for length in range(_SHORTEST, _LENGTH + 1) if len({id[:length] for id in ids}) == len(ids))
    return {worker.id: str(worker.id)[:length] for worker in workers}


def _lines(workers: Sequence[WorkerRecord]) -> str:
    ids = short_ids(workers)
    lines = (f"{ids[worker.id]}  {worker.name} on {worker.host}, process {worker.pid}" for worker in workers)
    return "".join(f"\n  {line}" for line in lines)
