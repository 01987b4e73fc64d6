"""What a function takes: which parameters are enqueued, which are injected, of which types. Read at decoration."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prinia.context import INJECTED, Context, WorkerContext
from prinia.errors import TaskDefinitionError
from prinia.payload.storable import article

_Kind = inspect.Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The parameters of a task's function.

    ``positional`` and ``named`` are the enqueued ones with their types; a parameter that comes after an injected one
    can be given by name only, as its position would be the injected one's. ``optional`` have defaults.
    ``positions`` has the place of each injected parameter, None for a keyword-only one.
    """

    positional: Mapping[str, Any]
    named: Mapping[str, Any]
    optional: frozenset[str]
    injected: Mapping[str, Any]
    positions: Mapping[str, int | None]
    returns: Any
    #: As an enqueuer sees it, for binding and for error texts.
    shown: inspect.Signature

    @property
    def types(self) -> dict[str, Any]:
        """Every enqueued parameter with its type."""
        return {**self.positional, **self.named}


def read_signature(function: Callable[..., Any], local_names: Mapping[str, Any] | None = None) -> Signature:
    """The signature of a function that is to be a task. Raises `TaskDefinitionError` with what to change.

    ``local_names`` are those visible where it is decorated: annotations of a nested function may need them.
    """
    shown = qualified(function)
    _refuse_odd_callables(function, shown)
    _refuse_class_body(function)
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        _refuse_odd_kinds(parameter, shown)
    hints = read_hints(function, shown, local_names)
    injected = {p.name: hints.get(p.name, Any) for p in parameters.values() if p.default is INJECTED}
    for parameter in parameters.values():
        _check_injection(parameter, hints.get(parameter.name, Any), shown)
    return _assemble(list(parameters.values()), hints, injected)


def qualified(function: Callable[..., Any]) -> str:
    """``module.qualname``, with the name under which a worker imports the module that runs as ``__main__``.

    ``python -m shop.jobs`` gives ``shop.jobs``, ``python jobs.py`` gives ``jobs``: the file's stem.
    """
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    module = getattr(function, "__module__", None) or "__main__"
    return f"{importable_name(module)}.{name}"


def importable_name(module: str) -> str:
    """The name under which another process imports a module: that of the program is not ``__main__`` there."""
    return _main_name() if module in ("__main__", "__mp_main__") else module


def _main_name() -> str:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in ("__main__", "__mp_main__"):
        return str(spec.name)
    file = getattr(main, "__file__", None)
    # Not os.path.splitext: a name with two dots would keep one, and a module's name cannot have any.
    return file.replace("\\", "/").rpartition("/")[2].partition(".")[0] if file else "__main__"


def _refuse_odd_callables(function: Callable[..., Any], shown: str) -> None:
    if isinstance(function, staticmethod | classmethod) or not (
        inspect.isfunction(function) or inspect.ismethod(function)
    ):
        raise TaskDefinitionError(
            f"{shown}: a task is made of a function, a coroutine function or a bound method, "
            f"not of {article(type(function).__name__)}; wrap it in a function"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TaskDefinitionError(f"{shown} yields: a task returns its result; enqueue a job for each item instead")


def _refuse_class_body(function: Callable[..., Any]) -> None:
    own_part = function.__qualname__.rpartition("<locals>.")[2]
    if "." in own_part and not inspect.ismethod(function):
        owner, _, name = own_part.rpartition(".")
        raise TaskDefinitionError(
            f"{qualified(function)} is a function in a class body: nobody would pass its self. Make a task of a bound "
            f"method, after the class: mailer = {owner}(); {name} = app.task(mailer.{name})"
        )


def _refuse_odd_kinds(parameter: _Kind, shown: str) -> None:
    if parameter.kind in (_Kind.VAR_POSITIONAL, _Kind.VAR_KEYWORD):
        raise TaskDefinitionError(
            f"{shown}: {parameter} cannot be enqueued: arguments are stored by parameter name. "
            f"Use a parameter that is a list or a dict"
        )
    if parameter.kind is _Kind.POSITIONAL_ONLY:
        raise TaskDefinitionError(
            f"{shown}: {parameter.name} is positional-only, but arguments are stored by parameter name. "
            f"Remove the / from the signature"
        )


def read_hints(function: Callable[..., Any], shown: str, local_names: Mapping[str, Any] | None) -> dict[str, Any]:
    """The types of a function's parameters and of its ``return``. Raises `TaskDefinitionError` naming it as ``shown``.

    ``local_names`` are those visible where it is decorated.
    """
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:
        pass  # perhaps a name of the function around it
    except Exception as error:  # annotations are evaluated, and may raise anything
        raise _unresolvable(shown, error) from error
    try:
        return typing.get_type_hints(function, localns=dict(local_names or {}), include_extras=True)
    except Exception as error:  # annotations are evaluated, and may raise anything
        raise _unresolvable(shown, error) from error


def _unresolvable(shown: str, error: Exception) -> TaskDefinitionError:
    return TaskDefinitionError(
        f"{shown}: an annotation cannot be resolved: {error}. Import the name for real (not under TYPE_CHECKING only) "
        f"and define it above {shown}"
    )


def _check_injection(parameter: _Kind, hint: Any, shown: str) -> None:
    name, is_injected = parameter.name, parameter.default is INJECTED
    for own in (Context, WorkerContext):
        if (hint is own or own in typing.get_args(hint)) and not (is_injected and hint is own):
            raise TaskDefinitionError(
                f"{shown}: write {name}: {own.__name__} = INJECTED (from prinia import INJECTED): the context is "
                f"filled in when the job runs, and is not part of what is enqueued"
            )
    if is_injected and hint is Any:
        raise TaskDefinitionError(f"{shown}: {name} = INJECTED needs a type, such as {name}: Context = INJECTED")


def _assemble(parameters: list[_Kind], hints: Mapping[str, Any], injected: dict[str, Any]) -> Signature:
    positional: dict[str, Any] = {}
    named: dict[str, Any] = {}
    positions: dict[str, int | None] = {}
    shown: list[_Kind] = []
    for index, parameter in enumerate(parameters):
        if parameter.name in injected:
            positions[parameter.name] = None if parameter.kind is _Kind.KEYWORD_ONLY else index
        elif parameter.kind is _Kind.KEYWORD_ONLY or positions:
            named[parameter.name] = hints.get(parameter.name, Any)
            shown.append(parameter.replace(kind=_Kind.KEYWORD_ONLY))
        else:
            positional[parameter.name] = hints.get(parameter.name, Any)
            shown.append(parameter)
    return Signature(
        positional=positional,
        named=named,
        optional=frozenset(p.name for p in shown if p.default is not _Kind.empty),
        injected=injected,
        positions=positions,
        returns=hints.get("return", Any),
        shown=inspect.Signature(shown),
    )
