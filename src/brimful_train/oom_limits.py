"""What out-of-memory errors have shown: how many samples go through the model at once. It outlives
the process.

Each checkpoint holds it. Where forward or backward itself communicates (FSDP2, overlapped
reduction), a rank that ran out of memory leaves the others in a collective, and the step cannot be
replayed: the rank notes the smaller size in torchrun's store and ends, and `torchrun
--max-restarts` ends the others and starts all of them anew from the last checkpoint.
"""

import itertools
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist

from brimful.errors import DoesNotFit
from brimful_train.batching import Split

_trainings = itertools.count()  # of this process; all ranks count alike, also after a restart


class SmallerFits(DoesNotFit):
    """A smaller micro-batch may fit, with which torchrun can start this training anew."""

    brimful_meaning = "smaller-fits"  # `brimful_inside.wire.Failure.meaning`


def limits_of(split: Split, evaluation: Split | None) -> dict[str, Any]:
    """For a checkpoint. A limit holds as long as the same size is asked for."""
    return {
        "micro_batch": split.micro_batch,
        "limit": split.limit,
        "eval_batch": evaluation.micro_batch if evaluation else None,
        "eval_limit": evaluation.limit if evaluation else None,
    }


class Restart:
    """What one start by torchrun leaves to the next. `limit` and `eval_limit`: the sizes that the
    one before found to fit.
    """

    def __init__(self) -> None:
        self._key = f"brimful/oom_limits/{next(_trainings)}"
        self._store = _store_of_torchrun()
        self.number = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        self.limit: int | None = self._read("limit")
        self.eval_limit: int | None = self._read("eval_limit")

    @property
    def checkpoint(self) -> Path | None:
        """The newest one that a start before this one wrote."""
        path = self._read("checkpoint")
        return None if path is None else Path(path)

    def note_checkpoint(self, path: Path) -> None:
        self._note("checkpoint", str(path))

    def smaller(self, limit: int, pattern: str, use: str = "training") -> NoReturn:
        """Ends this rank; the next start has at most `limit` samples at once, in "training" or in
        "evaluation".
        """
        name, setting = ("limit", "micro-batch")
        if use == "evaluation":
            name, setting = ("eval_limit", "evaluation batch")
        self._note(name, limit)
        raise SmallerFits(
            f"Out of memory where a step cannot be replayed: {pattern}",
            "Other ranks wait in a collective for this one. The last checkpoint stays as it is.",
            f"torchrun --max-restarts 10 goes on from it with {limit:,} samples at once; or set "
            f"the {setting} to {limit:,}.",
        )

    def _note(self, name: str, value: Any) -> None:
        if self._store is not None:
            self._store.set(f"{self._key}/{name}", json.dumps(value))

    def _read(self, name: str) -> Any:
        key = f"{self._key}/{name}"
        if self._store is None or self.number == 0 or not self._store.check([key]):
            return None
        return json.loads(self._store.get(key))


def _store_of_torchrun() -> dist.Store | None:
    """A connection of our own: that of the process group is held while it waits."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(
        host, port, is_master=False, wait_for_workers=False, timeout=timedelta(minutes=2)
    )
