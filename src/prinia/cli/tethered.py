"""The ``prinia`` command line in a process that stops when its standard input ends.

The kernel closes the other end of that pipe however the parent dies, so none of these outlives the demo or
``prinia dev``.
"""

from __future__ import annotations

import os
import signal
import threading
import time

from prinia.cli import main

#: Seconds after which a process that does not stop is ended: nobody is left to do it.
_PATIENCE = 60.0


def _stop_with_parent() -> None:
    # Not sys.stdin: a thread that blocks in it holds a lock that Python wants when it ends.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_PATIENCE)
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    main(prog_name="prinia")
