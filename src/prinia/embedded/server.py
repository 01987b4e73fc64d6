"""Starting a server under its watchdog, and knowing when it answers. All of it under the ``start`` lock."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prinia.embedded.account import Account, clean_environment, way_to
from prinia.embedded.binaries import find_binaries
from prinia.embedded.datafolder import ensure_folder, fill_folder
from prinia.embedded.locks import FolderLock, LockFile
from prinia.embedded.pidfile import read_pidfile, remove_stale_pidfile, server_pids
from prinia.embedded.relocate import reachable_binaries
from prinia.embedded.runfolder import DATABASE, PORT, ROLE, RunFolder, ensure_socket_folder
from prinia.errors import EmbeddedPostgresError

DIES_WITH_WATCHDOG = sys.platform == "linux"
"""The kernel can tie the server to its watchdog. Elsewhere a new watchdog adopts a server that lost its own."""
_WATCHDOG = Path(__file__).with_name("watchdog.py")
_POLL = 0.02


@dataclass(frozen=True, slots=True)
class Site:
    """One server: its data, its run folder, and the user it runs as."""

    data: Path
    run: RunFolder
    account: Account


def ensure_running(site: Site, options: Mapping[str, str], *, timeout: float) -> None:
    """Return once the server answers, having started it if it did not run.

    Example::

        with starting(site.run, site.account, deadline):
            ensure_running(site, {"shared_buffers": "32MB"}, timeout=60)
    """
    deadline = time.monotonic() + timeout
    while True:
        launched = _launch_if_unwatched(site, options, deadline)
        if _answers_in_time(site, deadline, timeout):
            return
        # The watchdog ended, so its server did. One that was here before us may have been dying; ours may not.
        memory_in_use = "is still in use" in site.run.log_tail()
        if launched and not memory_in_use:
            raise EmbeddedPostgresError(
                f"the server on {site.data} ended while it started. The end of its log:\n{site.run.log_tail()}"
            )
        time.sleep(_POLL * 5 if memory_in_use else 0)


def is_serving(site: Site) -> bool:
    """Whether the server answers, and still on the folder that is at this path: it could have been removed.

    Example::

        if not is_serving(site):
            print(site.run.log_tail())
    """
    return read_pidfile(site.data) is not None and answers(site.run)


def answers(run: RunFolder) -> bool:
    """Whether the server takes connections: the question of ``pg_isready``, which not every set of binaries has.

    Example::

        if not answers(run):
            print(run.log_tail())
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(5)
            line.connect(str(run.socket))
            line.sendall(_hello())
            reply = line.recv(4096)
    except OSError:
        return False
    # 57P03: starting up, recovering or shutting down. Any other refusal (too many clients) comes from a live server.
    return reply[:1] == b"R" or (reply[:1] == b"E" and b"57P03" not in reply)


def _hello() -> bytes:
    """The first packet of PostgreSQL's protocol 3.0."""
    body = struct.pack("!I", 3 << 16) + f"user\0{ROLE}\0database\0{DATABASE}\0\0".encode()
    return struct.pack("!I", len(body) + 4) + body


def is_watched(run: RunFolder) -> bool:
    """Whether a watchdog, and so a server or what is left of one, is alive."""
    try:
        watch = LockFile(run.watch, create=False)
    except FileNotFoundError:
        return False
    try:
        return not watch.try_shared()
    finally:
        watch.close()


def _answers_in_time(site: Site, deadline: float, timeout: float) -> bool:
    """False when the watchdog has gone before the server answered."""
    while not is_serving(site):
        if not is_watched(site.run):
            return False
        if time.monotonic() > deadline:
            raise EmbeddedPostgresError(
                f"the server on {site.data} runs but has not taken connections within {timeout:g} s; recovery after "
                f"a crash can be the reason: try attach(..., timeout=600). The end of its log:\n{site.run.log_tail()}"
            )
        time.sleep(_POLL)
    return True


def _launch_if_unwatched(site: Site, options: Mapping[str, str], deadline: float) -> bool:
    watch = LockFile(site.run.watch)
    try:
        if not watch.try_exclusive():
            return False
        orphan = _wait_for_old_server(site, deadline)
        if orphan is None:
            _launch(site, options, watch, deadline)
        else:
            _start_watchdog(site, watch, {"argv": None, "adopt": orphan, "pass": []})
        return orphan is None
    finally:
        watch.close()  # the watchdog was handed the open file, and with it the lock


def _wait_for_old_server(site: Site, deadline: float) -> int | None:
    """Wait until a server without a watchdog has ended; or return its pid where it does not end by itself."""
    while site.data.is_dir() and (pids := server_pids(site.data)):
        running = read_pidfile(site.data)
        ours = running is None or running.sockets == site.run.sockets
        if running and running.pid in pids and ours and not DIES_WITH_WATCHDOG:
            return running.pid
        if not ours or time.monotonic() > deadline:
            raise EmbeddedPostgresError(
                f"a server that Prinia did not start, or that does not end, already runs on {site.data} "
                f"(pids {', '.join(map(str, sorted(pids)))}). Connect to it by its own DSN, or stop it first."
            )
        time.sleep(_POLL)
    return None


def _launch(site: Site, options: Mapping[str, str], watch: LockFile, deadline: float) -> None:
    binaries = reachable_binaries(find_binaries(), site.account)
    ensure_folder(site.data, site.account)
    with closing(FolderLock(site.data)) as folder:
        _lock_folder(folder, deadline)
        remove_stale_pidfile(site.data)
        fill_folder(folder, site.account, binaries)
        ensure_socket_folder(site.run, site.account)
        argv = [str(binaries.bin / "postgres"), *_arguments(site, folder, options)]
        _start_watchdog(site, watch, {"argv": argv, "pass": [folder.fileno()]})


def _arguments(site: Site, folder: FolderLock, options: Mapping[str, str]) -> list[str]:
    fixed = {"listen_addresses": "", "unix_socket_directories": str(site.run.sockets), "port": str(PORT)}
    settings = [f"--{name}={value}" for name, value in {**options, **fixed}.items()]
    return ["-D", way_to(site.data, site.account, folder.fileno()), *settings]


def _lock_folder(folder: FolderLock, deadline: float) -> None:
    """Every process of a server, and of a start that was cut off, has this lock."""
    while not folder.try_exclusive():
        if time.monotonic() > deadline:
            raise EmbeddedPostgresError(
                f"{folder.path} is in use by another server of Prinia's, perhaps in another container or by another "
                f"path to the same folder. Stop that one first, or use a folder of your own."
            )
        time.sleep(_POLL)


def _start_watchdog(site: Site, watch: LockFile, order: dict[str, Any]) -> None:
    use, start = LockFile(site.run.use), LockFile(site.run.start)
    locks = {"watch": watch.fileno(), "use": use.fileno(), "start": start.fileno()}
    switch = [site.account.uid, site.account.gid] if site.account.switched else None
    order = {**order, "locks": locks, "folder": str(site.run.path), "data": str(site.data), "switch": switch}
    try:
        with _fresh_log(site.run) as log:
            done = subprocess.run(
                [_python(), "-I", "-S", str(_WATCHDOG), json.dumps(order)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=clean_environment(),
                start_new_session=True,
                pass_fds=[*locks.values(), *order["pass"]],
            )
    finally:
        use.close()
        start.close()
    if done.returncode != 0:
        raise EmbeddedPostgresError(
            f"{_python()} could not run the watchdog of the embedded server:\n{site.run.log_tail()}"
        )


def _fresh_log(run: RunFolder) -> Any:
    """A log of its own for each start; the one before is kept, as it may say why its server died."""
    if run.log.exists():
        os.replace(run.log, run.log.with_name("log.old"))
    return open(os.open(run.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab")


def _python() -> str:
    """Inside another program's process (uWSGI, mod_wsgi) ``sys.executable`` can be that program."""
    if "python" in Path(sys.executable or "").name:
        return sys.executable
    inside = Path(sys.prefix, "bin", "python3")
    return str(inside) if inside.exists() else shutil.which("python3") or "python3"
