"""Forward and backward passes of this rank: gradients and the loss's sums add up over the pieces of
its part.
"""

import contextlib

import torch

from brimful.errors import UsageError
from brimful_train.data.pipeline import StepData
from brimful_train.distributed.parallel import Network, incomplete_in_overlap
from brimful_train.distributed.ranks import Ranks
from brimful_train.model.precision import Precision
from brimful_train.step.gradient_noise import GradientNoise
from brimful_train.step.gradients import GradientSum, local
from brimful_train.step.non_finite import LossSums
from brimful_train.step.oom import Pieces, SamplesAtOnce
from brimful_train.task import Sum, Task


class Passes:
    """`at_once` says how many samples go through the model together."""

    def __init__(
        self,
        task: Task,
        network: Network,
        precision: Precision,
        ranks: Ranks,
        at_once: SamplesAtOnce,
        noise: GradientNoise,
    ):
        self.task, self.network, self.precision = task, network, precision
        self.at_once, self.noise = at_once, noise
        self.at_once.communicates = network.sharded
        self.parameters = network.parameters()
        self.gradients = GradientSum([] if network.sharded else self.parameters, ranks)
        self.sums = LossSums(precision.device)
        # the loss is a Sum: its count, not the number of samples, is what it is divided by
        self.by_count = False
        self.overlaps = False

    def run(self, data: StepData, pieces: Pieces, update: int) -> None:
        """Forward and backward of `pieces`, each cut as small as it has to be; one whose loss does
        not decompose is not. `update`: its number.
        """
        self.drop_gradients()
        self.sums.clear()
        cut = [piece for piece in pieces if piece[2] > piece[1]]
        if self.task.decomposes:
            cut = [
                (part, begin + start, begin + stop)
                for part, begin, end in pieces
                for start, stop in self.at_once.split.pieces(end - begin)
            ]
        with self.noise.watching(update, cut) as cut:
            self.forward_backward(data, cut)
        if self.network.sharded:
            for batch in self.at_once.spares(data, cut):
                self.precision.backward(self._objective(batch, 1, data.samples)[1] * 0.0)
        if self.overlaps and self.gradients.present() != self.gradients.complete:
            raise incomplete_in_overlap(self.network.without_gradient())

    def forward_backward(self, data: StepData, pieces: Pieces) -> None:
        """Adds the gradients of `pieces` to those of the parameters, and their losses to the sums
        of the update.
        """
        for number, (part, start, stop) in enumerate(pieces, 1):
            batch = self.at_once.load(data, part, start, stop)
            with self._reduction(last=number == len(pieces)):
                loss, objective = self._objective(batch, stop - start, data.samples)
                self.precision.backward(objective)
            weight = self.sums.add(loss, stop - start)
            self.noise.add_pass(stop - start, weight, data.samples)
            del batch, loss, objective  # the next one needs the room

    def _reduction(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Around a forward and backward: whether gradients stay on this rank."""
        overlapped = self.network.overlapped
        self.at_once.communicates = overlapped is None or (last and self.overlaps)
        if overlapped is None or self.at_once.communicates:
            return contextlib.nullcontext()
        return overlapped.no_sync()

    def _objective(
        self, batch: object, samples: int, reference: int
    ) -> tuple[torch.Tensor | Sum, torch.Tensor]:
        """The loss, and what goes backward, so that the sum over all micro-batches of all ranks is
        the mean.
        """
        with self.precision.autocast():
            loss = self.task.loss(self.network.model, batch)
        if isinstance(loss, Sum):
            self.by_count = True
            return loss, torch.as_tensor(loss.total) / reference
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            kind = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise UsageError(
                f"task.loss gave {kind}",
                "A loss is a scalar tensor (the mean over samples) or a Sum.",
                "Return one.",
            )
        return loss, loss if samples == reference else loss * (samples / reference)

    def drop_gradients(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def loss(self) -> torch.Tensor:
        """NaN as well where a Sum counted nothing at all: its mean, and the gradients divided by
        that count, are NaN.
        """
        return self.sums.total / self.sums.count if self.by_count else self.sums.total

    def divide(self, reference: int, samples: int, ranks: int) -> None:
        """Gradients were divided by `reference`; what they ought to be divided by is known only
        now.
        """
        # FSDP2 divides by the number of ranks
        averaged = ranks if self.network.sharded else 1
        if self.by_count:
            factor = (averaged * reference / self.sums.count).to(torch.float32)
        else:
            factor = averaged * reference / samples
        torch._foreach_mul_([local(p.grad) for p in self.parameters if p.grad is not None], factor)
