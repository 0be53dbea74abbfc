"""The worst micro-batches are tried before the first step, so that memory that is missing is missing at the start.

Forward and backward, as in a step; then gradients are dropped, random states and buffers put back, and nothing was trained.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from brimful.train.checking import Effective
from brimful.train.distributed.ranks import GIVES_UP, Ranks, Vote
from brimful.train.oom_limits import Restart
from brimful.train.parts import Parts
from brimful.train.reporting.progress_log import Log
from brimful.train.step.batching import Split
from brimful.train.step.buffers import Buffers, layers_that_depend_on_the_cut
from brimful.train.step.oom import (
    Missing,
    attempt,
    does_not_fit,
    fewer_samples_sentence,
    free_what_is_cached,
    layers_sentence,
)
from brimful.train.step.rng_state import Randomness
from brimful.train.step.step import Stepper
from brimful.train.task import Sum, Task

__all__ = ["dry_run"]


def dry_run(task: Task, parts: Parts, stepper: Stepper, ranks: Ranks, log: Log, restart: Restart | None) -> None:
    """Makes `stepper`'s micro-batches smaller where one as bad as any that can come does not fit. Of samples without sizes the
    first step shows what any other does, and nothing is tried.

    `restart`: of a sharded model, whose forward is one of all ranks together. Raises DoesNotFit on all ranks when one sample
    does not fit on one of them.
    """
    if parts.pipeline.sampler.sizes is None:
        return
    asked = stepper.split
    split, recoveries = _DryRun(task, parts, asked, log.say, ranks, restart).run()
    votes = ranks.meet(Vote(piece=split.limit, recoveries=recoveries))
    ranks.raise_for(votes)
    stepper.split = asked.agreed(min(vote.piece for vote in votes))
    stepper.counts.recoveries += sum(vote.recoveries for vote in votes)
    if stepper.split.limit < asked.limit:
        why = "the worst micro-batches that the sizes allow, tried before the training, ran out of memory with more"
        log.settings([Effective("micro_batch", asked.limit, stepper.split.limit, why)])


class _DryRun:
    def __init__(
        self, task: Task, parts: Parts, split: Split, say: Callable[[str], None], ranks: Ranks, restart: Restart | None
    ):
        self._task, self._parts, self._split, self._say, self._ranks = task, parts, split, say, ranks
        self._restart = restart
        self._device = parts.precision.device
        self._running = (0, 0)  # samples of the micro-batch that runs, and of the piece of it

    def run(self) -> tuple[Split, int]:
        """The pieces that fit, and how often larger ones did not."""
        randomness, buffers, recoveries = Randomness(self._device), Buffers(self._parts.module, always=True), 0
        state = randomness.take()
        buffers.take()
        try:
            while (missing := attempt(self._try)) is not None:
                recoveries += 1
                self._drop_gradients()
                free_what_is_cached(self._device)
                self._go_smaller(missing)
        finally:
            self._drop_gradients()
            buffers.put_back()
            randomness.put_back(state)
        if recoveries and (layers := layers_that_depend_on_the_cut(self._parts.module)):
            self._say(layers_sentence(layers))
        return self._split, recoveries

    def _try(self) -> None:
        """What is worst depends on how micro-batches are cut. The first one comes again at the end, when there are gradients
        already, as there are in a step of several micro-batches."""
        decomposes = self._task.decomposes
        step = self._parts.pipeline.worst_step(lambda samples: self._split.at_once(samples, decomposes))
        assert step is not None
        for part in (*range(len(step.parts)), 0):
            samples = step.parts[part]
            for start, stop in self._pieces(samples):
                self._running = (samples, stop - start)
                batch = step.load(part, start, stop)
                if self._task.prepare is not None:
                    batch = self._task.prepare(batch)
                with self._locally():
                    self._parts.precision.backward(self._objective(batch))
                del batch  # the next one needs the room

    def _pieces(self, samples: int) -> Iterator[tuple[int, int]]:
        """As the stepper cuts them; without empty ones."""
        if self._task.decomposes:
            return self._split.pieces(samples)
        count = self._split.updates(samples)
        cut = ((samples * number // count, samples * (number + 1) // count) for number in range(count))
        return ((start, stop) for start, stop in cut if stop > start)

    def _locally(self) -> contextlib.AbstractContextManager[None]:
        overlapped = self._parts.overlapped
        return overlapped.locally() if overlapped is not None else contextlib.nullcontext()

    def _objective(self, batch: object) -> torch.Tensor:
        with self._parts.precision.autocast():
            loss = self._task.loss(self._parts.model, batch)
        return torch.as_tensor(loss.total if isinstance(loss, Sum) else loss)

    def _drop_gradients(self) -> None:
        for parameter in self._parts.module.parameters():
            parameter.grad = None

    def _go_smaller(self, missing: Missing) -> None:
        of, failed = self._running
        smaller = self._split.smaller(of, failed)
        if smaller is None:
            self._ranks.announce(GIVES_UP)
            raise does_not_fit(missing.message)
        if self._restart is not None:
            self._restart.smaller(smaller.limit, missing.pattern)
        self._split = smaller
        where = f" on rank {self._ranks.rank}" if self._ranks.size > 1 else ""
        self._say(
            f"Out of memory{where} ({missing.pattern}) in the worst micro-batch that can come, tried before the training: "
            f"{smaller.piece(of):,} in place of {failed:,} samples at once."
            + ("" if self._task.decomposes else f" {fewer_samples_sentence(self._task.name)}")
        )
