"""Thousands of jobs in one push: COPY straight into the live table, while the caller's iterable makes the next ones.

Jobs of one COPY get a block of ids and a reading of the server's clock before it. A row is what the SQL function
``read_jobs`` makes of the same job; the table's checks hold for both. A chunk in which a job has a unique key goes
through ``enqueue``, and so does all of it for a role that may not write to the table itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import Any

import psycopg

from prinia.job import Answers, JobSpec
from prinia.storage.postgres.connection import text_array
from prinia.storage.postgres.copyformat import HEADER, TRAILER, encode_head, encode_options, micros, options_of
from prinia.storage.postgres.keys import busy_keys
from prinia.storage.postgres.specs import answers, checked, encode_specs
from prinia.storage.postgres.sql import Sql

Connection = psycopg.Connection[tuple[Any, ...]]
AsyncConnection = psycopg.AsyncConnection[tuple[Any, ...]]

#: Ids for one COPY: two chunks at first, then twice as many each time. What is left over at the end is never used.
FIRST_BLOCK, LARGEST_BLOCK = 2000, 16_000


class Bulk:
    """Pushes of any number of chunks on Prinia's own connection, in one transaction, its bells rung at the end."""

    def __init__(self, sql: Sql) -> None:
        self._begin = sql.query("bulk_begin")
        self._block = sql.query("bulk_block")
        self._copy = sql.render(sql.part("bulk_copy")).encode()  # the one statement without parameters
        self._enqueue = sql.query("push")
        self._ring = sql.query("bulk_ring")

    def push(self, connection: Connection, chunks: Iterator[list[JobSpec]]) -> Answers:
        """Push all of them or none."""
        with connection.transaction():
            [begun] = connection.execute(self._begin, {}).fetchall()
            push = _Push(*begun, utf8=connection.info.encoding == "utf-8")
            chunk = next(chunks, None)
            while chunk is not None:
                if push.copies(chunk):
                    chunk = self._copy_block(connection, push, chunk, chunks)
                else:
                    with busy_keys(chunk):
                        rows = connection.execute(self._enqueue, push.function(chunk)).fetchall()
                    push.enqueued(chunk, rows)
                    chunk = next(chunks, None)
            if push.may_copy:
                connection.execute(self._ring, push.queues())
        return push.answers

    def _copy_block(
        self, connection: Connection, push: _Push, chunk: list[JobSpec] | None, chunks: Iterator[list[JobSpec]]
    ) -> list[JobSpec] | None:
        """Copy as much as goes with one block of ids, from ``chunk`` on, and return the chunk that comes next."""
        push.take(*connection.execute(self._block, push.block_size(), binary=True).fetchall())
        with connection.cursor().copy(self._copy) as copy:
            copy.write(HEADER)
            while chunk is not None and push.copies(chunk) and push.has_room(chunk):
                copy.write(push.rows(chunk))
                chunk = next(chunks, None)
            copy.write(TRAILER)
        return chunk

    async def apush(self, connection: AsyncConnection, chunks: AsyncIterator[list[JobSpec]]) -> Answers:
        """`push`, awaited. The event loop gets its turn after each chunk."""
        async with connection.transaction():
            [begun] = await (await connection.execute(self._begin, {})).fetchall()
            push = _Push(*begun, utf8=connection.info.encoding == "utf-8")
            chunk = await anext(chunks, None)
            while chunk is not None:
                if push.copies(chunk):
                    chunk = await self._acopy_block(connection, push, chunk, chunks)
                else:
                    with busy_keys(chunk):
                        done = await connection.execute(self._enqueue, push.function(chunk))
                        rows = await done.fetchall()
                    push.enqueued(chunk, rows)
                    chunk = await anext(chunks, None)
            if push.may_copy:
                await connection.execute(self._ring, push.queues())
        return push.answers

    async def _acopy_block(
        self,
        connection: AsyncConnection,
        push: _Push,
        chunk: list[JobSpec] | None,
        chunks: AsyncIterator[list[JobSpec]],
    ) -> list[JobSpec] | None:
        """`_copy_block`, awaited."""
        done = await connection.execute(self._block, push.block_size(), binary=True)
        push.take(*await done.fetchall())
        async with connection.cursor().copy(self._copy) as copy:
            await copy.write(HEADER)
            while chunk is not None and push.copies(chunk) and push.has_room(chunk):
                await copy.write(push.rows(chunk))
                await asyncio.sleep(0)  # a write alone waits for nothing while there is room
                chunk = await anext(chunks, None)
            await copy.write(TRAILER)
        return chunk


class _Push:
    """What a bulk push knows on its way; no I/O."""

    def __init__(self, xid: int, allowed: bool, *, utf8: bool) -> None:
        self.answers = Answers()
        #: Rows are written in UTF-8; a role that may only enqueue may not ring, either.
        self.may_copy = allowed and utf8
        self._xid = xid
        self._queues: set[str] = set()
        self._size = FIRST_BLOCK // 2
        self._ids: Sequence[int] = ()
        self._used = 0
        self._now = 0
        #: Options of the last job and what they come to, for all that are like it.
        self._like: tuple[object, ...] | None = None
        self._options = b""

    def copies(self, chunk: list[JobSpec]) -> bool:
        """Whether these jobs can be copied in."""
        return self.may_copy and all(spec.unique is None for spec in chunk)

    def function(self, chunk: list[JobSpec]) -> dict[str, object]:
        """What the function is called with for these jobs. It rings itself for who may not ring at the end."""
        return {"jobs": encode_specs(chunk), "bell": not self.may_copy}

    def enqueued(self, chunk: list[JobSpec], rows: list[tuple[Any, ...]]) -> None:
        """The function has stored these jobs. Raises `DuplicateJob` where one may not be another's."""
        self.answers.extend(checked(chunk, answers(rows)))
        self._queues.update(spec.queue for spec in chunk)

    def block_size(self) -> dict[str, int]:
        """How many ids to ask for next."""
        self._size = min(self._size * 2, LARGEST_BLOCK)
        return {"number": self._size}

    def take(self, block: tuple[Sequence[int], datetime]) -> None:
        """A new block of ids, and the time at which it was given."""
        self._ids, now = block
        self._used = 0
        self._now = micros(now)
        self._like = None

    def has_room(self, chunk: list[JobSpec]) -> bool:
        """Whether the block has an id for each of these."""
        return self._used + len(chunk) <= len(self._ids)

    def rows(self, chunk: list[JobSpec]) -> bytes:
        """These jobs as rows of the COPY."""
        ids = self._ids[self._used : self._used + len(chunk)]
        self._used += len(chunk)
        self.answers.extend_new(ids, xid=self._xid)
        self._queues.update(spec.queue for spec in chunk)
        parts: list[bytes] = []
        for id, spec in zip(ids, chunk, strict=True):
            # Of two metas that are equal one may say 1 and the other true.
            if (options := options_of(spec)) != self._like or spec.meta:
                self._like, self._options = options, encode_options(spec, self._now)
            parts += (encode_head(id, spec.args), spec.args, self._options)
        return b"".join(parts)

    def queues(self) -> dict[str, str]:
        """Whose bells to ring."""
        return {"queues": text_array(sorted(self._queues))}
