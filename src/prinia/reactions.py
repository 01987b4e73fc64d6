"""How a task reacts to the end of an attempt: retry by rule, ``on_success``, ``on_failure``. Code, so never stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from prinia.callables import how_it_runs, takes
from prinia.context import Context
from prinia.errors import InvalidOptions
from prinia.job import AttemptError
from prinia.retry import Delays, Exponential, Fixed, RetryRule

#: Called with the job's context and the result as it is read back.
OnSuccess: TypeAlias = Callable[[Context, Any], object]
#: Called with the job's context and what its last attempt failed of.
OnFailure: TypeAlias = Callable[[Context, AttemptError], object]

#: The options of a task that are read here. ``retry`` is one of them unless it is a policy, which is stored.
REACTIONS = ("on_success", "on_failure")

_RETRY_FORMS = (
    "must be a policy (Exponential(...), Fixed(seconds), Delays((1, 10, 300))), a mapping such as "
    "{ConnectionError: Fixed(1), ValueError: False}, or a function of the error and the attempt"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reactions:
    """What a task was given; None for what it was not."""

    retry: RetryRule | None = None
    on_success: OnSuccess | None = None
    on_failure: OnFailure | None = None


def read_reactions(given: Mapping[str, object]) -> Reactions:
    """The reactions among a task's options. Raises `InvalidOptions` naming the option and what is allowed."""
    retry: Any = given.get("retry")
    read: dict[str, Any] = {name: _callback(name, given[name]) for name in REACTIONS if name in given}
    if "retry" in given and not is_policy(retry):
        read["retry"] = _mapping(retry) if isinstance(retry, Mapping) else _function(retry)
    return Reactions(**read)


def is_policy(value: object) -> bool:
    """Whether it is a retry policy: data, which is stored with the job."""
    return isinstance(value, Exponential | Fixed | Delays)


def _callback(name: str, value: Any) -> Any:
    if not callable(value):
        raise InvalidOptions(f"{name}={value!r} must be a function or a coroutine function")
    if how_it_runs(value) == "a generator":
        raise InvalidOptions(f"{name}: {value!r} yields, so that nothing would run it; leave the yield out")
    if not takes(value, 2):
        second = "the result" if name == "on_success" else "the error"
        raise InvalidOptions(f"{name}: {value!r} must take two arguments: the context and {second}")
    return value


def _mapping(retry: Mapping[Any, Any]) -> RetryRule:
    for kind, policy in retry.items():
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise InvalidOptions(f"retry: the keys of a mapping must be types of Exception, not {kind!r}")
        if policy is not False and not is_policy(policy):
            raise InvalidOptions(
                f"retry: {kind.__name__}: {policy!r} must be a policy, such as Fixed(10), or False for no retry"
            )
    return dict(retry)


def _function(retry: Any) -> RetryRule:
    if not callable(retry) or isinstance(retry, type):
        raise InvalidOptions(f"retry={retry!r} {_RETRY_FORMS}")
    if how_it_runs(retry):
        raise InvalidOptions(
            "retry: the function must be a plain one: it is called between two jobs, and must be short"
        )
    if not takes(retry, 2):
        raise InvalidOptions(f"retry: {retry!r} must take two arguments: the error and the attempt")
    return cast("RetryRule", retry)
