"""Ends the worker when the orchestrator is gone, so that a killed orchestrator leaves no process behind.

On Linux the kernel does it (PR_SET_PDEATHSIG); elsewhere a thread looks at the parent's process id.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PARENT_VARIABLE = "MEMTRACKER_PARENT"
"""Process id of the orchestrator, set by it; absent when a person starts the worker by hand."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_POLL_SECONDS = 1.0


def end_with_parent() -> None:
    """Arranges that this process is killed when its parent ends. Call it once, from the main thread, early."""
    expected = os.environ.get(PARENT_VARIABLE, "")
    if not expected.isdigit():
        return
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(
            target=_poll, args=(int(expected),), name="memtracker-parent", daemon=True
        ).start()
    if os.getppid() != int(expected):
        # It ended before the line above was reached.
        os._exit(1)


def _poll(expected: int) -> None:
    while os.getppid() == expected:
        time.sleep(_POLL_SECONDS)
    os._exit(1)
