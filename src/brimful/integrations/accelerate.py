"""`find_executable_batch_size` for Accelerate: after an out-of-memory error it takes the largest
size that is known to fit, on all ranks the same.

What is known comes from `brimful predict`, `tune` or `run` of the same script in this folder; else
from the attempts themselves, each measured over its first steps and left where a larger size is
predicted to fit. Ranks meet in torch.distributed's store, not in a collective. Where one runs out
and others wait for it in a collective, nothing can go on in these processes: it notes the smaller
size in torchrun's store and ends, and the next start (`--max_restarts`) takes that size.
"""

import functools
import gc
import os
from collections.abc import Callable, Generator
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from brimful.decide.memory.search_measured import Measured, search_largest_measured
from brimful.decide.run.smaller_batch_size import FittingSizes, fitting_sizes, next_smaller
from brimful.errors import DoesNotFit
from brimful.integrations.attempts import Memory, Ranks, ran_out, records_of_this_script, worst
from brimful.outcomes import OUT_OF_MEMORY
from brimful.values import Limits, Outcome

STEPS = 2  # of an optimizer, after which an attempt is measured: its state is there from the first
MARGIN = (
    0.05  # assumed: the share of the memory that a measured peak leaves free, for later batches
)
_functions = count()  # of this process; all ranks count alike


def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[[], int] | None = None,
) -> Callable[..., Any]:
    """Calls `function(batch_size, ...)`, again with a smaller size while memory runs out in it.

    As accelerate.utils.find_executable_batch_size, with its arguments; `reduce_batch_size_fn`
    chooses where it is given. `function` makes the model and its loaders anew each time, and may be
    left by an exception after its first steps. Raises RuntimeError where not one sample fits, and
    brimful.errors.DoesNotFit where ranks wait for one that ran out.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
        )
    return functools.wraps(function)(
        _Executable(function, starting_batch_size, reduce_batch_size_fn)
    )


class _Executable:
    """The function without its batch size, which is remembered from one call to the next."""

    def __init__(self, function: Callable[..., Any], size: int, reduce: Callable[[], int] | None):
        self._function, name = function, f"brimful/batch_size/{next(_functions)}"
        self._ranks, self._torchrun, self._key = Ranks(name), _store_of_torchrun(), name
        if self._torchrun is not None and self._torchrun.check([name]):
            size = int(self._torchrun.get(name))
        self._sizes = _sizes(size, reduce, self._ranks)
        self._size, self._is_measured = next(self._sizes)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        while self._size > 0:
            is_over, value = self._attempt(
                functools.partial(self._function, self._size), args, kwargs
            )
            if is_over:
                return value
        raise RuntimeError("No executable batch size found, reached zero.")

    def _attempt(self, work: Callable[..., Any], args: Any, kwargs: Any) -> tuple[bool, Any]:
        """Whether it came to its end on all ranks, and what `work` returned on this one."""
        self._size_of_attempt, self._steps, self._was_left = self._size, 0, False
        gc.collect()
        torch.cuda.empty_cache()  # nothing where no card is in use yet
        if self._is_measured:
            Memory().begin()
        hook = register_optimizer_step_post_hook(self._after_step)
        says, value = None, None
        try:
            value = work(*args, **kwargs)
        except Exception as error:
            if not ran_out(error):
                raise
            says = Measured(Outcome.OUT_OF_DEVICE_MEMORY)
        finally:
            hook.remove()
        # outside of `except`: the error's frames, which hold tensors, are gone
        while not self._was_left:
            if self._all_are_done(says):
                return True, value
        return False, None

    def _after_step(self, *_: Any) -> None:
        self._steps += 1
        if self._steps == STEPS and self._is_measured:
            self._all_are_done(Measured(Outcome.COMPLETED, Memory().peak_bytes()))
            if self._was_left:
                # as if memory had run out: what the function does then, it does now
                raise torch.OutOfMemoryError("Out of memory, or another batch size is tried")

    def _all_are_done(self, says: Measured | None) -> bool:
        """Says what this rank's attempt showed (None: it came to its end), and takes the size that
        follows from what all of them say, each rank alike."""
        is_out = says is not None and says.outcome in OUT_OF_MEMORY
        said = self._ranks.gather(says, self._leave_to_the_next_start if is_out else None)
        shown = [each for each in said if each is not None]
        if shown:
            worst_shown = worst(shown)
            self._size, self._is_measured = self._sizes.send(worst_shown)
            ran_out = worst_shown.outcome in OUT_OF_MEMORY
            self._was_left = ran_out or self._size != self._size_of_attempt
        return not shown

    def _leave_to_the_next_start(self) -> None:
        size = _known(self._size) or _smaller(self._size, FittingSizes())
        if self._torchrun is not None:
            self._torchrun.set(self._key, str(size))
        raise DoesNotFit(
            "Memory ran out on a rank while others wait for it in a collective",
            "These processes cannot go on: nobody leaves a collective that others are in.",
            f"With --max_restarts 10 the next start takes batch size {size:,}; or set it.",
        )


def _sizes(
    size: int, reduce: Callable[[], int] | None, ranks: Ranks
) -> Generator[tuple[int, bool], Measured, None]:
    """Yields sizes, each with whether its first steps are measured, and is sent what ranks showed:
    that memory ran out, or the peak of those steps. 0 at its end."""
    yield size, False
    while reduce is not None:
        yield reduce(), False
    known = ranks.gather(_known(size))[0]
    if known:
        size = known
        yield size, False
    memory = Memory()
    budget_bytes = int(min(ranks.gather(memory.begin())) * (1 - MARGIN))
    limits = Limits(max_batch_size=size)
    search = search_largest_measured(budget_bytes, limits, memory.kind, first_size=size)
    shown = Measured(Outcome.OUT_OF_DEVICE_MEMORY)
    next(search)  # asks for the size that failed
    try:
        while True:
            size = search.send(shown)
            shown = yield size, True
    except StopIteration as end:
        # the smallest, beyond the budget, ran all the same
        ran = size if shown.outcome is Outcome.COMPLETED else 0
        size = end.value.largest or ran
    while True:
        yield size, False
        size = _smaller(size, FittingSizes((size,)))  # later than in its first steps


def _known(size: int) -> int:
    """The next smaller size by what records say of this script; 0 where they say nothing."""
    fitting = fitting_sizes(records_of_this_script("tune", "predict", "run"))
    return _smaller(size, fitting) if fitting != FittingSizes() else 0


def _smaller(size: int, fitting: FittingSizes) -> int:
    smaller = next_smaller(size, fitting)
    return smaller.batch_size if smaller is not None else 0


def _store_of_torchrun() -> Any:
    """Where one start leaves a size to the next; None without torchrun or accelerate launch."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return dist.TCPStore(*address, is_master=False, wait_for_workers=False)
