"""The crew: several processes with a worker each, under one parent. ``prinia worker -p N`` is one.

The parent runs nothing itself, and imports nothing of the application. Its processes are made anew (no fork): each has
a session of its own, so that a terminal's Ctrl-C reaches the parent alone, and a line to the parent (`tether`), so that
none outlives it.

The first process goes ahead: where it cannot start, there is one message and not N. A process that ends by itself with
0 (`ctx.worker.stop()`, ``--until-empty``, or a signal to it alone) is not replaced. One that is tired is asked to stop
when its successor works, one at a time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random as random_module
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from prinia.health import Address, Answer, HealthServer, Probe, ask
from prinia.supervisor.restarts import EXIT_GAVE_UP, RestartPolicy, Restarts
from prinia.supervisor.tether import FAREWELL, NOW, READY, STOP, TIRED, Seat
from prinia.worker import EXIT_CLEAN, EXIT_LEFT_BEHIND
from prinia.worker.signals import stopped_by_signals
from prinia.worker.waiting import first, give_up

log = logging.getLogger("prinia.supervisor")

#: Seconds for a killed process to be gone, and for one to say how it is.
GONE = 5.0
ASKED = 3.0
#: A process ends so where it cannot start, or was told nonsense: at the crew's own start that ends it.
_HOPELESS = (1, 2)


class _Member:
    """One process."""

    def __init__(self, number: int, run: int, health: str) -> None:
        self.number = number
        self.run = run
        self.health = health
        self.started_at = time.monotonic()
        self.ready = asyncio.Event()
        self.tired = asyncio.Event()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_over(self) -> bool:
        return self.ended.done()

    def __str__(self) -> str:
        return f"process {self.number} (pid {self.pid}, run {self.run})"

    async def start(self, command: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        seat = Seat(line=theirs.fileno(), run=self.run, health=self.health)
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                env=os.environ | seat.as_environment(),
                pass_fds=[theirs.fileno()], stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, self._line = await asyncio.open_unix_connection(sock=ours)
        self.ended = asyncio.ensure_future(self._until_ended(reader))

    async def _until_ended(self, reader: asyncio.StreamReader) -> int:
        listening = asyncio.ensure_future(self._listen(reader))
        code = await self._process.wait()
        listening.cancel()
        self._line.close()
        return code

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while word := await reader.readline():
                {READY: self.ready, TIRED: self.tired}[word].set()

    def tell(self, word: bytes) -> None:
        if not self.is_over:
            self._line.write(word)

    def kill(self) -> None:
        """With all that it has started, but for processes with a session of their own: those notice."""
        if not self.is_over:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


class _Place:
    """One member and its successors."""

    def __init__(self, number: int, restarts: Restarts) -> None:
        self.number = number
        self.restarts = restarts
        self.run = 0
        self.member: _Member | None = None
        self.done = False


class Crew:
    """Runs ``command`` in ``size`` processes until they end or are stopped.

    A stop gives them ``stop_timeout`` seconds and ``farewell`` more, then kills them. ``policy`` says how failures are
    answered. ``health`` is where the health of all is served: ready when each process is.

    Example::

        crew = Crew([sys.executable, "-m", "prinia", "worker", "shop.jobs:app"], 4)
        sys.exit(asyncio.run(crew.run()))
    """

    def __init__(
        self,
        command: Sequence[str],
        size: int,
        *,
        stop_timeout: float = 30.0,
        farewell: float = FAREWELL,
        health: Address | None = None,
        policy: RestartPolicy = RestartPolicy(),  # noqa: B008 - it is frozen
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self._command = tuple(command)
        self._stop_timeout = stop_timeout
        self._farewell = farewell
        self._address = health
        self._places = [_Place(number, Restarts(policy, random)) for number in range(1, size + 1)]
        self._members: set[_Member] = set()
        self._folder = ""
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._replacing = asyncio.Lock()
        self._was_ready = asyncio.Event()
        self._code = EXIT_CLEAN
        #: Why it gave up, None as long as it has not.
        self.reason: str | None = None

    async def run(self, *, exit: Callable[[int], object] = os._exit) -> int:
        """Run until all have ended; returns the exit code. Call it in the main thread: it handles SIGTERM and SIGINT.

        The first signal stops the processes in order, the second now, the third kills them and ends this process by
        ``exit``. Raises `HealthError`.
        """
        with ExitStack() as stack:
            if self._address is not None:
                stack.enter_context(HealthServer(self._address, self._check))
            self._folder = tempfile.mkdtemp(prefix="prinia-")
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            stack.enter_context(stopped_by_signals(self, exit=lambda code: self._exit_now(code, exit)))
            await self._run_all()
        return self._code

    def stop(self) -> None:
        """Stop all processes in order; called a second time: now."""
        word = NOW if self._stop.is_set() else STOP
        (self._hurry if self._stop.is_set() else self._stop).set()
        for member in self._members:
            member.tell(word)

    def _exit_now(self, code: int, exit: Callable[[int], object]) -> None:
        for member in self._members:
            member.kill()
        exit(code)

    async def _run_all(self) -> None:
        keeping = [asyncio.ensure_future(self._keep(self._places[0]))]
        try:
            await first(self._was_ready.wait(), *keeping)
            others = [] if self._stop.is_set() else self._places[1:]
            keeping += [asyncio.ensure_future(self._keep(place)) for place in others]
            ended = asyncio.ensure_future(asyncio.wait(keeping))
            await first(ended, self._stop.wait())
            await first(ended, self._hurry.wait(), seconds=self._stop_timeout + self._farewell)
            if self._hurry.is_set():
                await first(ended, seconds=self._farewell)
        finally:
            self._stop.set()
            for member in self._members:
                log.error("%s has not ended in time, it is killed; its jobs run again", member)
                self._code = self._code or EXIT_LEFT_BEHIND
                member.kill()
            await first(*(member.ended for member in self._members), *keeping, seconds=GONE)
            await give_up(*keeping, grace=GONE)
        for task in keeping:
            if task.done() and not task.cancelled():
                task.result()

    async def _keep(self, place: _Place) -> None:
        """Have a process in this place, and another one each time it fails or is tired."""
        member = place.member = await self._start(place)
        while True:
            await first(member.ended, member.tired.wait())
            if not member.is_over:
                member = place.member = await self._replace(place, member)
                continue
            code = member.ended.result()
            if self._stop.is_set():
                self._note_end(member)
                break
            if code == EXIT_CLEAN:
                log.info("%s has ended by itself, and is not started anew", member)
                break
            wait = self._answer(place, member)
            await first(asyncio.sleep(wait or 0), self._stop.wait())
            if self._stop.is_set():
                break
            place.run += 1
            member = place.member = await self._start(place)
        place.done = True

    async def _start(self, place: _Place) -> _Member:
        member = _Member(place.number, place.run, os.path.join(self._folder, f"{place.number}-{place.run}.sock"))
        await member.start(self._command)
        self._members.add(member)
        member.ended.add_done_callback(lambda _: self._members.discard(member))
        if self._stop.is_set():
            member.tell(STOP)
        log.info("%s is started", member)
        waiting = asyncio.ensure_future(self._note_ready(member))
        member.ended.add_done_callback(lambda _: waiting.cancel())
        return member

    async def _note_ready(self, member: _Member) -> None:
        await member.ready.wait()
        self._was_ready.set()

    async def _replace(self, place: _Place, member: _Member) -> _Member:
        """Start a successor, and stop the tired one when that works. One at a time, so that all others work on.

        Returns who has the place then.
        """
        async with self._replacing:
            if self._stop.is_set() or member.is_over:
                await first(member.ended)
                return member
            log.info("%s is tired, it is replaced", member)
            place.run += 1
            successor = await self._start(place)
            await first(successor.ready.wait(), successor.ended, member.ended, self._stop.wait())
            if successor.is_over and not self._stop.is_set():
                wait = self._answer(place, successor)
                await first(asyncio.sleep(wait or 0), member.ended, self._stop.wait())
                return member
            member.tell(STOP)
            await first(member.ended, seconds=self._stop_timeout + self._farewell)
            member.kill()
            await first(member.ended, seconds=GONE)
            self._note_end(member)
            return successor

    def _note_end(self, member: _Member) -> None:
        if not member.is_over or member.ended.result() != EXIT_CLEAN:
            how = ending(member.ended.result()) if member.is_over else "nothing yet"
            log.warning("%s ended with %s when it was stopped; its jobs run again", member, how)
            self._code = self._code or EXIT_LEFT_BEHIND

    def _answer(self, place: _Place, member: _Member) -> float | None:
        """A process failed: seconds until another one is started, None for never."""
        code = member.ended.result()
        wait = place.restarts.failed(ran=time.monotonic() - member.started_at)
        hopeless = code in _HOPELESS and not self._was_ready.is_set()
        if wait is not None and not hopeless:
            log.warning("%s ended with %s, another one is started in %.1f s", member, ending(code), wait)
            return wait
        self._code = code if hopeless else EXIT_GAVE_UP
        often = "at its start" if hopeless else f"the {place.restarts.failures}. failure in a row"
        self.reason = f"{member} ended with {ending(code)}, {often}"
        log.error("giving up, all processes are stopped: %s", self.reason)
        self.stop()
        return None

    async def _check(self, probe: Probe) -> Answer:
        """Each process is asked. Run in the thread of the health server."""
        places = [place for place in self._places if not place.done]
        found = await asyncio.gather(*(self._ask(place, probe) for place in places))
        ok = all(one["ok"] for one in found) and (probe == "live" or bool(found))
        return ok, {"processes": found}

    @staticmethod
    async def _ask(place: _Place, probe: Probe) -> dict[str, Any]:
        member = place.member
        said: dict[str, Any] = {"number": place.number, "run": place.run, "pid": None, "state": "starting"}
        if member is None or member.is_over or not member.ready.is_set():
            return {**said, "ok": probe == "live"}
        ok, details = await ask(member.health, probe, seconds=ASKED)
        return {**said, "run": member.run, "pid": member.pid, "state": "working", **details, "ok": ok}


def ending(code: int) -> str:
    """How a process ended, in words: by an exit code or a signal."""
    if code >= 0:
        return f"exit code {code}"
    return signal.Signals(-code).name if -code in {one.value for one in signal.Signals} else f"signal {-code}"
