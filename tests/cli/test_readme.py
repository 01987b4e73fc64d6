"""The code in README.md runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from prinia import Prinia

from .conftest import Cli

README = Path(__file__).parents[2] / "README.md"

SHOP = """
import asyncio
import sys

from prinia import INJECTED, Context, Prinia

app = Prinia()

@app.task(name="linger")
async def linger(ctx: Context = INJECTED) -> str:
    print("started", flush=True)
    while not ctx.stopping:
        await asyncio.sleep(0.01)
    return "finished"
"""


def test_its_code_runs_when_pasted(cli: Cli, migrated: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    said = []
    for name, block in zip(["shop.py", "reports.py", "program.py"], blocks, strict=True):
        cli.module(name, block)
        done = subprocess.run(
            [sys.executable, name], cwd=cli.folder, env={"PRINIA_DATABASE_URL": migrated}, capture_output=True,
            text=True, timeout=100, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        said.append(done.stdout)
    assert said == ["reminded of order 9 on attempt 1\n", "True ready\n", "14\n"]


def test_a_program_that_is_nothing_but_a_worker_stops_in_order(cli: Cli, migrated: str) -> None:
    """As README's section on workers has it: at SIGTERM its running job ends, then it does, with 0."""
    readme = README.read_text(encoding="utf-8")
    [lines] = re.findall(r"^```\n([^`]*run_with_signals\(app.worker[^`]*)^```", readme, re.MULTILINE)
    cli.module("serve.py", SHOP + lines)
    app = Prinia(migrated)

    @app.task(name="linger")
    def linger() -> str:
        return "elsewhere"

    job = linger.enqueue()
    with subprocess.Popen(
        [sys.executable, "serve.py"], cwd=cli.folder, env=os.environ | {"PRINIA_DATABASE_URL": migrated},
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            process.terminate()
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert job.result(timeout=0) == "finished"
