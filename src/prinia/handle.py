"""Handles on stored jobs: `Job` for one, `Jobs` for as many as there are, and the waiting for their results."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, overload

from prinia.changes import SOMEBODY
from prinia.colour import refuse_in_loop
from prinia.errors import JobCancelled, JobFailed, JobNotCommitted, JobNotFound, ResultTimeout, StorageUnavailable
from prinia.job import JobRecord, JobState, Pushed
from prinia.storage.protocol import Cancels, Reads

if TYPE_CHECKING:
    import asyncio

    from prinia.results import Lookout, Question

R = TypeVar("R")
Ro = TypeVar("Ro", covariant=True)

#: Makes a result of a job that ended as completed.
ReadResult = Callable[[JobRecord], Ro]

#: Seconds between two looks: at first, and at most. And how long the one after a timeout may take.
FIRST_WAIT, LONGEST_WAIT, LAST_LOOK = 0.005, 0.5, 0.1
_LARGEST_ID = 2**63 - 1


class Job(Generic[Ro]):
    """A handle on a stored job. It holds nothing but the id: what it tells is looked up when asked.

    ``created`` is false when another job already held the unique key: the handle is on that one, replaced or not.
    ``xid`` is the transaction of the enqueue, if known.

    Example::

        job = await send_reminder.aenqueue(9)
        print(job.id, await job.aresult(timeout=10))
    """

    __slots__ = ("_read", "_waiter", "created", "id", "xid")

    def __init__(
        self, id: int, *, created: bool = True, xid: int | None = None, waiter: Waiter, read: ReadResult[Ro]
    ) -> None:
        """Made by Prinia: by an enqueue, by ``get_job``, by a lazy sequence of jobs."""
        self.id = id
        self.created = created
        self.xid = xid
        self._waiter = waiter
        self._read = read

    def result(self, *, timeout: float | None = None) -> Ro:
        """Wait until the job has ended and return what its handler returned.

        ``timeout`` in seconds, None for ever, 0 for one look. While the database is away it waits on.

        Raises `ResultTimeout`, `JobFailed`, `JobCancelled`, `JobNotFound` (never stored, rolled back, or gone by
        retention), `JobNotCommitted` when the transaction that enqueued or replaced it is still open, `DecodeError`
        when the stored result does not fit the task's return type, `ColourError` in a running event loop.
        """
        refuse_in_loop("result()", "job.aresult()")
        return self._read(require_completed(self._waiter.wait(self.id, timeout, self.xid, self.created)))

    async def aresult(self, *, timeout: float | None = None) -> Ro:
        """`result`, awaited."""
        return self._read(require_completed(await self._waiter.await_(self.id, timeout, self.xid, self.created)))

    def info(self) -> JobRecord:
        """The job as it is now: its state, times, errors.

        Raises `JobNotFound`, `JobNotCommitted`, or `ColourError` in a running loop.
        """
        refuse_in_loop("info()", "job.ainfo()")
        return self._waiter.find(self.id, self.xid, self.created)

    async def ainfo(self) -> JobRecord:
        """`info`, awaited."""
        return await self._waiter.afind(self.id, self.xid, self.created)

    def cancel(self, *, by: str = SOMEBODY) -> bool:
        """Cancel the job: it ends as cancelled, for the reason "cancelled by ...". False when it had ended or was
        cancelled already.

        One that waits ends at once. One that runs hears of it within a second: an async handler by ``CancelledError``,
        one in a thread by ``ctx.stopping`` and ``ctx.cancel_requested``, and goes on until it ends by itself. What it
        then returns, if it does, counts all the same. Raises `ColourError` in a running event loop.

        Example::

            job = await send_reminder.aenqueue(9)
            await job.acancel(by="customer 7")
        """
        refuse_in_loop("cancel()", "job.acancel()")
        return self._waiter.cancel(self.id, _who(by))

    async def acancel(self, *, by: str = SOMEBODY) -> bool:
        """`cancel`, awaited."""
        return await self._waiter.acancel(self.id, _who(by))

    def __repr__(self) -> str:
        return f"<Job {self.id}{'' if self.created else ' (was there)'}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id and other._waiter is self._waiter

    def __hash__(self) -> int:
        return hash(self.id)


class Jobs(Sequence[Job[R]]):
    """A lazy sequence of jobs: handles are made when asked for, so that a million jobs of one push take little memory.

    Example::

        jobs = app.enqueue_many(resize.job(path) for path in paths)
        print(len(jobs), jobs[0].id, [job.id for job in jobs[-10:]])
    """

    __slots__ = ("_answers", "_index", "_read", "_waiter")

    def __init__(self, answers: Sequence[Pushed], *, waiter: Waiter, read: ReadResult[R]) -> None:
        """Made by ``enqueue_many``."""
        self._answers = answers
        self._index = range(len(answers))
        self._waiter = waiter
        self._read = read

    def __len__(self) -> int:
        return len(self._index)

    @overload
    def __getitem__(self, at: int) -> Job[R]: ...
    @overload
    def __getitem__(self, at: slice) -> Jobs[R]: ...
    def __getitem__(self, at: int | slice) -> Job[R] | Jobs[R]:
        if isinstance(at, slice):
            part: Jobs[R] = Jobs(self._answers, waiter=self._waiter, read=self._read)
            part._index = self._index[at]
            return part
        return self._job(self._index[at])

    def __iter__(self) -> Iterator[Job[R]]:
        return map(self._job, self._index)

    def __repr__(self) -> str:
        return f"<Jobs: {len(self):,}>"

    def _job(self, index: int) -> Job[R]:
        pushed = self._answers[index]
        return Job(pushed.id, created=pushed.created, xid=pushed.xid, waiter=self._waiter, read=self._read)


class FindsAndCancels(Reads, Cancels, Protocol):
    """What handles need of a storage."""


class Waiter:
    """Waits by looking again and again: first after 5 ms, then twice as long each time, up to half a second.

    While the database is away it waits on. What is awaited in one event loop is looked for together.
    """

    def __init__(
        self,
        storage: Callable[[], FindsAndCancels],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """The last two are time itself, for tests of blocking waits to replace."""
        self._storage = storage
        self._monotonic = monotonic
        self._sleep = sleep
        #: By event loop; one is here for as long as somebody waits in that loop.
        self._lookouts: dict[asyncio.AbstractEventLoop, Lookout] = {}

    def find(self, id: int, xid: int | None = None, created: bool = True, /) -> JobRecord:
        """The job as it is now. ``xid`` is the transaction of the enqueue, if known; if not ``created``, that may have
        replaced the job.

        Raises `JobNotFound`, or `JobNotCommitted` while that transaction is open.
        """
        storage = self._storage()
        found = storage.find([id])
        if xid is not None and _uncertain(found, created):
            _refuse_open(id, storage.in_progress(xid, id))
            found = storage.find([id])  # it may have been committed between the two
        return _there(id, found)

    async def afind(self, id: int, xid: int | None = None, created: bool = True, /) -> JobRecord:
        """`find`, awaited."""
        storage = self._storage()
        found = await storage.afind([id])
        if xid is not None and _uncertain(found, created):
            _refuse_open(id, await storage.ain_progress(xid, id))
            found = await storage.afind([id])
        return _there(id, found)

    def cancel(self, id: int, by: str, /) -> bool:
        """Cancel the job, or mark it; False when there was nothing to cancel."""
        return self._storage().cancel([id], by=by) > 0

    async def acancel(self, id: int, by: str, /) -> bool:
        """`cancel`, awaited."""
        return await self._storage().acancel([id], by=by) > 0

    def wait(self, id: int, timeout: float | None, xid: int | None = None, created: bool = True, /) -> JobRecord:
        """The job once it has ended. Raises `JobNotFound`, `JobNotCommitted` or `ResultTimeout`."""
        _check_timeout(timeout)
        end = float("inf") if timeout is None else self._monotonic() + timeout
        pause = FIRST_WAIT
        while True:
            seen: JobRecord | StorageUnavailable
            try:
                seen = self.find(id, xid, created)
                if seen.state.final:
                    return seen
                created = True  # it stands, and need not be asked about again
            except StorageUnavailable as error:
                seen = error
            left = end - self._monotonic()
            if timeout is not None and left <= 0:
                raise _too_late(id, seen, timeout) from (seen if isinstance(seen, Exception) else None)
            self._sleep(min(pause, left))
            pause = min(pause * 2, LONGEST_WAIT)

    async def await_(
        self, id: int, timeout: float | None, xid: int | None = None, created: bool = True, /
    ) -> JobRecord:
        """`wait`, awaited. A timeout ends with a last look, which is given a tenth of a second."""
        import asyncio  # see `prinia.colour`

        from prinia.results import Question

        _check_timeout(timeout)
        question = Question(id, xid, uncertain=xid is not None and not created)
        if timeout is None:
            return await self._ask(question)
        if timeout > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    return await self._ask(question)
        question.now = True
        with contextlib.suppress(TimeoutError, StorageUnavailable):
            async with asyncio.timeout(LAST_LOOK if timeout > 0 else None):
                record = await self._ask(question)
                if record.state.final:
                    return record
        seen = question.seen
        raise _too_late(id, seen, timeout) from (seen if isinstance(seen, Exception) else None)

    async def _ask(self, question: Question) -> JobRecord:
        import asyncio

        from prinia.results import Lookout

        loop = asyncio.get_running_loop()
        lookout = self._lookouts.get(loop)
        if lookout is None:
            lookout = self._lookouts[loop] = Lookout(self._storage, first=FIRST_WAIT, longest=LONGEST_WAIT)
        try:
            while (record := await lookout.ask(question)) is None or (question.uncertain and not record.state.final):
                try:
                    # Unless it is committed by now, this says why not.
                    await self.afind(question.id, question.xid, not question.uncertain)
                    question.uncertain = False
                except StorageUnavailable as error:
                    if question.now:
                        raise
                    question.seen = error
            return record
        finally:
            if lookout.idle and self._lookouts.get(loop) is lookout:
                del self._lookouts[loop]


def _who(by: object) -> str:
    if not isinstance(by, str) or not by:
        raise TypeError(f"by={by!r} must be a text that says who cancels, such as by='customer 7'")
    return by


def _check_timeout(timeout: object) -> None:
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout={timeout!r} must be seconds (int or float), or None to wait for ever")
    if not timeout >= 0:  # NaN neither
        raise ValueError(f"timeout={timeout!r} must be seconds, 0 or more, or None to wait for ever")


def _too_late(id: int, seen: JobRecord | Exception | None, timeout: float) -> ResultTimeout:
    if isinstance(seen, JobRecord):
        text = f"job {id} ({seen.task}) is still {seen.state} after {timeout:g} s of waiting; it goes on"
    else:
        why = f": {seen}" if seen else ""
        text = f"job {id}: after {timeout:g} s of waiting the database did not answer{why}"
    return ResultTimeout(text, job_id=id)


def _uncertain(found: Sequence[JobRecord], created: bool) -> bool:
    """Whether an open transaction may have to do with what was found: nothing, or a job that it may have replaced."""
    return not found or not (created or found[0].state.final)


def _refuse_open(id: int, is_open: bool) -> None:
    if is_open:
        raise JobNotCommitted(
            f"job {id} is not committed: the transaction that enqueued or replaced it is still open, and until "
            "it commits no worker sees the job. Commit first, then wait",
            job_id=id,
        )


def _there(id: int, found: Sequence[JobRecord]) -> JobRecord:
    if not found:
        raise JobNotFound(
            f"there is no job {id}: its transaction was rolled back or has not committed, or the job ended and was "
            f"deleted after its retention time",
            job_id=id,
        )
    return found[0]


def require_completed(record: JobRecord) -> JobRecord:
    """The record of a job that ended, if it ended well. Raises `JobFailed` or `JobCancelled`, with the reason."""
    name = f"job {record.id} ({record.task})"
    if record.state is JobState.CANCELLED:
        raise JobCancelled(f"{name} was cancelled: {record.reason or 'no reason was given'}", job_id=record.id)
    if record.state is JobState.FAILED:
        times = "1 attempt" if record.attempt == 1 else f"{record.attempt} attempts"
        last = f"; last error: {record.errors[-1].kind}: {record.errors[-1].message}" if record.errors else ""
        reason = f" ({record.reason})" if record.reason else ""
        raise JobFailed(f"{name} failed after {times}{reason}{last}", job_id=record.id)
    return record


def check_id(id: int) -> int:
    """The id, if there can be a job of it. Raises `JobNotFound`."""
    given: object = id  # which it should be, but may not
    if not isinstance(given, int) or isinstance(given, bool) or not 0 < given <= _LARGEST_ID:
        raise JobNotFound(f"there is no job {given!r}: ids are whole numbers, 1 or more", job_id=0)
    return id
