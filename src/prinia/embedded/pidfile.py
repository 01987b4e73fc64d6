"""What ``postmaster.pid`` in a data folder says, and whether that is still true."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LINUX = sys.platform == "linux"


@dataclass(frozen=True, slots=True)
class PidFile:
    """The two lines of ``postmaster.pid`` that matter here.

    Example::

        running = read_pidfile(Path("data"))
        if running and running.pid in server_pids(Path("data")):
            print("a server with its socket in", running.sockets)
    """

    pid: int
    sockets: Path


def read_pidfile(data: Path) -> PidFile | None:
    """The pid and the socket folder of the server that runs, or ran, on a data folder."""
    try:
        lines = (data / "postmaster.pid").read_text(encoding="utf-8", errors="replace").splitlines()
        return PidFile(pid=int(lines[0]), sockets=Path(lines[4]))
    except (OSError, ValueError, IndexError):
        return None


def server_pids(data: Path) -> set[int]:
    """The processes of a server on this data folder that are really alive.

    On Linux every one counts, also the backends of a killed server: they still have its memory mapped, and a second
    server beside them could damage the data. Elsewhere only the pid in the file can be asked for.
    """
    if _LINUX:
        return set(_working_in(data))
    running = read_pidfile(data)
    return {running.pid} if running and _exists(running.pid) else set()


def _working_in(data: Path) -> Iterator[int]:
    home = data.stat()
    for name in os.listdir("/proc"):
        # Gone since, a zombie, or of another user, who cannot run a server on a folder that is not his.
        with contextlib.suppress(OSError):
            if name.isdigit() and _command(name) == "postgres" and os.path.samestat(os.stat(f"/proc/{name}/cwd"), home):
                yield int(name)


def _command(pid: str) -> str:
    with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().strip()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def remove_stale_pidfile(data: Path) -> None:
    """Remove the file when its pid is now a zombie or another program's; PostgreSQL would refuse to start.

    It happens in containers, where pids are small and start anew, and where nobody reaps. Call it only when
    ``server_pids`` is empty and under the ``start`` lock.
    """
    if not _LINUX:
        return
    running = read_pidfile(data)
    if running and _exists(running.pid):
        (data / "postmaster.pid").unlink(missing_ok=True)
