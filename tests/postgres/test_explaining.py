"""A job's situation and the doctor's looks at jobs: what they read is bounded, whatever the statistics say.

Seen to fail with: lanes found by a join, which reads the whole queue; lanes without a limit of their own, which are
joined; a look at all live jobs for their tasks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from prinia.storage.postgres import PostgresStorage
from prinia.storage.postgres.connection import assignments
from prinia.storage.postgres.listing import READ_SETTINGS

from .kit import Lab, Plan
from .test_listing import FINISHED, ROWS, TABLES, watched

#: Jobs are counted up to this one.
LIMIT = 100


async def fill(lab: Lab) -> None:
    """A queue full of ready jobs, and at higher priorities as many that are due much later."""
    await lab.rows(FINISHED, ROWS)
    await lab.fill(
        ROWS,
        queue="'email'",
        priority="case when n % 2 = 0 then n % 10 else 0 end",
        scheduled_at="now() + case when n % 2 = 0 then interval '1 day' else interval '-1 second' end",
    )


async def fresh(lab: Lab) -> None:
    """Never analyzed."""
    await fill(lab)


async def analyzed_when_empty(lab: Lab) -> None:
    """Statistics say that there is nothing."""
    await lab.rows(f"analyze {TABLES}")
    await fill(lab)


async def analyzed_when_full(lab: Lab) -> None:
    """Statistics that are right."""
    await fill(lab)
    await lab.rows(f"analyze {TABLES}")


def read(plan: Plan) -> int:
    """How many rows of jobs and of the archive it read."""
    return sum(
        int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node, _ in plan.nodes()
        if str(node.get("Relation Name", "")).startswith(("jobs", "archive"))
    )


@pytest.mark.parametrize("state", [fresh, analyzed_when_empty, analyzed_when_full], ids=lambda state: state.__name__)
async def test_what_is_looked_at_is_bounded(lab: Lab, state: Callable[[Lab], Awaitable[None]]) -> None:
    await state(lab)
    last = await lab.push_one(queue="email")
    spy = await watched(lab)
    told = await lab.storage.asituation(last, limit=LIMIT)
    assert told.ahead == LIMIT + 1
    storage = lab.storage
    assert isinstance(storage, PostgresStorage)
    async with storage._pools.aconnection() as connection, connection.transaction():
        await connection.execute(assignments(READ_SETTINGS, local=True))
        waiting = storage._sql.query("examine_waiting", lanes=storage._sql.part("lanes"))
        cursor = await connection.execute(waiting, {"limit": LIMIT})
        assert await cursor.fetchall() == [("email", "conformance", LIMIT, True)]
        cursor = await connection.execute(storage._sql.query("examine_failures"), {"limit": LIMIT})
        assert await cursor.fetchall() == [("conformance", LIMIT, True)]
    # Ten lanes, each looked at up to the limit.
    plans = {plan.text[:40]: read(plan) for plan in spy.taken()}
    assert len(plans) >= 5
    assert {text: rows for text, rows in plans.items() if rows > 10 * LIMIT} == {}
