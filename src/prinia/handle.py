"""Handles on stored jobs: `Job` for one, `Jobs` for as many as there are, `Waiting` for their ends."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

from prinia.changes import SOMEBODY
from prinia.colour import refuse_in_loop
from prinia.errors import ConfigurationError, JobCancelled, JobFailed, JobNotFound
from prinia.job import JobRecord, JobState, Pushed
from prinia.waiting.awaited import Awaited, check_timeout
from prinia.waiting.waiter import Waiter

R = TypeVar("R")
Ro = TypeVar("Ro", covariant=True)

#: Makes a result of a job that ended as completed.
ReadResult = Callable[[JobRecord], Ro]

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
        return self._result_of(self._waiter.wait(self._awaited(), timeout))

    async def aresult(self, *, timeout: float | None = None) -> Ro:
        """`result`, awaited."""
        return self._result_of(await self._waiter.await_(self._awaited(), timeout))

    def info(self) -> JobRecord:
        """The job as it is now: its state, times, errors.

        Raises `JobNotFound`, `JobNotCommitted`, or `ColourError` in a running loop.
        """
        refuse_in_loop("info()", "job.ainfo()")
        return self._waiter.find(self._awaited())

    async def ainfo(self) -> JobRecord:
        """`info`, awaited."""
        return await self._waiter.afind(self._awaited())

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

    def _result_of(self, ended: JobRecord | JobNotFound) -> Ro:
        if isinstance(ended, JobNotFound):
            raise ended
        return self._read(require_completed(ended))

    def _awaited(self) -> Awaited:
        return Awaited(self.id, self.xid, self.created)

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


@dataclass(frozen=True, slots=True)
class Finished(Generic[Ro]):
    """A job that has ended, and how: its record, or the error that says that there is no such job, or no more."""

    job: Job[Ro]
    record: JobRecord | JobNotFound

    def result(self) -> Ro:
        """What the handler returned; nothing is asked of the database.

        Raises what `Job.result` raises: `JobFailed`, `JobCancelled`, `JobNotFound`, `DecodeError`.
        """
        return self.job._result_of(self.record)


class Waiting(Generic[Ro]):
    """Jobs that are waited for: iterated as they end, or all at once.

    Nothing happens until it is used. The timeout counts from there; when it is over, whoever uses it gets
    `ResultTimeout`, which says what has not ended; the jobs go on. A job that is not there, or no more, counts as
    ended: its ``result()`` raises `JobNotFound`. While the database is away it waits on. At most 10,000 jobs are
    awaited at once; of more, in their order, the next one when another has ended. Raises `JobNotCommitted` for a job
    whose transaction is open, `ColourError` for the blocking forms in a running event loop.

    Example::

        jobs = app.enqueue_many([resize.job(path) for path in paths])
        for done in app.wait(jobs, timeout=60):         # in a coroutine: async for done in app.wait(jobs)
            print(done.job.id, done.result())
        sizes = app.wait(jobs).results()                # await app.wait(jobs).aresults()
    """

    def __init__(self, jobs: Iterable[Job[Ro]], *, waiter: Waiter, timeout: float | None) -> None:
        """Made by ``app.wait``."""
        check_timeout(timeout)
        if isinstance(jobs, Job):
            raise TypeError(f"app.wait() takes several jobs; of one, write job.result(), or app.wait([job]): {jobs!r}")
        self._jobs = jobs
        self._waiter = waiter
        self._timeout = timeout

    def __iter__(self) -> Iterator[Finished[Ro]]:
        refuse_in_loop("iterating over app.wait(...)", "app.wait(...).aall(), or: async for done in app.wait(...)")
        for one, ended in self._waiter.wait_each(map(self._wanted, self._jobs), self._timeout):
            yield Finished(one.job, ended)

    async def __aiter__(self) -> AsyncGenerator[Finished[Ro], None]:
        async with aclosing(self._waiter.await_each(map(self._wanted, self._jobs), self._timeout)) as each:
            async for one, ended in each:
                yield Finished(one.job, ended)

    def all(self) -> list[Finished[Ro]]:
        """All of them once they have ended, in the order of the jobs."""
        refuse_in_loop("all()", "app.wait(...).aall()")
        jobs = self._kept()
        ended = {done.job.id: done for done in self}
        return [ended[job.id] for job in jobs]

    async def aall(self) -> list[Finished[Ro]]:
        """`all`, awaited."""
        jobs = self._kept()
        async with aclosing(self.__aiter__()) as each:
            ended = {done.job.id: done async for done in each}
        return [ended[job.id] for job in jobs]

    def results(self) -> list[Ro]:
        """What their handlers returned, in the order of the jobs.

        Raises as soon as one has ended without a result; the others go on.
        """
        refuse_in_loop("results()", "app.wait(...).aresults()")
        jobs = self._kept()
        results = {done.job.id: done.result() for done in self}
        return [results[job.id] for job in jobs]

    async def aresults(self) -> list[Ro]:
        """`results`, awaited."""
        jobs = self._kept()
        async with aclosing(self.__aiter__()) as each:
            results = {done.job.id: done.result() async for done in each}
        return [results[job.id] for job in jobs]

    def _kept(self) -> Sequence[Job[Ro]]:
        """The jobs, for a second time."""
        if not isinstance(self._jobs, Sequence):
            self._jobs = list(self._jobs)
        return self._jobs

    def _wanted(self, job: Job[Ro]) -> _Wanted[Ro]:
        given: object = job
        if not isinstance(given, Job):
            raise TypeError(f"app.wait() takes jobs, not {given!r}; of an id, write app.get_job(id)")
        if job._waiter is not self._waiter:
            raise ConfigurationError(f"{job!r} is of another app: wait for it with that one")
        return _Wanted(job)


class _Wanted(Awaited, Generic[Ro]):
    """A job that is awaited, with the handle by which it was given."""

    __slots__ = ("job",)

    def __init__(self, job: Job[Ro]) -> None:
        super().__init__(job.id, job.xid, job.created)
        self.job = job


def _who(by: object) -> str:
    if not isinstance(by, str) or not by:
        raise TypeError(f"by={by!r} must be a text that says who cancels, such as by='customer 7'")
    return by


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
