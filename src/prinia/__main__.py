"""``python -m prinia``: the command line, also where no script was installed."""

from __future__ import annotations

from prinia.cli import main

if __name__ == "__main__":
    main(prog_name="prinia")
