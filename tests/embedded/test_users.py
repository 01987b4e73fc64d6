"""Who may connect, whom we trust in /tmp, and running as root and as a normal user."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

import prinia
from prinia.embedded import attach, find_binaries, relocate
from prinia.embedded.account import server_account
from prinia.embedded.runfolder import RunFolder, locate
from prinia.errors import EmbeddedPostgresError
from tests.users import as_root, python_for_everybody

from .conftest import Place, ask

STRANGER = 65533


def as_uid(uid: int, action: Callable[[], object]) -> str:
    """The name of what the action raises in a process of another user, or 'fine'."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        try:
            action()
            said = "fine"
        except BaseException as error:
            said = type(error).__name__
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with open(read) as answer:
        return answer.read()


@as_root
def test_another_os_user_reaches_neither_socket_nor_files(place: Place) -> None:
    with attach(place.filled()) as server:
        run = RunFolder(server.log.parent)

        def connect() -> None:
            socket.socket(socket.AF_UNIX).connect(str(run.socket))

        assert as_uid(pwd.getpwnam("nobody").pw_uid, connect) == "fine", "the server's own user can: the check works"
        assert as_uid(STRANGER, connect) == "PermissionError"
        assert as_uid(STRANGER, lambda: psycopg.connect(server.dsn)) == "OperationalError"
        for path in (run.use, run.start, run.watch, run.log, server.data / "PG_VERSION"):
            assert as_uid(STRANGER, path.read_bytes) == "PermissionError"
        assert as_uid(STRANGER, lambda: os.listdir(run.path)) == "PermissionError"
        assert as_uid(pwd.getpwnam("nobody").pw_uid, (run.path / "new").mkdir) == "PermissionError"


def test_it_does_not_listen_on_tcp(place: Place) -> None:
    with attach(place.filled()) as server:
        assert ask(server.dsn, "show listen_addresses") == ""
        listening = subprocess.run(["ls", "-l", f"/proc/{place.postmaster(server.data)}/fd"], capture_output=True)
        inodes = {line.rpartition("socket:[")[2].rstrip("]") for line in listening.stdout.decode().splitlines()}
        tcp = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        assert not inodes & {line.split()[9] for line in tcp.splitlines() if line.strip()[0].isdigit()}


@as_root
def test_a_run_folder_that_somebody_else_made_is_refused(place: Place) -> None:
    run = locate(place.path / "data", server_account())
    run.path.mkdir(mode=0o777)
    os.chown(run.path, STRANGER, STRANGER)
    with pytest.raises(EmbeddedPostgresError, match=f"belongs to '{STRANGER}'"):
        attach(place.path / "data")


def test_a_run_folder_that_is_a_symlink_is_refused(place: Place) -> None:
    run = locate(place.path / "data", server_account())
    (place.path / "elsewhere").mkdir(mode=0o700)
    run.path.symlink_to(place.path / "elsewhere")
    with pytest.raises(EmbeddedPostgresError, match="is no folder"):
        attach(place.path / "data")


def test_a_run_folder_open_to_others_is_refused(place: Place) -> None:
    run = locate(place.path / "data", server_account())
    run.path.mkdir()
    run.path.chmod(0o777)
    with pytest.raises(EmbeddedPostgresError, match="open to other users"):
        attach(place.path / "data")


@as_root
def test_a_socket_folder_of_a_stranger_is_refused(place: Place) -> None:
    data = place.filled()
    run = locate(data, server_account())
    run.path.mkdir(mode=0o711)
    run.sockets.mkdir(mode=0o700)
    os.chown(run.sockets, STRANGER, STRANGER)
    with pytest.raises(EmbeddedPostgresError, match=f"belongs to '{STRANGER}'"):
        attach(data)


@as_root
def test_root_behind_a_parent_closed_to_nobody(place: Place) -> None:
    """What mkdtemp makes, and /root."""
    closed = place.path / "closed"
    closed.mkdir(mode=0o700)
    data = closed / "my data"
    for _ in range(2):
        with attach(data) as server:
            assert ask(server.dsn, "create table if not exists t (); select 1") == 1
            assert ask(server.dsn, "checkpoint; select 1") == 1
            assert ask(server.dsn, "select pg_reload_conf()::text") == "true"
        assert server.detach(wait=10)
    assert data.owner() == "nobody"
    assert closed.stat().st_mode & 0o777 == 0o700, "no folder of others is changed"


@as_root
def test_root_with_programs_closed_to_nobody(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's Python in root's home: the programs are copied once, libraries beside the package too."""
    copies = place.path / "copies"
    copies.mkdir(mode=0o711)
    monkeypatch.setattr(relocate, "COPIES", copies)
    monkeypatch.setenv("PRINIA_PG_BIN", str(closed_install(place)))
    data = place.filled()
    for _ in range(2):
        with attach(data) as server:
            assert ask(server.dsn) == 1
        assert server.detach(wait=10)
    (copy,) = copies.iterdir()
    assert copy.stat().st_mode & 0o777 == 0o755
    copy.chmod(0o777)
    with pytest.raises(EmbeddedPostgresError, match="other users own it or can write to it"):
        attach(data)


def closed_install(place: Place) -> Path:
    install = find_binaries().bin.parent
    target = place.path / "home" / install.parent.name / install.name
    target.parent.mkdir(parents=True)
    (place.path / "home").chmod(0o700)
    shutil.copytree(install, target, symlinks=True, ignore=shutil.ignore_patterns("include"))
    libraries = install.parent.with_name(f"{install.parent.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, place.path / "home" / libraries.name)
    return target / "bin"


@as_root
def test_a_user_without_rights_to_the_folder(place: Place) -> None:
    python = python_for_everybody()
    done = run_as("games", [python, "-c", "from prinia.embedded import attach; attach('/var/data')"], place)
    assert "EmbeddedPostgresError: cannot run an embedded server on /var/data" in done.stderr


@as_root
def test_the_suite_as_a_normal_user(place: Place) -> None:
    here = Path(__file__).parent
    which = "four_processes or last_holder or watchdog_ends or stranger"
    command = [
        python_for_everybody(),
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        here,
        "-k",
        which,
    ]
    done = run_as("games", [*map(str, command)], place)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def run_as(user: str, command: list[str], place: Place) -> subprocess.CompletedProcess[str]:
    home = place.path / "user"
    home.mkdir()
    shutil.chown(home, user)
    packages = [Path(prinia.__file__).parents[1], Path(psycopg.__file__).parents[1]]
    environment = {"HOME": str(home), "PATH": os.defpath, "PYTHONPATH": os.pathsep.join(map(str, packages))}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, user=user, extra_groups=[], env=environment, capture_output=True, text=True, cwd="/")
