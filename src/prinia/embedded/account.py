"""Which operating system user the server runs as, and what that user can reach."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prinia.errors import EmbeddedPostgresError

if sys.platform != "win32":
    import pwd


@dataclass(frozen=True, slots=True)
class Account:
    """The server's user: ourselves, or ``nobody`` when we are root, which PostgreSQL refuses to run as.

    Example::

        account = server_account()
        subprocess.run(["initdb", ...], **account.switch())
    """

    name: str
    uid: int
    gid: int
    switched: bool

    def switch(self) -> dict[str, Any]:
        """Arguments for ``subprocess`` that start a program as this user."""
        if not self.switched:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def own(self, path: Path) -> None:
        """Give one folder that we made, or that was empty, to this user."""
        if self.switched:
            os.chown(path, self.uid, self.gid)
        os.chmod(path, 0o700)

    def blocked_at(self, path: Path) -> Path | None:
        """The first parent of ``path`` that this user cannot enter, or None.

        Only asked about another user than ourselves, and read from the mode bits: what an access list grants is
        missed, which costs a detour and no more.
        """
        if not self.switched:
            return None
        return next((p for p in reversed(path.parents) if not self._has_x(p)), None)

    def may_run(self, program: Path) -> bool:
        """Whether this user can start a program, as far as mode bits tell."""
        return self.blocked_at(program) is None and (not self.switched or self._has_x(program))

    def _has_x(self, path: Path) -> bool:
        status = path.stat()
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IXUSR)
        if status.st_gid == self.gid:
            return bool(status.st_mode & stat.S_IXGRP)
        return bool(status.st_mode & stat.S_IXOTH)


def server_account() -> Account:
    """The account for a server that this process starts.

    Example::

        assert server_account().uid != 0
    """
    uid = os.geteuid()
    if uid != 0:
        return Account(name=user_name(uid), uid=uid, gid=os.getegid(), switched=False)
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise EmbeddedPostgresError(
            "PostgreSQL does not run as root, and this system has no user 'nobody' to run it as. "
            "Run as a normal user, or give the DSN of a server instead of embedded:PATH."
        ) from None
    return Account(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, switched=True)


def user_name(uid: int) -> str:
    """The login name of a uid, or the number as text when it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def way_to(folder: Path, account: Account, file: int) -> str:
    """A path by which the account's process can enter ``folder``, given that it inherits the open folder ``file``.

    Root's own folders (``/root``, what ``mkdtemp`` makes) are closed to ``nobody``, and opening them for a database
    would open them to everybody. On Linux an inherited open folder needs no way through its parents, whatever their
    modes are now or become while the server runs.

    Example::

        argv = ["postgres", "-D", way_to(data, account, lock.fileno())]
    """
    if not account.switched:
        return str(folder)
    if os.path.isdir("/proc/self/fd"):
        return f"/proc/self/fd/{file}"
    blocked = account.blocked_at(folder)
    if blocked is not None:
        raise EmbeddedPostgresError(
            f"the server of root runs as '{account.name}', who cannot enter {blocked}, so {folder} cannot hold its "
            f"data. Choose a folder outside {blocked} (for example in /var/lib), or run as a normal user."
        )
    return str(folder)


def clean_environment() -> dict[str, str]:
    """Our environment without what would steer PostgreSQL's programs (``PGDATA``, ``PGOPTIONS``, the locale)."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
    return kept | {"LC_ALL": "C"}
