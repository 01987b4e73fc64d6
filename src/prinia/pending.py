"""An awaitable that says so when it is dropped: a forgotten ``await`` must not lose anything in silence."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Coroutine, Generator
from types import CodeType, TracebackType
from typing import Any, TypeVar, overload

T = TypeVar("T")

log = logging.getLogger("prinia")


class Pending(Coroutine[Any, Any, T]):
    """A coroutine not started yet. Dropped without ``await`` it logs an error with the place of the call.

    It does for ``await``, ``asyncio.create_task``, ``gather``, ``wait_for`` and ``asyncio.run`` what a coroutine does.
    """

    __slots__ = ("_code", "_inner", "_line", "_so", "_start", "_what")

    def __init__(
        self,
        what: str,
        start: Callable[[], Coroutine[Any, Any, T]],
        *,
        depth: int = 2,
        so: str = "nothing was enqueued",
    ) -> None:
        """``depth`` is how many frames up the call was made; ``what`` names it in the log, and ``so`` what follows when
        it is dropped."""
        self._what = what
        self._so = so
        self._start = start
        self._inner: Coroutine[Any, Any, T] | None = None
        frame = sys._getframe(depth)
        self._code: CodeType = frame.f_code
        self._line = frame.f_lineno

    def _coroutine(self) -> Coroutine[Any, Any, T]:
        if self._inner is None:
            self._inner = self._start()
        return self._inner

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine().__await__()

    def send(self, value: Any, /) -> Any:
        """Go on to the next thing awaited."""
        return self._coroutine().send(value)

    @overload
    def throw(self, typ: type[BaseException], val: object = None, tb: TracebackType | None = None, /) -> Any: ...
    @overload
    def throw(self, typ: BaseException, val: None = None, tb: TracebackType | None = None, /) -> Any: ...
    def throw(self, typ: Any, val: Any = None, tb: Any = None, /) -> Any:
        """Go on with an error raised where it waits."""
        error = typ if val is None and tb is None else (val if isinstance(val, BaseException) else typ(val))
        return self._coroutine().throw(error.with_traceback(tb) if tb is not None else error)

    def close(self) -> None:
        """End it. One that was not started counts as given up on purpose, and is not logged."""
        self._coroutine().close()

    def __del__(self) -> None:
        if self._inner is None:
            log.error(
                "%s was never awaited, so %s. It was called at %s:%d, in %s.",
                self._what, self._so, self._code.co_filename, self._line, self._code.co_qualname,
            )  # fmt: skip
