"""Signals that brimful gets while a run goes on: passed on to the command, whose own ending is awaited.

The command has a session of its own, so that nothing reaches it but what is passed on here, once. Loader workers are spared: a
terminal or a cluster that signals everybody kills them in the middle of a batch, and the script, which waits for that batch,
fails where it could have written its checkpoint. The ranks of torchrun have sessions of their own and get the signal from it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brimful.values import Outcome

#: How long the command may take to end after a signal. systemd waits as long before it kills (DefaultTimeoutStopSec, 90 s);
#: Slurm's KillWait and Kubernetes' grace period (30 s each) come from outside and end the waiting where they are shorter.
GRACE_S = 90.0
#: After a second Ctrl-C (assumed: enough to leave a step, too little for a large checkpoint). A third one kills at once.
HARDER_S = 5.0
_ENDING = ("SIGINT", "SIGTERM", "SIGHUP")
_PASSED = ("SIGUSR1", "SIGUSR2")  # clusters announce their end with these, and scripts write a checkpoint
_HEAD_BYTES = 4096


class Passing:
    """Use as a context manager around a whole run; `to` says who gets the signals while an attempt goes on."""

    def __init__(self, grace_s: float = GRACE_S, clock: Callable[[], float] = time.monotonic):
        self._grace_s = grace_s
        self._clock = clock
        self._to: Callable[[int], None] | None = None
        self._before: dict[int, Any] = {}
        self._interrupts = 0
        self.deadline_s: float | None = None  # by `clock`; None: no signal to end has come
        self.outcome: Outcome | None = None  # what the first signal to end makes of the run

    def __enter__(self) -> Passing:
        with contextlib.suppress(ValueError):  # not in the main thread: signals are somebody else's
            for name in (*_ENDING, *_PASSED):
                number = getattr(signal, name, None)
                if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # nohup, a job in the background
                    self._before[number] = signal.signal(number, self.receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def to(self, send: Callable[[int], None] | None) -> None:
        """Who gets them from now on. A signal to end that came before is passed on at once."""
        self._to = send
        if send is not None and self.outcome is not None:
            send(signal.SIGINT if self.outcome is Outcome.INTERRUPTED else signal.SIGTERM)

    @property
    def overdue(self) -> bool:
        return self.deadline_s is not None and self._clock() >= self.deadline_s

    def receive(self, number: int, frame: object = None) -> None:
        """Called by Python between two of its own steps, whatever the main thread does."""
        name = signal.Signals(number).name
        if name in _ENDING:
            self._ends(number)
        if self._to is not None:
            self._to(number)

    def _ends(self, number: int) -> None:
        grace_s = self._grace_s
        if number == signal.SIGINT:
            self._interrupts += 1
            grace_s = (self._grace_s, min(HARDER_S, self._grace_s), 0.0)[min(self._interrupts, 3) - 1]
        if self.outcome is None:
            self.outcome = Outcome.INTERRUPTED if number == signal.SIGINT else Outcome.TERMINATED
        due = self._clock() + grace_s
        self.deadline_s = due if self.deadline_s is None else min(self.deadline_s, due)


def send_to_group(leader_pid: int, folder: Path, number: int) -> None:
    """Signals every process of the group but loader workers, as their wire files in `folder` tell them."""
    members = _group(leader_pid)
    if members is None:
        with contextlib.suppress(OSError):
            os.killpg(leader_pid, number)
        return
    for pid in members:
        if not is_worker(folder, pid):
            with contextlib.suppress(OSError):
                os.kill(pid, number)


def is_worker(folder: Path, pid: int) -> bool:
    """Whether the process said hello as a worker and has not shown itself to be a rank since."""
    try:
        with open(folder / f"wire-{pid}.jsonl", "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return b'"role": "worker"' in head and b'"role": "rank"' not in head


def _group(leader_pid: int) -> list[int] | None:
    """Processes of the group; None where the system has no /proc."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return None
    return [pid for pid in pids if _group_of(pid) == leader_pid]


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None
