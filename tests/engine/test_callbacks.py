"""``on_success`` and ``on_failure`` of a task: when they are called, with what, and that they harm nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from prinia import (
    AttemptError,
    Cancel,
    Context,
    Fixed,
)
from prinia.job import JobState
from tests.engine.kit import Shop, until


async def test_on_success_gets_the_result_and_on_failure_the_error(shop: Shop) -> None:
    calls: list[tuple[Any, ...]] = []

    def succeeded(ctx: Context, result: list[int]) -> None:
        calls.append(("success", ctx.job_id, shop.state(ctx.job_id), result))

    async def failed(ctx: Context, error: AttemptError) -> None:
        calls.append(("failure", ctx.job_id, shop.state(ctx.job_id), error.message, ctx.attempt))

    @shop.app.task(name="t", aliases=["old"], max_attempts=2, retry=Fixed(0), on_success=succeeded, on_failure=failed)
    async def t(well: bool) -> tuple[int, ...]:
        if not well:
            raise ValueError("no")
        return (1, 2)

    async with shop.app.worker() as worker:
        well, bad = await t.aenqueue(True), await t.aenqueue(False)
        await until(lambda: worker.stats.completed + worker.stats.failed == 2)
        [old] = await shop.storage.apush([t.job(True).spec.__class__(task="old", args=b'{"well":true}')])
        await until(lambda: len(calls) == 3)
    assert sorted(calls, key=lambda call: int(call[1])) == [
        ("success", well.id, JobState.COMPLETED, (1, 2)),
        ("failure", bad.id, JobState.FAILED, "no", 2),
        ("success", old.id, JobState.COMPLETED, (1, 2)),
    ]


async def test_no_callback_where_a_job_ended_otherwise(shop: Shop) -> None:
    calls: list[object] = []

    def note(ctx: Context, what: object) -> None:
        calls.append(what)

    @shop.app.task(name="t", on_success=note, on_failure=note)
    async def t() -> None:
        raise Cancel

    async with shop.app.worker():
        await shop.until(JobState.CANCELLED, (await t.aenqueue()).id)
    assert calls == []


async def test_callbacks_harm_no_job(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    async def bad(ctx: Context, result: object) -> None:
        raise SystemExit(1)

    @shop.app.task(name="t", on_success=bad)
    async def t() -> int:
        return 1

    @shop.app.task(name="liar", on_success=bad)
    async def liar() -> int:
        return "one"  # type: ignore[return-value]

    async with shop.app.worker() as worker:
        await t.aenqueue()
        await liar.aenqueue()
        await until(lambda: worker.stats.completed == 2)
    assert "told of the success of task t, raised" in caplog.text
    assert "on_success is not called: the result cannot be read back" in caplog.text


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, KeyboardInterrupt])
async def test_a_result_that_raises_anything_when_it_is_read_back_ends_no_worker(
    shop: Shop, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    class Shell(msgspec.Struct):
        armed: bool = False

        def __post_init__(self) -> None:
            if self.armed:
                raise error

    @shop.app.task(name="t", on_success=lambda ctx, result: None)
    async def t() -> Shell:
        shell = Shell()
        shell.armed = True
        return shell

    async with shop.app.worker() as worker:
        await t.aenqueue()
        await until(lambda: "the result cannot be read back" in caplog.text)
        await t.aenqueue()
        await until(lambda: worker.stats.completed == 2)
