"""What a job's resource makes of its handler's error is what the attempt failed of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from prinia import INJECTED, Context, Fixed, Snooze
from prinia.job import JobRecord, JobState
from tests.engine.kit import Shop
from tests.engine.things import BASE_ERRORS, Pool, Session, kind


class DriverError(Exception): ...


class OutOfStock(Exception): ...


def provide_session(shop: Shop, answer: BaseException | None, *, plain: bool) -> None:
    """A session that raises this in the place of what its driver raises."""
    if plain:

        @shop.app.provide(scope="job")
        def session() -> Iterator[Session]:
            try:
                yield Session()
            except DriverError:
                if answer is not None:
                    raise answer  # noqa: B904
    else:

        @shop.app.provide(scope="job")
        async def async_session() -> AsyncIterator[Session]:
            try:
                yield Session()
            except DriverError:
                await asyncio.sleep(0)
                if answer is not None:
                    raise answer  # noqa: B904


async def record_of_a_failure(shop: Shop, state: JobState, *, threaded: bool) -> JobRecord:
    """The job of a handler that raised `DriverError`, once it is in this state."""
    if threaded:

        @shop.app.task(name="book", retry={OutOfStock: False}, max_attempts=5)
        def book(session: Session = INJECTED) -> None:
            raise DriverError("constraint stock_not_negative")
    else:

        @shop.app.task(name="book", retry={OutOfStock: False}, max_attempts=5)
        async def book(session: Session = INJECTED) -> None:
            raise DriverError("constraint stock_not_negative")

    async with shop.worker():
        job = await book.aenqueue()
        await shop.until(state, job.id)
    return shop.record(job.id)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("threaded", [True, False])
async def test_a_translated_error_is_seen_by_the_retry_rule(shop: Shop, threaded: bool, plain: bool) -> None:
    provide_session(shop, OutOfStock("9 is sold out"), plain=plain)
    record = await record_of_a_failure(shop, JobState.FAILED, threaded=threaded)
    [error] = record.errors
    assert (record.attempt, error.kind, error.message) == (1, f"{__name__}.OutOfStock", "9 is sold out")
    assert error.traceback is not None
    assert "DriverError: constraint stock_not_negative" in error.traceback
    assert error.traceback.index("DriverError:") < error.traceback.index("OutOfStock: 9 is sold out")


@pytest.mark.parametrize("plain", [True, False])
async def test_it_may_steer(shop: Shop, plain: bool) -> None:
    provide_session(shop, Snooze(600), plain=plain)
    record = await record_of_a_failure(shop, JobState.SCHEDULED, threaded=False)
    assert (record.attempt, record.errors) == (0, ())


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("answer", BASE_ERRORS)
async def test_whatever_it_raises_hurts_that_job_alone(shop: Shop, answer: type[BaseException], plain: bool) -> None:
    provide_session(shop, answer("in the wrong place"), plain=plain)

    @shop.app.task(name="other")
    async def other() -> str:
        return "unharmed"

    record = await record_of_a_failure(shop, JobState.RETRYING, threaded=False)
    assert record.errors[0].kind == kind(answer)
    async with shop.worker():
        assert await (await other.aenqueue()).aresult(timeout=10) == "unharmed"


@pytest.mark.parametrize("plain", [True, False])
async def test_what_it_swallows_counts(shop: Shop, plain: bool) -> None:
    provide_session(shop, None, plain=plain)
    record = await record_of_a_failure(shop, JobState.RETRYING, threaded=False)
    assert record.errors[0].kind == f"{__name__}.DriverError"


async def test_those_further_out_see_the_answer(shop: Shop) -> None:
    seen: list[str] = []

    @shop.app.provide(scope="job")
    async def pool() -> AsyncIterator[Pool]:
        try:
            yield Pool()
        except Exception as error:
            seen.append(type(error).__name__)
            raise

    @shop.app.provide(scope="job")
    def session(pool: Pool = INJECTED) -> Iterator[Session]:
        try:
            yield Session()
        except DriverError as error:
            raise OutOfStock from error

    await record_of_a_failure(shop, JobState.FAILED, threaded=False)
    assert seen == ["OutOfStock"]


async def test_an_error_of_closing_after_success_is_none_of_the_handlers(shop: Shop) -> None:
    @shop.app.provide(scope="job")
    async def session() -> AsyncIterator[Session]:
        yield Session()
        raise OutOfStock("at the commit")

    @shop.app.task(name="book", retry={OutOfStock: False, Exception: Fixed(0.001)}, max_attempts=2)
    async def book(ctx: Context = INJECTED, session: Session = INJECTED) -> None: ...

    async with shop.worker():
        job = await book.aenqueue()
        await shop.until(JobState.FAILED, job.id)
    assert [error.kind for error in shop.record(job.id).errors] == ["prinia.errors.ResourceError"] * 2
