"""What an application hangs into its workers and its enqueues: middleware, resources, listeners, start and stop hooks.

`prinia.Prinia` is one of these; what is registered on it is used by every worker made from then on.
"""

from __future__ import annotations


class Hooks:
    """Collects what surrounds the jobs of an app."""

    def __init__(self) -> None:
        """Nothing is registered."""
