"""Operations on the jobs of a query, in both colours: cancel, retry, run now, reschedule, reprioritise, ..."""

from __future__ import annotations

import time
from abc import abstractmethod
from datetime import UTC, datetime, timedelta

from prinia.changes import SOMEBODY, Change, ChangeKind, Operated, Step
from prinia.colour import refuse_in_loop
from prinia.course import Course, Progress, check_who
from prinia.errors import InvalidOptions, InvalidQuery
from prinia.job import MAX_PRIORITY, MIN_PRIORITY
from prinia.options import text
from prinia.selection import Selection
from prinia.storage.protocol import Operates

#: Seconds: a hundred years.
LONGEST_DELAY = 100 * 365.25 * 86400


class Operations:
    """What can be done with all jobs of a query at once. Each method has a form that awaits, with an ``a`` in front.

    Each says what it did: `Operated`. With ``dry_run`` it says what it would do, and does nothing. ``by`` says who does
    it, for the audit (`prinia.Prinia.audit`) and for the reason of cancelled jobs; ``progress`` is called after each
    step of up to 1,000 jobs with what was done so far. A running job is never changed but by `cancel`; it is skipped,
    as are jobs of which it would make no sense. Jobs that have ended are changed by `retry` and `delete`; the others
    skip them where the query gives their ids, and else do not look at them.

    A step that has been done stays done, whatever happens later: an operation that fails midway can be made again, and
    does the rest. Raises `InvalidQuery` for a query without any condition (unless it is ``app.jobs(everything=True)``),
    for one that no job can meet to which the operation is made, and for values that make no sense; `ColourError` for
    the blocking form in a running event loop.

    Example::

        done = app.jobs(queue="email", state="failed", error="SMTPError").retry(by="Ada")
        print(done)         # 1,200 of 1,203 jobs changed; skipped: 3 unique key taken
    """

    selection: Selection
    #: Whether a query without conditions is meant.
    everything: bool

    @abstractmethod
    def _operates(self) -> Operates:
        """The storage."""

    def cancel(self, *, by: str = SOMEBODY, dry_run: bool = False, progress: Progress | None = None) -> Operated:
        """Cancel jobs: those that wait end as cancelled, running ones are told, as `Job.cancel` does."""
        return self._do(Change(kind=ChangeKind.CANCEL), by, dry_run, progress)

    async def acancel(self, *, by: str = SOMEBODY, dry_run: bool = False, progress: Progress | None = None) -> Operated:
        """`cancel`, awaited."""
        return await self._ado(Change(kind=ChangeKind.CANCEL), by, dry_run, progress)

    def retry(self, *, by: str = SOMEBODY, dry_run: bool = False, progress: Progress | None = None) -> Operated:
        """Run failed jobs again, and those that wait for their next attempt at once.

        A failed job comes back under its id, due now, with all of its attempts before it; its errors stay in its
        history, its ``expires`` no longer counts. Cancelled and completed jobs come back only where the query asks for
        their state, as in ``app.jobs(state=["failed", "cancelled"])``. One whose unique key another job holds is
        skipped, and so is a completed one whose arguments were not kept, because they were above 2 kB.
        """
        return self._do(Change(kind=ChangeKind.RETRY), by, dry_run, progress)

    async def aretry(self, *, by: str = SOMEBODY, dry_run: bool = False, progress: Progress | None = None) -> Operated:
        """`retry`, awaited."""
        return await self._ado(Change(kind=ChangeKind.RETRY), by, dry_run, progress)

    def run_now(self, *, by: str = SOMEBODY, dry_run: bool = False, progress: Progress | None = None) -> Operated:
        """Let scheduled jobs, and those that wait for their next attempt, be due now."""
        return self._do(Change(kind=ChangeKind.RUN_NOW), by, dry_run, progress)

    async def arun_now(
        self, *, by: str = SOMEBODY, dry_run: bool = False, progress: Progress | None = None
    ) -> Operated:
        """`run_now`, awaited."""
        return await self._ado(Change(kind=ChangeKind.RUN_NOW), by, dry_run, progress)

    def reschedule(
        self,
        *,
        at: datetime | None = None,
        delay: timedelta | float | None = None,
        by: str = SOMEBODY,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Operated:
        """Let jobs that wait be due at another time: ``at`` (aware), or ``delay`` (seconds or a timedelta) from now.

        Example::

            app.jobs(queue="reports", state="ready").reschedule(delay=3600, by="Ada")
        """
        return self._do(_reschedule(at, delay), by, dry_run, progress)

    async def areschedule(
        self,
        *,
        at: datetime | None = None,
        delay: timedelta | float | None = None,
        by: str = SOMEBODY,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Operated:
        """`reschedule`, awaited."""
        return await self._ado(_reschedule(at, delay), by, dry_run, progress)

    def reprioritise(
        self, priority: int, *, by: str = SOMEBODY, dry_run: bool = False, progress: Progress | None = None
    ) -> Operated:
        """Give jobs that wait another priority, from -100 to 100. Among those of that priority they come last."""
        return self._do(_reprioritise(priority), by, dry_run, progress)

    async def areprioritise(
        self, priority: int, *, by: str = SOMEBODY, dry_run: bool = False, progress: Progress | None = None
    ) -> Operated:
        """`reprioritise`, awaited."""
        return await self._ado(_reprioritise(priority), by, dry_run, progress)

    def move(
        self, queue: str, *, by: str = SOMEBODY, dry_run: bool = False, progress: Progress | None = None
    ) -> Operated:
        """Put jobs that wait in another queue, behind those that wait there."""
        return self._do(_move(queue), by, dry_run, progress)

    async def amove(
        self, queue: str, *, by: str = SOMEBODY, dry_run: bool = False, progress: Progress | None = None
    ) -> Operated:
        """`move`, awaited."""
        return await self._ado(_move(queue), by, dry_run, progress)

    def delete(self, *, by: str = SOMEBODY, dry_run: bool = False, progress: Progress | None = None) -> Operated:
        """Delete jobs, with all that is known of them: those that wait and those that have ended.

        Their unique keys are free then. Nothing brings them back.
        """
        return self._do(Change(kind=ChangeKind.DELETE), by, dry_run, progress)

    async def adelete(self, *, by: str = SOMEBODY, dry_run: bool = False, progress: Progress | None = None) -> Operated:
        """`delete`, awaited."""
        return await self._ado(Change(kind=ChangeKind.DELETE), by, dry_run, progress)

    def _do(self, change: Change, by: str, dry_run: bool, progress: Progress | None) -> Operated:
        refuse_in_loop(f"{change.kind}()", f"query.a{change.kind}(...)")
        course, storage = self._course(change, by, dry_run, progress), self._operates()
        with course.told():
            while (asked := course.next()) is not None:
                if isinstance(asked, Step):
                    course.answer(storage.operate(asked))
                else:
                    time.sleep(asked)
        return course.operated

    async def _ado(self, change: Change, by: str, dry_run: bool, progress: Progress | None) -> Operated:
        import asyncio  # see `prinia.colour`

        course, storage = self._course(change, by, dry_run, progress), self._operates()
        with course.told():
            while (asked := course.next()) is not None:
                if isinstance(asked, Step):
                    course.answer(await storage.aoperate(asked))
                else:
                    await asyncio.sleep(asked)
        return course.operated

    def _course(self, change: Change, by: str, dry_run: bool, progress: Progress | None) -> Course:
        if not self.everything and self.selection.unconditional:
            raise InvalidQuery(
                f"{change.kind}() of a query without any condition would be for every job there is; give one, such as"
                " app.jobs(queue=...), or say so: app.jobs(everything=True)"
            )
        return Course(change, self.selection, by=check_who(by), dry_run=dry_run, progress=progress)


def _reschedule(at: datetime | None, delay: timedelta | float | None) -> Change:
    if (at is None) == (delay is None):
        raise InvalidQuery("reschedule() takes a time: at=... (a datetime) or delay=... (seconds), one of the two")
    if at is not None:
        given: object = at  # which it should be, but may not
        if not isinstance(given, datetime) or given.utcoffset() is None:
            raise InvalidQuery(
                f"at={at!r} must be a datetime with a time zone, such as datetime.now(UTC) + timedelta(hours=1)"
            )
        try:
            return Change(kind=ChangeKind.RESCHEDULE, at=at.astimezone(UTC))
        except OverflowError:
            raise InvalidQuery(f"at={at!r} is outside the years 1 to 9999 in UTC") from None
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 <= seconds <= LONGEST_DELAY:
        raise InvalidQuery(f"delay={delay!r} must be seconds or a timedelta, from 0 to 100 years")
    return Change(kind=ChangeKind.RESCHEDULE, delay=float(seconds))


def _reprioritise(priority: int) -> Change:
    given: object = priority
    if not isinstance(given, int) or isinstance(given, bool) or not MIN_PRIORITY <= given <= MAX_PRIORITY:
        raise InvalidQuery(f"priority={priority!r} must be a whole number from {MIN_PRIORITY} to {MAX_PRIORITY}")
    return Change(kind=ChangeKind.REPRIORITISE, priority=given)


def _move(queue: str) -> Change:
    try:
        return Change(kind=ChangeKind.MOVE, queue=text("queue", queue))
    except InvalidOptions as error:
        raise InvalidQuery(f"move(): {error}") from None
