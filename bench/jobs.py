"""The jobs that benchmarks run."""

from __future__ import annotations

from prinia import Prinia

app = Prinia()


@app.task(name="noop")
async def noop(user_id: int, email: str, body: str) -> None:
    """Nothing, with typed arguments of about 100 bytes."""
