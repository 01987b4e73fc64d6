"""RUN: from a claimed job to what is to be recorded of it.

Each job runs in an asyncio task of its own, in a copy of the context in which the worker was started, so that no job
sees another's context variables. Whatever a handler raises, down to KeyboardInterrupt, is caught inside that task:
asyncio would stop the whole loop for some of it.

What counts when a handler is cancelled by the worker:

- **time limit**: the attempt failed with "timeout after N s", whatever the handler then returns or raises. It may
  clean up for `CLEANUP` seconds; if it is still there it is cancelled again, and so on. Its slot stays busy and its
  job running until it has ended: a time limit never makes a job run beside itself.
- **cancelled from outside**: a handler that returns all the same, or steers, has its word; anything else ends the job
  as cancelled. It is asked again as with a time limit.
- **stop**: likewise, but anything else hands the job back, uncounted.
- **lost**: the job belongs to somebody else by now, nothing is recorded.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from contextvars import Context as ContextVars
from functools import partial
from itertools import chain
from typing import Any, Literal, cast
from uuid import UUID

from prinia.context import Context, WorkerContext, context_of
from prinia.job import ClaimedJob
from prinia.outcome import Ack, AckKind, CancelledOutside, Completed, Failed, HandedBack, Outcome, decide
from prinia.retry import DEFAULT_RETRY, RetryPolicy, follow
from prinia.storage.protocol import CompletesWithin
from prinia.task import Task
from prinia.worker.ack import Flusher
from prinia.worker.announce import Announcer
from prinia.worker.call import Handler, Surrounded, broken
from prinia.worker.completion import Completion
from prinia.worker.deadlines import Deadlines
from prinia.worker.ending import Ending, Run, interrupted, judged, report
from prinia.worker.ledger import Counts, Ledger
from prinia.worker.pool import Place, Pool
from prinia.worker.threads import Threads

log = logging.getLogger("prinia.worker")

#: Seconds a handler past its time limit may clean up before it is cancelled once more.
CLEANUP = 5.0


class Runner:
    """Starts claimed jobs, at most ``concurrency`` at a time and in the order given, and hands on their outcomes.

    The heartbeat's thread may call `started_ids` and `current`; all else belongs to the event loop.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task[Any, Any]],
        flusher: Flusher,
        ledger: Ledger,
        counts: Counts,
        *,
        concurrency: int,
        threads: Threads,
        pool: Pool,
        variables: ContextVars,
        changed: asyncio.Event,
        random: Callable[[], float],
        worker: WorkerContext,
        instance: UUID,
        storage: CompletesWithin,
        strict: bool,
        announcer: Announcer,
        surround: Callable[[Task[Any, Any]], Surrounded | None] = lambda task: None,
    ) -> None:
        self._retry = {name: task.reactions.retry for name, task in tasks.items() if task.reactions.retry is not None}
        self._handlers = {name: Handler(task, surround(task)) for name, task in tasks.items()}
        self._flusher = flusher
        self._ledger = ledger
        self._counts = counts
        self._concurrency = concurrency
        self._threads = threads
        self._pool = pool
        self._variables = variables
        self._changed = changed
        self._random = random
        self._worker = worker
        self._instance = instance
        self._storage = storage
        self._strict = strict
        self._announce_start = announcer.started if announcer.hears_starts else None
        self._loop = asyncio.get_running_loop()
        self._deadlines: Deadlines[Run] = Deadlines(self._loop, self._expire)
        self._waiting: deque[ClaimedJob] = deque()
        #: Jobs that came to their turn while every thread, or every process, was busy.
        self._parked: dict[Threads | Pool, deque[ClaimedJob]] = {threads: deque(), pool: deque()}
        self._stopping = False
        # A thread may be freed by a handler that an earlier life of this worker has left behind.
        threads.freed = pool.freed = self._next
        self.running: set[Run] = set()
        self.started = 0
        #: `changed` is set at the end of a run only when no more than this many jobs wait; -1 for never.
        self.low = -1

    @property
    def waiting(self) -> int:
        """How many jobs are claimed and not started."""
        return sum(map(len, self._queues))

    @property
    def short_of_threads(self) -> bool:
        """As many jobs wait for a thread or a process as there are: claiming more would only take them from others."""
        return any(len(parked) >= place.size for place, parked in self._parked.items())

    @property
    def _queues(self) -> list[deque[ClaimedJob]]:
        """What is claimed and not started, in the order in which it was claimed."""
        return [*self._parked.values(), self._waiting]

    def add(self, jobs: Iterable[ClaimedJob]) -> None:
        """Let these jobs, of known tasks, wait for their turn, and start what can start."""
        self._waiting.extend(jobs)
        self._fill()

    def finish(self, job: ClaimedJob, outcome: Outcome, *, within: Completed | None = None) -> None:
        """Hand on how a claimed job ended, be it that it never ran; ``within``, what its handler completed it with."""
        job.args = b""  # may be large, and is not needed while the outcome waits to be recorded
        ack = decide(job, outcome, self._random(), retry=self._retry_after(job, outcome))
        counter = "handed_back" if isinstance(outcome, HandedBack) else _COUNTERS[ack.kind]
        if within is None:
            self._flusher.add(ack, job, counter)
            report(job, ack, outcome)
        else:
            ack.within = within
            self._flusher.add_unsure(ack, job, counter, partial(report, job, ack, outcome))

    def hand_back_waiting(self, unwanted: Callable[[ClaimedJob], bool] = lambda job: True) -> int:
        """Hand back, uncounted, what has not started, or these of it. Returns how many."""
        jobs = [job for job in chain(*self._queues) if unwanted(job)]
        for waiting in self._queues:
            kept = [job for job in waiting if not unwanted(job)]
            waiting.clear()
            waiting.extend(kept)
        for job in jobs:
            self.finish(job, HandedBack())
        return len(jobs)

    def claimed(self) -> list[ClaimedJob]:
        """The jobs that this worker thinks it owns and has no outcome of."""
        return [run.job for run in self.running if run.ending is not Ending.LOST] + list(chain(*self._queues))

    def started_ids(self) -> list[int]:
        """The ids of jobs whose handlers run. Safe from any thread: copying a set is one step."""
        return [run.job.id for run in tuple(self.running) if run.ending is not Ending.LOST]

    def current(self) -> ClaimedJob | None:
        """The job whose handler the event loop is in just now. Safe from any thread, and a guess there."""
        task = asyncio.current_task(self._loop)
        return next((run.job for run in tuple(self.running) if run.future is task), None) if task else None

    def stop(self) -> None:
        """Tell handlers that ask (``ctx.stopping``) that the worker is stopping. Nothing is cancelled yet."""
        self._stopping = True
        for run in self.running:
            if run.context is not None:
                run.context.stopping = True

    def cancel(self) -> None:
        """Cancel every handler because the worker stops."""
        for run in self.running:
            if run.ending is None:
                self._cancel(run, Ending.STOP)

    def cancel_requested(self, requests: Mapping[int, str]) -> None:
        """End these jobs, each for a reason, because somebody asked to. Handlers that run are told and cancelled."""
        for waiting in self._queues:
            unwanted = [job for job in waiting if job.id in requests]
            for job in unwanted:
                waiting.remove(job)
                self.finish(job, CancelledOutside(requests[job.id]))
        for run in self.running:
            if run.ending is None and run.job.id in requests:
                run.cancel_reason = requests[run.job.id]
                if run.context is not None:
                    run.context.cancel_requested = True
                if run.deadline is not None:
                    self._deadlines.drop(run.deadline)
                    run.deadline = None
                self._cancel_again(run, Ending.CANCEL)

    def lose(self, ids: Container[int] | None = None) -> int:
        """Drop these jobs (all by default): others own them. Running handlers are told and cancelled."""
        lost = [job for job in chain(*self._queues) if ids is None or job.id in ids]
        for waiting in self._queues:
            kept = [job for job in waiting if ids is not None and job.id not in ids]
            waiting.clear()
            waiting.extend(kept)
        for job in lost:
            self._drop(job)
        runs = [run for run in self.running if run.ending is not Ending.LOST and (ids is None or _lacks(ids, run))]
        for run in runs:
            if run.context is not None:
                run.context.lost = True
            self._cancel(run, Ending.LOST)
        return len(lost) + len(runs)

    def abandon(self) -> int:
        """Let go of handlers that ignore their cancellation: record now what becomes of their jobs. How many."""
        runs = list(self.running)
        self.running.clear()
        for run in runs:
            if run.ending is Ending.LOST:
                self._drop(run.job)
            else:
                self.finish(run.job, interrupted(run), within=run.within)
            run.ending = Ending.ABANDONED
            if run.slot is not None:
                run.slot.given_up = True
            log.warning("job %d (%s) ignores its cancellation; its handler is left behind", run.job.id, run.job.task)
        self._counts["abandoned"] += len(runs)
        return len(runs)

    async def until_idle(self) -> None:
        """Return once no handler runs."""
        while self.running:
            await asyncio.wait([run.future for run in self.running if run.future is not None])

    def close(self) -> None:
        """No time limit expires any more."""
        self._deadlines.close()

    def _fill(self) -> None:
        running, waiting = self.running, self._waiting
        for place, parked in self._parked.items():
            while parked and place.free > 0 and len(running) < self._concurrency:
                job = parked.popleft()
                self._start(job, self._handlers[job.task])
        while waiting and len(running) < self._concurrency:
            job = waiting.popleft()
            handler = self._handlers[job.task]
            if handler.is_async or (place := self._place_of(handler)).free > 0:
                self._start(job, handler)
            else:
                self._parked[place].append(job)

    def _place_of(self, handler: Handler) -> Threads | Pool:
        return self._pool if handler.is_isolated else self._threads

    def _start(self, job: ClaimedJob, handler: Handler) -> None:
        run = Run(job, handler)
        if handler.injects:
            run.context = context = self._context_of(job)
            context._completes = run.completion = Completion(
                job, context, handler.encode_result, self._storage, self._instance, strict=self._strict
            )
        if job.extras is not None and job.extras.timeout is not None:
            run.deadline = self._deadlines.add(run, job.extras.timeout)
        self.running.add(run)
        self.started += 1
        if self._announce_start is not None:
            self._announce_start(job)
        variables = self._variables.copy()
        if handler.is_isolated or (handler.surrounded is not None and not handler.is_async):
            run.slot = self._place_of(handler).reserve()
        if handler.is_async or run.slot is not None:
            run.future = self._loop.create_task(self._run(run), context=variables)
        else:
            outcome = self._threads.call(lambda: variables.run(handler.run_in_thread, job, run.context))
            run.future = self._loop.create_task(self._run_threaded(run, outcome), context=variables.copy())

    async def _run(self, run: Run) -> None:
        job, handler = run.job, run.handler
        try:
            if run.slot is not None or handler.surrounded is not None:
                result = await self._run_in(run)
            else:
                codec = job.codec
                arguments = handler.decode(codec, job.args)
                result = handler.encode_result(await handler.call(arguments, run.context), codec)
        except BaseException as error:  # see the module's text
            self._end(run, broken(error))
            return
        completion = run.completion
        if run.ending is not None or run.deadline is not None or (completion is not None and completion.tried):
            self._end(run, Completed(result))
            return
        # What `_end` would do, and `decide` for `Completed`, spelled out: most jobs go this way.
        self.running.discard(run)
        job.args = b""
        self._flusher.add(Ack(job.id, job.token, _COMPLETE, result), job, "completed")
        self._next()

    async def _run_in(self, run: Run) -> bytes | None:
        """Call a handler with what stands around it, or in another process."""
        try:
            if run.handler.surrounded is not None:
                return await run.handler.surrounded.run(run.job, run.context or self._context_of(run.job), run.slot)
            return await cast(Place, run.slot).run(run.handler.task, run.job, self._worker)
        finally:
            if run.slot is not None:
                run.slot.release()

    async def _run_threaded(self, run: Run, outcome: asyncio.Future[Outcome]) -> None:
        self._end(run, await outcome)

    def _end(self, run: Run, outcome: Outcome) -> None:
        if run.deadline is not None:
            self._deadlines.drop(run.deadline)
        if run.ending is Ending.ABANDONED:
            return
        self.running.discard(run)
        if run.ending is Ending.LOST:
            self._drop(run.job)
        else:
            self.finish(run.job, judged(run, outcome), within=run.within)
        self._next()

    def _next(self) -> None:
        """A slot is free."""
        if not self._stopping and (self._waiting or self._parked):
            self._fill()
        if len(self._waiting) <= self.low:
            self._changed.set()

    def _drop(self, job: ClaimedJob) -> None:
        self._ledger.settled({job.token: 1})
        self._counts["lost"] += 1

    def _cancel(self, run: Run, ending: Ending) -> None:
        run.ending = ending
        if run.context is not None:
            run.context.stopping = True
        # Not at once: a task that is cancelled before its first step never enters its coroutine, nor leaves it.
        self._loop.call_soon(_cancel_in_loop, run)

    def _expire(self, run: Run) -> None:
        if run.ending not in (None, Ending.TIMEOUT, Ending.CANCEL):
            return
        self._cancel_again(run, Ending.TIMEOUT if run.ending is None else run.ending)

    def _cancel_again(self, run: Run, ending: Ending) -> None:
        """Cancel it for a time limit or a cancel request, and once more if it is still there after a while."""
        job, first = run.job, run.ending is None
        why = "is past its time limit" if ending is Ending.TIMEOUT else "was cancelled"
        self._cancel(run, ending)
        if not run.cancellable:
            if first:
                log.warning("job %d (%s) %s; a thread can only be asked to end", job.id, job.task, why)
            if run.slot is None:
                return
        elif not first:
            log.warning("job %d (%s) %s and ignores cancellation", job.id, job.task, why)
        run.deadline = self._deadlines.add(run, CLEANUP)

    def _retry_after(self, job: ClaimedJob, outcome: Outcome) -> RetryPolicy | Literal[False]:
        """What the rule of the job's task says of this failure. A job with a policy of its own needs none."""
        if isinstance(outcome, Failed) and outcome.policy is not None:
            return outcome.policy
        rule = self._retry.get(job.task)
        if rule is None or not isinstance(outcome, Failed) or outcome.error is None:
            return DEFAULT_RETRY
        if job.extras is not None and job.extras.retry is not None:
            return DEFAULT_RETRY
        try:
            return follow(rule, outcome.error, job.attempt)
        except BaseException:  # whatever a rule does, the job's failure is recorded
            log.exception(
                "job %d (%s): its task's retry= raised or gave no answer; the default policy counts", job.id, job.task
            )
            return DEFAULT_RETRY

    def _context_of(self, job: ClaimedJob) -> Context:
        context = context_of(job, self._worker)
        context.stopping = self._stopping
        return context


_COMPLETE = AckKind.COMPLETE

_COUNTERS = {
    AckKind.COMPLETE: "completed",
    AckKind.FAIL: "failed",
    AckKind.CANCEL: "cancelled",
    AckKind.RETRY: "retried",
    AckKind.SNOOZE: "snoozed",
}


def _cancel_in_loop(run: Run) -> None:
    if run.cancellable and run.future is not None:
        run.future.cancel()


def _lacks(ids: Container[int], run: Run) -> bool:
    """Whether the job was taken from us. One that its handler has completed is gone too, and its ack will tell."""
    return run.job.id in ids and run.within is None
