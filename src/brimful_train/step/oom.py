"""Out-of-memory errors: caught so that nothing of what failed stays behind, and answered with fewer
samples at once.
"""

import contextlib
import ctypes
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from brimful.errors import BrimfulError, DoesNotFit, UsageError
from brimful_inside.simulator.oom_patterns import match_oom
from brimful_train.batching import Split
from brimful_train.data.batch_errors import dead_worker, first_line, type_name
from brimful_train.data.pipeline import StepData
from brimful_train.distributed.ranks import GIVES_UP, Ranks, Vote
from brimful_train.oom_limits import Restart
from brimful_train.task import Batch, Task

T = TypeVar("T")
Pieces = list[tuple[int, int, int]]  # micro-batch, its first sample, one past its last


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
        pattern = match_oom(type_name(error), str(error))
        if pattern is None:
            raise
        missing = Missing(pattern.name, first_line(str(error)) or type(error).__name__)
    return missing  # outside of `except`: the traceback, its frames and their tensors are gone


def free_what_is_cached(device: torch.device) -> None:
    """Gives memory that nobody uses back to the device, or to the system."""
    gc.collect()
    if device.type != "cpu":
        getattr(torch, device.type).empty_cache()
    elif sys.platform.startswith("linux"):
        # glibc keeps freed blocks; other C libraries have no such call
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


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
        use: str = "training",
    ):
        self.split = split
        # whether other ranks wait in a collective for what runs, where there is a `restart`
        self.communicates = True
        self._task, self._ranks, self._say = task, ranks, say
        self._restart, self._use = restart, use
        self._running = (0, 0)  # samples of the micro-batch that runs, and of the piece of it
        # one sample, for a rank of a sharded model that has none in a step
        self._spare: Batch = None

    def load(self, data: StepData, part: int, start: int, stop: int) -> Batch:
        self._running = (data.parts[part], stop - start)
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

    def shrink(self, missing: Missing, where: str, then: str) -> None:
        """Goes below the piece for which memory was `missing`, and says so. `where` and `then`:
        parts of the sentence.

        Raises DoesNotFit, on all ranks, where the piece was a single sample, and SmallerFits where
        other ranks wait.
        """
        of, failed = self._running
        smaller = self.split.smaller(of, failed)
        if smaller is None:
            self._ranks.announce(GIVES_UP)
            raise does_not_fit(missing.message, self._use)
        if self._restart is not None and self.communicates:
            self._restart.smaller(smaller.limit, missing.pattern, self._use)
        self.split = smaller
        rank = f" on rank {self._ranks.rank}" if self._ranks.size > 1 else ""
        at_once = f"{smaller.piece(of):,} in place of {failed:,} samples at once"
        self._say(f"Out of memory{rank}{where} ({missing.pattern}): {at_once}{then}")

    def adopt(self, votes: Sequence[Vote]) -> None:
        """The smallest of all ranks' pieces holds for all."""
        self.split = self.split.agreed(min(vote.piece for vote in votes))


def no_room_at_the_start(message: str) -> DoesNotFit:
    return DoesNotFit(
        f"The model and the state of its optimizer do not fit into memory: {message}",
        "No batch size changes what they take. No step was made; what checkpoints there are stay "
        "as they are.",
        "Raise config.memory_budget if that is the limit, or choose an optimizer with less state "
        "(sgd, adafactor).",
    )


def does_not_fit(message: str, use: str = "training") -> DoesNotFit:
    return DoesNotFit(
        f"A single sample does not fit into memory in {use}: {message}",
        "The batch cannot become smaller than 1. The last checkpoint stays as it is.",
        "Use bf16, a smaller model or smaller samples"
        + (", or switch gradient checkpointing on." if use == "training" else "."),
    )


def no_room_after_backward(message: str) -> DoesNotFit:
    return DoesNotFit(
        "Between the backward pass and the update not even the few bytes of its sums fit into "
        f"memory, twice: {message}",
        "The model, its gradients and the optimizer's state fill it. The last checkpoint stays "
        "as it is.",
        "Free memory on the device, choose an optimizer with less state (sgd, adafactor) or a "
        "smaller model.",
    )
