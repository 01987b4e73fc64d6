"""``embedded:PATH`` as a database URL."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from prinia.embedded.attached import Attached, attach
from prinia.errors import EmbeddedPostgresError

_SCHEME = "embedded:"


def resolve(dsn: str) -> Path | None:
    """The absolute data folder of an ``embedded:PATH`` DSN, or None for any other DSN.

    ``PATH`` is relative to the current folder, absolute, or starts with ``~``. It is taken as it is: a space is a
    space, nothing is percent-encoded.

    Example::

        assert resolve("embedded:./data") == Path.cwd() / "data"
        assert resolve("postgresql://db/app") is None

    Raises EmbeddedPostgresError when there is no path, or a host is where none can be.
    """
    if not dsn.startswith(_SCHEME):
        return None
    path = dsn.removeprefix(_SCHEME)
    if path.startswith("//") and not path.startswith("///"):
        raise EmbeddedPostgresError(
            f"{dsn!r} reads as if it named a host. Write embedded:./data or embedded:/absolute/path."
        )
    if not path:
        raise EmbeddedPostgresError(f"{dsn!r} has no path. Write for example embedded:./data.")
    if path.startswith("/"):
        path = "/" + path.lstrip("/")
    return Path(os.path.abspath(Path(path).expanduser())).resolve()


def open_dsn(dsn: str) -> str:
    """The DSN to connect to: any but ``embedded:PATH`` unchanged; for that one a server is attached first.

    The server stays attached until this process ends. Asking again is cheap; it starts the server anew should it have
    crashed. A forked child that asks attaches for itself. The call blocks: use ``asyncio.to_thread`` in async code.

    Example::

        psycopg.connect(open_dsn(os.environ["PRINIA_DATABASE_URL"]))

    Raises EmbeddedPostgresError as ``attach`` does.
    """
    path = resolve(dsn)
    return dsn if path is None else _kept.dsn(path)


class _Kept:
    """What this process holds until it ends."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._attached: dict[Path, Attached] = {}

    def dsn(self, path: Path) -> str:
        with self._lock:
            kept = self._attached.get(path)
            if kept is None or not kept.is_answering:
                self._attached[path] = attach(path)
                if kept is not None:
                    kept.detach()
            return self._attached[path].dsn


# Module state, as the hold is by definition the process's.
_kept = _Kept()

if sys.platform != "win32":
    # The child has none of the parent's holds, and the lock may have been taken by a thread that it has not.
    os.register_at_fork(after_in_child=_kept.forget)
