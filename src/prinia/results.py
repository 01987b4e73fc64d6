"""Looking for the ends of many jobs at once: what waits in one event loop shares one look, not one connection each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prinia.errors import StorageUnavailable
from prinia.job import JobRecord
from prinia.storage.protocol import Reads

#: How many jobs one statement looks for.
MOST_IDS = 1000
#: For so many seconds the last waiter sees the looking end. A database that does not answer may take longer.
REST = 0.1


@dataclass(slots=True)
class Question:
    """What one waiter wants to know: how a job ended, or how it is at the next look.

    ``seen`` is what the last look found, or why it failed. ``xid`` is the transaction that enqueued the job, if known;
    ``uncertain`` when that may have replaced it, so that what is seen may be the old one: then too the next look tells.
    """

    id: int
    xid: int | None = None
    uncertain: bool = False
    now: bool = False
    seen: JobRecord | StorageUnavailable | None = None


class Lookout:
    """Looks for the jobs that an event loop waits for. Its task runs from the first waiter to the last."""

    def __init__(self, storage: Callable[[], Reads], *, first: float, longest: float) -> None:
        """The seconds between two looks are ``first``, then twice as long each time, up to ``longest``; a new waiter
        starts them over."""
        self._storage = storage
        self._first, self._longest = first, longest
        self._questions: dict[asyncio.Future[JobRecord | None], Question] = {}
        self._joined = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether nobody waits."""
        return not self._questions

    async def ask(self, question: Question, /) -> JobRecord | None:
        """The job once it has ended, or as it is at the next look; None when it is not there.

        Raises `StorageUnavailable` when asked for now; else an outage of the database is waited out.
        """
        future: asyncio.Future[JobRecord | None] = asyncio.get_running_loop().create_future()
        self._questions[future] = question
        self._joined.set()
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_on(), name="prinia: waiting for results")
        try:
            return await future
        finally:
            self._questions.pop(future, None)
            if self.idle:
                await self._rest()

    async def _rest(self) -> None:
        """End the task, and see it end: a loop that is closed next must not find it."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.wait([looking], timeout=REST)

    async def _look_on(self) -> None:
        loop = asyncio.get_running_loop()
        pause = self._first
        try:
            while True:
                self._joined.clear()
                began = loop.time()
                await self._look()
                # Not less than a look takes: a stream of new waiters must not keep the database busy with looks.
                least = min(max(self._first, loop.time() - began), self._longest)
                await asyncio.sleep(least)
                try:
                    async with asyncio.timeout(pause - least):
                        await self._joined.wait()
                    pause = self._first
                except TimeoutError:
                    pause = min(pause * 2, self._longest)
        finally:
            # Somebody may cancel every task of the loop but the waiters.
            if self._looking is asyncio.current_task():
                self._looking = None
                for future in self._questions:
                    future.cancel()

    async def _look(self) -> None:
        questions = dict(self._questions)
        ids = sorted({question.id for question in questions.values()})
        answers: dict[int, JobRecord | Exception] = {}
        for start in range(0, len(ids), MOST_IDS):
            answers |= await self._answers(ids[start : start + MOST_IDS])
        for future, question in questions.items():
            if not future.done():
                _settle(future, question, answers.get(question.id))

    async def _answers(self, ids: list[int]) -> dict[int, JobRecord | Exception]:
        """What is known of these jobs; nothing of those that are not there."""
        try:
            records: Sequence[JobRecord] = await self._storage().afind(ids)
        except Exception as error:  # it is each waiter's, not this task's
            return dict.fromkeys(ids, error)
        return {record.id: record for record in records}


def _settle(future: asyncio.Future[JobRecord | None], question: Question, answer: JobRecord | Exception | None) -> None:
    if isinstance(answer, JobRecord | StorageUnavailable):
        question.seen = answer
    if isinstance(answer, Exception):
        if question.now or not isinstance(answer, StorageUnavailable):
            future.set_exception(answer)
    elif answer is None or question.now or question.uncertain or answer.state.final:
        future.set_result(answer)
