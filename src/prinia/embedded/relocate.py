"""A copy of the server programs for a user who cannot enter the folder they were installed in.

Happens when root's Python is in root's home: the server runs as ``nobody``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
from dataclasses import replace
from pathlib import Path

from prinia.embedded.account import Account
from prinia.embedded.binaries import Binaries
from prinia.errors import EmbeddedPostgresError

COPIES = Path("/var/tmp")  # noqa: S108 - see _check_trusted
"""Survives a restart of the machine, unlike /tmp, and every user can enter it."""
_PARTS = ("bin", "lib", "lib64", "share")


def reachable_binaries(binaries: Binaries, account: Account) -> Binaries:
    """The same programs where ``account`` can run them: themselves, or a copy made once and kept.

    Example::

        reachable_binaries(find_binaries(), server_account()).bin
    """
    if account.may_run(binaries.bin / "postgres"):
        return binaries
    install = binaries.bin.parent
    target = COPIES / f"prinia-pg-{_fingerprint(binaries.bin)}"
    if not target.exists():
        _make_copy(install, target)
    _check_trusted(target)
    return replace(binaries, bin=_inside(target, install) / binaries.bin.name)


def _fingerprint(bin_folder: Path) -> str:
    """Another one after an upgrade in place, so that a copy never mixes two versions."""
    status = (bin_folder / "postgres").stat()
    return hashlib.sha256(f"{bin_folder}|{status.st_size}|{status.st_mtime_ns}".encode()).hexdigest()[:16]


def _inside(target: Path, install: Path) -> Path:
    """The package's name stays part of the path: its programs look for ``../../../<package>.libs``."""
    return target / install.parent.name / install.name


def _make_copy(install: Path, target: Path) -> None:
    # Under another name first: whoever sees the real name sees a finished copy.
    making = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        for part in _PARTS:
            if (install / part).is_dir():
                shutil.copytree(install / part, _inside(making, install) / part, symlinks=True)
        libraries = install.parent.with_name(f"{install.parent.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, making / libraries.name, symlinks=True)
        _open_to_read(making)
        os.rename(making, target)
    except OSError:
        if not target.exists():  # else another process was faster: its copy is as good
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _open_to_read(folder: Path) -> None:
    """Our own copy: everybody may read and run it, only we may write, whatever the source and the umask say."""
    for root, _, files in os.walk(folder):
        os.chmod(root, 0o755)  # noqa: S103 - other users are to run it
        for name in files:
            path = Path(root, name)
            if not path.is_symlink():
                runs = path.stat().st_mode & stat.S_IXUSR
                os.chmod(path, 0o755 if runs else 0o644)


def _check_trusted(target: Path) -> None:
    """Anybody can make a folder of that name in /var/tmp; we run only programs that nobody else could have put."""
    status = target.lstat()
    ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not ours or status.st_mode & 0o022:
        raise EmbeddedPostgresError(
            f"{target} should be our copy of the PostgreSQL programs, but other users own it or can write to it, "
            f"so it is not used. Look at what it is, then remove it: rm -r {target}"
        )
