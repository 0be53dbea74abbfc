"""A trial does not outlive the brimful that started it, even where that one is killed and can end nothing any more."""

from __future__ import annotations

import os
import signal
import sys
from typing import Optional

_PR_SET_PDEATHSIG = 1  # prctl(2)


def end_with(parent_pid: Optional[int], number: int = signal.SIGKILL) -> None:
    """Asks Linux to send this process a signal when its parent dies, if the parent is brimful itself.

    A whole run gets SIGTERM, so that the script may write its checkpoint. Processes further down end with theirs or at the
    trial's own end; elsewhere than on Linux nothing is done.
    """
    if parent_pid is None or os.getppid() != parent_pid or not sys.platform.startswith("linux"):
        return
    import ctypes

    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    except (OSError, AttributeError):
        return
    if os.getppid() != parent_pid:  # it died in between
        os.kill(os.getpid(), number)
