"""Signals that brimful gets while a run goes on: forwarded to the command, whose own ending is
awaited.

The command has a session of its own, so that it gets each signal once, from here. Loader workers
get none: a script that waits for the batch of a killed worker fails where it could have written its
checkpoint. The ranks of torchrun have sessions of their own and get the signal from it.
"""

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from brimful.measure.gather import role_of
from brimful.values import Outcome

# : How long the command may take to end after a signal. systemd waits as long before it kills
# (DefaultTimeoutStopSec, 90 s);
# : Slurm's KillWait and Kubernetes' grace period (30 s each) come from outside and end the waiting
# where they are shorter.
GRACE_S = 90.0
# : After a second Ctrl-C (assumed: enough to leave a step, too little for a large checkpoint). A
# third one kills at once.
HARDER_S = 5.0
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# clusters announce their end with these, and scripts write a checkpoint
_FORWARDED = signal.SIGUSR1, signal.SIGUSR2


class SignalForwarding:
    """Use as a context manager around a whole run; `forward_to` says who gets the signals while an
    attempt goes on.
    """

    def __init__(self, grace_s: float = GRACE_S, clock: Callable[[], float] = time.monotonic):
        self._grace_s = grace_s
        self._clock = clock
        self._send: Callable[[int], None] | None = None
        self._before: dict[int, Any] = {}
        self._interrupts = 0
        self.deadline_s = math.inf  # by `clock`, once a signal to end has come
        self.outcome: Outcome | None = None  # what the first signal to end makes of the run

    def __enter__(self) -> "SignalForwarding":
        with contextlib.suppress(ValueError):  # not in the main thread: signals are somebody else's
            for number in (*_ENDING, *_FORWARDED):
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup, a job in the background
                    self._before[number] = signal.signal(number, self.receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def forward_to(self, send: Callable[[int], None] | None) -> None:
        """Who gets them from now on. A signal to end that came before is forwarded at once."""
        self._send = send
        if send is not None and self.outcome is not None:
            send(signal.SIGINT if self.outcome is Outcome.INTERRUPTED else signal.SIGTERM)

    @property
    def overdue(self) -> bool:
        return self._clock() >= self.deadline_s

    def receive(self, number: int, frame: object = None) -> None:
        """Called by Python between two of its own steps, whatever the main thread does."""
        if number in _ENDING:
            self._note_end(number)
        if self._send is not None:
            self._send(number)

    def _note_end(self, number: int) -> None:
        grace_s = self._grace_s
        if number == signal.SIGINT:
            self._interrupts += 1
            grace_s = (grace_s, min(HARDER_S, grace_s), 0.0)[min(self._interrupts, 3) - 1]
        self.outcome = self.outcome or (
            Outcome.INTERRUPTED if number == signal.SIGINT else Outcome.TERMINATED
        )
        self.deadline_s = min(self.deadline_s, self._clock() + grace_s)


def send_to_group(leader_pid: int, folder: Path, number: int) -> None:
    """Signals every process of the group but loader workers, which their wire files in `folder`
    name.
    """
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getpgid(pid) == leader_pid and role_of(folder, pid) != "worker":
                os.kill(pid, number)
