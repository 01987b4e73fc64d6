"""A PostgreSQL server that comes with ``pip`` and lives as long as somebody uses it.

::

    PRINIA_DATABASE_URL=embedded:./data       # works wherever a database URL does

    with prinia.embedded.attach("./data") as server:
        psycopg.connect(server.dsn)

How it holds together. Everybody attached holds a *shared* lock on one file, ``use``; the kernel drops it at any death.
A detached watchdog process is the parent of ``postgres`` and tries that lock *exclusively* twice a second: once it
gets it, nobody is left, and it stops the server. Starting and stopping happen under a lock of their own, ``start``;
a third one, ``watch``, is held by the watchdog, so that whoever starts knows that none is alive. When the watchdog is
killed the kernel stops the server (Linux), or the next to attach gives it a new watchdog (elsewhere; macOS has not
been tried). No pid is ever trusted, and no file says who is attached.

It is meant for trying out, tests and small tools. Not supported on Windows yet: ``attach`` raises there.
"""

from __future__ import annotations

from prinia.embedded.attached import Attached, attach
from prinia.embedded.binaries import Binaries, find_binaries
from prinia.embedded.dsn import open_dsn, resolve

__all__ = ["Attached", "Binaries", "attach", "find_binaries", "open_dsn", "resolve"]
