"""What a worker leaves behind when it cannot start, and when two of its parts need a connection at once.

Seen to fail with: a failed open that keeps its connections; connecting without a lock.
"""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from prinia.errors import MigrationsPending
from prinia.storage.postgres import PostgresStorage
from prinia.storage.postgres.connection import BASE_SETTINGS, AsyncLine
from prinia.testing.conformance import ConformanceBase, StandIn
from prinia.testing.conformance.bench import Bench
from tests.waiting import until

CONNECTED = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"


async def test_a_worker_that_cannot_start_leaves_no_connection(database: str) -> None:
    consumer = Bench(ConformanceBase(), PostgresStorage(database))
    worker: StandIn = await consumer.worker(opened=False)
    with pytest.raises(MigrationsPending):
        await worker.consumer.open()
    with psycopg.connect(database, autocommit=True) as connection:
        until(lambda: connection.execute(CONNECTED).fetchall() == [(0,)], what="all connections are closed")


async def test_two_that_connect_at_once_share_one_connection(database: str) -> None:
    line = AsyncLine(lambda: database, name="prinia test", schema="prinia", settings=BASE_SETTINGS)
    await asyncio.gather(*(line.run(b"select 1") for _ in range(5)))
    with psycopg.connect(database, autocommit=True) as connection:
        assert connection.execute(CONNECTED).fetchall() == [(1,)]
    await line.close()
