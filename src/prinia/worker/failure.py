"""From an exception to the text that is stored: never raises, bounded whatever the exception holds.

Messages are cut before anything is formatted with them, `__str__` may raise, causes may form a ring, groups may be
deep, and what PostgreSQL cannot store (NUL, lone surrogates) is written as an escape.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from itertools import islice
from types import TracebackType

from prinia.job import MAX_ERROR_BYTES
from prinia.outcome import Cancel, Fail, Failed, Retry, Snooze, Steering
from prinia.storage.text import storable

MAX_KIND_BYTES = 256
MAX_MESSAGE_BYTES = MAX_ERROR_BYTES // 4
_MAX_TRACEBACK_BYTES = MAX_ERROR_BYTES - MAX_MESSAGE_BYTES - MAX_KIND_BYTES
#: Bounds of one stored traceback: exceptions in all, frames of each.
_MAX_EXCEPTIONS = 12
_MAX_FRAMES = 20
_OWN_MODULES = ("prinia.worker", "prinia.task")


def failed(error: BaseException) -> Failed:
    """The outcome of a job whose handler raised ``error``.

    Example::

        failed(ValueError("no such order")).kind    # "ValueError"
    """
    steering = error if isinstance(error, Retry | Snooze | Fail | Cancel) else None
    wants_traceback = not isinstance(error, Steering)
    return Failed(
        kind=kind_of(error),
        message=message_of(error),
        traceback=_traceback_of(error) if wants_traceback else None,
        steering=steering,
        error=error if isinstance(error, Exception) else None,
    )


def kind_of(error: BaseException) -> str:
    """The qualified name of the exception's type; builtins without their module."""
    cls = type(error)
    name = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    return storable(name, limit=MAX_KIND_BYTES)


def message_of(error: BaseException) -> str:
    """``str(error)``, cut and storable."""
    try:
        text = str(error)
    except BaseException as broken:  # whatever a foreign __str__ does, the job's failure is recorded
        text = f"<{type(error).__name__}.__str__ raised {type(broken).__name__}>"
    return storable(text, limit=MAX_MESSAGE_BYTES)


def _traceback_of(error: BaseException) -> str | None:
    """The traceback from the handler inwards; the end is kept when it is too long: that is where it happened."""
    try:
        lines = list(islice(_lines(error), _MAX_EXCEPTIONS * (_MAX_FRAMES + 2)))
    except Exception as broken:  # a source file that cannot be read, a __cause__ that raises
        return f"<no traceback: {type(broken).__name__}>"
    text = _storable_end("".join(lines), _MAX_TRACEBACK_BYTES)
    return text or None


def _storable_end(text: str, limit: int) -> str:
    """Like `storable`, but the end of the text stays."""
    data = text[-limit - 1 :].replace("\0", "\\x00").encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode()
    return "…" + data[3 - limit :].decode("utf-8", "ignore")


def _lines(error: BaseException) -> Iterator[str]:
    for link, how, depth in _chain(error):
        indent = "  " * depth
        if how:
            yield f"{indent}{how}:\n"
        for frame in traceback.extract_tb(_from_handler(link.__traceback__), limit=-_MAX_FRAMES).format():
            yield "".join(indent + line for line in frame.splitlines(keepends=True))
        yield f"{indent}{kind_of(link)}: {message_of(link)}\n"


def _chain(error: BaseException) -> Iterator[tuple[BaseException, str, int]]:
    """The exception's causes, oldest first, itself, then the members of groups; each once, so rings end."""
    causes: list[BaseException] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen and len(causes) < _MAX_EXCEPTIONS:
        seen.add(id(link))
        causes.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    left = _MAX_EXCEPTIONS
    for number, link in enumerate(reversed(causes)):
        yield link, "then" if number else "", 0
        stack = [(member, 1) for member in _members(link)]
        while stack and left:
            member, depth = stack.pop(0)
            if id(member) not in seen:
                seen.add(id(member))
                left -= 1
                yield member, "in this group", depth
                stack[:0] = [(inner, depth + 1) for inner in _members(member)]


def _members(error: BaseException) -> tuple[BaseException, ...]:
    return error.exceptions[:_MAX_EXCEPTIONS] if isinstance(error, BaseExceptionGroup) else ()


def _from_handler(tb: TracebackType | None) -> TracebackType | None:
    """The traceback without Prinia's own frames at its start."""
    while tb is not None and str(tb.tb_frame.f_globals.get("__name__")).startswith(_OWN_MODULES):
        tb = tb.tb_next
    return tb
