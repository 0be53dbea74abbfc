"""Out-of-memory errors: caught so that nothing of what failed stays behind, and answered with fewer
samples at once.

How many that are outlives the process: each checkpoint holds it. Where forward or backward itself
communicates (FSDP2, overlapped reduction), a rank that ran out of memory leaves the others in a
collective, and the step cannot be replayed: the rank notes the smaller size in torchrun's store and
ends, and `torchrun --max-restarts` ends the others and starts all of them anew from the last
checkpoint.
"""

import contextlib
import ctypes
import gc
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist

from brimful.errors import BrimfulError, DoesNotFit, UsageError
from brimful_inside.simulator.allocator_settings import with_expandable_segments
from brimful_inside.simulator.oom_patterns import (
    match_oom,
    qualified_name,
    room_bytes,
    unallocated_bytes,
)
from brimful_train.batching import Split
from brimful_train.data.batch_errors import dead_worker, first_line
from brimful_train.data.pipeline import StepData
from brimful_train.distributed.ranks import GIVES_UP, Ranks, Vote
from brimful_train.reporting.peak_memory import Peaks
from brimful_train.task import Batch, Task

T = TypeVar("T")
Pieces = list[tuple[int, int, int]]  # micro-batch, its first sample, one past its last
# Small pieces are this part of the one that failed, and twice it: few samples run out seldom.
_SMALL_PART = 128  # assumed
# Of the room that an error names, what the allocator may reserve: a step of many pieces needs a
# little more than one pass. Assumed: where it is more, half is tried next.
_USABLE = 0.95
_trainings = itertools.count()  # of this process; all ranks count alike, also after a restart


@dataclass(frozen=True)
class Missing:
    """An out-of-memory error, as text alone: the error itself holds the frames, and those hold the
    tensors.
    """

    pattern: str  # the name of the form that the error has (oom_patterns)
    message: str


def attempt(work: Callable[[], T]) -> T | Missing:
    """What `work` returns, or the memory that it lacked. All other errors are raised.

    An error of brimful's own is never an out-of-memory error, whatever its message: it is a
    decision that `work` made. Nor is a worker of a loader that died, which torch may raise
    anywhere: smaller pieces do not bring it back.
    """
    try:
        return work()
    except BrimfulError:
        raise
    except Exception as error:
        dead = dead_worker(error)
        if dead is not None:
            raise dead from error
        pattern = match_oom(qualified_name(type(error)), str(error))
        if pattern is None:
            raise
        missing = Missing(pattern.name, first_line(str(error)) or type(error).__name__)
    return missing  # outside of `except`: the traceback, its frames and their tensors are gone


def expands_segments(missing: Missing) -> bool:
    """Whether PyTorch's allocator has expandable segments from here on, as batches of uneven sizes
    left its memory in pieces. Not where it has them, or where it is another allocator."""
    try:
        conf = with_expandable_segments(os.environ)
        if conf is None or not unallocated_bytes(missing.message) or not torch.cuda.is_available():
            return False
        # of releases that lack it, torch.cuda's own; newer ones warn of that
        change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
        (change or torch.cuda.memory._set_allocator_settings)("expandable_segments:True")
    except (ValueError, RuntimeError):
        return False
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = conf  # once, and as processes that start later have it
    return True


def free_what_is_cached(device: torch.device) -> None:
    """Gives memory that nobody uses back to the device, or to the system."""
    gc.collect()
    if device.type != "cpu":
        getattr(torch, device.type).empty_cache()
    elif sys.platform.startswith("linux"):
        # glibc keeps freed blocks; other C libraries have no such call
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


class SmallerFits(DoesNotFit):
    """A smaller micro-batch may fit, with which torchrun can start this training anew."""

    brimful_meaning = "smaller-fits"  # `brimful_inside.wire.Failure.meaning`


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
        name, setting = {
            "training": ("limit", "micro-batch"),
            "evaluation": ("eval_limit", "evaluation batch"),
        }[use]
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


class SamplesAtOnce:
    """How many samples go through the model at once on this rank: `split`, smaller after each
    out-of-memory error.

    `restart`: of a training whose forward or backward communicates, in which a step cannot be
    replayed. `use`: "training" or "evaluation", as messages name it.
    """

    def __init__(
        self,
        task: Task,
        split: Split,
        ranks: Ranks,
        say: Callable[[str], None],
        restart: Restart | None,
        peaks: Peaks,
        use: str = "training",
    ):
        self.split = split
        # whether other ranks wait in a collective for what runs, where there is a `restart`
        self.communicates = True
        self._task, self._ranks, self._say = task, ranks, say
        self._restart, self._peaks, self._use = restart, peaks, use
        self._running = (0, 0, 0, 0)  # the piece that runs, and the samples of its micro-batch
        # one sample, for a rank of a sharded model that has none in a step
        self._spare: Batch = None

    def load(self, data: StepData, part: int, start: int, stop: int) -> Batch:
        self._running = (part, start, stop, data.parts[part])
        return self._prepared(data.load(part, start, stop))

    def spares(self, data: StepData, pieces: Pieces) -> Iterator[Batch]:
        """A batch whose result counts for nothing for each piece that another rank of a sharded
        model has more than this one: every rank takes part in each forward."""
        most = max(self._ranks.gather(len(pieces)))
        if pieces:
            part, start, _ = pieces[0]
            self._spare = data.load(part, start, start + 1)
        for _ in range(most - len(pieces)):
            if self._spare is None:
                raise UsageError(
                    f"{data.samples:,} samples over {self._ranks.size} ranks leave this rank "
                    f"without any in {self._use}",
                    "Under FSDP2 each rank takes part in each forward.",
                    "Use fewer ranks, or parallel ddp.",
                )
            yield self._prepared(self._spare)

    def _prepared(self, batch: Batch) -> Batch:
        return self._task.prepare(batch) if self._task.prepare is not None else batch

    def shrink(
        self, missing: Missing, where: str, then: str, run: Callable[[Pieces], object]
    ) -> None:
        """Goes below the piece for which memory was `missing`, to one that ought to fit, and says
        so. `where` and `then`: parts of the sentence. `run` makes the passes of pieces, of which
        nothing is kept.

        Raises DoesNotFit, on all ranks, where the piece was a single sample, and SmallerFits where
        other ranks wait.
        """
        _, start, stop, of = self._running
        failed = stop - start
        rank = f" on rank {self._ranks.rank}" if self._ranks.size > 1 else ""
        others_wait = self._restart is not None and self.communicates
        fit = None if others_wait else self._most_that_fit(missing, run)
        may_be_in_pieces = not others_wait and (fit is None or fit >= failed)
        if may_be_in_pieces and expands_segments(missing):
            self._say(
                f"Out of memory{rank}{where} ({missing.pattern}), in pieces that are too small: "
                f"{failed:,} samples at once again, with expandable segments"
            )
            return
        smaller = self.split.smaller(of, failed, fit)
        if smaller is None:
            self._ranks.announce(GIVES_UP)
            less = ", or switch gradient checkpointing on." if self._use == "training" else "."
            raise DoesNotFit(
                f"A single sample does not fit into memory in {self._use}: {missing.message}",
                "The batch cannot become smaller than 1. The last checkpoint stays as it is.",
                f"Use bf16, a smaller model or smaller samples{less}",
            )
        if others_wait and self._restart is not None:
            self._restart.smaller(smaller.limit, missing.pattern, self._use)
        self.split = smaller
        self._say(
            f"Out of memory{rank}{where} ({missing.pattern}): {smaller.piece(of):,} in place of "
            f"{failed:,} samples at once{then}"
        )

    def _most_that_fit(self, missing: Missing, run: Callable[[Pieces], object]) -> int | None:
        """How many samples of the piece that failed ought to fit at once: by the room that the
        error names, and by the peaks of smaller pieces of it. None where either is not known."""
        part, start, stop, _ = self._running  # of sorted samples the first are the largest
        failed, room = stop - start, room_bytes(missing.message)
        small = max(1, failed // _SMALL_PART)
        if room is None or 2 * small >= failed:
            return None
        points: list[tuple[int, int]] = []
        fit = failed
        # The first pass leaves gradients and workspaces there, as all but the first of a step find
        # them. The last one has half of what ought to fit: peaks grow faster once activations
        # outweigh what the largest gradient takes for a moment.
        for samples in (small, small, 2 * small, None):
            samples = samples or fit // 2
            if points and samples < points[-1][0]:
                break
            pieces = [(part, start, start + samples)]
            peak = attempt(lambda pieces=pieces: self._peaks.during(lambda: run(pieces)))
            if isinstance(peak, Missing):
                return max(1, samples // 2)
            allocated, reserved = peak.allocated_bytes or 0, peak.reserved_bytes or 0
            points.append((samples, allocated))
            # what the allocator lost between tensors in this pass is lost in a larger one as well
            usable = _USABLE * room * allocated / max(reserved, 1)
            fit = _samples_within(usable, *points[-2:]) or fit
        return fit

    def adopt(self, votes: Sequence[Vote]) -> None:
        """The smallest of all ranks' pieces holds for all."""
        self.split = self.split.agreed(min(vote.piece for vote in votes))


def _samples_within(room: float, *points: tuple[int, int]) -> int | None:
    """Of two measured pieces, as (samples, peak in bytes): how many samples the line through them
    allows, one at least. None where they show no growth."""
    (samples, _), (last_samples, last_peak) = points[0], points[-1]
    growth = (last_peak - points[0][1]) / max(1, last_samples - samples)
    return max(1, last_samples + int((room - last_peak) / growth)) if growth > 0 else None


def no_room_after_backward(message: str) -> DoesNotFit:
    return DoesNotFit(
        "Between the backward pass and the update not even the few bytes of its sums fit into "
        f"memory, twice: {message}",
        "The model, its gradients and the optimizer's state fill it. The last checkpoint stays "
        "as it is.",
        "Free memory on the device, choose an optimizer with less state (sgd, adafactor) or a "
        "smaller model.",
    )
