"""What wakes a worker on a real server: one LISTEN connection for all that listen, none for those that do not, and
claims of the size that was asked for.

Seen to fail with: a listener per worker; a worker told not to listen that listens; jobs found by the poll alone; the
size of a claim not handed on; a worker that keeps the bells when it is rung for what it does not know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from prinia import MessagePackCodec, Prinia
from prinia.worker import Worker

from .kit import Lab, until

HOUR = 3600.0
LISTENERS = (
    "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'prinia listener'"
)
BELLS_TAKEN = (
    "select count(*) from pg_locks where locktype = 'advisory' and mode = 'ExclusiveLock' and granted"
    " and database = (select oid from pg_database where datname = current_database())"
    " and objid in (select prinia.bell_of(queue)::oid from unnest(%s::text[]) queue)"
)


def new_app(lab: Lab) -> Prinia:
    """An app with one task of each of two queues."""
    app = Prinia(lab.dsn)

    @app.task(name="email", queue="emails")
    async def email(to: str) -> str:
        return to

    @app.task(name="report", queue="reports")
    async def report(pages: int) -> int:
        return pages

    return app


async def run(app: Prinia, task: str, value: object) -> None:
    """One job from its storing to its result."""
    job = await app.tasks[task].aenqueue(value)
    assert await job.aresult(timeout=20) == value


async def asleep(lab: Lab, *queues: str) -> None:
    """Until somebody sleeps on the bells of each of these queues."""

    async def all_taken() -> bool:
        return bool(await lab.value(BELLS_TAKEN, list(queues)) == len(queues))

    await until(all_taken, f"somebody sleeps on {queues}")


async def test_workers_of_one_app_share_one_listen_connection(lab: Lab) -> None:
    app = new_app(lab)
    async with app.worker(queues=["emails"], poll=HOUR), app.worker(queues=["reports"], poll=HOUR):
        await asleep(lab, "emails", "reports")
        assert await lab.value(LISTENERS) == 1
        await run(app, "email", "ada@example.com")
        await run(app, "report", 7)
        assert await lab.value(LISTENERS) == 1

    async def gone() -> bool:
        return bool(await lab.value(LISTENERS) == 0)

    await until(gone, "it goes with the last of them")


async def test_two_apps_have_one_each(lab: Lab) -> None:
    one, two = new_app(lab), new_app(lab)
    async with one.worker(queues=["emails"], poll=HOUR), two.worker(queues=["reports"], poll=HOUR):
        await asleep(lab, "emails", "reports")
        assert await lab.value(LISTENERS) == 2
        await run(two, "email", "ada@example.com")
        await run(one, "report", 7)


async def test_who_does_not_listen_has_no_listen_connection_and_polls(lab: Lab) -> None:
    app = new_app(lab)
    async with app.worker(listen=False, poll=0.05) as worker:
        await run(app, "email", "ada@example.com")
        await run(app, "report", 7)
        assert await lab.value(LISTENERS) == 0
        assert worker.stats.completed == 2


async def test_who_does_not_listen_is_woken_by_an_async_iterator(lab: Lab) -> None:
    looks: asyncio.Queue[str] = asyncio.Queue()

    async def signals() -> AsyncIterator[str]:
        while True:
            yield await looks.get()

    app = new_app(lab)
    async with app.worker(listen=False, poll=[HOUR, signals()]):
        for pages in range(3):
            job = await app.tasks["report"].aenqueue(pages)
            looks.put_nowait("now")
            assert await job.aresult(timeout=20) == pages
        assert await lab.value(LISTENERS) == 0


async def test_due_times_are_kept_without_listening(lab: Lab) -> None:
    app = new_app(lab)
    job = await app.tasks["report"].options(delay=0.3).aenqueue(7)
    async with app.worker(listen=False, poll=HOUR):
        assert await job.aresult(timeout=20) == 7


async def test_a_commit_starts_its_jobs_at_once_however_long_the_poll(lab: Lab) -> None:
    app = new_app(lab)
    connection = await lab.connect(autocommit=False)
    async with app.worker(poll=600):
        await asleep(lab, "emails", "reports")
        job = await app.tasks["report"].within(connection).aenqueue(7)
        await connection.commit()
        assert await job.aresult(timeout=20) == 7


async def test_a_claim_takes_no_more_than_its_batch(lab: Lab) -> None:
    app = new_app(lab)
    await app.aenqueue_many(app.tasks["report"].job(number) for number in range(300))
    worker: Worker
    async with app.worker(claim_batch=7) as worker:
        await until(lambda: worker.stats.completed == 300, "all are done")
    sizes = await lab.rows("select count(*) from prinia.archive group by owner, token order by 1")
    assert sizes[-1] <= (7,)
    assert len(sizes) >= 300 / 7


async def test_a_worker_of_the_old_code_lets_the_new_one_be_rung(lab: Lab) -> None:
    """In a rolling deploy the old worker sleeps on the bells; what only the new one knows starts all the same."""
    old, new = Prinia(lab.dsn), Prinia(lab.dsn, codecs=[MessagePackCodec()])
    packing = Prinia(lab.dsn, codec=MessagePackCodec())

    async def same(number: int) -> int:
        return number

    old.task(name="known")(same)
    new.task(name="known")(same)
    new.task(name="fresh")(same)
    packed = packing.task(name="known")(same)
    async with old, new, packing, old.worker(poll=HOUR):
        await asleep(lab, "default")
        async with new.worker(poll=HOUR):
            for number in range(3):
                await asleep(lab, "default")
                await run(new, "fresh", number)
                await run(old, "known", number)
            assert await (await packed.aenqueue(7)).aresult(timeout=60) == 7
