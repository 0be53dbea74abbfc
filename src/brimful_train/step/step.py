"""One update of the weights, which an out-of-memory error makes slower and not different.

1. What a forward pass may change is copied: random states and buffers.
2. This rank's micro-batches run, gradients summed locally. Where memory is missing, all of that is
   dropped and put back, the micro-batch is halved, and the rank's whole part runs again from zero
   gradients.
3. The ranks meet on the host. Only when each has its part, gradients are reduced: no rank waits for
   one that failed.
4. Clipping, the check of the loss, the learning rate, the update. What is missing here is a few
   bytes: tried again at once.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import nn

from brimful_train.config import Config
from brimful_train.data.pipeline import StepData
from brimful_train.distributed.parallel import (
    OVERLAP_AFTER,
    no_overlap_sentence,
)
from brimful_train.distributed.ranks import BROKEN, FINE, GIVES_UP, OUT_OF_MEMORY, Ranks, Vote
from brimful_train.optim.optimizers import set_lr
from brimful_train.rng_state import Randomness, RandomState
from brimful_train.step.buffers import Buffers, layers_that_depend_on_the_cut
from brimful_train.step.gradients import clip
from brimful_train.step.non_finite import Finite, UpdateFacts
from brimful_train.step.oom import (
    Missing,
    Pieces,
    attempt,
    free_what_is_cached,
    no_room_after_backward,
)
from brimful_train.step.optimizer_update import Update
from brimful_train.step.passes import Passes

T = TypeVar("T")


@dataclass
class Counts:
    """What happened so far, for statistics and checkpoints."""

    updates: int = 0  # tried; those that were skipped count
    samples: int = 0
    skipped_nan: int = 0
    recoveries: int = 0  # replays after out-of-memory, over all ranks
    updates_since_recovery: int = 0
    # under `overlap`: updates in which a rank had a parameter without a gradient
    incomplete: int = 0


class Done(NamedTuple):
    """One update, as all ranks know it."""

    # on the device, float: the loss's sum and its count, over all ranks; the next update's take its
    # place
    sums: torch.Tensor
    samples: int
    lr: float
    signal: int  # that asks for the end; 0: none
    save: bool  # rank 0's clock asks for a checkpoint


class Stepper:
    """Makes updates of the network of `passes` by `update`."""

    def __init__(
        self,
        passes: Passes,
        update: Update,
        ranks: Ranks,
        config: Config,
        say: Callable[[str], None],
    ):
        self.passes, self.task, self.at_once = passes, passes.task, passes.at_once
        self.counts = Counts()
        self.finite = Finite(config.on_nan, passes.precision.device)
        self._network, self._precision = passes.network, passes.precision
        self._update, self._ranks = update, ranks
        self._clip_norm, self._say = config.clip_norm, say
        self._randomness = Randomness(passes.precision.device)
        self._buffers = Buffers(passes.network.module)
        self._warned_of_layers = False

    def train_on(
        self, data: StepData, lr_at: Callable[[int], float], asks: Callable[[], Vote]
    ) -> Iterator[Done]:
        """The updates of one step: a single one, except where a loss that does not decompose had to
        be cut.

        lr_at(samples seen) gives the learning rate of the update that ends there; asks(), a vote
        with what this rank asks for beside its part: a signal, a checkpoint. Raises DoesNotFit on
        all ranks when one sample does not fit on one of them.
        """
        whole = [(part, 0, samples) for part, samples in enumerate(data.parts)]
        todo = deque([whole] if self.task.decomposes else self._cut_apart(whole, data))
        while todo:
            pieces = todo.popleft()
            self.passes.overlaps = self._may_overlap(data)
            state = self._randomness.take()
            self._buffers.take()
            votes = self._ranks.meet(self._part(data, pieces, state, asks()))
            self._adopt(votes)
            if any(v.status == OUT_OF_MEMORY for v in votes):
                self._put_back(state)
                self.passes.drop_gradients()
                todo.extendleft(reversed(_halves(pieces)))
            elif any(v.samples for v in votes):  # else all micro-batches have too few for this part
                yield self._finish(data, votes, lr_at)

    def _put_back(self, state: RandomState) -> None:
        self._randomness.put_back(state)
        self._buffers.put_back()

    # --- this rank's part ---

    def _part(self, data: StepData, pieces: Pieces, state: RandomState, vote: Vote) -> Vote:
        """Gradients and sums of this rank's part, and its vote: whatever happens, the other ranks
        learn of it. `vote`: what it asks for beside that.
        """
        status, recoveries = FINE, 0
        try:
            run = partial(self.passes.run, data, pieces, self.counts.updates)
            while isinstance(missing := attempt(run), Missing):
                recoveries += 1
                self.passes.drop_gradients()
                free_what_is_cached(self._precision.device)
                then = "; the step is replayed, its batch stays as it is."
                self.shrink(missing, "", then, data)
                self._put_back(state)
                if not self.task.decomposes:
                    status = OUT_OF_MEMORY
                    break
        except BaseException:
            self._ranks.announce(BROKEN)
            raise
        return vote._replace(
            status=status,
            piece=self.at_once.split.limit,
            samples=sum(stop - start for _, start, stop in pieces),
            gradients=self.passes.gradients.present(),
            recoveries=recoveries,
            by_count=self.passes.by_count,
        )

    def shrink(self, missing: Missing, where: str, then: str, data: StepData) -> None:
        """Makes the pieces of `data` smaller, with a warning where that changes the result. Raises
        as `SamplesAtOnce.shrink` does.
        """
        if not self.task.decomposes:
            then = (
                f". The loss of {self.task.name} is no mean over samples and cannot be split "
                "with the same result: from now on an update has FEWER samples. None is lost or "
                "repeated."
            )
        self.at_once.shrink(
            missing, where, then, lambda pieces: self.passes.forward_backward(data, pieces)
        )
        self.passes.drop_gradients()
        layers = layers_that_depend_on_the_cut(self._network.module)
        if layers and not self._warned_of_layers:
            self._warned_of_layers = True
            self._say(
                "The result is not that of the whole micro-batch: it depends on which samples go "
                f"through the model together in layers of these kinds: {layers}."
            )

    def _may_overlap(self, data: StepData) -> bool:
        """From what all ranks know alike. Each needs a micro-batch of its own."""
        return (
            self._network.overlapped is not None
            and self.counts.updates_since_recovery >= OVERLAP_AFTER
            and data.samples >= self._ranks.size
            and self.task.decomposes
            and not self.counts.incomplete
        )

    def _cut_apart(self, whole: Pieces, data: StepData) -> Iterator[Pieces]:
        """For a loss that does not decompose: the updates that one step becomes. The same number on
        all ranks.
        """
        count = self.at_once.split.updates(max([-(-data.samples // self._ranks.size), *data.parts]))
        for number in range(count):
            yield [(part, n * number // count, n * (number + 1) // count) for part, _, n in whole]

    # --- together ---

    def _adopt(self, votes: list[Vote]) -> None:
        """What all ranks know alike from here on."""
        self.at_once.adopt(votes)
        self.passes.by_count = any(vote.by_count for vote in votes)
        if self._network.overlapped is not None:
            self._notice_incomplete(votes)
        recoveries = sum(vote.recoveries for vote in votes)
        self.counts.recoveries += recoveries
        since = self.counts.updates_since_recovery
        self.counts.updates_since_recovery = 0 if recoveries else since + 1

    def _notice_incomplete(self, votes: list[Vote]) -> None:
        """Overlapped reduction waits for the gradient of each parameter: where one had none it is
        not begun.
        """
        incomplete = [
            rank
            for rank, vote in enumerate(votes)
            if vote.samples and vote.gradients != self.passes.gradients.complete
        ]
        if incomplete and not self.counts.incomplete and self._ranks.rank == incomplete[0]:
            self._say(no_overlap_sentence(self._network.without_gradient()))
        self.counts.incomplete += bool(incomplete)

    def _finish(self, data: StepData, votes: list[Vote], lr_at: Callable[[int], float]) -> Done:
        samples = sum(vote.samples for vote in votes)
        sums, sharded, noise = self.passes.sums.both, self._network.sharded, self.passes.noise
        if sharded or self.passes.overlaps:  # which only several ranks are
            for tensor in (sums, *noise.sums):
                torch.distributed.all_reduce(tensor)
        else:
            if len({vote.gradients for vote in votes}) > 1:
                missing = self.passes.gradients.missing()
                self._twice(lambda: _fill_with_zeros(missing))
                self._ranks.confirm()
            self.passes.gradients.reduce(sums, *noise.sums)
        if self.passes.by_count or sharded or samples != data.samples:
            self._twice(lambda: self.passes.divide(data.samples, samples, self._ranks.size))
        if noise.sums:
            self._twice(lambda: noise.add_update(samples))
        self.counts.updates += 1
        self.counts.samples += samples
        lr = lr_at(self.counts.samples)
        by_scaler = self._precision.effective == "fp16"  # it skips steps of infinite gradients
        if by_scaler:
            self._twice(lambda: self._precision.unscale(self._update))
        limit = self._clip_norm
        norm = None
        if limit is not None:
            norm = self._twice(lambda: clip(self.passes.parameters, limit))
        facts = UpdateFacts(self.counts.updates, self.counts.samples, lr, data.indices.indices)
        if self._twice(
            lambda: self.finite.allows(self.passes.loss(), None if by_scaler else norm, facts)
        ):
            set_lr(self._update, lr)
            self._precision.step(self._update)
        else:
            self.counts.skipped_nan += 1
            self._precision.forget(self._update)
            self._buffers.put_back()  # running statistics hold the NaN as well
            self.passes.sums.clear()  # what was left out is not in the epoch's loss either
            self._say(
                f"Update {facts.step:,} is left out: its loss is NaN or infinite "
                f"({self.counts.skipped_nan:,} so far)."
            )
        return Done(sums, samples, lr, max(vote.signal for vote in votes), bool(votes[0].save))

    def _twice(self, work: Callable[[], T]) -> T:
        """`work` that allocates a few bytes first and only then changes gradients, in place: it can
        be done again.

        The ranks have their sums by now, and another one may be in its update: the step cannot be
        replayed from here.
        """
        done = attempt(work)
        if isinstance(done, Missing):
            self._say(
                f"Out of memory between backward and update ({done.pattern}): tried again, "
                "nothing is lost."
            )
            free_what_is_cached(self._precision.device)
            done = attempt(work)
        if isinstance(done, Missing):
            self._ranks.announce(GIVES_UP)
            raise no_room_after_backward(done.message)
        return done


def _fill_with_zeros(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)


def _halves(pieces: Pieces) -> list[Pieces]:
    cuts = [(part, start, -(-(start + stop) // 2), stop) for part, start, stop in pieces]
    return [[(part, a, b) for part, a, b, _ in cuts], [(part, b, c) for part, _, b, c in cuts]]
