"""From a job's situation to the reasons why it does not run: pure.

What holds a job back is looked for where a claim would stop: pauses first, then who could claim it, then its due time,
then its place in the queue. Each step only knows what the register says, which is as old as the workers' last beats.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import timedelta

from prinia.changes import Pause
from prinia.explanation import Explanation, Reason, ReasonCode
from prinia.job import SUSPECT_CRASHES, JobRecord, JobState
from prinia.overview import WorkerRecord
from prinia.situation import AHEAD_LIMIT, Situation
from prinia.wording import listed, moment, plural, quoted, span

#: A worker of which nothing was heard for so many seconds is late: it beats every 4, and is declared dead after 12.
LATE = 10.0
#: An event loop that has not answered for so many seconds is blocked.
BLOCKED = 1.0
#: A start deadline this close is told, in seconds.
NEAR = 60.0
EXPIRED = "expired"
_LONGEST_MESSAGE = 200


def explain(id: int, situation: Situation) -> Explanation:
    """The explanation for the job of this id.

    Example::

        explain(42, storage.situation(42, limit=AHEAD_LIMIT)).reasons[0].code      # ReasonCode.QUEUE_PAUSED
    """
    job = situation.job
    if job is None:
        reasons = [_not_found(id)]
    elif job.state.final:
        reasons = [_ended(job)]
    elif job.state is JobState.RUNNING:
        reasons = [*_cancelling(job), _running(job, situation)]
    else:
        reasons = [*_cancelling(job), *_waiting(job, situation)] or [_next(situation.workers, job)]
    order = list(ReasonCode)
    return Explanation(
        id=id, at=situation.now, job=job, reasons=tuple(sorted(reasons, key=lambda reason: order.index(reason.code)))
    )


def is_late(worker: WorkerRecord) -> bool:
    """Whether it should have been heard of since."""
    return worker.beat_age > LATE


def is_blocked(worker: WorkerRecord) -> bool:
    """Whether its event loop does not answer."""
    return worker.blocked is not None and worker.blocked >= BLOCKED


def label(worker: WorkerRecord) -> str:
    """A worker in words: name, host, process, instance."""
    return f"{worker.name} (pid {worker.pid} on {worker.host}, instance {worker.id})"


def _names(workers: Sequence[WorkerRecord]) -> str:
    return listed(worker.name for worker in workers)


# -- it is not there, it has ended ------------------------------------------------------------------------------------


def _not_found(id: int) -> Reason:
    return Reason(
        code=ReasonCode.NOT_FOUND,
        text=f"There is no job {id}.",
        advice="It was never stored, its transaction was rolled back or is not committed yet, or it ended and was not "
        "kept any longer. Look whether the transaction that enqueued it has committed.",
    )


def _ended(job: JobRecord) -> Reason:
    when = f"at {job.finished_at:%Y-%m-%d %H:%M:%S} UTC" if job.finished_at is not None else "before"
    again = f"To run it again: prinia jobs retry {job.id}"
    if job.state is JobState.COMPLETED:
        return Reason(code=ReasonCode.COMPLETED, text=f"It completed {when}.", advice="Nothing: it has run.")
    if job.state is JobState.FAILED:
        reason = f" ({job.reason})" if job.reason else ""
        text = f"It failed {when}, after {plural(job.attempt, 'attempt')} of {job.max_attempts}{reason}{_last(job)}."
        return Reason(code=ReasonCode.FAILED, text=text, advice=f"Mend the cause. {again}")
    if job.reason == EXPIRED:
        text = f"It ended {when} as cancelled: it had not started by its start deadline."
        return Reason(code=ReasonCode.EXPIRED, text=text, advice="Look why it waited so long, or give it more time.")
    reason = f" ({job.reason})" if job.reason else ""
    text = f"It ended {when} as cancelled{reason}."
    return Reason(
        code=ReasonCode.CANCELLED,
        text=text,
        advice=f"To run it all the same: prinia jobs retry {job.id}",
    )


def _last(job: JobRecord) -> str:
    if not job.errors:
        return ""
    error = job.errors[-1]
    message = " ".join(error.message.split())
    shown = message if len(message) <= _LONGEST_MESSAGE else f"{message[: _LONGEST_MESSAGE - 3]}..."
    return f"; the last error was {error.kind}: {shown}".rstrip(" .:")


# -- it runs ----------------------------------------------------------------------------------------------------------


def _cancelling(job: JobRecord) -> Iterator[Reason]:
    if job.reason is not None:
        yield Reason(
            code=ReasonCode.CANCEL_REQUESTED,
            text=f"It is to be cancelled: {job.reason}.",
            advice="Its worker hears of it within a second and cancels the handler; a plain function in a thread "
            "is only told (ctx.stopping). Unless its result arrives first it ends as cancelled.",
        )


def _running(job: JobRecord, situation: Situation) -> Reason:
    worker = next((worker for worker in situation.workers if worker.id == job.owner), None)
    since = "" if job.started_at is None else f" since {moment(job.started_at, now=situation.now)}"
    if worker is None:
        return Reason(
            code=ReasonCode.OWNER_UNKNOWN,
            text=f"It was claimed{since} by worker instance {job.owner}, which is not on the register.",
            advice="The leader gives such jobs back within two minutes. " + _needs_others(None, situation.workers),
        )
    heard = f"last heard of {span(worker.beat_age)} ago"
    if not worker.alive:
        return Reason(
            code=ReasonCode.WORKER_DEAD,
            text=f"Its worker {label(worker)} was declared dead, {heard}.",
            advice="The leader brings its jobs back within seconds: then it runs again, with one crash more. "
            + _needs_others(worker, situation.workers),
        )
    if is_late(worker):
        return Reason(
            code=ReasonCode.WORKER_LATE,
            text=f"It runs{since} in worker {label(worker)}, {heard}, which is late.",
            advice="If that process is gone, the others declare it dead after 12 s by default, and the job runs again. "
            + _needs_others(worker, situation.workers),
        )
    if is_blocked(worker):
        return Reason(
            code=ReasonCode.WORKER_BLOCKED,
            text=f"It was claimed{since} by worker {label(worker)}, whose event loop has been blocked for "
            f"{span(worker.blocked or 0)}.",
            advice="That worker's log names the handler that blocks it: make that a plain function, which runs in a "
            "thread, or process=True.",
        )
    if job.id not in worker.running and job.started_at is not None and job.started_at < worker.beat_at:
        return Reason(
            code=ReasonCode.CLAIMED,
            text=f"It was claimed{since} by worker {label(worker)} and had not started {span(worker.beat_age)} ago: "
            f"{len(worker.running)} of {worker.concurrency} jobs ran there.",
            advice="It starts when a slot, a thread or a process of that worker is free. "
            f"To have others run it: prinia workers pause {worker.id}",
        )
    return Reason(
        code=ReasonCode.RUNNING,
        text=f"It runs{since} in worker {label(worker)}, attempt {job.attempt} of {job.max_attempts}.",
        advice=f"Nothing, unless it takes too long: prinia jobs cancel {job.id}",
    )


def _needs_others(worker: WorkerRecord | None, workers: Sequence[WorkerRecord]) -> str:
    if any(one.alive and not is_late(one) for one in workers if one is not worker):
        return "Nothing has to be done."
    return "But no other worker is there to do it: start one."


# -- it waits ---------------------------------------------------------------------------------------------------------


def _waiting(job: JobRecord, situation: Situation) -> Iterator[Reason]:
    yield from _deadline(job, situation)
    for pause in situation.pauses:
        if pause.kind == "everything" or pause.name == (job.queue if pause.kind == "queue" else job.task):
            yield _paused(pause, situation)
    if job.state is not JobState.READY:
        yield _due(job, situation)
    able = list[WorkerRecord]()
    if (reason := _workers(job, situation.workers, able)) is not None:
        yield reason
    if job.state is JobState.READY:
        yield from _place(job, situation.ahead, able)


def _deadline(job: JobRecord, situation: Situation) -> Iterator[Reason]:
    expires = situation.expires_at
    if expires is None:
        return
    when = moment(expires, now=situation.now)
    if expires <= situation.now:
        yield Reason(
            code=ReasonCode.DEADLINE_PASSED,
            text=f"Its start deadline has passed: {when}.",
            advice="It ends as cancelled (expired) at the next claim or sweep, which needs a live worker. "
            "Enqueue it anew if it is still wanted.",
        )
    elif job.scheduled_at is not None and expires <= job.scheduled_at:
        yield Reason(
            code=ReasonCode.DEADLINE_BEFORE_DUE,
            text=f"Its start deadline comes before it is due: {when}.",
            advice=f"It will end as cancelled (expired). To run it now: prinia jobs run {job.id}",
        )
    elif expires - situation.now <= timedelta(seconds=NEAR):
        yield Reason(
            code=ReasonCode.DEADLINE_NEAR,
            text=f"Its start deadline is near: {when}.",
            advice="If it does not start by then it ends as cancelled (expired).",
        )


def _paused(pause: Pause, situation: Situation) -> Reason:
    code, what, target = {
        "everything": (ReasonCode.EVERYTHING_PAUSED, "Everything", "--all"),
        "queue": (ReasonCode.QUEUE_PAUSED, f'Its queue "{pause.name}"', shlex.quote(pause.name)),
        "task": (ReasonCode.TASK_PAUSED, f"Its task {pause.name}", f"--task {shlex.quote(pause.name)}"),
    }[pause.kind]
    by = f" by {pause.by}" if pause.by else ""
    return Reason(
        code=code,
        text=f"{what} is paused{by}, since {moment(pause.at, now=situation.now)}.",
        advice=f"When it may go on: prinia resume {target}",
    )


def _due(job: JobRecord, situation: Situation) -> Reason:
    if job.scheduled_at is None:
        return Reason(
            code=ReasonCode.BLOCKED,
            text="It is blocked: it has no due time until the jobs that it waits for have ended.",
            advice="Look at those: prinia jobs list --state failed shows what failed.",
        )
    when, now = moment(job.scheduled_at, now=situation.now), f"To run it now: prinia jobs run {job.id}"
    if job.state is JobState.RETRYING:
        return Reason(
            code=ReasonCode.RETRYING,
            text=f"Attempt {job.attempt} of {job.max_attempts} has failed, the next one is due {when}{_last(job)}.",
            advice=f"Mend the cause. {now}",
        )
    return Reason(code=ReasonCode.SCHEDULED, text=f"It is scheduled for {when}.", advice=f"Wait. {now}")


def _workers(job: JobRecord, workers: Sequence[WorkerRecord], able: list[WorkerRecord]) -> Reason | None:
    """Why no worker can claim it; else those that can are put into ``able``."""
    live = [worker for worker in workers if worker.alive]
    serving = [worker for worker in live if job.queue in worker.queues]
    if not serving:
        return _unserved(job, live)
    knowing = [worker for worker in serving if job.task in worker.tasks]
    if not knowing:
        return _unknown(job, serving, live)
    free = [worker for worker in knowing if worker.command is None]
    if not free:
        return _told(knowing)
    heard = [worker for worker in free if not is_late(worker)]
    if not heard:
        return Reason(
            code=ReasonCode.WORKERS_LATE,
            text=f"No worker that could run it has been heard of lately: {_names(free)}, "
            f"{span(min(worker.beat_age for worker in free))} ago or longer.",
            advice="Look whether their processes live and reach the database. Those of dead workers are noticed by "
            "other workers only: start one.",
        )
    answering = [worker for worker in heard if not is_blocked(worker)]
    if not answering:
        return Reason(
            code=ReasonCode.WORKERS_BLOCKED,
            text=f"The event loop of every worker that could run it is blocked: {_names(heard)}.",
            advice="Their logs name the handler that blocks: make that a plain function, which runs in a thread, or "
            "process=True.",
        )
    able += answering
    return None


def _unserved(job: JobRecord, live: Sequence[WorkerRecord]) -> Reason:
    others = "no worker is live at all" if not live else f"the live workers serve {quoted(_queues_of(live))} only"
    return Reason(
        code=ReasonCode.UNSERVED,
        text=f'No live worker serves its queue "{job.queue}": {others}.',
        advice=f"Start one: prinia worker MODULE:APP -q {shlex.quote(job.queue)}. "
        f"Or move it: prinia jobs move {job.id} --to QUEUE. "
        "If workers were started and are not here, their logs say why; prinia doctor may too.",
    )


def _queues_of(workers: Sequence[WorkerRecord]) -> list[str]:
    return sorted({queue for worker in workers for queue in worker.queues})


def _unknown(job: JobRecord, serving: Sequence[WorkerRecord], live: Sequence[WorkerRecord]) -> Reason:
    elsewhere = [worker for worker in live if job.task in worker.tasks]
    advice = f"Deploy code that has the task {job.task}, or give it back its old name as an alias: aliases=[...]."
    if elsewhere:
        advice = (
            f"It is known to {_names(elsewhere)}, for {quoted(_queues_of(elsewhere))}: "
            f"prinia jobs move {job.id} --to QUEUE, or let them serve this queue too."
        )
    return Reason(
        code=ReasonCode.TASK_UNKNOWN,
        text=f'Of the workers that serve its queue "{job.queue}" none knows the task {job.task}: {_names(serving)}.',
        advice=advice,
    )


def _told(workers: Sequence[WorkerRecord]) -> Reason:
    told = listed(
        f"{worker.name} ({worker.command}{f' by {worker.commanded_by}' if worker.commanded_by else ''})"
        for worker in workers
    )
    resumed = next((worker for worker in workers if worker.command != "stop"), None)
    how = f"Let one go on: prinia workers resume {resumed.id}" if resumed is not None else "Start others."
    return Reason(
        code=ReasonCode.WORKERS_TOLD,
        text=f"Every worker that could run it was told to claim nothing: {told}.",
        advice=how,
    )


def _place(job: JobRecord, ahead: int, able: Sequence[WorkerRecord]) -> Iterator[Reason]:
    full = [worker for worker in able if len(worker.running) >= worker.concurrency]
    busy = sum(len(worker.running) for worker in able)
    if job.crashes >= SUSPECT_CRASHES:
        where = f"; those that could take it run {plural(busy, 'job')}" if able else ""
        yield Reason(
            code=ReasonCode.SUSPECT,
            text=f"It was running in {job.crashes} crashes of workers, so it is only claimed by a worker that runs "
            f"nothing else{where}.",
            advice="Look in the logs of the workers that died. To let it run at once, start a worker for it.",
        )
    elif able and len(full) == len(able):
        room = sum(worker.concurrency for worker in able)
        yield Reason(
            code=ReasonCode.WORKERS_FULL,
            text=f"Every worker that could run it is full: {busy} of {room} slots are taken ({_names(able)}).",
            advice="Start more workers, or raise their concurrency. prinia jobs list --state running shows what runs.",
        )
    if ahead:
        many = f"more than {AHEAD_LIMIT:,} jobs" if ahead > AHEAD_LIMIT else plural(ahead, "job")
        yield Reason(
            code=ReasonCode.BEHIND,
            text=f'Before it in its queue "{job.queue}", by priority or due time: {many}. '
            f"It has priority {job.priority}.",
            advice=f"Start more workers. To let it go first: prinia jobs reprioritise {job.id} --priority 100",
        )


def _next(workers: Sequence[WorkerRecord], job: JobRecord) -> Reason:
    able = [worker for worker in workers if worker.alive and job.queue in worker.queues and job.task in worker.tasks]
    deaf = all(worker.listener in ("polling", "off") for worker in able)
    when = "when they look next: they poll" if deaf else "in a moment"
    return Reason(
        code=ReasonCode.NEXT,
        text=f"Nothing holds it back: {_names(able)} can claim it {when}.",
        advice="Ask again. If it stays, prinia doctor tells what is wrong with the database or the workers.",
    )
