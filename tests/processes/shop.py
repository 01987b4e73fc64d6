"""Tasks that run in processes of their own. Nothing here is shared with the process that enqueues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from prinia import INJECTED, Context, Fail, Fixed, JsonCodec, Prinia, Retry, Snooze
from prinia.storage.memory import MemoryStorage
from tests.processes.parts import Order, tasks

loaded: list[str] = []


class Marked:
    """A codec that only an app that was given it can read."""

    name = "marked"

    def encode(self, value: object) -> bytes:
        return b"#" + JsonCodec().encode(value)

    def decode(self, data: bytes) -> object:
        return JsonCodec().decode(data[1:])


app = Prinia(storage=MemoryStorage(), codecs=[Marked()])
app.include(tasks)


@app.on_process_start
def load() -> None:
    loaded.append(f"loaded in {os.getpid()}")


@app.task(process=True)
def describe(order: Order, ctx: Context = INJECTED) -> dict[str, object]:
    return {
        "order": f"{type(order).__name__} {order.id} {order.cents!r}",
        "job": ctx.job_id,
        "attempt": ctx.attempt,
        "tags": ctx.tags,
        "meta": ctx.meta,
        "worker": f"{ctx.worker.name} {ctx.worker.instance} {ctx.worker.run}",
        "stopping": ctx.stopping,
        "loaded": loaded,
        "process": os.getpid(),
        "argv": sys.argv[:1],
    }


@app.task(process=True, max_attempts=1)
def wait(path: str) -> None:
    """Say who it is, with a child of its own, and wait for ever."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(f"{path}.new").write_text(f"{os.getpid()} {child.pid}")
    Path(f"{path}.new").rename(path)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    while True:
        time.sleep(600)


@app.task(process=True, max_attempts=1)
def die(how: str) -> None:
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(600)


@app.task(process=True, max_attempts=1, memory_limit=64)
def fill(megabytes: int) -> int:
    return len(bytearray(megabytes * 1024 * 1024))


@app.task(process=True, max_attempts=1)
def fill_unlimited(megabytes: int) -> int:
    return len(bytearray(megabytes * 1024 * 1024))


@app.task(process=True, max_attempts=1)
def fail(how: str) -> None:
    match how:
        case "value":
            raise ValueError(f"no {how}")
        case "exit":
            sys.exit(3)
        case "fail":
            raise Fail("never again")
        case "retry":
            raise Retry("later", delay=600)
        case "snooze":
            raise Snooze(600)


def rule(error: Exception, attempt: int) -> float | None:
    return float(str(error)) if isinstance(error, LookupError) else None


@app.task(process=True, retry=rule)
def ruled(delay: str) -> None:
    raise LookupError(delay)


@app.task(process=True, retry={ValueError: False, OSError: Fixed(600)})
def mapped(kind: str) -> None:
    raise ValueError(kind) if kind == "value" else OSError(kind)


@app.task(process=True, max_attempts=1)
def unstorable() -> object:
    return object()


@app.task(process=True, max_attempts=1)
def complete(how: str, ctx: Context = INJECTED) -> None:
    if how == "stop":
        ctx.worker.stop()
    else:
        ctx.complete(None)  # type: ignore[arg-type]


@app.task(process=True)
def process_id() -> int:
    return os.getpid()


@app.task
def threaded() -> int:
    return os.getpid()
