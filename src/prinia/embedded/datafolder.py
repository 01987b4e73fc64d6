"""The data folder: what state it is in, and filling an empty one so that an interruption leaves no trap."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from prinia.embedded.account import Account, clean_environment, user_name, way_to
from prinia.embedded.binaries import Binaries
from prinia.embedded.locks import FolderLock
from prinia.embedded.runfolder import DATABASE, ROLE
from prinia.errors import EmbeddedPostgresError

_MAKING = ".prinia-initdb-"
"""Prefix of a folder in which initdb is at work, or was when it was killed."""
_READY = ".prinia-ready"
"""A finished cluster that only has to be moved up."""
_VERSION = "PG_VERSION"


def fill_folder(lock: FolderLock, account: Account, binaries: Binaries) -> None:
    """Make the locked folder one that these programs can serve, by filling it when it is empty.

    The new cluster is made in a subfolder and moved up, ``PG_VERSION`` last. Beside the folder would need one rename
    only, but not work for a mount point or in a parent that we may not write to.

    Example::

        ensure_folder(data, account)
        fill_folder(FolderLock(data), account, find_binaries())
    """
    data = lock.path
    names = _names(data)
    if _VERSION in names:
        _check_cluster(data, binaries)
    elif _READY in names:
        _move_up(data)
        _check_cluster(data, binaries)
    else:
        _check_empty(data, names)
        account.own(data)
        _initialise(lock, account, binaries)


def ensure_folder(data: Path, account: Account) -> None:
    """Make the folder if it is not there; refuse one that the server's user could not serve.

    Example::

        ensure_folder(Path("/srv/data"), server_account())
    """
    if not data.exists():
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        account.own(data)
    if not data.is_dir():
        raise EmbeddedPostgresError(f"{data} is a file; the embedded server needs a folder for its data.")
    owner = data.stat().st_uid
    unclaimed = account.switched and owner == os.geteuid() and _VERSION not in _names(data)
    if owner != account.uid and not unclaimed:
        raise EmbeddedPostgresError(_not_ours(data, owner, account))


def _not_ours(data: Path, owner: int, account: Account) -> str:
    text = f"{data} belongs to '{user_name(owner)}', but the server would run as '{account.name}'"
    if account.switched:
        text += f" (PostgreSQL does not run as root). Run Prinia as '{user_name(owner)}'"
    return f"{text}; or choose another folder; or give it away: chown -R {account.name} '{data}'"


def _names(data: Path) -> set[str]:
    """What is in the folder, without what an interrupted start of ours left."""
    return {name for name in os.listdir(data) if not name.startswith(_MAKING)}


def _check_empty(data: Path, names: set[str]) -> None:
    if names:
        shown = ", ".join(sorted(names)[:3]) + (", …" if len(names) > 3 else "")
        raise EmbeddedPostgresError(
            f"{data} is neither empty nor a PostgreSQL data folder (it holds {shown}). Nothing was changed. "
            "Choose a new or empty folder, for example a subfolder of it."
        )


def _check_cluster(data: Path, binaries: Binaries) -> None:
    if not (data / "global" / "pg_control").exists():
        raise EmbeddedPostgresError(
            f"{data} is half a PostgreSQL data folder: it has {_VERSION} but no global/pg_control, as after an "
            "interrupted initdb. Nothing was changed. If you need nothing in it, remove it and start again."
        )
    text = (data / _VERSION).read_text(encoding="utf-8").strip()
    if text != str(binaries.major):
        raise EmbeddedPostgresError(
            f"{data} was made by PostgreSQL {text}, but the programs found are PostgreSQL {binaries.major} "
            f"({binaries.bin}). Set PRINIA_PG_BIN to the bin folder of PostgreSQL {text}; or choose another folder; "
            f"or dump with {text} and restore with {binaries.major} (pg_dump, or pg_upgrade)."
        )


def _initialise(lock: FolderLock, account: Account, binaries: Binaries) -> None:
    data = lock.path
    for leftover in data.glob(f"{_MAKING}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    making = Path(tempfile.mkdtemp(prefix=_MAKING, dir=data))
    account.own(making)
    try:
        _make_cluster(f"{way_to(data, account, lock.fileno())}/{making.name}", lock.fileno(), account, binaries)
        os.rename(making, data / _READY)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    _move_up(data)


def _make_cluster(target: str, file: int, account: Account, binaries: Binaries) -> None:
    """Everybody who can open the socket may log in as the superuser: its folder lets in the owner alone."""
    initdb = (binaries.bin / "initdb", "-D", target, "-U", ROLE, "--auth=trust", "--encoding=UTF8", "--no-locale")
    _run(*initdb, "--data-checksums", file=file, account=account)
    # Without a client program: not every set of binaries has psql or createdb.
    single = (binaries.bin / "postgres", "--single", "-c", "exit_on_error=true", "-D", target, "postgres")
    _run(*single, stdin=f"CREATE DATABASE {DATABASE};\n", file=file, account=account)


def _run(*argv: str | Path, file: int, account: Account, stdin: str = "") -> None:
    done = subprocess.run(
        argv,
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        env=clean_environment(),
        cwd="/",
        pass_fds=[file],
        **account.switch(),
    )
    if done.returncode != 0:
        said = "\n".join((done.stderr or done.stdout).splitlines()[-15:])
        raise EmbeddedPostgresError(
            f"{argv[0]} failed with exit status {done.returncode} while making a new data folder; it will be tried "
            f"anew at the next start. It said:\n{said}"
        )


def _move_up(data: Path) -> None:
    """Can be interrupted anywhere and called again: the folder counts as filled only once PG_VERSION has moved."""
    ready = data / _READY
    for name in sorted(os.listdir(ready), key=lambda name: name == _VERSION):
        os.rename(ready / name, data / name)
    os.rmdir(ready)
    folder = os.open(data, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
