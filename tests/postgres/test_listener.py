"""The LISTEN connection: it comes back whatever happens to it, and nobody is deaf without knowing.

Seen to fail with: the proof expected as the first notification; the dispatcher connecting anew instead of listening
anew after a statement lost the connection; a payload of somebody else's taken for a bell; the reader left behind on a
closed socket; a listener that is left with what it knew.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import psycopg
import pytest

from prinia.storage.postgres import listener as listener_module
from prinia.storage.postgres.connection import AsyncLine
from prinia.storage.postgres.listener import Listener
from prinia.testing.conformance.bells import arm
from prinia.testing.conformance.bench import StandIn

from .kit import Lab, bell, terminate, until, within

KILL = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'prinia listener' and"
KILL += " datname = current_database()"


def listener(worker: StandIn) -> Listener:
    return bell(worker)._listener


async def rung_by_a_push(lab: Lab, worker: StandIn) -> None:
    """Armed, the worker is rung by a push and gets the job."""
    await arm(lab, worker)
    sleep = asyncio.create_task(bell(worker).wait(60))
    await asyncio.sleep(0)
    id = await lab.push_one()
    assert await within(lab.patience, sleep)
    assert (await worker.one()).id == id


async def test_it_listens_again_each_time_its_backend_is_killed(lab: Lab) -> None:
    worker = await lab.worker()
    for _ in range(20):
        session = listener(worker).session
        await arm(lab, worker)
        sleep = asyncio.create_task(bell(worker).wait(60))
        await lab.rows(KILL)
        assert await within(lab.patience, sleep), "a sleeper was not told that nobody can ring it"
        await until(lambda: listener(worker).listening and listener(worker).session != session, "it listens")  # noqa: B023
    await rung_by_a_push(lab, worker)


async def test_it_listens_again_when_a_statement_lost_the_connection(lab: Lab) -> None:
    """The loss is noticed by an arming, not by the dispatcher."""
    worker = await lab.worker()
    await arm(lab, worker)
    await bell(worker).disarm()
    line = listener(worker)._line
    pid = (await line.connect()).info.backend_pid
    async with listener(worker)._lock:  # the dispatcher cannot look meanwhile
        terminate(lab.dsn, f"pid = {pid}")
        task = asyncio.create_task(bell(worker).arm())
        await asyncio.sleep(0)
    await task
    await until(lambda: listener(worker).listening and line.session == 2, "it listens")
    await rung_by_a_push(lab, worker)


async def test_it_listens_again_after_a_statement_was_cancelled(lab: Lab) -> None:
    """A cancelled statement costs the connection; other workers of the process must not be deaf then."""
    worker = await lab.worker()
    await arm(lab, worker)
    await bell(worker).disarm()  # the server may go on with the statement, and keep what the session holds
    task = asyncio.create_task(listener(worker)._execute(b"select pg_sleep(60)"))
    await until(
        lambda: lab.value("select exists (select from pg_stat_activity where query = 'select pg_sleep(60)')"),
        "it sleeps",
    )
    task.cancel()
    await asyncio.wait([task])
    await until(lambda: listener(worker).listening and listener(worker).session == 2, "it listens")
    await rung_by_a_push(lab, worker)


async def test_a_ring_before_the_proof_is_no_disproof(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notifications for others arrive while it proves that it can listen."""
    run, heard = AsyncLine.run, Listener._heard
    rung = asyncio.Event()
    tasks = []

    async def prove_late() -> None:
        await lab.rows("select pg_notify(prinia.bell_channel(), '3')")
        await rung.wait()
        await lab.rows("select pg_notify(prinia.bell_channel(), 'proof')")

    async def with_ring(line: AsyncLine, sql: bytes, params: Any = None) -> Any:
        if b"'proof'" in sql:
            tasks.append(asyncio.create_task(prove_late()))
            return []
        return await run(line, sql, params)

    def noted(self: Listener, note: psycopg.Notify) -> None:
        heard(self, note)
        rung.set()

    monkeypatch.setattr(Listener, "_heard", noted)
    monkeypatch.setattr(AsyncLine, "run", with_ring)
    worker = await lab.worker()
    assert listener(worker).listening
    await rung_by_a_push(lab, worker)


@pytest.mark.parametrize("payload", ["", "nonsense", "+", "7 of 9", "-", "٣", "proof"])
async def test_what_others_notify_is_ignored(lab: Lab, payload: str) -> None:
    """Whoever may connect may notify any channel."""
    worker = await lab.worker()
    await lab.rows("select pg_notify(prinia.bell_channel(), %s)", payload)
    await rung_by_a_push(lab, worker)
    assert listener(worker).session == 1


async def test_nothing_is_left_of_it(lab: Lab) -> None:
    """A worker closes and another opens in the same loop: what reuses the socket's number must work."""
    sockets = asyncio.get_running_loop()._selector.get_map()  # type: ignore[attr-defined]
    for _ in range(3):
        before = set(sockets)
        worker = await lab.worker()
        await rung_by_a_push(lab, worker)
        await bell(worker).disarm()
        for _ in range(50):
            await asyncio.sleep(0)  # the dispatcher is back at its socket
        of_before = listener(worker)
        await worker.close()
        assert not of_before.listening
        assert set(sockets) <= before
        connections = [await within(5, lab.connect()) for _ in range(4)]
        for connection in connections:
            await within(5, connection.execute("select 1"))
            await connection.close()


async def test_two_workers_of_a_process_share_it(lab: Lab) -> None:
    one, two = await lab.worker(), await lab.worker()
    assert listener(one) is listener(two)
    await arm(lab, one)
    await arm(lab, two)
    await one.close()
    await rung_by_a_push(lab, two)


@pytest.mark.parametrize("behind_a_pooler", [False, True])
async def test_who_cannot_listen_polls(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, behind_a_pooler: bool
) -> None:
    """One line in the log, a sleep that ends by itself, no busy loop, and a stop that does not hang."""
    connects = 0
    connect = AsyncLine.connect

    async def counted(line: AsyncLine) -> Any:
        nonlocal connects
        connects += line._name == "prinia listener"
        connection = await connect(line)
        if behind_a_pooler and line._name == "prinia listener":
            line.direct = False
        return connection

    monkeypatch.setattr(AsyncLine, "connect", counted)
    monkeypatch.setattr("prinia.storage.postgres.bell.POLL_WHEN_DEAF", 0.05)
    caplog.set_level(logging.INFO, "prinia.listener")
    other = lab.another(listen_dsn=None if behind_a_pooler else "host=127.0.0.1 port=1 dbname=x")
    worker = await within(lab.patience, other.worker())
    assert not listener(worker).listening
    polls = 0
    for _ in range(5):
        assert await bell(worker).arm()
        polls += not await within(5, bell(worker).wait(60))
    assert polls, "it never slept"
    assert len(caplog.records) == 1
    assert "poll" in caplog.text
    assert connects < 20
    await within(5, worker.close())


async def test_without_the_proof_nobody_would_know(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that passes no notifications on does not count as listening."""
    monkeypatch.setattr(listener_module, "PROOF_TIMEOUT", 0.2)
    run = AsyncLine.run

    async def swallowed(line: AsyncLine, sql: bytes, params: Any = None) -> Any:
        return [] if sql.startswith(b"listen") else await run(line, sql, params)

    monkeypatch.setattr(AsyncLine, "run", swallowed)
    worker = await lab.worker()
    assert not listener(worker).listening
