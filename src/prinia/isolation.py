"""Tasks whose function runs in a process of its own: ``@app.task(process=True)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prinia.context import Context
from prinia.errors import ConfigurationError, InvalidOptions, TaskDefinitionError

#: The smallest memory limit, in MB: below it hardly anything runs.
_LEAST_MEMORY = 1


@dataclass(frozen=True, slots=True)
class Isolation:
    """How a process of its own is set up: ``memory_limit`` is in MB, None for no limit."""

    memory_limit: int | None = None


def read_isolation(given: Mapping[str, object]) -> Isolation | None:
    """What a task's options say, None where it needs no process. Raises `InvalidOptions`."""
    process, limit = given.get("process", False), given.get("memory_limit")
    if not isinstance(process, bool):
        raise InvalidOptions(f"process={process!r} must be True or False")
    if "memory_limit" in given:
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < _LEAST_MEMORY:
            raise InvalidOptions(f"memory_limit={limit!r} must be a whole number of MB, {_LEAST_MEMORY} or more")
        if not process:
            raise InvalidOptions("memory_limit is for a function in a process of its own; add process=True")
        return Isolation(limit)
    return Isolation() if process else None


def check_isolated(function: Callable[..., Any], injected: Mapping[str, Any]) -> None:
    """Raise `TaskDefinitionError` for a function that cannot run in another process."""
    shown = f"{function.__module__}.{function.__qualname__}: process=True"
    if inspect.iscoroutinefunction(function):
        raise TaskDefinitionError(f"{shown} is for plain functions; write 'def' in place of 'async def', or leave it")
    if not is_importable(function):
        raise TaskDefinitionError(
            f"{shown} needs a function at the top level of a module: the other process finds it by importing that"
        )
    for name, kind in injected.items():
        if kind is not Context:
            raise TaskDefinitionError(
                f"{shown}: {name} cannot be injected there, only a Context can: resources stay in the worker. "
                f"Open it in the function, or once for each process in @app.on_process_start"
            )


def check_process_hook(function: Any) -> None:
    """Raise `ConfigurationError` for what cannot be called at the start of each process."""
    if not inspect.isfunction(function) or inspect.iscoroutinefunction(function) or not is_importable(function):
        raise ConfigurationError(
            f"on_process_start: {function!r} must be a plain function at the top level of a module: "
            f"the other process finds it by importing that"
        )
    if any(one.default is inspect.Parameter.empty for one in inspect.signature(function).parameters.values()):
        raise ConfigurationError(f"on_process_start: {function.__qualname__} must not need arguments")


def is_importable(function: Callable[..., Any]) -> bool:
    """Whether another process can find it by its module and name."""
    return inspect.isfunction(function) and function.__qualname__.isidentifier()
