"""Attaching to the server of a data folder, and letting go of it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from prinia.embedded.account import server_account
from prinia.embedded.locks import LockFile
from prinia.embedded.runfolder import locate, starting
from prinia.embedded.server import Site, ensure_running, is_serving, is_watched
from prinia.errors import EmbeddedPostgresError

_POLL = 0.02
_OURS = {"listen_addresses", "unix_socket_directories", "port", "data_directory", "unix_socket_permissions"}


class Attached:
    """A hold on a running server, which lives as long as anybody holds it.

    The hold ends with ``detach()``, at the end of a ``with`` block, or with the process, however it ends. It belongs
    to the process that made it: in a forked child ``is_attached`` is False, and the child attaches anew if it wants
    to keep the server alive by itself.

    Example::

        with attach("./data") as server:
            print(server.dsn)
    """

    __slots__ = ("_site", "_use")

    def __init__(self, site: Site, use: LockFile) -> None:
        self._site = site
        self._use = use

    @property
    def dsn(self) -> str:
        """A libpq URL for the database ``prinia`` as its superuser ``prinia``, over the Unix socket."""
        return self._site.run.dsn

    @property
    def data(self) -> Path:
        """The data folder, absolute."""
        return self._site.data

    @property
    def log(self) -> Path:
        """The server's log. It is removed when the last holder has let go."""
        return self._site.run.log

    @property
    def is_attached(self) -> bool:
        """Whether this process still holds the server."""
        return self._use.is_open

    @property
    def is_answering(self) -> bool:
        """Whether the server takes connections right now; after a crash ``attach`` starts it again."""
        return is_serving(self._site)

    def detach(self, *, wait: float = 0) -> bool:
        """Let go. The server stops within about a second unless somebody else holds it.

        With ``wait`` seconds, return when it has stopped: True; or False when it goes on for others or takes longer.

        Example::

            server.detach(wait=10)
            shutil.rmtree("./data")
        """
        self._use.close()
        deadline = time.monotonic() + wait
        while wait > 0 and time.monotonic() < deadline and not self._has_other_holders():
            if not is_watched(self._site.run):
                return True
            time.sleep(_POLL)
        return not is_watched(self._site.run)

    def _has_other_holders(self) -> bool:
        try:
            use = LockFile(self._site.run.use, create=False)
        except FileNotFoundError:
            return False
        try:
            # Not shared: the watchdog has it and is stopping the server. Shared but not alone: others hold it.
            return use.try_shared() and not use.try_exclusive()
        finally:
            use.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.detach()

    def __repr__(self) -> str:
        state = "attached" if self.is_attached else "detached"
        return f"<{state} to {self.dsn}>"


def attach(data: Path | str, *, options: Mapping[str, str] | None = None, timeout: float = 60) -> Attached:
    """Hold the PostgreSQL server of a data folder, starting it if it does not run; the call blocks meanwhile.

    A missing or empty folder is filled first. All processes of one user that attach to a folder share its server; it
    listens on a Unix socket that only this user can open, never on TCP. ``options`` are server settings; they count
    when this call is the one that starts the server. ``timeout`` is for the server to take connections.

    As root the server runs as the user ``nobody``, who then owns the data folder; no other user or folder is changed.
    For trying out, tests and small tools; not on Windows yet, which raises.

    Example::

        with attach("./data", options={"shared_buffers": "32MB"}) as server:
            connection = psycopg.connect(server.dsn)

    Raises EmbeddedPostgresError, whose text says what is wrong and what to do.
    """
    if sys.platform == "win32":
        raise EmbeddedPostgresError(
            "the embedded server is not supported on Windows yet. Install PostgreSQL and give its DSN instead."
        )
    options = _checked(options or {})
    folder = Path(os.path.abspath(Path(data).expanduser())).resolve()
    try:
        return _attach(folder, options, timeout)
    except OSError as error:
        raise EmbeddedPostgresError(
            f"cannot run an embedded server on {folder}: {error}. Choose a folder that you can write to, or give the "
            "DSN of a server instead."
        ) from error


def _attach(folder: Path, options: Mapping[str, str], timeout: float) -> Attached:
    account = server_account()
    site = Site(data=folder, run=locate(folder, account), account=account)
    deadline = time.monotonic() + timeout
    with starting(site.run, account, deadline):
        use = LockFile(site.run.use)
        try:
            # A watchdog tries this lock too, for a moment; it gives way, as we have the start lock.
            while not use.try_shared():
                if time.monotonic() > deadline:
                    raise EmbeddedPostgresError(f"a watchdog that does not run (stopped?) holds {use.path}: kill it.")
                time.sleep(_POLL)
            ensure_running(site, options, timeout=timeout)
        except BaseException:
            use.close()
            raise
    return Attached(site, use)


def _checked(options: Mapping[str, str]) -> Mapping[str, str]:
    taken = sorted(_OURS & {name.lower() for name in options})
    if taken:
        raise EmbeddedPostgresError(
            f"the server setting {taken[0]} cannot be chosen for an embedded server, which uses one Unix socket of "
            "its own. For anything else run your own server and give its DSN."
        )
    return options
