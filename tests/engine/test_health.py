"""Health: what a worker says of itself, over HTTP and with its beats, also while its event loop is blocked."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from prinia import ConfigurationError, HealthError
from prinia.health import Address, HealthServer, WorkerHealth, ask, check_of, read_address
from prinia.job import JobState
from prinia.worker.loopwatch import LoopWatch
from tests.engine.kit import Shop, until

FAST: dict[str, Any] = {"heartbeat": 0.05, "dead_after": 0.25, "poll": 0.05}


def get(address: Address, request: str = "GET /ready HTTP/1.1") -> tuple[int, dict[str, Any]]:
    """Ask in this thread, as a probe from outside does."""
    family = socket.AF_UNIX if address.path is not None else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(20)
        client.connect(address.path or (address.host or "127.0.0.1", address.port))
        client.sendall(f"{request}\r\nHost: x\r\n\r\n".encode())
        answer = b""
        while part := client.recv(65536):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body) if body else {}


def path_of(folder: Path) -> Address:
    return Address(path=str(folder / "health.sock"))


async def test_a_working_worker_is_live_and_ready(shop: Shop, tmp_path: Path) -> None:
    gate = asyncio.Event()

    @shop.app.task(name="hold")
    async def hold() -> None:
        await gate.wait()

    await hold.aenqueue()
    address = path_of(tmp_path)
    async with shop.worker(name="w", health=str(address), **FAST) as worker:
        await until(lambda: worker.stats.running == 1 and worker.health().ready)
        status, said = await asyncio.to_thread(get, address)
        assert (status, said["ok"]) == (200, True)
        [one] = said["workers"]
        assert one["instance"] == str(worker.instance.id)
        assert (one["name"], one["run"], one["state"], one["listener"]) == ("w", 0, "working", "listening")
        assert (one["running"], one["waiting"], one["blocked"], one["trouble"]) == (1, 0, 0.0, None)
        assert one["lag"] >= 0
        assert one["beat_age"] < FAST["dead_after"]
        assert (await asyncio.to_thread(get, address, "GET /live HTTP/1.1"))[0] == 200
        gate.set()
    assert not os.path.exists(tmp_path / "health.sock")
    assert worker.health().state == "stopped"


async def test_vitals_are_kept_with_the_beat(shop: Shop) -> None:
    @shop.app.task
    async def work() -> None: ...

    async with shop.worker(**FAST) as listening, shop.worker(listen=False, **FAST) as silent:
        register = shop.storage.tables.register
        for worker, state in ((listening, "listening"), (silent, "off")):
            await until(lambda worker=worker: register[worker.instance.id].vitals.lag is not None)  # type: ignore[misc]
            vitals = register[worker.instance.id].vitals
            assert vitals.listener == state
            assert vitals.blocked is not None


async def test_a_blocked_loop_is_told_and_named(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server answers while the loop cannot, and the log shows the line that blocks it."""
    monkeypatch.setattr("prinia.health.READY_LIMIT", 0.1)
    monkeypatch.setattr("prinia.health.PATIENCE", 0.05)
    gate, entered = threading.Event(), threading.Event()

    @shop.app.task(name="block")
    async def block() -> None:
        entered.set()
        gate.wait(60)  # the line that is looked for

    seen: list[tuple[int, dict[str, Any]]] = []
    address = path_of(tmp_path)

    def probe() -> None:
        try:
            entered.wait(60)
            while not seen or "blocked" not in str(seen[-1][1]["workers"][0]["trouble"]):
                seen.append(get(address))
            seen.append(get(address, "GET /live HTTP/1.1"))
            while not any("has been blocked" in text for text in caplog.messages):
                pass
        finally:
            gate.set()

    prober = threading.Thread(target=probe)
    prober.start()
    job = await block.aenqueue()
    async with shop.worker(health=str(address), **FAST):
        await shop.until(JobState.COMPLETED, job.id)
    prober.join()
    (status, said), (alive, _) = seen[-2:]
    assert status == 503
    assert said["workers"][0]["trouble"].startswith("the event loop has been blocked for ")
    assert alive == 200, "that long is no reason to kill it"
    [warning] = [text for text in caplog.messages if "has been blocked" in text]
    assert f"by job {job.id} (block)" in warning
    assert "gate.wait(60)  # the line that is looked for" in warning
    assert "prinia/worker" not in warning, "what calls the handler is left out"


async def test_a_loop_that_answers_is_not_blocked() -> None:
    watch = LoopWatch(asyncio.get_running_loop(), lambda: None)
    assert watch.blocked == 0.0
    watch.ask(0.0)
    assert watch.blocked > 0
    await asyncio.sleep(0)
    assert watch.blocked == 0.0


async def test_what_blocks_the_loop_may_be_no_job(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(asyncio.get_running_loop(), lambda: None)
    for now in (1.0, 3.0, 4.0):
        watch.look(now)
    [text] = caplog.messages
    assert text.startswith("the event loop has been blocked for 2.0 s, not by a job")


async def test_a_worker_is_not_ready_before_the_database_answers(shop: Shop) -> None:
    @shop.app.task
    async def work() -> None: ...

    shop.faults.away = True
    worker = shop.worker(**FAST)
    assert worker.health().trouble == "it is stopped"
    async with worker:
        assert worker.health().trouble == "it is starting"
        shop.faults.away = False
        await until(lambda: worker.health().ready)
        shop.faults.away = True
        await until(lambda: "the database has not answered for" in str(worker.health().trouble))
        shop.faults.away = False
        await until(lambda: worker.health().ready)


@pytest.mark.parametrize(
    ("health", "live", "trouble"),
    [
        (WorkerHealth(name="w", state="working", beat_age=1.0), True, None),
        (WorkerHealth(name="w", state="working", beat_age=12.0), True, "the database has not answered for 12.0 s"),
        (WorkerHealth(name="w", state="working"), True, "the database has not answered at all"),
        (WorkerHealth(name="w", state="working", beat_age=1.0, blocked=59.0), True,
         "the event loop has been blocked for 59.0 s"),
        (WorkerHealth(name="w", state="working", beat_age=1.0, blocked=60.0), False,
         "the event loop has been blocked for 60.0 s"),
        (WorkerHealth(name="w", state="restarting", failure="OSError: x"), True, "it is restarting: OSError: x"),
    ],
)  # fmt: skip
def test_what_is_trouble(health: WorkerHealth, live: bool, trouble: str | None) -> None:
    assert (health.live, health.ready, health.trouble) == (live, trouble is None, trouble)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET /ready?verbose HTTP/1.1", 503),
        ("GET /live/ HTTP/1.1", 200),
        ("HEAD /live HTTP/1.1", 200),
        ("GET / HTTP/1.1", 404),
        ("POST /live HTTP/1.1", 405),
        ("nonsense", 400),
    ],
)
def test_requests(request_line: str, status: int) -> None:
    """Nobody is there: alive, and not ready."""
    with HealthServer(Address("127.0.0.1"), check_of(list)) as server:
        assert server.address.port != 0
        found, said = get(server.address, request_line)
    assert found == status
    assert (said == {}) is request_line.startswith("HEAD")


def test_a_client_that_says_too_much_is_hung_up_on() -> None:
    with HealthServer(Address("127.0.0.1"), check_of(list)) as server:
        with socket.create_connection(("127.0.0.1", server.address.port)) as client:
            client.settimeout(20)
            client.sendall(b"GET /live HTTP/1.1\r\n" + b"x" * 20_000)
            with pytest.raises((ConnectionError, AssertionError)):
                assert client.recv(1) != b""
        assert get(server.address, "GET /live HTTP/1.1")[0] == 200


def test_all_interfaces_are_served_with_a_port_alone() -> None:
    with HealthServer(read_address(0), check_of(list)) as server:
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, server.address.port), timeout=20) as client:
                client.sendall(b"GET /live HTTP/1.1\r\n\r\n")
                assert client.recv(65536).startswith(b"HTTP/1.1 200 OK")


async def test_a_port_in_use_ends_the_start_with_a_clear_error(shop: Shop) -> None:
    @shop.app.task
    async def work() -> None: ...

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        worker = shop.worker(health=f"127.0.0.1:{port}")
        with pytest.raises(HealthError, match=rf"^health: 127\.0\.0\.1:{port} is in use by another process"):
            await worker.run()
    assert shop.storage.tables.register == {}
    async with worker:
        assert worker.health().state in ("starting", "working")


def test_a_socket_in_use_is_kept_and_one_left_behind_is_taken(tmp_path: Path) -> None:
    address = path_of(tmp_path)
    with HealthServer(address, check_of(list)), pytest.raises(HealthError, match="is in use"):
        HealthServer(address, check_of(list))
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(address.path))
    with HealthServer(address, check_of(list)):
        assert get(address, "GET /live HTTP/1.1")[0] == 200
    (tmp_path / "health.sock").write_text("somebody's")
    with pytest.raises(HealthError, match="is in use"):
        HealthServer(address, check_of(list))
    assert (tmp_path / "health.sock").read_text() == "somebody's"
    with pytest.raises(HealthError, match="cannot be served: No such file"):
        HealthServer(Address(path="/nonexistent/x.sock"), check_of(list))


def test_what_is_accepted_while_it_closes_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is left open is told by the garbage collector, and fails the test."""
    address = path_of(tmp_path)
    for _ in range(200):
        with HealthServer(address, check_of(list)), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(address.path))
    gc.collect()
    assert caplog.records == []


async def test_asking_where_nobody_is(tmp_path: Path) -> None:
    ok, said = await ask(str(tmp_path / "none"), "ready", seconds=20)
    assert not ok
    assert "no answer" in said["error"]


@pytest.mark.parametrize(
    ("given", "address", "shown"),
    [
        (8080, Address(port=8080), ":8080"),
        ("8080", Address(port=8080), ":8080"),
        ("127.0.0.1:8080", Address("127.0.0.1", 8080), "127.0.0.1:8080"),
        ("[::1]:8080", Address("::1", 8080), "[::1]:8080"),
        ("unix:/run/a:b.sock", Address(path="/run/a:b.sock"), "unix:/run/a:b.sock"),
    ],
)
def test_addresses(given: int | str, address: Address, shown: str) -> None:
    assert read_address(given) == address
    assert str(address) == shown


@pytest.mark.parametrize("given", ["", "x", "1.5", "-1", 65536, "host:", "unix:", True, None])
def test_no_addresses(given: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be a port"):
        read_address(given)
