"""Waiting in an event loop: what waits in one loop shares its looks and its hearing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence

from prinia.errors import PriniaError, StorageUnavailable
from prinia.job import JobRecord
from prinia.storage.protocol import Hearing
from prinia.waiting.agenda import FIRST, LONGEST, MOST_IDS, Agenda
from prinia.waiting.awaited import Awaited
from prinia.waiting.watch import ReadsAndAnnounces

#: For so many seconds the last waiter sees the looking end. A database that does not answer may take longer.
REST = 0.1

#: The answer to a question: the job, or None for one of which nothing is seen, or nothing certain.
Answer = asyncio.Future[JobRecord | None]

log = logging.getLogger("prinia")


class Lookout:
    """Looks for the jobs that an event loop waits for. Its tasks run from the first waiter to the last."""

    def __init__(self, storage: Callable[[], ReadsAndAnnounces]) -> None:
        self._storage = storage
        self._agenda = Agenda()
        self._questions: dict[int, dict[Answer, Awaited]] = {}
        #: Those who want to know how it is at the next look, whether or not it has ended.
        self._impatient: set[Answer] = set()
        self._stirred = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._ears: asyncio.Task[None] | None = None
        self._hearing: Hearing | None = None

    @property
    def idle(self) -> bool:
        """Whether nobody waits."""
        return not self._questions

    def ask(self, awaited: Awaited, *, now: bool = False) -> Answer:
        """Will have the job once it has ended, or with ``now`` as it is at the next look.

        Fails with `StorageUnavailable` when asked for now; else an outage of the database is waited out. Whoever asks
        must `drop` it in the end.
        """
        loop = asyncio.get_running_loop()
        answer: Answer = loop.create_future()
        self._questions.setdefault(awaited.id, {})[answer] = awaited
        if now:
            self._impatient.add(answer)
        self._agenda.add(awaited.id, loop.time())
        self._stirred.set()
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_on(), name="prinia: waiting for results")
        return answer

    def drop(self, awaited: Awaited, answer: Answer) -> None:
        """It is not waited for any more."""
        self._impatient.discard(answer)
        answers = self._questions.get(awaited.id, {})
        answers.pop(answer, None)
        if not answers:
            self._questions.pop(awaited.id, None)
            self._agenda.drop(awaited.id)

    async def rest(self) -> None:
        """If nobody waits: end the tasks, and see them end: a loop that is closed next must not find them."""
        if self.idle:
            tasks = [task for task in (self._looking, self._ears) if task is not None]
            self._looking = self._ears = None
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=REST)

    async def _look_on(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._stirred.clear()
                began = loop.time()
                ids = self._agenda.due(began)
                await self._look(ids)
                self._agenda.put_off(ids, loop.time(), listening=self._listening)
                await self._expect(ids)
                # Not less than a look takes: a stream of new waiters must not keep the database busy with looks.
                await asyncio.sleep(min(max(FIRST, loop.time() - began), LONGEST))
                await self._pause()
        finally:
            # Somebody may cancel every task of the loop but the waiters.
            if self._looking is asyncio.current_task():
                self._looking = None
                for answers in self._questions.values():
                    for answer in answers:
                        answer.cancel()

    async def _pause(self) -> None:
        """Until the next look is due, which may become earlier meanwhile."""
        loop = asyncio.get_running_loop()
        while (at := self._agenda.next()) is None or at > loop.time():
            self._stirred.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(at):
                    await self._stirred.wait()

    async def _look(self, ids: Sequence[int]) -> None:
        for start in range(0, len(ids), MOST_IDS):
            chunk = ids[start : start + MOST_IDS]
            answers: dict[int, JobRecord | Exception]
            try:
                answers = {record.id: record for record in await self._storage().afind(chunk)}
            except Exception as error:  # it is each waiter's, not this task's
                answers = dict.fromkeys(chunk, error)
            for id in chunk:
                for future, awaited in list(self._questions.get(id, {}).items()):
                    if not future.done():
                        self._settle(future, awaited, answers.get(id))

    def _settle(self, future: Answer, awaited: Awaited, answer: JobRecord | Exception | None) -> None:
        now = future in self._impatient
        if isinstance(answer, JobRecord | StorageUnavailable):
            awaited.seen = answer
        if isinstance(answer, Exception):
            if now or not isinstance(answer, StorageUnavailable):
                future.set_exception(answer)
        elif answer is None or now or answer.state.final or awaited.hidden(answer):
            future.set_result(answer)

    # -- hearing --------------------------------------------------------------------------------------------------

    @property
    def _listening(self) -> bool:
        return self._hearing is not None and self._hearing.listening

    async def _expect(self, ids: Sequence[int]) -> None:
        loop = asyncio.get_running_loop()
        wanted = self._agenda.to_expect(ids, loop.time())
        if wanted and self._ears is None:
            self._ears = asyncio.create_task(self._hear(), name="prinia: hearing of results")
        if wanted and self._listening:
            with contextlib.suppress(PriniaError):  # looking goes on without
                await self._storage().aexpect(wanted)
                self._agenda.expecting(wanted, loop.time())

    async def _hear(self) -> None:
        try:
            async with self._storage().hear_ends(self._heard) as self._hearing:
                await asyncio.Event().wait()
        except PriniaError as error:
            log.debug("nothing is heard of jobs that end, who waits for them looks: %s", error)
        finally:
            self._hearing = None

    def _heard(self, ids: Sequence[int] | None) -> None:
        if self._agenda.heard(ids, asyncio.get_running_loop().time()):
            self._stirred.set()
