"""What looks to a client like a transaction pooler: a socket of its own before the server, which tells another process
number than the backend's and passes no notifications on."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from psycopg import conninfo

_KEY_DATA, _NOTIFICATION = b"K", b"A"


@contextmanager
def pooler(dsn: str, folder: Path) -> Iterator[str]:
    """A connection string that leads through it to the same database. ``folder`` is for the socket."""
    given = conninfo.conninfo_to_dict(dsn)
    name = f".s.PGSQL.{given['port']}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / name))
        listening.listen()
        threading.Thread(target=_serve, args=(listening, Path(str(given["host"])) / name), daemon=True).start()
        yield conninfo.make_conninfo(dsn, host=str(folder))
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)  # wakes the accept


def _serve(listening: socket.socket, server: Path) -> None:
    with suppress(OSError):  # it was closed
        while True:
            client, _ = listening.accept()
            upstream = socket.socket(socket.AF_UNIX)
            upstream.connect(str(server))
            threading.Thread(target=_forward, args=(client, upstream), daemon=True).start()
            threading.Thread(target=_answer, args=(upstream, client), daemon=True).start()


def _forward(client: socket.socket, upstream: socket.socket) -> None:
    with suppress(OSError):
        while data := client.recv(65536):
            upstream.sendall(data)
    with suppress(OSError):
        upstream.shutdown(socket.SHUT_WR)


def _answer(upstream: socket.socket, client: socket.socket) -> None:
    """Message by message: a byte that says what it is, its length, and so many bytes less four."""
    with upstream, client, suppress(OSError), upstream.makefile("rb") as incoming:
        while head := incoming.read(5):
            body = incoming.read(struct.unpack("!i", head[1:])[0] - 4)
            if head[:1] == _KEY_DATA:
                body = struct.pack("!i", 1) + body[4:]
            if head[:1] != _NOTIFICATION:
                client.sendall(head + body)
