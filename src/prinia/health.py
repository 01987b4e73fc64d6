"""Health over HTTP: ``/live`` and ``/ready`` for load balancers, container platforms and people.

The server has a thread and an event loop of its own, so that a worker whose event loop is blocked is reported, where a
server in that loop would hang. It answers with JSON and status 200, or 503 with what is wrong.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import stat
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias
from uuid import UUID

from prinia.errors import ConfigurationError, HealthError

#: A worker whose event loop has been blocked for so many seconds is not ready, and then not alive: start it anew.
READY_LIMIT = 5.0
LIVE_LIMIT = 60.0
#: So long, in seconds, may an event loop take to answer before it counts as blocked.
PATIENCE = 0.5
#: Seconds for a client to send its request, and bytes of it.
REQUEST_TIMEOUT = 5.0
LONGEST_REQUEST = 8192
#: A connection goes through the event loop so often before it is `HealthServer`'s: the task that accepts it, its
#: transport, its protocol.
_ROUNDS_OF_ACCEPTING = 3

Probe: TypeAlias = Literal["live", "ready"]
#: Whether all is well, and what is said of it.
Answer: TypeAlias = tuple[bool, Mapping[str, Any]]
Check: TypeAlias = Callable[[Probe], Awaitable[Answer]]

_STATUS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHealth:
    """How one worker is at a moment. All times are seconds, None for what is not known.

    ``lag`` is how long the last heartbeat took to the database and back, ``beat_age`` how long ago that was,
    ``blocked`` for how long the event loop has not answered. ``listener`` is "listening", "polling" (it cannot listen
    now) or "off". ``running`` handlers run, ``waiting`` jobs are claimed and have not started.

    Example::

        worker.health().trouble     # None, or for example "the event loop has been blocked for 8.1 s"
    """

    name: str
    instance: UUID | None = None
    run: int = 0
    state: Literal["starting", "working", "stopping", "stopped", "restarting"] = "stopped"
    listener: Literal["listening", "polling", "off"] | None = None
    lag: float | None = None
    beat_age: float | None = None
    blocked: float = 0.0
    running: int = 0
    waiting: int = 0
    dead_after: float = 12.0
    #: Why it is not there, of one that is to be started anew.
    failure: str | None = None

    @property
    def live(self) -> bool:
        """False when only a new start of the process can help."""
        return self.blocked < LIVE_LIMIT

    @property
    def ready(self) -> bool:
        """Whether it takes jobs and runs them."""
        return self.trouble is None

    @property
    def trouble(self) -> str | None:
        """Why it is not ready, in words."""
        if self.state != "working":
            return f"it is {self.state}" + (f": {self.failure}" if self.failure else "")
        if self.blocked >= READY_LIMIT:
            return f"the event loop has been blocked for {self.blocked:.1f} s"
        if self.beat_age is None or self.beat_age >= self.dead_after:
            since = "at all" if self.beat_age is None else f"for {self.beat_age:.1f} s"
            return f"the database has not answered {since}"
        return None

    def as_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        rounded = {name: _rounded(getattr(self, name)) for name in ("lag", "beat_age", "blocked")}
        return {
            "name": self.name, "instance": self.instance and str(self.instance), "run": self.run, "state": self.state,
            "listener": self.listener, **rounded, "running": self.running, "waiting": self.waiting,
            "live": self.live, "ready": self.ready, "trouble": self.trouble,
        }  # fmt: skip


class Watched(Protocol):
    """What can say how it is, from any thread."""

    def ask_loop(self) -> None:
        """Ask the event loop for a sign of life, which `health` then tells of."""
        ...

    def health(self) -> WorkerHealth:
        """How it is now."""
        ...


def check_of(watched: Callable[[], Iterable[Watched]]) -> Check:
    """The check of what runs in this process. Nobody there is alive, and not ready."""

    async def check(probe: Probe) -> Answer:
        for one in watched():
            one.ask_loop()
        waited = 0.0
        while waited < PATIENCE and any(one.health().blocked for one in watched()):
            await asyncio.sleep(PATIENCE / 50)
            waited += PATIENCE / 50
        found = [one.health() for one in watched()]
        ok = all(one.live for one in found) if probe == "live" else bool(found) and all(one.ready for one in found)
        return ok, {"workers": [one.as_json() for one in found]}

    return check


@dataclass(frozen=True, slots=True)
class Address:
    """Where to serve: a ``path`` of a Unix socket, or ``host`` (all interfaces when empty) and ``port``."""

    host: str = ""
    port: int = 0
    path: str | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(given: int | str) -> Address:
    """The address that ``8080``, ``"127.0.0.1:8080"`` or ``"unix:/run/prinia.sock"`` names. With a port alone, health
    is served on all interfaces: probes come from outside.

    Raises `ConfigurationError`.
    """
    if isinstance(given, str) and given.startswith("unix:") and len(given) > len("unix:"):
        return Address(path=given.removeprefix("unix:"))
    host, _, port = str(given).strip().rpartition(":")
    if isinstance(given, bool) or not port.isdecimal() or not port.isascii() or int(port) > 65535:
        raise ConfigurationError(
            f"health={given!r} must be a port (8080), a host and a port (127.0.0.1:8080), or unix:PATH"
        )
    return Address(host=host.removeprefix("[").removesuffix("]"), port=int(port))


class HealthServer:
    """Serves a check until it is closed. ``address`` has the port that was given, where 0 was asked for.

    Example::

        with HealthServer(read_address(8080), check_of(lambda: [worker])):
            await worker.run()
    """

    def __init__(self, address: Address, check: Check) -> None:
        """Binds the address at once. Raises `HealthError` when it is in use or cannot be had."""
        self._check = check
        self._socket = _bound(address)
        self.address = address
        if address.path is None:
            self.address = Address(address.host, self._socket.getsockname()[1])
        self._loop = asyncio.SelectorEventLoop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._answering: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._thread = threading.Thread(target=self._serve, name="prinia-health", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._ended.set_result, None)
        self._thread.join()
        self._socket.close()
        if self.address.path is not None:
            with suppress(OSError):
                os.unlink(self.address.path)

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._answer_until_ended())

    async def _answer_until_ended(self) -> None:
        serving = asyncio.start_server if self.address.path is None else asyncio.start_unix_server
        server = await serving(self._accept, sock=self._socket, limit=LONGEST_REQUEST)
        await self._ended
        # Accept nothing more, and let what was accepted become connections: a server that is closed first loses them.
        self._loop.remove_reader(self._socket)
        for _ in range(_ROUNDS_OF_ACCEPTING):
            await asyncio.sleep(0)
        for writer in self._answering.values():
            writer.close()
        server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A task that is cancelled before it began would leave its connection open.
        task = asyncio.create_task(self._answer(reader, writer))
        self._answering[task] = writer
        task.add_done_callback(self._answering.pop)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                head = await reader.readuntil(b"\r\n\r\n")
            status, body = await self._judge(head.split(b"\r\n", 1)[0].decode("latin-1"))
            writer.write(_response(status, body, with_body=not head.startswith(b"HEAD ")))
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a client that does not speak HTTP, or went away
        finally:
            writer.close()

    async def _judge(self, request: str) -> tuple[int, Mapping[str, Any]]:
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0].rstrip("/")
        if not rest:
            return 400, {"error": "this is no HTTP request"}
        if path not in ("/live", "/ready"):
            return 404, {"error": "there are /live and /ready"}
        if method not in ("GET", "HEAD"):
            return 405, {"error": "only GET"}
        ok, details = await self._check("live" if path == "/live" else "ready")
        return 200 if ok else 503, {"ok": ok, **details}


async def ask(path: str, probe: Probe, *, seconds: float) -> Answer:
    """What the health server on a Unix socket says. Where nobody answers in time, nothing is well."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(f"GET /{probe} HTTP/1.1\r\n\r\n".encode())
                answer = json.loads((await reader.read()).partition(b"\r\n\r\n")[2])
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError) as error:
        return False, {"error": f"no answer: {str(error) or type(error).__name__}"}
    return bool(answer["ok"]), answer


def _bound(address: Address) -> socket.socket:
    try:
        if address.path is not None:
            return _bound_path(address.path)
        if address.host:
            family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((address.host, address.port), family=family)
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        return socket.create_server(("", address.port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise HealthError(
                f"health: {address} is in use by another process; give another one, or end that process"
            ) from error
        raise HealthError(f"health: {address} cannot be served: {error.strerror or error}") from error


def _bound_path(path: str) -> socket.socket:
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(os.stat(path).st_mode) and not _answers(path):
            os.unlink(path)  # left behind by a process that was killed
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        listening.listen()
    except BaseException:
        listening.close()
        raise
    return listening


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trying:
        return trying.connect_ex(path) == 0


def _response(status: int, body: Mapping[str, Any], *, with_body: bool) -> bytes:
    data = json.dumps(body).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status} {_STATUS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        "Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (data if with_body else b"")


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
