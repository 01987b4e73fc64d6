"""How an operation goes through the jobs that it is for: step by step, without doing any of it.

It goes by id, up to 1,000 jobs at a time, each step a transaction of its own; first through those that have not ended,
then, where the operation or the ids ask for it, through those that have. What somebody else has locked is left, and
tried again at the end for some seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from prinia.changes import RETRIED, STEP, Batch, Change, ChangeKind, Operated, Step
from prinia.errors import InvalidQuery, StorageError
from prinia.selection import Selection

#: Hears how far an operation is, after each step.
Progress = Callable[[Operated], object]

#: What was left is tried again after each of these times (seconds), in steps of at most so many jobs. The steps get
#: smaller, because one job whose unique key is just being taken by somebody holds up all of its step.
AGAIN = tuple((min(0.01 * 1.5**nr, 0.5), max(1, STEP // 10**nr)) for nr in range(18))


class Course:
    """One operation: `next` says what is to be done, a step or a pause of so many seconds; None at the end.

    Raises `InvalidQuery` when no job that the selection can meet is one to which the operation is made.

    Example::

        course = Course(change, selection, by="Ada")
        while (asked := course.next()) is not None:
            if isinstance(asked, Step):
                course.answer(storage.operate(asked))
    """

    def __init__(
        self,
        change: Change,
        selection: Selection,
        *,
        by: str,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._change = change
        self._selection = selection = reached(change, selection)
        self._by = by
        self._dry_run = dry_run
        self._progress = progress
        self._note: int | None = None
        self._changed = 0
        self._skipped: Counter[str] = Counter()
        self._missing = set(selection.ids or ())
        self._answer = Batch()
        self._way = self._go()

    @property
    def operated(self) -> Operated:
        """What was done so far."""
        return Operated(
            matched=self._changed + self._skipped.total(),
            changed=self._changed,
            skipped=dict(self._skipped),
            missing=tuple(sorted(self._missing)),
            dry_run=self._dry_run,
        )

    def next(self) -> Step | float | None:
        """What is to be done now."""
        return next(self._way, None)

    def answer(self, batch: Batch) -> None:
        """What the step did."""
        self._answer = batch

    @contextmanager
    def told(self) -> Iterator[None]:
        """An error of the storage says how far the operation had come."""
        try:
            yield
        except StorageError as error:
            if self._changed:
                error.add_note(
                    f"{self._change.kind} had changed {self._changed:,} jobs before, and that stays; made again, it"
                    " does the rest"
                )
            raise

    def _go(self) -> Generator[Step | float, None, None]:
        left = yield from self._walk(self._selection)
        for pause, size in AGAIN:
            if not left:
                return
            yield pause
            again, left = left, []
            for at in range(0, len(again), size):
                left += yield from self._once_more(again[at : at + size])
        self._skip("locked", len(left))

    def _walk(self, selection: Selection) -> Generator[Step | float, None, list[int]]:
        """Through all that meets it; what was left is returned."""
        left: list[int] = []
        for ended in (False, True):
            after: int | None = 0 if self._reaches(selection, ended=ended) else None
            while after is not None:
                yield Step(
                    change=self._change,
                    selection=selection,
                    by=self._by,
                    ended=ended,
                    after=after,
                    note=self._note,
                    dry=self._dry_run,
                )
                batch, after = self._answer, self._answer.after
                left += batch.left
                selection = self._count(batch, selection)
        return left

    def _count(self, batch: Batch, selection: Selection) -> Selection:
        """Returns what is still to be looked for: an id is found once, however often the job changes hands."""
        self._note = batch.note
        self._changed += batch.changed
        self._skipped.update(batch.skipped)
        self._missing.difference_update(batch.matched)
        if self._progress is not None:
            self._progress(self.operated)
        if selection.ids is None or not batch.matched:
            return selection
        found = set(batch.matched)
        return replace(selection, ids=tuple(id for id in selection.ids if id not in found))

    def _once_more(self, ids: Sequence[int]) -> Generator[Step | float, None, list[int]]:
        """Try these again; those that do not meet the selection any more are skipped."""
        before = self._changed + self._skipped.total()
        left = yield from self._walk(replace(self._selection, ids=tuple(ids)))
        self._skip("changed meanwhile", len(ids) - len(left) - (self._changed + self._skipped.total() - before))
        return left

    def _reaches(self, selection: Selection, *, ended: bool) -> bool:
        if not ended:
            return selection.may_match_live
        return selection.may_match_finished and (self._change.kind.reaches_ended or selection.ids is not None)

    def _skip(self, reason: str, number: int) -> None:
        if number:
            self._skipped[reason] += number


def reached(change: Change, selection: Selection) -> Selection:
    """What an operation is about: a retry, where no state is named, about `RETRIED` jobs, unless it has their ids.

    Raises `InvalidQuery` when the selection is about jobs alone to which the operation is not made.
    """
    kind = change.kind
    if kind is ChangeKind.RETRY and selection.state is None and selection.ids is None:
        return replace(selection, state=RETRIED)
    if not kind.reaches_ended and selection.may_match_finished and not selection.may_match_live:
        raise InvalidQuery(
            f"{kind}() is for jobs that have not ended, and this query is for those that have: nothing was changed."
            " retry() brings such jobs back, delete() deletes them"
        )
    return selection


def check_who(by: object) -> str:
    """Who does it. Raises `TypeError`."""
    if not isinstance(by, str) or not by:
        raise TypeError(f"by={by!r} must be a text that says who does it, such as by='Ada'")
    return by
