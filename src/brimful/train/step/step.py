"""One update of the weights, which an out-of-memory error makes slower and not different.

1. What a forward pass may change is copied: random states and buffers.
2. This rank's micro-batches run, gradients summed locally. Where memory is missing, all of that is dropped and put back, the
   micro-batch is halved, and the rank's whole part runs again from zero gradients.
3. The ranks meet on the host. Only when each has its part, gradients are reduced: no rank waits for one that failed.
4. Clipping, the check of the loss, the learning rate, the update. What is missing here is a few bytes: tried again at once.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, TypeVar

import torch
from torch import nn

from brimful.errors import UsageError
from brimful.train.data.pipeline import StepData
from brimful.train.distributed.ranks import (
    BROKEN,
    FINE,
    GIVES_UP,
    OUT_OF_MEMORY,
    Ranks,
    Vote,
)
from brimful.train.model.precision import Precision
from brimful.train.oom_limits import Restart
from brimful.train.optim.optimizers import set_lr
from brimful.train.step.batching import Split
from brimful.train.step.buffers import Buffers, layers_that_depend_on_the_cut
from brimful.train.step.gradients import GradientSum, clip, local
from brimful.train.step.non_finite import Facts, Finite, LossSums
from brimful.train.step.oom import (
    Missing,
    attempt,
    does_not_fit,
    free_what_is_cached,
    layers_sentence,
    no_room_after_backward,
    smaller_sentence,
)
from brimful.train.step.optimizer_update import Update
from brimful.train.step.parallel import (  # fmt: skip
    OVERLAP_AFTER,
    Overlapped,
    incomplete_in_overlap,
    no_overlap_sentence,
    without_gradient,
)
from brimful.train.step.rng_state import Randomness
from brimful.train.task import Sum, Task

__all__ = ["Asks", "Counts", "Done", "Stepper"]

T = TypeVar("T")
_NOTHING = contextlib.nullcontext()  # may be entered again and again
Pieces = list[tuple[int, int, int]]  # micro-batch, its first sample, one past its last


@dataclass
class Counts:
    """What happened so far, for statistics and checkpoints."""

    updates: int = 0  # tried; those that were skipped count
    samples: int = 0
    skipped_nan: int = 0
    recoveries: int = 0  # replays after out-of-memory, over all ranks
    updates_since_recovery: int = 0
    incomplete: int = 0  # under `overlap`: updates in which a rank had a parameter without a gradient


class Done(NamedTuple):
    """One update, as all ranks know it."""

    sums: torch.Tensor  # on the device, float: the loss's sum and its count, over all ranks; the next update's take its place
    samples: int
    lr: float
    signal: int  # that asks for the end; 0: none
    save: bool  # rank 0's clock asks for a checkpoint


class Asks(NamedTuple):
    """What this rank brings to the meeting of a step beside its part of it."""

    signal: int = 0
    save: bool = False


class Stepper:
    """Makes updates. `model` is what runs forward, `module` the bare one that holds parameters and buffers."""

    def __init__(
        self,
        task: Task,
        model: nn.Module,
        module: nn.Module,
        update: Update,
        precision: Precision,
        ranks: Ranks,
        split: Split,
        *,
        device: torch.device,
        clip_norm: float | None,
        on_nan: str,
        say: Callable[[str], None],
        replays_graphs: bool = False,
        overlapped: Overlapped | None = None,
        sharded: bool = False,
        restart: Restart | None = None,
    ):
        self.split = split
        self.counts = Counts()
        self.finite = Finite(on_nan, device)
        self._task, self._model, self._module = task, model, module
        self._update, self._precision, self._ranks = update, precision, ranks
        self._device, self._clip_norm, self._say = device, clip_norm, say
        self._overlapped, self._sharded, self._restart = overlapped, sharded, restart
        self._spare: object = None  # a batch of one sample, for a rank of a sharded model that has none in a step
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self._gradients = GradientSum(self._parameters if not sharded else [], ranks)
        self._randomness = Randomness(device)
        self._buffers = Buffers(module, always=replays_graphs)
        self._sums = LossSums(device)
        self._by_count = False  # the loss is a Sum: its count, not the number of samples, is what it is divided by
        self._overlaps, self._communicates = False, sharded
        self._running = (0, 0)  # samples of the micro-batch that runs, and of the piece of it
        self._warned_of_layers = False

    def train_on(self, data: StepData, lr_at: Callable[[int], float], asks: Callable[[], Asks]) -> Iterator[Done]:
        """The updates of one step: a single one, except where a loss that does not decompose had to be cut.

        lr_at(samples seen) gives the learning rate of the update that ends there. Raises DoesNotFit on all ranks when one
        sample does not fit on one of them.
        """
        whole = [(part, 0, samples) for part, samples in enumerate(data.parts)]
        todo = deque([whole] if self._task.decomposes else self._cut_apart(whole, data))
        while todo:
            pieces = todo.popleft()
            self._overlaps = self._may_overlap(data)
            state = self._randomness.take_again()
            self._buffers.take()

            def put_back(state=state) -> None:
                self._randomness.put_back(state)
                self._buffers.put_back()

            vote = self._own_part(data, pieces, put_back, asks())
            votes = self._ranks.meet(vote)
            self._ranks.raise_for(votes)
            self._adopt(votes)
            if any(v.status == OUT_OF_MEMORY for v in votes):
                put_back()
                self.drop_gradients()
                todo.extendleft(reversed(_halves(pieces)))
                continue
            if not any(v.samples for v in votes):
                continue  # a part of micro-batches that all have fewer samples than there are parts
            yield self._finish(data, votes, lr_at)

    # --- this rank's part -------------------------------------------------------------------------------------------

    def _own_part(self, data: StepData, pieces: Pieces, put_back: Callable[[], None], asks: Asks) -> Vote:
        """Gradients and sums of this rank's part, and what it has to say: whatever happens, the others hear of it."""
        status, recoveries = FINE, 0
        try:
            while (missing := attempt(lambda: self._run(data, pieces))) is not None:
                recoveries += 1
                if self._communicates:
                    self._start_anew(missing)
                self.drop_gradients()
                free_what_is_cached(self._device)
                put_back()
                if not self._go_smaller(missing):
                    status, self.last_message = GIVES_UP, missing.message
                    break
                if not self._task.decomposes:
                    status = OUT_OF_MEMORY
                    break
        except BaseException:
            self._ranks.announce(BROKEN)
            raise
        if status == GIVES_UP:
            self._ranks.announce(GIVES_UP)
            raise does_not_fit(self.last_message)
        samples = sum(stop - start for _, start, stop in pieces)
        present = self._gradients.present()
        return Vote(status, self.split.limit, asks.signal, samples, present, asks.save, recoveries, self._by_count)

    def _run(self, data: StepData, pieces: Pieces) -> None:
        """Forward and backward of `pieces`, each cut as small as it has to be."""
        self.drop_gradients()
        self._sums.clear()
        cut = self._cut(data, pieces)
        for number, (part, start, stop) in enumerate(cut):
            self._running = (data.parts[part], stop - start)
            batch = data.load(part, start, stop)
            if self._task.prepare is not None:
                batch = self._task.prepare(batch)
            with self._reduction(last=number == len(cut) - 1):
                loss, objective = self._objective(batch, stop - start, data.samples)
                self._precision.backward(objective)
            if isinstance(loss, Sum):
                self._sums.add_sum(loss)
            else:
                self._sums.add_mean(loss, stop - start)
            del batch, loss, objective  # the next one needs the room
        if self._sharded:
            self._go_along(data, cut)
        if self._overlaps and self._gradients.present() != self._gradients.complete:
            raise incomplete_in_overlap(without_gradient(self._module))

    def _cut(self, data: StepData, pieces: Pieces) -> Pieces:
        """`pieces` as small as they have to be. One whose loss does not decompose is not cut any further."""
        if not self._task.decomposes:
            return [piece for piece in pieces if piece[2] > piece[1]]
        return [(part, a + start, a + stop) for part, a, b in pieces for start, stop in self.split.pieces(b - a)]

    def _reduction(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Around a forward and backward: whether gradients stay on this rank."""
        if self._overlapped is None or (last and self._overlaps):
            self._communicates = self._overlapped is not None or self._sharded
            return _NOTHING
        self._communicates = False
        return self._overlapped.locally()

    def _go_along(self, data: StepData, cut: Pieces) -> None:
        """Forwards that count for nothing, while other ranks of a sharded model have more pieces than this one."""
        most = max(self._ranks.gather(len(cut)))
        if cut:
            part, start, _ = cut[0]
            self._spare = data.load(part, start, start + 1)
        if len(cut) < most and self._spare is None:
            raise UsageError(
                f"A step of {data.samples:,} samples over {self._ranks.size} ranks leaves this one without any",
                "Under FSDP2 each rank takes part in each forward.",
                "Use fewer ranks, or parallel ddp.",
            )
        for _ in range(most - len(cut)):
            batch = self._task.prepare(self._spare) if self._task.prepare is not None else self._spare
            self._precision.backward(self._objective(batch, 1, data.samples)[1] * 0.0)

    def _objective(self, batch: object, samples: int, reference: int) -> tuple[torch.Tensor | Sum, torch.Tensor]:
        """The loss, and what goes backward, so that the sum over all micro-batches of all ranks is the mean."""
        with self._precision.autocast():
            loss = self._task.loss(self._model, batch)
        if isinstance(loss, Sum):
            self._by_count = True
            return loss, torch.as_tensor(loss.total) / reference
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise UsageError(
                f"task.loss gave {shape}", "A loss is a scalar tensor (the mean over samples) or a Sum.", "Return one."
            )
        return loss, loss if samples == reference else loss * (samples / reference)

    def drop_gradients(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def _may_overlap(self, data: StepData) -> bool:
        """By what all ranks know alike. Each needs a micro-batch of its own."""
        return (
            self._overlapped is not None
            and self.counts.updates_since_recovery >= OVERLAP_AFTER
            and data.samples >= self._ranks.size
            and self._task.decomposes
            and not self.counts.incomplete
        )

    # --- out of memory ----------------------------------------------------------------------------------------------

    def _go_smaller(self, missing: Missing) -> bool:
        of, failed = self._running
        smaller = self.split.smaller(of, failed)
        if smaller is None:
            return False
        self.split = smaller
        rank = self._ranks.rank if self._ranks.size > 1 else None
        task = None if self._task.decomposes else self._task.name
        self._say(smaller_sentence(missing, rank, self.split.piece(of), failed, task))
        self._warn_of_layers()
        return True

    def _start_anew(self, missing: Missing) -> NoReturn:
        """Other ranks wait in a collective for what this one could not do: the step cannot be replayed."""
        assert self._restart is not None
        smaller = self.split.smaller(*self._running)
        if smaller is None:
            raise does_not_fit(missing.message)
        self._restart.smaller(smaller.limit, missing.pattern)

    def _warn_of_layers(self) -> None:
        layers = layers_that_depend_on_the_cut(self._module)
        if layers and not self._warned_of_layers:
            self._say(layers_sentence(layers))
        self._warned_of_layers = True

    def _cut_apart(self, whole: Pieces, data: StepData) -> Iterator[Pieces]:
        """For a loss that does not decompose: the updates that one step becomes. The same number on all ranks."""
        largest = max([-(-data.samples // self._ranks.size), *data.parts])
        count = self.split.updates(largest)
        for number in range(count):
            yield [(part, n * number // count, n * (number + 1) // count) for part, _, n in whole]

    # --- together ---------------------------------------------------------------------------------------------------

    def _adopt(self, votes: list[Vote]) -> None:
        """What all ranks know alike from here on."""
        self.split = self.split.agreed(min(vote.piece for vote in votes))
        self._by_count = any(vote.by_count for vote in votes)
        if self._overlapped is not None:
            self._notice_incomplete(votes)
        recoveries = sum(vote.recoveries for vote in votes)
        self.counts.recoveries += recoveries
        self.counts.updates_since_recovery = 0 if recoveries else self.counts.updates_since_recovery + 1

    def _notice_incomplete(self, votes: list[Vote]) -> None:
        """Overlapped reduction waits for the gradient of each parameter: where one had none it is not begun."""
        incomplete = [rank for rank, vote in enumerate(votes) if vote.samples and vote.gradients != self._gradients.complete]
        if incomplete and not self.counts.incomplete and self._ranks.rank == incomplete[0]:
            self._say(no_overlap_sentence(without_gradient(self._module)))
        self.counts.incomplete += bool(incomplete)

    def _finish(self, data: StepData, votes: list[Vote], lr_at: Callable[[int], float]) -> Done:
        samples = sum(vote.samples for vote in votes)
        sums = self._twice(self._sums.complete)
        if self._sharded or self._overlaps:
            if self._ranks.size > 1:
                torch.distributed.all_reduce(sums)
        else:
            if len({vote.gradients for vote in votes}) > 1:
                self._fill_missing()
            self._gradients.reduce(sums)
        if self._by_count or self._sharded or samples != data.samples:
            self._twice(lambda: self._divide(data.samples, samples))
        self.counts.updates += 1
        self.counts.samples += samples
        lr = lr_at(self.counts.samples)
        by_scaler = self._precision.scales  # a scaler skips steps of infinite gradients
        if by_scaler:
            self._twice(lambda: self._precision.unscale(self._update))
        limit = self._clip_norm
        norm = self._twice(lambda: clip(self._parameters, limit)) if limit is not None else None
        facts = Facts(self.counts.updates, self.counts.samples, lr, data.indices.indices)
        if self._twice(lambda: self.finite.allows(self._loss(), None if by_scaler else norm, facts)):
            set_lr(self._update, lr)
            self._precision.step(self._update)
        else:
            self.counts.skipped_nan += 1
            self._precision.forget(self._update)
            self._buffers.put_back()  # running statistics hold the NaN as well
            self._sums.clear()  # what was not learned from is not in the epoch's loss either
            self._say(f"Update {facts.step:,} is left out: its loss is NaN or infinite ({self.counts.skipped_nan:,} so far).")
        signal = max(vote.signal for vote in votes)
        return Done(sums, samples, lr, signal, bool(votes[0].save))

    def _loss(self) -> torch.Tensor | float:
        """NaN as well where a Sum counted nothing at all: its mean, and the gradients divided by that count, are NaN."""
        return self._sums.total / self._sums.count if self._by_count else self._sums.total

    def _twice(self, work: Callable[[], T]) -> T:
        """`work` that allocates a few bytes first and only then changes gradients, in place: it can be done again.

        The ranks have their sums by now, and another one may be in its update: the step cannot be replayed from here.
        """
        done: list[T] = []
        missing = attempt(lambda: done.append(work()))
        if missing is not None:
            self._say(f"Out of memory between backward and update ({missing.pattern}): tried again, nothing is lost.")
            free_what_is_cached(self._device)
            missing = attempt(lambda: done.append(work()))
        if missing is not None:
            self._ranks.announce(GIVES_UP)
            raise no_room_after_backward(missing.message)
        return done[0]

    def _divide(self, reference: int, samples: int) -> None:
        """Gradients were divided by `reference`; what they ought to be divided by is known only now."""
        averaged = self._ranks.size if self._sharded else 1  # FSDP2 divides by the number of ranks
        if self._by_count:
            factor = (averaged * reference / self._sums.count).to(torch.float32)
        else:
            factor = averaged * reference / samples
        torch._foreach_mul_([local(p.grad) for p in self._parameters if p.grad is not None], factor)

    def _fill_missing(self) -> None:
        missing = self._gradients.missing()

        def fill() -> None:
            for parameter in missing:
                parameter.grad = torch.zeros_like(parameter)

        failed = attempt(fill)
        if failed is not None:
            self._ranks.announce(GIVES_UP)
            raise does_not_fit(failed.message)
        self._ranks.confirm()


def _halves(pieces: Pieces) -> list[Pieces]:
    first = [(part, start, start + -(-(stop - start) // 2)) for part, start, stop in pieces]
    second = [(part, start + -(-(stop - start) // 2), stop) for part, start, stop in pieces]
    return [first, second]
