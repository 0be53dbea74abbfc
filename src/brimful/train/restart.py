"""Going back to the last checkpoint with smaller micro-batches, for failures that cannot be replayed within a step.

Where forward or backward itself talks to other ranks (FSDP2, overlapped reduction), one that ran out of memory leaves the
others waiting for it. So it raises a flag in the store that all ranks share; each has a thread that looks for it, and starts
its process anew in place (exec: the same process id, so that torchrun sees nothing end) with the number of the attempt and the
smaller micro-batch in its environment.
"""

from __future__ import annotations

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
MOST_ATTEMPTS = 40  # each halves the micro-batch: 10**12 samples at once are not what anybody begins with


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
        self._key = f"brimful/restart/{self._attempt.number}"
        self._over = threading.Event()
        self._store = _shared_store()
        self._watcher = threading.Thread(target=self._watch, name="brimful-restart", daemon=True)
        if self._store is not None:
            self._watcher.start()

    def smaller(self, piece: int, why: str, evaluation: bool = False) -> NoReturn:
        """Starts all ranks anew with at most `piece` samples at once, in training or in evaluation."""
        if self._store is None:
            raise SmallerFits(
                f"Out of memory where a step cannot be replayed: {why}",
                "Ranks start anew from the last checkpoint only under torchrun, whose store outlives them.",
                f"Start by torchrun, or with a micro-batch of {piece:,}.",
            )
        self._obey(self._raise_flag({"piece": piece, "evaluation": evaluation, "why": why}))

    def end(self, why: str, exit_code: int) -> None:
        """This rank ends with an error, and the others with its exit code, wherever they wait for it."""
        if self._store is not None:
            self._raise_flag({"piece": 0, "evaluation": False, "why": why, "exit_code": exit_code})

    def close(self) -> None:
        self._over.set()

    def _raise_flag(self, flag: dict) -> dict:
        """The first one to raise it decides for all."""
        assert self._store is not None
        self._over.set()
        if self._store.add(f"{self._key}/first", 1) == 1:
            self._store.set(self._key, json.dumps(flag))
        return json.loads(self._store.get(self._key))

    def _watch(self) -> None:
        assert self._store is not None
        while not self._over.wait(LOOK_EVERY_S):
            try:
                raised = self._store.check([self._key])
            except RuntimeError:
                return  # the store has gone, and with it whoever could raise the flag
            if raised and not self._over.is_set():
                self._obey(json.loads(self._store.get(self._key)))

    def _obey(self, flag: dict) -> NoReturn:
        if not flag["piece"] or self._attempt.number + 1 >= MOST_ATTEMPTS:
            self._say(f"Another rank ended with an error, and this one ends with it: {flag['why']}")
            _end_children()
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
