"""SIGNALS: the first stops, the second stops now, the third ends; and the exit codes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from prinia.worker import EXIT_CLEAN, EXIT_LEFT_BEHIND, Worker, run_with_signals
from prinia.worker.signals import SignalCounter
from tests.engine.kit import Shop, until


def start(worker: Worker) -> asyncio.Task[None]:
    return asyncio.ensure_future(worker.run())


class TestSignals:
    PROGRAM = textwrap.dedent(
        """
        import asyncio, sys, time
        from prinia import Prinia
        from prinia.storage.memory import MemoryStorage
        from prinia.worker import Worker, run_with_signals

        app = Prinia(storage=MemoryStorage())

        @app.task
        async def hold(kind: str) -> None:
            print("running", flush=True)
            while True:
                try:
                    time.sleep(60) if kind == "block" else await asyncio.sleep(0.3 if kind == "short" else 60)
                    return
                except asyncio.CancelledError:
                    print("cancelled", flush=True)
                    if kind != "stubborn":
                        raise

        async def main() -> int:
            await hold.aenqueue(sys.argv[1])
            return await run_with_signals(Worker(app.storage, app.tasks, stop_timeout=float(sys.argv[2])))

        sys.exit(asyncio.run(main()))
        """
    )

    DIES = textwrap.dedent(
        """
        import asyncio, sys
        from collections.abc import AsyncIterator
        from prinia import INJECTED, Prinia
        from prinia.storage.memory import MemoryStorage
        from prinia.worker import run_with_signals

        app = Prinia(storage=MemoryStorage())

        class Pool: ...

        @app.provide
        async def pool() -> AsyncIterator[Pool]:
            async with asyncio.timeout(0.1):
                yield Pool()

        @app.task
        async def hold(pool: Pool = INJECTED) -> None:
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    pass

        async def main() -> int:
            await hold.aenqueue()
            return await run_with_signals(app.worker(stop_timeout=0.1))

        sys.exit(asyncio.run(main()))
        """
    )
    ENDS = textwrap.dedent(
        """
        import asyncio, atexit, os, signal, sys
        from prinia import INJECTED, Context, Prinia
        from prinia.storage.memory import MemoryStorage
        from prinia.worker import Worker, run_with_signals

        app = Prinia(storage=MemoryStorage())

        @app.task
        async def end(ctx: Context = INJECTED) -> None:
            ctx.worker.stop()

        async def main() -> int:
            await end.aenqueue()
            code = await run_with_signals(Worker(app.storage, app.tasks), last=bool(sys.argv[1]))
            os.kill(os.getpid(), signal.SIGTERM)
            return code

        atexit.register(os.kill, os.getpid(), signal.SIGINT)
        sys.exit(asyncio.run(main()))
        """
    )

    def start(self, tmp_path: Path, kind: str, stop_timeout: float) -> subprocess.Popen[str]:
        process = self.start_program(tmp_path, self.PROGRAM, kind, str(stop_timeout))
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        return process

    def start_program(self, tmp_path: Path, text: str, *arguments: str) -> subprocess.Popen[str]:
        program = tmp_path / "program.py"
        program.write_text(text)
        return subprocess.Popen(
            [sys.executable, str(program), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": "src"},
        )  # fmt: skip

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        with process:
            try:
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()  # does nothing to one that has ended
            return process.returncode, out, err

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_the_first_lets_jobs_finish(self, tmp_path: Path, number: signal.Signals) -> None:
        process = self.start(tmp_path, "short", 30)
        process.send_signal(number)
        assert self.finish(process) == (EXIT_CLEAN, "", "")

    def test_the_second_stops_now(self, tmp_path: Path) -> None:
        process = self.start(tmp_path, "long", 3600)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)  # another signal, so that the two cannot become one
        assert self.finish(process) == (EXIT_CLEAN, "cancelled\n", "")

    def test_a_stubborn_handler_does_not_keep_the_process(self, tmp_path: Path) -> None:
        process = self.start(tmp_path, "stubborn", 0.1)
        process.send_signal(signal.SIGTERM)
        code, _, err = self.finish(process)
        assert code == EXIT_LEFT_BEHIND
        assert "Traceback" not in err

    def test_the_third_ends_even_a_blocked_loop(self, tmp_path: Path) -> None:
        process = self.start(tmp_path, "block", 30)
        while process.poll() is None:  # signals that come too fast count as one
            process.send_signal(signal.SIGTERM)
            time.sleep(0.02)
        assert self.finish(process) == (128 + signal.SIGTERM, "", "")

    async def test_handlers_of_signals_are_put_back(self, shop: Shop) -> None:
        @shop.app.task(name="noop")
        async def noop() -> None: ...

        before = signal.getsignal(signal.SIGTERM)
        worker = shop.worker()
        worker.stop()
        assert await run_with_signals(worker) == EXIT_CLEAN
        assert signal.getsignal(signal.SIGTERM) is before

    @pytest.mark.parametrize("last", [True, False])
    def test_one_that_comes_when_the_worker_has_ended_by_itself(self, tmp_path: Path, last: bool) -> None:
        process = self.start_program(tmp_path, self.ENDS, "last" * last)
        assert self.finish(process) == (EXIT_CLEAN if last else -signal.SIGTERM, "", "")

    def test_a_stubborn_handler_does_not_keep_the_process_after_an_error(self, tmp_path: Path) -> None:
        code, _, err = self.finish(self.start_program(tmp_path, self.DIES))
        assert code == EXIT_LEFT_BEHIND
        assert "pool, a resource of scope worker, could not be kept open: TimeoutError" in err

    async def test_counts(self, shop: Shop) -> None:
        @shop.app.task(name="noop")
        async def noop() -> None: ...

        exits: list[int] = []
        worker = shop.worker()
        counter = SignalCounter(worker, asyncio.get_running_loop(), exits.append)
        running = start(worker)
        await until(lambda: shop.storage.tables.bells)
        for _ in range(3):
            counter.received(signal.SIGINT)
        await running
        assert exits == [128 + signal.SIGINT]
