"""One rule for colour: the plain name blocks, the one with an ``a`` awaits, and blocking in a running loop raises."""

from __future__ import annotations

import sys

from prinia.errors import ColourError


def refuse_in_loop(blocking: str, awaited: str) -> None:
    """Raises `ColourError` inside a running event loop; ``awaited`` is what to write instead."""
    # Importing asyncio would be a third of what importing Prinia takes, and where it was never imported no loop runs.
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ColourError(
        f"{blocking} would block the running event loop: every other task would wait for the database. "
        f"Write: await {awaited}"
    )
