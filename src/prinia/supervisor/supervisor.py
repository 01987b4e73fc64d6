"""The supervisor: several workers in one process and one event loop, started together and stopped together."""

from __future__ import annotations

import asyncio
import logging
import os
import random as random_module
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from typing import TypeAlias

from prinia.clock import Clock, SystemClock
from prinia.context import WorkerContext
from prinia.errors import ConfigurationError
from prinia.events import Event, EventKind, Listener, subscribe
from prinia.health import HealthServer, WorkerHealth, check_of, read_address
from prinia.supervisor.restarts import EXIT_GAVE_UP, RestartPolicy, Restarts, check_seconds
from prinia.worker import EXIT_CLEAN, EXIT_LEFT_BEHIND, Worker
from prinia.worker.failure import kind_of, message_of
from prinia.worker.ledger import Counts
from prinia.worker.listeners import Ears
from prinia.worker.signals import stopped_by_signals
from prinia.worker.waiting import first, give_up

log = logging.getLogger("prinia.supervisor")

#: Seconds beyond its limit that a worker may need to cancel handlers, record outcomes and close what it has open.
FAREWELL = 30.0

#: Makes a worker; called with the number of the run: 0, and one more for each new start.
Factory: TypeAlias = Callable[[int], Worker]


class _Seat:
    """One worker and its successors."""

    def __init__(self, make: Factory, restarts: Restarts) -> None:
        self.make = make
        self.restarts = restarts
        self.run = 0
        self.name = "worker"
        self.worker: Worker | None = None
        self.failure: str | None = None
        self.abandoned = False
        self.left_behind = False

    def ask_loop(self) -> None:
        if self.worker is not None:
            self.worker.ask_loop()

    def health(self) -> WorkerHealth:
        if self.worker is not None:
            return self.worker.health()
        return WorkerHealth(name=self.name, run=self.run, state="restarting", failure=self.failure)


class Supervisor:
    """Runs several workers in one process: what fails is started anew, and all of them are stopped as one.

    A worker fails when its ``run()`` raises: it is made and started anew after a wait that grows with each failure in
    a row from ``restart_delay`` to ``longest_delay`` seconds, spread by chance. A run of ``reset_after`` seconds ends
    the row. After more than ``max_restarts`` failures in a row, or at once for a `ConfigurationError`, all workers are
    stopped and `run` returns `EXIT_GAVE_UP`; the reason is logged, and is `reason`. A worker that ends by itself
    without failing (``ctx.worker.stop()``, ``until_empty``) is not started anew.

    A stop lets the jobs of all workers finish for ``stop_timeout`` seconds together (a worker's own ``stop_timeout``
    may be shorter), then cancels them and hands them back. ``on_event`` is told of the events of every worker, and of
    their failures. ``health`` is where the health of all is served, as for a worker.

    Example::

        supervisor = Supervisor(on_event=tell)
        for number in range(3):
            supervisor.register(lambda run, number=number: app.worker(name=f"mail-{number}", queues=["mail"]))
        sys.exit(asyncio.run(supervisor.run()))
    """

    def __init__(
        self,
        *,
        stop_timeout: float = 30.0,
        max_restarts: int = 5,
        restart_delay: float = 1.0,
        longest_delay: float = 60.0,
        reset_after: float = 60.0,
        on_event: Listener | None = None,
        health: int | str | None = None,
        clock: Clock | None = None,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        """Raises `ConfigurationError` for values that make no sense."""
        check_seconds("stop_timeout", stop_timeout)
        self._stop_timeout = stop_timeout
        self._policy = RestartPolicy(
            max_restarts=max_restarts, delay=restart_delay, longest_delay=longest_delay, reset_after=reset_after
        )
        self._on_event = None if on_event is None else subscribe(on_event).listener
        self._address = None if health is None else read_address(health)
        self._clock = SystemClock() if clock is None else clock
        self._random = random
        self._seats: list[_Seat] = []
        self._ears: Ears | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        #: Why it gave up, None as long as it has not.
        self.reason: str | None = None

    def register(self, make: Factory, /) -> Factory:
        """Have one worker more. ``make`` is called for each of its runs with the run's number: 0, 1, 2, ...

        The number also stands in ``ctx.worker.run``, in the events, in the log and on the register. It may be used as
        a decorator. Raises `ConfigurationError` once the supervisor runs.

        Example::

            @supervisor.register
            def mail(run: int) -> Worker:
                return app.worker(name="mail", queues=["mail"])
        """
        if not callable(make):
            raise ConfigurationError(f"supervisor: register() takes a function that makes a worker, not {make!r}")
        if self._ears is not None:
            raise ConfigurationError("supervisor: it runs already; register workers before")
        self._seats.append(_Seat(make, Restarts(self._policy, self._random)))
        return make

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers that run now, in the order in which they were registered."""
        return [seat.worker for seat in self._seats if seat.worker is not None]

    async def run(self, *, until: Awaitable[object] | None = None, exit: Callable[[int], object] = os._exit) -> int:
        """Run all workers until they have ended or are stopped; returns the exit code for the process.

        That is 0; 3 when some jobs could not be recorded or handed back (they run again); 4 when it gave up. Without
        ``until`` it handles SIGTERM and SIGINT, as `prinia.worker.run_with_signals` does, and has to be called in the
        main thread; where handlers ignored their cancellation the process ends here then, by ``exit``. With ``until``
        signals are the caller's: the stop begins when that awaitable is done, and what it raises is raised after it.

        Once only. Raises `ConfigurationError` when nothing is registered, `HealthError`.
        """
        if not self._seats or self._ears is not None:
            raise ConfigurationError(
                "supervisor: it was run already; make another one" if self._seats
                else "supervisor: there is no worker; give it some: supervisor.register(lambda run: app.worker())"
            )  # fmt: skip
        with ExitStack() as stack:
            if self._address is not None:
                stack.enter_context(HealthServer(self._address, check_of(lambda: self._seats)))
            if until is None:
                stack.enter_context(stopped_by_signals(self, exit=exit))
            self._ears = Ears(Counts(), copy_context())
            await self._run_all(until)
        code = self._exit_code()
        if until is None and any(seat.abandoned for seat in self._seats):
            logging.shutdown()
            exit(code)
        return code

    def stop(self) -> None:
        """Stop all workers: see the class. Called a second time: now. Call it from the event loop's thread."""
        if self._stop.is_set():
            self._hurry.set()
            return
        self._stop.set()
        for worker in self.workers:
            if worker.health().state != "stopping":  # a second call would be a hurry
                worker.stop()

    async def _run_all(self, until: Awaitable[object] | None) -> None:
        keeping = [asyncio.ensure_future(self._keep(seat)) for seat in self._seats]
        signal = None if until is None else asyncio.ensure_future(until)
        ended = asyncio.ensure_future(asyncio.wait(keeping))
        try:
            await first(ended, self._stop.wait(), *([] if signal is None else [signal]))
            if not self._stop.is_set():
                self.stop()
            await first(ended, self._hurry.wait(), seconds=self._stop_timeout)
        finally:
            self._stop_now()
            await first(ended, seconds=FAREWELL)
            await give_up(*keeping, grace=1.0)
            if self._ears is not None:
                await self._ears.close()
        if signal is not None:
            if not signal.done():
                signal.cancel()
            elif not signal.cancelled():
                signal.result()

    def _stop_now(self) -> None:
        self._stop.set()
        for worker in self.workers:
            if worker.health().state != "stopping":
                worker.stop()
            worker.stop()

    async def _keep(self, seat: _Seat) -> None:
        """Run a worker, and another one each time it fails."""
        while not self._stop.is_set():
            started_at = self._clock.monotonic()
            try:
                await self._make(seat).run()
            except Exception as error:
                wait = self._answer(seat, error, self._clock.monotonic() - started_at)
            else:
                return
            finally:
                self._take_leave(seat)
            if wait is None:
                return
            await first(self._clock.sleep(wait), self._stop.wait())
            seat.run += 1

    def _make(self, seat: _Seat) -> Worker:
        made: object = seat.make(seat.run)
        if not isinstance(made, Worker):
            raise ConfigurationError(f"register() was given a function that made {made!r}, which is no worker")
        seat.name = made.name
        made.supervise(run=seat.run, on_event=self._on_event)
        seat.worker = made  # not before: it may be another supervisor's, and this one would stop it
        return made

    def _answer(self, seat: _Seat, error: Exception, ran: float) -> float | None:
        """A worker failed: seconds until it is started anew, None for never."""
        what = f"worker {seat.name} (run {seat.run}) failed"
        seat.failure = f"{kind_of(error)}: {message_of(error)}"
        wait = seat.restarts.failed(ran=ran)
        if self._stop.is_set():
            log.error("%s while it was stopping: %s", what, seat.failure, exc_info=error)
            seat.left_behind = True
            return None
        if wait is None or isinstance(error, ConfigurationError):
            self.reason = f"{what}, {seat.restarts.failures} times in a row: {seat.failure}"
            if isinstance(error, ConfigurationError):
                self.reason = f"{what}: {seat.failure}"
            log.error("giving up, all workers are stopped: %s", self.reason)
            self._tell(seat, f"{self.reason}; all workers are stopped", error)
            self.stop()
            return None
        log.warning("%s, it is started anew in %.1f s: %s", what, wait, seat.failure, exc_info=error)
        self._tell(seat, f"{what}, it is started anew in {wait:.1f} s: {seat.failure}", error)
        return wait

    def _tell(self, seat: _Seat, reason: str, error: Exception) -> None:
        if self._on_event is not None and self._ears is not None:
            instance = None if seat.worker is None else seat.worker.instance.id
            context = WorkerContext(name=seat.name, instance=instance, run=seat.run)
            event = Event(kind=EventKind.ERROR, worker=context, reason=reason, exception=error)
            self._ears.of(self._on_event).tell(event.kind, event)

    @staticmethod
    def _take_leave(seat: _Seat) -> None:
        if seat.worker is not None:
            stats = seat.worker.stats
            seat.abandoned |= stats.abandoned > 0
            seat.left_behind |= stats.abandoned > 0 or stats.left_behind > 0
            seat.worker = None

    def _exit_code(self) -> int:
        if self.reason is not None:
            return EXIT_GAVE_UP
        left_behind = any(seat.left_behind or seat.worker is not None for seat in self._seats)
        return EXIT_LEFT_BEHIND if left_behind else EXIT_CLEAN
