"""Whether an open transaction has to do with a job: what can be seen from outside of who writes a row just now.

Seen to fail with: any writer taken for the transaction; savepoints forgotten; a writer that was undone taken for one
that writes on.
"""

from __future__ import annotations

import pytest

from prinia.options import unique_key
from prinia.testing.conformance.bench import call, job

from .kit import Connection, Lab

KEY = unique_key("conformance", "k")
REPLACING = unique_key("conformance", "k", on_conflict="replace")


async def _answers(lab: Lab, xid: int, id: int) -> bool:
    answer = await lab.storage.ain_progress(xid, id)
    assert answer == await call(lab.storage.in_progress, xid, id)
    return answer


async def _begun(lab: Lab) -> tuple[Connection, int]:
    """A caller's transaction that has stored a job already, and its xid."""
    caller = await lab.connect(autocommit=False)
    [pushed] = await lab.storage.apush_within(caller, [job()])
    assert pushed.xid is not None
    return caller, pushed.xid


@pytest.mark.parametrize("savepoints", [0, 1, 3])
async def test_a_job_replaced_in_savepoints(lab: Lab, savepoints: int) -> None:
    [old] = await lab.push(job(unique=KEY))
    caller, xid = await _begun(lab)
    for nr in range(savepoints):
        await caller.execute(f"savepoint s{nr}".encode())
    await lab.storage.apush_within(caller, [job(unique=REPLACING)])
    assert await _answers(lab, xid, old)
    for nr in reversed(range(savepoints)):
        await caller.execute(f"release s{nr}".encode())
        assert await _answers(lab, xid, old)
    await caller.commit()
    assert not await _answers(lab, xid, old)


async def test_a_savepoint_that_was_undone(lab: Lab) -> None:
    [old] = await lab.push(job(unique=KEY))
    caller, xid = await _begun(lab)
    for _ in range(2):
        await caller.execute("savepoint s")
        await lab.storage.apush_within(caller, [job(unique=REPLACING)])
        assert await _answers(lab, xid, old)
        await caller.execute("rollback to s")
        assert not await _answers(lab, xid, old)
    await lab.storage.apush_within(caller, [job(unique=REPLACING)])
    assert await _answers(lab, xid, old)


async def test_another_session_that_writes_the_job(lab: Lab) -> None:
    """As a worker does that claims it."""
    [old] = await lab.push(job(unique=KEY))
    caller, xid = await _begun(lab)
    await lab.storage.apush_within(caller, [job(unique=KEY)])
    other = await lab.connect(autocommit=False)
    await other.execute("update prinia.jobs set claimed_at = now() where id = %s", [old])
    assert not await _answers(lab, xid, old)


async def test_a_writer_of_long_ago(lab: Lab) -> None:
    """One whose transaction was rolled back before this one began is still named by the row."""
    [old] = await lab.push(job(unique=KEY))
    other = await lab.connect(autocommit=False)
    await lab.storage.apush_within(other, [job(unique=REPLACING)])
    await other.rollback()
    _, xid = await _begun(lab)
    assert await lab.value("select xmax <> '0' from prinia.jobs where id = %s", old)
    assert not await _answers(lab, xid, old)
