"""RETRY by rule: a policy by the type of the error, or a function of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from prinia import Cancel, Context, Delays, Exponential, Fixed, InvalidOptions, Prinia, Retry, RetryPolicy
from prinia.job import JobState
from prinia.retry import DEFAULT_RETRY, follow
from tests.engine.kit import Shop, until


class NotFound(LookupError): ...


def test_the_most_specific_type_counts() -> None:
    rule: dict[type[Exception], RetryPolicy | bool] = {
        LookupError: Fixed(1),
        NotFound: False,
        Exception: Fixed(9),
        OSError: Delays((1, 2)),
    }
    for error, expected in (
        (KeyError(), Fixed(1)),
        (NotFound(), False),
        (ValueError(), Fixed(9)),
        (ConnectionResetError(), Delays((1, 2))),
    ):
        assert follow(rule, error, 1) == expected  # type: ignore[arg-type]
    assert follow({OSError: Fixed(1)}, ValueError(), 1) == DEFAULT_RETRY


def test_what_a_function_may_answer() -> None:
    def rule(error: Exception, attempt: int) -> Any:
        return error.args[0] if attempt == 2 else None

    for answer, expected in (
        (7, Fixed(7.0)),
        (timedelta(minutes=1), Fixed(60.0)),
        (0, Fixed(0.0)),
        (Exponential(start=9), Exponential(start=9)),
        (False, False),
        (None, DEFAULT_RETRY),
    ):
        assert follow(rule, ValueError(answer), 2) == expected
        assert follow(rule, ValueError(answer), 1) == DEFAULT_RETRY
    for wrong in (True, "soon", [1]):
        with pytest.raises(TypeError, match="must be seconds"):
            follow(rule, ValueError(wrong), 2)
    for number in (-1, float("nan"), 10**12):
        with pytest.raises(InvalidOptions):
            follow(rule, ValueError(number), 2)


async def nothing() -> None: ...


async def async_rule(error: Exception, attempt: int) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("retry", "says"),
    [
        (7, "must be a policy"),
        (True, "must be a policy"),
        (ValueError, "must be a policy"),
        (async_rule, "must be a plain one"),
        (lambda error: 1, "must take two arguments: the error and the attempt"),
        ({"ValueError": Fixed(1)}, "keys of a mapping must be types of Exception, not 'ValueError'"),
        ({asyncio.CancelledError: Fixed(1)}, "must be types of Exception"),
        ({ValueError: 10}, "ValueError: 10 must be a policy"),
        ({ValueError: True}, "ValueError: True must be a policy"),
        ({ValueError: None}, "must be a policy, such as Fixed"),
    ],
    ids=["number", "True", "type", "async", "one argument", "text key", "no Exception", "number", "yes", "nothing"],
)
def test_what_is_no_rule_is_refused_when_decorated(retry: Any, says: str) -> None:
    with pytest.raises(InvalidOptions, match=says):
        Prinia().task(retry=retry)


def test_a_rule_is_of_the_task_alone() -> None:
    task = Prinia().task(name="t", retry={ValueError: False})(nothing)
    with pytest.raises(InvalidOptions, match="must be a policy"):
        task.options(retry={ValueError: False})  # type: ignore[arg-type]
    assert task._fields.get("retry") is None


def yielding(ctx: Context, what: object) -> Iterator[None]:
    yield


def test_callbacks_are_checked_when_decorated() -> None:
    app = Prinia()
    with pytest.raises(InvalidOptions, match="on_success=7 must be a function"):
        app.task(on_success=7)  # type: ignore[call-overload]
    with pytest.raises(InvalidOptions, match=r"on_failure: .* must take two arguments: the context and the error"):
        app.task(on_failure=lambda ctx: None)  # type: ignore[misc, arg-type]
    for name in ("on_success", "on_failure"):
        with pytest.raises(InvalidOptions, match=f"{name}: .* yields, so that nothing would run it"):
            app.task(**{name: yielding})  # type: ignore[call-overload]
    task = app.task(name="t", on_success=print)(nothing)
    with pytest.raises(InvalidOptions, match="on_success is not an option of a job"):
        task.options(on_success=print)  # type: ignore[call-arg]


async def fate(shop: Shop, error: BaseException, *, options: dict[str, Any] | None = None, **task: Any) -> Any:
    """How a job stands whose handler raises this once."""

    @shop.app.task(name="t", **task)
    async def t() -> None:
        raise error

    async with shop.worker() as worker:
        job = await (t.options(**options) if options else t).aenqueue()
        await until(lambda: worker.stats.retried + worker.stats.failed + worker.stats.cancelled == 1)
        with shop.storage.tables.lock:
            live = shop.storage.tables.live.get(job.id)
    record = shop.record(job.id)
    assert record.attempt == 1
    return record.state if live is None else round((live.due - live.errors[-1].at).total_seconds())  # type: ignore[operator]


async def test_a_job_follows_the_mapping(shop: Shop) -> None:
    assert await fate(shop, KeyError(), retry={LookupError: Fixed(500)}) == 500


async def test_false_ends_the_job(shop: Shop) -> None:
    assert await fate(shop, KeyError(), retry={LookupError: False}) is JobState.FAILED


async def test_a_job_follows_the_function(shop: Shop) -> None:
    seen: list[tuple[Exception, int]] = []
    error = OSError("away")

    def rule(error: Exception, attempt: int) -> float:
        seen.append((error, attempt))
        return 700

    assert await fate(shop, error, retry=rule) == 700
    assert seen == [(error, 1)]


async def test_the_jobs_own_policy_goes_first(shop: Shop) -> None:
    asked: list[Exception] = []

    def rule(error: Exception, attempt: int) -> bool:
        asked.append(error)
        return False

    assert await fate(shop, KeyError(), retry=rule, options={"retry": Fixed(300)}) == 300
    assert asked == []


async def test_attempts_are_counted_all_the_same(shop: Shop) -> None:
    assert await fate(shop, KeyError(), retry={KeyError: Fixed(1)}, max_attempts=1) is JobState.FAILED


async def test_a_time_limit_is_a_timeout_error_to_the_rule(shop: Shop) -> None:
    @shop.app.task(name="slow", timeout=0.01, retry={TimeoutError: False})
    async def slow() -> None:
        await asyncio.Event().wait()

    async with shop.worker():
        await shop.until(JobState.FAILED, (await slow.aenqueue()).id)


async def test_arguments_that_do_not_decode_go_by_the_rule(shop: Shop) -> None:
    from prinia import DecodeError

    @shop.app.task(name="t", retry={DecodeError: False})
    async def t(number: int) -> None: ...

    async with shop.worker():
        [pushed] = await shop.storage.apush([t.job(1).spec.__class__(task="t", args=b'{"number":"x"}')])
        await shop.until(JobState.FAILED, pushed.id)


async def test_a_rule_of_a_plain_function(shop: Shop) -> None:
    @shop.app.task(name="t", retry={ValueError: False})
    def t() -> None:
        raise ValueError

    async with shop.worker():
        await shop.until(JobState.FAILED, (await t.aenqueue()).id)


async def test_who_asks_for_a_retry_gets_one(shop: Shop) -> None:
    assert 3 <= await fate(shop, Retry(), retry={Exception: False}) <= 4


async def test_the_delay_of_a_retry_asked_for_counts(shop: Shop) -> None:
    assert await fate(shop, Retry(delay=90), retry=lambda error, attempt: 5) == 90


async def test_steering_is_not_asked_about(shop: Shop) -> None:
    assert await fate(shop, Cancel(), retry=lambda error, attempt: 5) is JobState.CANCELLED


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(1)], ids=repr)
async def test_what_is_no_exception_goes_by_the_default(shop: Shop, error: BaseException) -> None:
    assert 3 <= await fate(shop, error, retry=lambda error, attempt: False) <= 4


def _raising(error: BaseException) -> Callable[[Exception, int], float]:
    def rule(_: Exception, attempt: int) -> float:
        raise error

    return rule


@pytest.mark.parametrize(
    "rule",
    [
        _raising(ZeroDivisionError()),
        _raising(SystemExit(1)),
        _raising(asyncio.CancelledError()),
        lambda error, attempt: "soon",
        lambda error, attempt: -1,
        lambda error, attempt: True,
    ],
    ids=["ZeroDivisionError", "SystemExit", "CancelledError", "text", "negative", "True"],
)
async def test_a_rule_that_is_wrong_is_logged_and_the_default_counts(
    shop: Shop, caplog: pytest.LogCaptureFixture, rule: Any
) -> None:
    assert 3 <= await fate(shop, ValueError("x"), retry=rule) <= 4
    assert "its task's retry= raised or gave no answer; the default policy counts" in caplog.text
