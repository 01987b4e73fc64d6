"""A query for jobs: what `prinia.Prinia.jobs` answers with, for both colours."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from prinia.colour import refuse_in_loop
from prinia.errors import InvalidQuery
from prinia.job import JobRecord
from prinia.operations import Operations
from prinia.overview import COUNT_LIMIT, Count
from prinia.selection import Selection
from prinia.storage.protocol import Lists, Operates, Stretch

#: The most jobs of one page.
MAX_PAGE = 1_000
#: Iteration reads so many jobs at once.
_CHUNK = 500
_MAX_COUNT = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Page:
    """A part of the jobs of a query, in order. ``next`` is the cursor that the next page comes after, None at the end.

    A page may have fewer jobs than its limit, even none, and a next one all the same: where jobs that fit are rare
    among very many, a page ends after a while of looking.
    """

    jobs: Sequence[JobRecord]
    next: str | None


class ListsAndOperates(Lists, Operates, Protocol):
    """What a query needs of a storage."""


class JobQuery(Operations):
    """The jobs that meet some conditions, live and finished, newest first. Nothing is read until it is asked for.

    Each time it is used it looks anew. Pages and iteration go by id, which never changes: they show no job twice, and
    leave out none that was there at the start, however many are enqueued and end meanwhile. What can be done with all
    of them at once is said by `prinia.operations.Operations`.

    Example::

        failed = app.jobs(queue="email", state="failed")
        print(failed.count())
        for job in failed:                      # in a coroutine: async for job in failed
            print(job.id, job.errors[-1].message)
    """

    def __init__(
        self,
        storage: Callable[[], ListsAndOperates],
        selection: Selection,
        *,
        oldest_first: bool = False,
        everything: bool = False,
    ) -> None:
        """Made by ``app.jobs()``."""
        self._storage = storage
        self._oldest_first = oldest_first
        self.selection = selection
        self.everything = everything

    def __iter__(self) -> Iterator[JobRecord]:
        refuse_in_loop("iterating over app.jobs(...)", "query.apage(...), or: async for job in query")
        after: int | None = None
        while True:
            stretch = self._browse(after, _CHUNK)
            yield from stretch.records
            if (after := stretch.after) is None:
                return

    async def __aiter__(self) -> AsyncIterator[JobRecord]:
        after: int | None = None
        while True:
            stretch = await self._abrowse(after, _CHUNK)
            for record in stretch.records:
                yield record
            if (after := stretch.after) is None:
                return

    def page(self, *, after: str | None = None, limit: int = 50) -> Page:
        """One page of at most ``limit`` jobs (1 to 1,000), after the page whose ``next`` is given.

        Raises `InvalidQuery` for a cursor of another query or a limit that makes no sense, `ColourError` inside a
        running event loop.

        Example::

            page = query.page(after=request.args.get("after"))
            more = f"?after={page.next}" if page.next else None
        """
        refuse_in_loop("page()", "query.apage(...)")
        return self._page(self._browse(self._position(after), _size(limit)))

    async def apage(self, *, after: str | None = None, limit: int = 50) -> Page:
        """`page`, awaited."""
        return self._page(await self._abrowse(self._position(after), _size(limit)))

    def count(self, *, limit: int = COUNT_LIMIT) -> Count:
        """How many jobs there are: exact if at most ``limit``, and if they are not rare among very many others.

        Above, it is estimated from a sample, and says so. With a higher limit more is counted, which takes longer:
        about a second for 500,000 jobs. Raises `InvalidQuery`, or `ColourError` inside a running event loop.

        Example::

            print(app.jobs(state="failed").count())     # 17, or ~1,204,000
        """
        refuse_in_loop("count()", "query.acount(...)")
        return self._storage().count(self.selection, limit=count_limit(limit))

    async def acount(self, *, limit: int = COUNT_LIMIT) -> Count:
        """`count`, awaited."""
        return await self._storage().acount(self.selection, limit=count_limit(limit))

    def __repr__(self) -> str:
        conditions = ", ".join(f"{name}={value!r}" for name, value in self.selection.as_json().items())
        return f"<JobQuery {conditions or 'of all jobs'}{', oldest first' if self._oldest_first else ''}>"

    def _operates(self) -> Operates:
        return self._storage()

    def _browse(self, after: int | None, limit: int) -> Stretch:
        return self._storage().browse(self.selection, after=after, limit=limit, oldest_first=self._oldest_first)

    async def _abrowse(self, after: int | None, limit: int) -> Stretch:
        return await self._storage().abrowse(self.selection, after=after, limit=limit, oldest_first=self._oldest_first)

    @property
    def _mark(self) -> str:
        """What a cursor of this query ends in."""
        return self.selection.fingerprint + ("o" if self._oldest_first else "n")

    def _page(self, stretch: Stretch) -> Page:
        return Page(stretch.records, None if stretch.after is None else f"{stretch.after}-{self._mark}")

    def _position(self, cursor: object) -> int | None:
        if cursor is None:
            return None
        match = re.fullmatch(r"([1-9][0-9]{0,18})-([0-9a-f]{12}[no])", cursor) if isinstance(cursor, str) else None
        if match is None:
            raise InvalidQuery(
                f"after={ascii(cursor)[:80]} is no cursor; give what an earlier page has as its next, or leave it out"
            )
        if match[2] != self._mark:
            raise InvalidQuery(
                f"after={cursor!r} is a cursor of another query: conditions and order must be those of the page that"
                " it came with. Leave it out to begin with the first page"
            )
        return int(match[1])


def _size(limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE:
        raise InvalidQuery(f"limit={ascii(limit)[:80]} must be a whole number of jobs, 1 to {MAX_PAGE:,}")
    return limit


def count_limit(limit: object) -> int:
    """The number up to which is counted. Raises `InvalidQuery`."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= _MAX_COUNT:
        raise InvalidQuery(f"limit={ascii(limit)[:80]} must be a whole number of jobs, 1 or more")
    return limit
