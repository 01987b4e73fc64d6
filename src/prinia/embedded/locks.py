"""File locks that the kernel drops when their holder dies, however it dies."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if sys.platform != "win32":
    import fcntl

    _FILE = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    _FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY


class LockFile:
    """One open lock file. Two of them on one path exclude each other, in one process too.

    A forked child inherits open files and with them the lock, so a child that lives on would keep a server alive
    for a parent that is gone. Every lock file is therefore closed in a child right after the fork; the parent's lock
    is untouched by that. A child that wants to hold one opens its own.

    Example::

        lock = LockFile(folder / "use")
        if lock.try_shared():
            ...
        lock.close()
    """

    __slots__ = ("_file", "path")

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        self._file = self._open(path, create)
        _open_here.add(self)

    @staticmethod
    def _open(path: Path, create: bool) -> int:
        return os.open(path, _FILE | (os.O_CREAT if create else 0), 0o600)

    @property
    def is_open(self) -> bool:
        """False after ``close()``, and in a process forked from the one that opened it."""
        return self._file >= 0

    def fileno(self) -> int:
        """The number of the open file, to hand to a child process."""
        return self._file

    def try_shared(self) -> bool:
        """Take the lock together with other shared holders; False when somebody has it exclusively."""
        return self._try(fcntl.LOCK_SH)

    def try_exclusive(self) -> bool:
        """Take the lock alone; False when anybody else has it."""
        return self._try(fcntl.LOCK_EX)

    def _try(self, kind: int) -> bool:
        try:
            fcntl.flock(self._file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_current(self) -> bool:
        """Whether the path still leads to this very file: a lock on a removed file guards nothing."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._file))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close the file, which drops the lock unless a child was handed it. Again is harmless."""
        file, self._file = self._file, -1
        _open_here.discard(self)
        if file >= 0:
            os.close(file)


class FolderLock(LockFile):
    """A folder as a lock file. Handed down to a server it is held by all its processes, until the last has ended.

    It is one and the same lock for all containers that mount the folder, who see neither each other's pids nor /tmp.

    Example::

        lock = FolderLock(data)
        subprocess.Popen([...], pass_fds=[lock.fileno()])
    """

    __slots__ = ()

    @staticmethod
    def _open(path: Path, create: bool) -> int:
        return os.open(path, _FOLDER)

    def _try(self, kind: int) -> bool:
        try:
            return LockFile._try(self, kind)
        except OSError:
            # NFS locks no folders. PostgreSQL's own pid file still guards against a second server on this machine.
            return True


# The one piece of module state: a fork hook has no other way to know what is open.
_open_here: set[LockFile] = set()


def _close_inherited() -> None:
    for lock in list(_open_here):
        lock.close()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_close_inherited)
