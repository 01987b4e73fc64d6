"""The ``prinia`` command line in a process that stops when its standard input ends.

The kernel closes the other end of that pipe however the parent dies, so none of these outlives the demo.
"""

from __future__ import annotations

import os
import signal
import threading

from prinia.cli import main


def _stop_with_parent() -> None:
    # Not sys.stdin: a thread that blocks in it holds a lock that Python wants when it ends.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    main(prog_name="prinia")
