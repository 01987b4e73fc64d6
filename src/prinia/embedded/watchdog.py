"""The detached process that is the parent of one ``postgres`` and stops it when nobody uses it any more.

Run as a file, never imported: it is started with ``python -I -S``, so it loads the standard library alone and stays
small. Its one argument is an order in JSON:

    locks    numbers of three open files: ``watch`` (locked for this process by its starter), ``use``, ``start``
    folder   where the lock files, the log and the socket folder are
    data     the data folder
    argv     the server's command line, or null when ``adopt`` is the pid of a server that lost its watchdog
    switch   uid and gid for the server, or null to run it as this process's own user
    pass     open files for the server: its data folder, as a lock and as a way in for a user who has no other

Why a process at all: a lock that the kernel drops at ``kill -9`` needs somebody who notices the drop, and a server
whose parent waits for it never becomes a zombie that looks alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

ROUND = 0.5
"""Seconds between two looks at the ``use`` lock."""
Patience = Sequence[tuple[signal.Signals, float]]
PATIENCE: Patience = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
"""Fast shutdown; then one without a checkpoint; then none at all (crash recovery repairs both at the next start)."""
TOUCH_EVERY = 3600.0
"""Cleaners of /tmp remove what has not been touched for days; the locks must outlive that."""
PR_SET_PDEATHSIG = 1
SOCKET = "s/.s.PGSQL.5432"


class Adopted:
    """A server that another watchdog started: no child of ours, so it can only be asked whether it is there."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode = 0

    def poll(self) -> int | None:
        """As of ``Popen``: None while it lives."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return 0 if _is_zombie(self.pid) else None

    def send_signal(self, number: int) -> None:
        """As of ``Popen``: no error when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


Server = subprocess.Popen[bytes] | Adopted


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="latin-1") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return False


def _tied_to_this_process() -> Callable[[], None] | None:
    """What the server's process does just before exec so that the kernel stops it when the watchdog dies.

    It runs after the switch of the user, as it must: changing the uid clears the setting.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    prctl, parent = ctypes.CDLL(None, use_errno=True).prctl, os.getpid()

    def tie() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
        if os.getppid() != parent:  # the watchdog died before the call above could tell
            os._exit(1)

    return tie


def _launch(order: dict[str, Any]) -> Server:
    if order["argv"] is None:
        return Adopted(order["adopt"])
    uid, gid = order["switch"] or (None, None)
    return subprocess.Popen(
        order["argv"],
        stdin=subprocess.DEVNULL,
        cwd="/",
        pass_fds=order["pass"],
        preexec_fn=_tied_to_this_process(),
        user=uid,
        group=gid,
        extra_groups=None if uid is None else [],
    )


class Bell:
    """Wakes the loop at once when the server ends, and remembers a request to stop."""

    def __init__(self) -> None:
        self.stop_asked = False
        self._ear, mouth = os.pipe()
        os.set_blocking(self._ear, False)
        os.set_blocking(mouth, False)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # the starter's mask came along
        signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self.stop_asked = True

    def wait(self, seconds: float) -> None:
        """Return after that time, or as soon as a signal comes."""
        if select.select([self._ear], [], [], seconds)[0]:
            os.read(self._ear, 4096)


def _lock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _unused(locks: dict[str, int]) -> bool:
    """Both locks, or neither: whoever attaches takes ``start`` first, so none can slip in once this is true."""
    if not _lock(locks["use"]):
        return False
    if _lock(locks["start"]):
        return True
    fcntl.flock(locks["use"], fcntl.LOCK_UN)
    return False


def _run_folder_is_gone(folder: str, use: int) -> bool:
    """Somebody emptied /tmp: the socket is gone too, and nobody could ever attach to this server again."""
    try:
        return not os.path.samestat(os.stat(os.path.join(folder, "use")), os.fstat(use))
    except FileNotFoundError:
        return True


def _data_is_gone(order: dict[str, Any]) -> bool:
    """Somebody removed the data under the server, and whoever attaches next wants new ones.

    The pid file is made before the socket and removed after it, so there is none beside a socket only then.
    """
    socket_made = os.path.exists(os.path.join(order["folder"], SOCKET))
    return socket_made and not os.path.exists(os.path.join(order["data"], "postmaster.pid"))


def _stop(server: Server, bell: Bell, patience: Patience = PATIENCE) -> None:
    for number, seconds in patience:
        server.send_signal(number)
        deadline = time.monotonic() + seconds
        while server.poll() is None and time.monotonic() < deadline:
            bell.wait(min(ROUND, 0.1))
        if server.poll() is not None:
            return


def _tidy(folder: str) -> None:
    """Remove what this server left in /tmp; ``start`` last but the folder, as it guards the rest."""
    with contextlib.suppress(OSError):
        for name in (SOCKET, f"{SOCKET}.lock", "log", "log.old", "use", "watch"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
        os.rmdir(os.path.join(folder, "s"))
        os.unlink(os.path.join(folder, "start"))
        os.rmdir(folder)


def _touch(folder: str) -> None:
    for name in ("use", "watch", "start", "."):
        with contextlib.suppress(OSError):
            os.utime(os.path.join(folder, name))


def _watch(order: dict[str, Any]) -> int:
    bell = Bell()
    server = _launch(order)
    locks, folder = order["locks"], order["folder"]
    touched = time.monotonic()
    while server.poll() is None:
        if _unused(locks):
            _stop(server, bell)
            if server.poll() == 0 or not os.path.exists(order["data"]):
                _tidy(folder)
            break
        if bell.stop_asked or _run_folder_is_gone(folder, locks["use"]):
            _stop(server, bell)
            break
        if _data_is_gone(order):
            _stop(server, bell, PATIENCE[1:])
            break
        if time.monotonic() - touched > TOUCH_EVERY:
            _touch(folder)
            touched = time.monotonic()
        bell.wait(ROUND)
    return server.returncode or 0


def main(order: str) -> None:
    """Return at once in the process that the starter waits for; go on as the watchdog in another."""
    # Forked once more, so that the starter has no child to wait for; the locks belong to the open files and stay.
    if os.fork():
        os._exit(0)
    sys.exit(_watch(json.loads(order)))


if __name__ == "__main__":
    main(sys.argv[1])
