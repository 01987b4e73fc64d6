"""A group of commands that lists when it is given none."""

from __future__ import annotations

import click


class ListingGroup(click.Group):
    """``prinia queues`` is ``prinia queues list``, and ``prinia jobs --state failed`` likewise."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the command in where there is none."""
        if not args or (args[0].startswith("-") and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)
