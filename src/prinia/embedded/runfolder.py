"""The private folder in /tmp that belongs to one data folder: lock files, log, and the folder of the socket."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from prinia.embedded.account import Account, user_name
from prinia.embedded.locks import LockFile
from prinia.embedded.pidfile import read_pidfile
from prinia.errors import EmbeddedPostgresError

PORT = 5432
"""Only part of the socket's name: each server has a folder of its own, and none listens on TCP."""
ROLE = "prinia"
DATABASE = "prinia"
_TMP = Path("/tmp")  # noqa: S108 - see ensure_run_folder
_LONGEST_SOCKET = 100  # Linux takes 107 bytes, macOS 103
_PLAIN = re.compile(r"[A-Za-z0-9_./+@-]+")
_POLL = 0.02


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of one server's run folder.

    Example::

        run = locate(Path("/srv/data"), server_account())
        run.dsn  # 'postgresql://prinia@/prinia?host=%2Ftmp%2Fprinia-1000-…%2Fs&port=5432'
    """

    path: Path

    @property
    def use(self) -> Path:
        """Locked shared by everybody attached."""
        return self.path / "use"

    @property
    def start(self) -> Path:
        """Locked while the server is being started or stopped."""
        return self.path / "start"

    @property
    def watch(self) -> Path:
        """Locked by the watchdog for as long as it lives."""
        return self.path / "watch"

    @property
    def log(self) -> Path:
        """What the server and its watchdog print."""
        return self.path / "log"

    @property
    def sockets(self) -> Path:
        """Owned by the server's user, closed to all others."""
        return self.path / "s"

    @property
    def socket(self) -> Path:
        """The Unix socket itself."""
        return self.sockets / f".s.PGSQL.{PORT}"

    @property
    def dsn(self) -> str:
        """A libpq URL."""
        return f"postgresql://{ROLE}@/{DATABASE}?host={quote(str(self.sockets), safe='')}&port={PORT}"

    def log_tail(self, lines: int = 15) -> str:
        """The end of the log, for an error's text."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:]) or "(empty log)"


def locate(data: Path, account: Account) -> RunFolder:
    """The run folder of a data folder; the same for every process of one user.

    ``TMPDIR`` can differ between processes, so the folder of a server that already runs wins.
    """
    name = f"prinia-{os.geteuid()}-{hashlib.sha256(os.fsencode(data)).hexdigest()[:16]}"
    running = read_pidfile(data)
    if running and running.sockets.parent.name == name and running.sockets.parent.is_dir():
        return RunFolder(running.sockets.parent)
    chosen = RunFolder(Path(os.environ.get("TMPDIR") or _TMP) / name)
    return chosen if _is_fit(chosen, account) else RunFolder(_TMP / name)


def _is_fit(run: RunFolder, account: Account) -> bool:
    """PostgreSQL splits its list of socket folders at commas, sockets have short names, and others must not meddle."""
    if len(os.fsencode(run.socket)) > _LONGEST_SOCKET or not _PLAIN.fullmatch(str(run.path)):
        return False
    parent = run.path.parent
    if not parent.is_absolute() or not parent.is_dir() or account.blocked_at(run.path):
        return False
    status = parent.stat()
    closed = not status.st_mode & 0o022 or bool(status.st_mode & stat.S_ISVTX)
    return closed and status.st_uid in (0, os.geteuid())


def ensure_run_folder(run: RunFolder, account: Account) -> None:
    """Make the run folder, or check that the one that is there is ours alone: everybody can write to /tmp."""
    try:
        os.mkdir(run.path, 0o700)
    except FileExistsError:
        _check_private(run.path, os.geteuid(), allowed=0o711 if account.switched else 0o700)
    if account.switched:  # nobody must pass to its socket folder, but cannot list or write here
        os.chmod(run.path, 0o711)  # noqa: S103


def ensure_socket_folder(run: RunFolder, account: Account) -> None:
    """Make the socket folder anew. Only without a server and under the ``start`` lock: old sockets are removed."""
    try:
        os.mkdir(run.sockets, 0o700)
    except FileExistsError:
        _check_private(run.sockets, account.uid, os.geteuid(), allowed=0o700)
    account.own(run.sockets)
    for leftover in (run.socket, run.socket.with_name(f"{run.socket.name}.lock")):
        leftover.unlink(missing_ok=True)


def _check_private(path: Path, *owners: int, allowed: int) -> None:
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in owners:
        raise EmbeddedPostgresError(
            f"{path} is needed for the locks and the socket of the embedded server, but it belongs to "
            f"'{user_name(status.st_uid)}' or is no folder, so it is not used. Remove it, or set TMPDIR to a folder "
            "of your own."
        )
    if stat.S_IMODE(status.st_mode) & ~allowed:
        raise EmbeddedPostgresError(
            f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):o}), so what is in it cannot be "
            f"trusted. Stop what uses it and remove it: rm -r {path}"
        )


@contextmanager
def starting(run: RunFolder, account: Account, deadline: float) -> Iterator[None]:
    """Hold the ``start`` lock. The run folder exists and stays while it is held.

    A watchdog removes the folder after it stopped its server, so a lock may turn out to be on a file that is gone.
    """
    lock = None
    while lock is None:
        ensure_run_folder(run, account)
        try:
            lock = LockFile(run.start)
        except FileNotFoundError:
            continue
        if not _acquired(lock, deadline):
            lock.close()
            lock = None
    try:
        yield
    except BaseException:
        _tidy(run)
        raise
    finally:
        lock.close()


def _tidy(run: RunFolder) -> None:
    """After a start that failed: leave nothing in /tmp, unless a watchdog or somebody attached needs it."""
    locks: list[LockFile] = []
    with contextlib.suppress(OSError):
        locks.append(LockFile(run.use, create=False))
        locks.append(LockFile(run.watch, create=False))
        if all(lock.try_exclusive() for lock in locks):
            if run.sockets.exists():
                run.sockets.rmdir()
            for path in (run.log, run.log.with_name("log.old"), run.use, run.watch, run.start):
                path.unlink(missing_ok=True)
            run.path.rmdir()
    for lock in locks:
        lock.close()


def _acquired(lock: LockFile, deadline: float) -> bool:
    while lock.is_current():
        if lock.try_exclusive():
            return lock.is_current()
        if time.monotonic() > deadline:
            lock.close()
            raise EmbeddedPostgresError(
                f"another process has been starting or stopping this server for too long: it holds {lock.path}. "
                f"See who with: fuser {lock.path}; the log is beside it."
            )
        time.sleep(_POLL)
    return False
