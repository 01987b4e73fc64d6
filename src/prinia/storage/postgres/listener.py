"""The LISTEN connection of a process, its bells, and the waking of every sleeper in it.

A bell is an advisory lock (its space is the schema's, its number a hash of the queue's name). A sleeping worker holds
the bells of its queues exclusively, on this connection. Whoever makes a job claimable takes the bell shared until its
commit: who gets it knows that nobody sleeps; who does not, notifies, and the sleeper is woken at that commit. So no
order of commits lets a sleeper miss a job, and nothing is notified while workers are awake (a notification takes a
database-wide lock at commit).

Of several sleepers one holds a bell. The others sleep because they see it held; they try for it every few seconds, so
that one takes over when the holder dies, and they hold the bell's *waiting* lock shared, by which a worker that is
full can tell that somebody could take over work (`PostgresBell.pass_on`).

Over the same connection come the ends of jobs that somebody awaits (``announce`` in the database).

A transaction that enqueued and stays open keeps its bell shared for as long. A worker that could not get a bell for a
second makes it loud: pushes then always notify. It goes on trying, and the one who gets the bell makes it quiet again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import psycopg

from prinia.errors import StorageError
from prinia.storage.postgres.connection import BASE_SETTINGS, AsyncLine, array, text_array
from prinia.storage.postgres.sql import Sql, Statement
from prinia.storage.protocol import Heard


class Sleeper(Protocol):
    """Who wants to hear of bells."""

    def heard(self, number: int, *, passed_on: bool) -> None:
        """A bell was rung, or a full worker passes work on."""
        ...

    def ring(self) -> None:
        """Something happened that nobody may sleep through."""
        ...

    def summon(self) -> None:
        """Somebody told a worker something, perhaps this one."""
        ...

    @property
    def sleeping(self) -> bool:
        """Whether it asked to be rung."""
        ...


log = logging.getLogger("prinia.listener")

#: A notification to oneself must arrive within this time, in seconds, or the connection cannot listen.
PROOF_TIMEOUT = 3.0
RECONNECT_CAP = 10.0
#: An idle LISTEN connection is asked for a sign of life this often, in seconds.
PROBE_EVERY = 30.0
#: The number of a bell's waiting lock is the bell's plus this.
WAITING = 64
#: What is notified when a worker was told something (see ``command_worker.sql``).
ORDERS = "orders"
#: Before the ids of jobs that have ended.
ENDED = "ended "

_BELL = re.compile(r"([0-9]{1,2})(\+?)")

UNLOCK = b"select pg_advisory_unlock(%(space)s, n) from unnest(%(numbers)s::int[]) n"
UNLOCK_SHARED = b"select pg_advisory_unlock_shared(%(space)s, n) from unnest(%(numbers)s::int[]) n"


class Listener:
    """One LISTEN connection for everybody in one event loop. It lives from the first `acquire` to the last `release`.

    While ``listening`` is false (the connection is lost, or behind a pooler that passes no notifications) nobody is
    rung: sleepers poll.
    """

    def __init__(self, dsn: Callable[[], str], sql: Sql) -> None:
        self._sql = sql
        self._line = AsyncLine(dsn, name="prinia listener", schema=sql.schema, settings=BASE_SETTINGS)
        self._take = sql.statement(
            "select n, pg_try_advisory_lock(%(space)s, n), exists (select from {schema}.loud_bells l where l.bell = n)"
            " from unnest(%(numbers)s::int[]) n"
        )
        self._make_quiet = sql.statement("delete from {schema}.loud_bells where bell = any (%(numbers)s::int[])")
        self._users = 0
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        #: A session's locks are counted by the server too: what is counted here may not be taken twice at once.
        self._counting = asyncio.Lock()
        self._held: dict[int, int] = {}
        self._waiting: dict[int, int] = {}
        self._sleepers: set[Sleeper] = set()
        self._hearers: set[Heard] = set()
        self._warned = False
        self._ready = asyncio.Event()
        self._readable = asyncio.Event()
        self._proof: asyncio.Future[None] | None = None
        self._channel = ""
        self._space = 0
        #: The one that listens. The line itself would connect anew when this one is lost, and not listen.
        self._connection: psycopg.AsyncConnection[tuple[object, ...]] | None = None
        self.listening = False

    @property
    def session(self) -> int:
        """Locks taken in an earlier session are gone."""
        return self._line.session

    async def acquire(self) -> None:
        """One more user; the first starts it and waits until it listens, or is known not to."""
        self._users += 1
        if self._task is None:
            self._task = asyncio.create_task(self._keep_listening(), name="prinia listener")
        try:
            await self._ready.wait()
        except BaseException:
            await self.release()
            raise

    async def release(self) -> None:
        """One user less; the last ends it."""
        self._users -= 1
        if self._users == 0 and self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            self._lost()
            self._ready.clear()
            await self._line.close()

    def join(self, sleeper: Sleeper) -> None:
        """This one wants to hear of bells."""
        self._sleepers.add(sleeper)

    def wake_one_beside(self, caller: Sleeper) -> None:
        """Wake another sleeper of this process, which is cheaper than to notify."""
        for sleeper in self._sleepers:
            if sleeper is not caller and sleeper.sleeping:
                sleeper.ring()
                return

    def leave(self, sleeper: Sleeper) -> None:
        """Undo `join`."""
        self._sleepers.discard(sleeper)

    def hear(self, heard: Heard) -> None:
        """This one wants to hear of jobs that have ended."""
        self._hearers.add(heard)

    def unhear(self, heard: Heard) -> None:
        """Undo `hear`."""
        self._hearers.discard(heard)

    # -- the connection -------------------------------------------------------------------------------------------

    async def _keep_listening(self) -> None:
        failures = 0
        while True:
            try:
                if not await self._listen():
                    return
                failures = 0
                await self._dispatch()
            except (StorageError, psycopg.Error, OSError) as error:
                failures += 1
                if self.listening or failures == 1:
                    log.warning("the LISTEN connection was lost, workers and waits poll meanwhile: %s", error)
                self._lost()
                await asyncio.sleep(random.uniform(0, min(RECONNECT_CAP, 0.1 * 2**failures)))

    def _lost(self) -> None:
        self.listening = False
        self._held.clear()
        self._waiting.clear()
        self._ready.set()
        for sleeper in self._sleepers:
            sleeper.ring()

    async def _listen(self) -> bool:
        """Connect and prove that notifications arrive. False when this connection never will."""
        async with self._lock:
            [(self._space, self._channel)] = await self._line.run(
                self._sql.statement("select {schema}.bell_space(), {schema}.bell_channel()")
            )
            connection = await self._line.connect()
            proven = self._proof = asyncio.get_running_loop().create_future()
            await self._line.run(f'listen "{self._channel}"'.encode())
            await self._line.run(b"select pg_notify(%(channel)s, 'proof')", {"channel": self._channel})
            async with contextlib.aclosing(connection.notifies(timeout=PROOF_TIMEOUT)) as notes:
                async for note in notes:
                    self._heard(note)
                    if proven.done():  # bells of others may be rung before
                        break
            self._connection = connection
        if not self._line.direct or not proven.done():
            log.log(
                logging.DEBUG if self._warned else logging.WARNING,
                "notifications do not arrive on this connection (a transaction pooler?): workers and waits poll."
                " Give listen_dsn, a URL that leads to the server itself, to be woken at once",
            )
            self._warned = True
            self._lost()
            await self._line.close()
            return False
        self.listening = True
        self._ready.set()
        for sleeper in self._sleepers:
            sleeper.ring()
        for heard in list(self._hearers):
            heard(None)
        return True

    async def _dispatch(self) -> None:
        """Wait until the socket has something, read it, again."""
        while True:
            async with self._lock:
                connection = self._quieted()
                async for note in connection.notifies(timeout=0):
                    self._heard(note)
                self._readable = readable = asyncio.Event()
                asyncio.get_running_loop().add_reader(connection.fileno(), readable.set)
            try:
                async with asyncio.timeout(PROBE_EVERY):
                    await readable.wait()
            except TimeoutError:
                await self._execute(b"select 1")
            except asyncio.CancelledError:
                with contextlib.suppress(StorageError):
                    self._quieted()
                raise

    def _quieted(self) -> psycopg.AsyncConnection[tuple[object, ...]]:
        """The connection without our reader. The driver has its own, and a socket closed with a reader left on it
        would make the next one of its number deaf."""
        if not self.listening or self._connection is None or self._connection.closed:
            raise StorageError("the LISTEN connection is closed")
        asyncio.get_running_loop().remove_reader(self._connection.fileno())
        return self._connection

    async def _execute(self, sql: Statement, params: dict[str, object] | None = None) -> list[tuple[object, ...]]:
        async with self._lock:
            try:
                self._quieted()
                async with asyncio.timeout(10):
                    return await self._line.run(sql, params)
            except TimeoutError as error:
                await self._line.close()
                raise StorageError("the connection does not answer") from error
            finally:
                self._readable.set()  # the dispatcher looks for what came meanwhile, and reads on

    def _heard(self, notify: psycopg.Notify) -> None:
        if notify.payload == "proof":
            if self._proof is not None and not self._proof.done():
                self._proof.set_result(None)
            return
        if notify.payload == ORDERS:
            for sleeper in self._sleepers:
                sleeper.summon()
            return
        if notify.payload.startswith(ENDED):
            self._heard_ends(notify.payload.removeprefix(ENDED))
            return
        bell = _BELL.fullmatch(notify.payload)
        if bell is None:
            return  # whoever may connect may notify any channel
        for sleeper in self._sleepers:
            sleeper.heard(int(bell[1]), passed_on=bool(bell[2]))

    def _heard_ends(self, payload: str) -> None:
        ids = [int(id) for id in payload.split(",") if id.isdecimal() and id.isascii()]
        for heard in list(self._hearers):
            heard(ids)

    # -- locks ----------------------------------------------------------------------------------------------------

    async def take(self, numbers: Sequence[int]) -> set[int]:
        """Try for these bells; returns those not got. Counted: a session may hold a lock for several sleepers.

        Who gets a bell makes it quiet: nothing is in flight then that would keep it out of reach.
        """
        async with self._counting:
            wanted = [number for number in numbers if number not in self._held]
            missed: set[int] = set()
            if wanted:
                rows = await self._execute(self._take, {"numbers": array(wanted), "space": self._space})
                missed = {number for number, got, _ in rows if isinstance(number, int) and not got}
                loud = [number for number, got, loud in rows if isinstance(number, int) and got and loud]
                for number in wanted:
                    if number not in missed:
                        self._held[number] = 0
                if loud:
                    await self._execute(self._make_quiet, {"numbers": array(loud)})
            for number in numbers:
                if number in self._held:
                    self._held[number] += 1
            return missed

    async def give(self, numbers: Iterable[int]) -> None:
        """Let go of bells taken."""
        await self._unlock(self._held, numbers, UNLOCK, 0)

    async def take_waiting(self, numbers: Iterable[int]) -> None:
        """Hold the waiting locks of these bells shared: a full worker can tell that somebody sleeps."""
        async with self._counting:
            new = [number for number in numbers if number not in self._waiting]
            if new:
                await self._execute(
                    b"select pg_try_advisory_lock_shared(%(space)s, n + 64) from unnest(%(numbers)s::int[]) n",
                    {"numbers": array(new), "space": self._space},
                )
            for number in numbers:
                self._waiting[number] = self._waiting.get(number, 0) + 1

    async def give_waiting(self, numbers: Iterable[int]) -> None:
        """Let go of waiting locks."""
        await self._unlock(self._waiting, numbers, UNLOCK_SHARED, WAITING)

    async def _unlock(self, counts: dict[int, int], numbers: Iterable[int], statement: Statement, offset: int) -> None:
        async with self._counting:
            free = []
            for number in numbers:
                if counts.get(number, 0) > 1:
                    counts[number] -= 1
                elif counts.pop(number, 0):
                    free.append(number + offset)
            if free:
                await self._execute(statement, {"numbers": array(free), "space": self._space})

    async def numbers(self, queues: Sequence[str]) -> frozenset[int]:
        """The bells of these queues."""
        rows = await self._execute(
            self._sql.statement("select distinct {schema}.bell_of(queue) from unnest(%(queues)s::text[]) q (queue)"),
            {"queues": text_array(queues)},
        )
        return frozenset(number for (number,) in rows if isinstance(number, int))

    async def sleepers_elsewhere(self, numbers: Iterable[int]) -> set[int]:
        """Which of these bells another session holds exclusively."""
        rows = await self._execute(
            b"select distinct objid::int from pg_locks where locktype = 'advisory' and objsubid = 2 and granted"
            b" and mode = 'ExclusiveLock' and classid::int8 = (%(space)s::int8 & 4294967295)"
            b" and objid = any (%(numbers)s::oid[])"
            b" and database = (select oid from pg_database where datname = current_database())",
            {"space": self._space, "numbers": array(sorted(numbers))},
        )
        return {number for (number,) in rows if isinstance(number, int)}

    async def make_loud(self, numbers: Iterable[int]) -> None:
        """Let every push notify these bells, until somebody gets them."""
        await self._execute(
            self._sql.statement(
                "insert into {schema}.loud_bells select unnest(%(numbers)s::int[]) on conflict (bell) do nothing"
            ),
            {"numbers": array(sorted(numbers))},
        )

    async def pass_on(self, numbers: Iterable[int]) -> None:
        """Notify sleepers of other sessions, if there are any, that work is left."""
        await self._execute(
            b"select pg_notify(%(channel)s, n || '+') from unnest(%(numbers)s::int[]) n"
            b" where not pg_try_advisory_xact_lock(%(space)s, n + 64)",
            {"channel": self._channel, "numbers": array(sorted(numbers)), "space": self._space},
        )
