"""Going back to the last checkpoint with smaller micro-batches, for failures that cannot be replayed within a step.

Where forward or backward itself talks to other ranks (FSDP2, overlapped reduction), one that ran out of memory leaves the
others waiting for it. So it raises a flag in the store that all ranks share; each has a thread that looks for it, and starts
its process anew in place (exec: the same process id, so that torchrun sees nothing end) with the number of the attempt and the
smaller micro-batch in its environment.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn

import torch.distributed as dist

from brimful.errors import DoesNotFit

__all__ = ["Attempt", "Restart", "SmallerFits"]

ATTEMPT, CHECKPOINT = "BRIMFUL_TRAIN_ATTEMPT", "BRIMFUL_TRAIN_CHECKPOINT"
PIECE, EVAL_PIECE = "BRIMFUL_TRAIN_PIECE", "BRIMFUL_TRAIN_EVAL_PIECE"
LOOK_EVERY_S = 0.5  # assumed: short beside a restart, and next to nothing for the store
OWN_END_S = 1.0  # assumed: ranks that meet the same error, or hear of it in a meeting, raise it within this time
HEARD_WITHIN_S = 15.0  # assumed: many times what a rank takes to see the flag; one that is stuck holds up nobody for longer
MOST_ATTEMPTS = 40  # each halves the micro-batch: 10**12 samples at once are not what anybody begins with

_trainings = itertools.count()  # of this process; all ranks count alike


class SmallerFits(DoesNotFit):
    """A smaller micro-batch may fit, and this process cannot start anew with it by itself."""


@dataclass(frozen=True)
class Attempt:
    """Which start of this training this is, and what the one before left to it."""

    number: int
    piece: int | None
    eval_piece: int | None
    checkpoint: str | None  # None: the config's own way to resume

    @classmethod
    def this(cls) -> Attempt:
        piece, eval_piece = (int(os.environ[name]) if os.environ.get(name) else None for name in (PIECE, EVAL_PIECE))
        return cls(int(os.environ.get(ATTEMPT, "0")), piece, eval_piece, os.environ.get(CHECKPOINT) or None)


class Restart:
    """The shared flag. `last_checkpoint` is asked for the newest checkpoint of this run when the process starts anew."""

    def __init__(self, say: Callable[[str], None], last_checkpoint: Callable[[], str | None]):
        self._attempt = Attempt.this()
        self._say = say
        self._last_checkpoint = last_checkpoint
        # The store outlives a training that ended: one that follows it has a flag of its own.
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._key = f"brimful/restart/{again}/{next(_trainings)}/{self._attempt.number}"
        self._over = threading.Event()
        self._obeys = threading.Event()  # the watcher is about to end this process
        self._ranks = int(os.environ.get("WORLD_SIZE", "1"))
        self._store = _shared_store()
        self._watcher = threading.Thread(target=self._watch, name="brimful-restart", daemon=True)
        if self._store is not None:
            self._watcher.start()

    @property
    def reaches_all(self) -> bool:
        """Whether there is a store that all ranks look into."""
        return self._store is not None

    def smaller(self, piece: int, why: str, evaluation: bool = False) -> NoReturn:
        """Starts all ranks anew with at most `piece` samples at once, in training or in evaluation."""
        if self._store is None:
            raise SmallerFits(
                f"Out of memory where a step cannot be replayed: {why}",
                "Ranks start anew from the last checkpoint only under torchrun, whose store outlives them.",
                f"Start by torchrun, or with a micro-batch of {piece:,}.",
            )
        self._obey(self._raise_flag({"piece": piece, "evaluation": evaluation, "why": why}))

    def end(self, why: str, exit_code: int, says: str | None = None) -> None:
        """This rank ends with an error, and the others with its exit code, wherever they wait for it.

        `says` is what they say, in place of a sentence around `why`. Returns when all have heard of it, and after
        HEARD_WITHIN_S at most.
        """
        if self._store is None:
            return
        if self._obeys.is_set():  # an error that came of another rank's end: that one's words are said already
            time.sleep(HEARD_WITHIN_S)
        flag = self._raise_flag({"piece": 0, "evaluation": False, "why": why, "exit_code": exit_code, "says": says})
        if not flag["piece"]:
            self._wait_until_heard()

    def close(self) -> None:
        self._over.set()

    def _raise_flag(self, flag: dict) -> dict:
        """The first one to raise it decides for all."""
        assert self._store is not None
        self._over.set()
        if self._store.add(f"{self._key}/first", 1) == 1:
            self._store.set(self._key, json.dumps(flag))
        return json.loads(self._store.get(self._key))

    def _wait_until_heard(self) -> None:
        """The first to end would otherwise break the connections of those who are yet to hear why."""
        assert self._store is not None
        until = time.monotonic() + HEARD_WITHIN_S
        with contextlib.suppress(RuntimeError):  # the store has gone: so has whoever started the ranks
            heard = self._store.add(f"{self._key}/heard", 1)
            while heard < self._ranks and time.monotonic() < until:
                time.sleep(LOOK_EVERY_S / 10)
                heard = self._store.add(f"{self._key}/heard", 0)

    def _watch(self) -> None:
        assert self._store is not None
        while not self._over.wait(LOOK_EVERY_S):
            try:
                raised = self._store.check([self._key])
            except RuntimeError:
                return  # the store has gone, and with it whoever could raise the flag
            if raised and not self._over.is_set():
                flag = json.loads(self._store.get(self._key))
                if not flag["piece"] and self._over.wait(OWN_END_S):
                    return
                self._obey(flag)

    def _go_after_the_one_that_failed(self) -> None:
        """torchrun ends all ranks when one ends: the one that failed has its time to say what it met."""
        assert self._store is not None
        with contextlib.suppress(RuntimeError):
            self._store.add(f"{self._key}/heard", 1)
        time.sleep(2 * LOOK_EVERY_S)

    def _obey(self, flag: dict) -> NoReturn:
        if not flag["piece"] or self._attempt.number + 1 >= MOST_ATTEMPTS:
            self._obeys.set()
            self._say(flag.get("says") or f"Another rank ended with an error, and this one ends with it: {flag['why']}")
            _end_children()
            self._go_after_the_one_that_failed()
            os._exit(flag.get("exit_code", DoesNotFit.exit_code))
        checkpoint = self._last_checkpoint() or self._attempt.checkpoint
        self._say(
            f"Out of memory where a step cannot be replayed ({flag['why']}): all ranks go back to "
            f"{checkpoint or 'where this run began'} with at most {flag['piece']:,} samples at once in "
            f"{'evaluation' if flag['evaluation'] else 'training'}."
        )
        os.environ[ATTEMPT] = str(self._attempt.number + 1)
        os.environ[EVAL_PIECE if flag["evaluation"] else PIECE] = str(flag["piece"])
        os.environ[CHECKPOINT] = checkpoint or ""
        _end_children()
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(2 * LOOK_EVERY_S)  # until the others have seen the flag too: nobody meets a rank that is about to go
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _shared_store() -> dist.Store | None:
    """A connection of our own to torchrun's store: that of the process group is held while it waits."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=timedelta(minutes=2))


def _end_children() -> None:
    """Workers of loaders: they belong to a process id that goes on, and would wait for it for ever."""
    for child in multiprocessing.active_children():
        child.kill()
