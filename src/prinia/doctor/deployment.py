"""Checks of workers and queues. All are pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib import metadata

from prinia.changes import Pause
from prinia.doctor.facts import Failures, Leader, Server, Waiting
from prinia.doctor.finding import Remark, note, ok, problem, warning
from prinia.job import JobState
from prinia.overview import QueueRecord, WorkerRecord
from prinia.reasoning import is_blocked, is_late, label
from prinia.wording import listed, plural, span

#: A dead worker whose jobs have not come back after so many seconds is nobody's work.
UNRESCUED = 60.0
#: A ready job that has waited for so many seconds is told of.
LONG_WAIT, VERY_LONG_WAIT = 60.0, 900.0
OLD_PAUSE = 86_400.0


def check_workers(workers: Sequence[WorkerRecord]) -> Iterator[Remark]:
    """Workers live, are heard of, and answer."""
    live = [worker for worker in workers if worker.alive]
    if not live:
        yield warning("no worker is live", "Start one: prinia worker MODULE:APP")
    remarks = [remark for worker in workers for remark in _ailing(worker)]
    yield from remarks
    if live and not remarks:
        yield ok(f"{plural(len(live), 'live worker')}: {listed(worker.name for worker in live)}")


def _ailing(worker: WorkerRecord) -> Iterator[Remark]:
    who, ago = label(worker), f"{span(worker.beat_age)} ago"
    if not worker.alive:
        found = f"worker {who} was declared dead, last heard of {ago}"
        if worker.beat_age > UNRESCUED:
            yield warning(
                f"{found}, and its jobs have not come back",
                "A live worker brings them back: start one, or look in the leader's log.",
            )
        else:
            yield note(found, "Its jobs come back within seconds. Its log says why it ended, or the system's.")
    elif is_late(worker):
        yield warning(
            f"worker {who} was last heard of {ago}",
            "If its process is gone, the others declare it dead after 12 s by default; with none left, start one.",
        )
    elif is_blocked(worker):
        yield warning(
            f"the event loop of worker {who} has been blocked for {span(worker.blocked or 0)}",
            "Its log names the handler: make that a plain function, which runs in a thread, or process=True.",
        )
    elif worker.listener == "polling":
        yield warning(
            f"worker {who} cannot listen, and polls",
            "listen_dsn has to lead from there to the server itself, without a transaction pooler.",
        )


def check_leader(leader: Leader, workers: Sequence[WorkerRecord]) -> Iterator[Remark]:
    """One of the live workers leads: it rescues, drops and makes leaves."""
    live = [worker for worker in workers if worker.alive]
    leads = next((worker for worker in live if worker.id == leader.instance), None)
    if not live:
        yield note("nobody leads, because no worker is live", "Jobs of dead workers come back once one is.")
    elif leads is None:
        yield warning(
            f"none of the live workers leads (the leader was {leader.instance})",
            "Another one takes over within seconds: look again. If it stays so, their logs say why.",
        )
    elif is_late(leads):
        yield warning(
            f"the leader, worker {label(leads)}, is late",
            "Another one takes over when it is found dead.",
        )
    else:
        yield ok(f"worker {leads.name} leads, in term {leader.term}")


def check_versions(workers: Sequence[WorkerRecord]) -> Iterator[Remark]:
    """All workers run the same Prinia, and this command too."""
    versions: defaultdict[str, list[str]] = defaultdict(list)
    for worker in workers:
        if worker.alive:
            versions[worker.version].append(worker.name)
    here = metadata.version("prinia")
    told = "; ".join(f"{version}: {listed(names)}" for version, names in sorted(versions.items()))
    if set(versions) - {here}:
        yield note(
            f"this is Prinia {here}, the workers' are {told}",
            "While a deploy goes on that is as it should be. Prinia's own migrations come first, then the workers.",
        )
    elif versions:
        yield ok(f"every live worker runs Prinia {here}")
    else:
        yield ok(f"this is Prinia {here}")


def check_queues(queues: Sequence[QueueRecord]) -> Iterator[Remark]:
    """Each queue in which jobs wait, or will, is served."""
    unserved = [queue for queue in queues if queue.unserved]
    for queue in unserved:
        counts = ", ".join(f"{count} {state}" for state, count in queue.counts.items() if not state.final)
        yield problem(
            f'nobody serves queue "{queue.name}": {counts}',
            f"Start a worker: prinia worker MODULE:APP -q {queue.name}. Or move its jobs: prinia jobs move --queue "
            f"{queue.name} --to QUEUE",
        )
    if not unserved:
        yield ok("every queue with jobs is served")


def check_tasks(waiting: Sequence[Waiting], workers: Sequence[WorkerRecord]) -> Iterator[Remark]:
    """Each task of which jobs wait is known to a worker that serves their queue."""
    fine = True
    for one in waiting:
        serving = [worker for worker in workers if worker.alive and one.queue in worker.queues]
        if not serving or any(one.task in worker.tasks for worker in serving):
            continue
        fine = False
        many = f"{one.jobs:,} or more" if one.more else f"{one.jobs:,}"
        elsewhere = {worker.name for worker in workers if worker.alive and one.task in worker.tasks}
        yield problem(
            f'no worker of queue "{one.queue}" knows task {one.task} (jobs that wait for it: {many})',
            f"It is known to {listed(sorted(elsewhere))}: move the jobs to their queue, or let them serve this one."
            if elsewhere
            else "Deploy code that has it, or give it back its old name as an alias: aliases=[...].",
        )
    if fine:
        yield ok("every task of which jobs wait is known to a worker of their queue")


def check_waiting(queues: Sequence[QueueRecord]) -> Iterator[Remark]:
    """Ready jobs start soon. Those of paused and of unserved queues are told elsewhere."""
    fine = True
    for queue in queues:
        age = queue.age or 0.0
        if queue.paused or not queue.workers or age < LONG_WAIT:
            continue
        fine = False
        ready = queue.counts.get(JobState.READY)
        found = f'a job of queue "{queue.name}" has been ready for {span(age)} (ready in all: {ready})'
        advice = (
            f"prinia jobs list --queue {queue.name} --state ready --oldest-first shows it, prinia explain ID says why. "
            "If others go first, start more workers."
        )
        yield (warning if age >= VERY_LONG_WAIT else note)(found, advice)
    if fine:
        yield ok(f"no ready job has waited for {span(LONG_WAIT)}")


def check_pauses(pauses: Sequence[Pause], server: Server) -> Iterator[Remark]:
    """Nothing is paused that was forgotten."""
    if not pauses:
        yield ok("nothing is paused")
    for pause in pauses:
        age = 0.0 if server.now is None else (server.now - pause.at).total_seconds()
        what = "everything" if pause.kind == "everything" else f"{pause.kind} {pause.name}"
        target = {"everything": "--all", "queue": pause.name, "task": f"--task {pause.name}"}[pause.kind]
        found = f"{what} has been paused for {span(age)}" + (f", by {pause.by}" if pause.by else "")
        yield (warning if age >= OLD_PAUSE else note)(found, f"When it may go on: prinia resume {target}")


def check_failures(failures: Failures) -> Iterator[Remark]:
    """Jobs that failed for good, lately."""
    total = sum(failures.by_task.values())
    if not total:
        yield ok("no job failed in the last 24 hours")
        return
    most = sorted(failures.by_task.items(), key=lambda item: -item[1])
    many = f"{total:,} or more jobs" if failures.more else plural(total, "job")
    yield note(
        f"{many} failed in the last 24 hours: {listed(f'{task} ({number:,})' for task, number in most)}",
        "prinia jobs list --state failed --finished-since 1d shows them; prinia jobs retry runs them again.",
    )
