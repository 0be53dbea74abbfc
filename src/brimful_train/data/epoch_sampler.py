"""Which samples each step trains on: the order of each epoch, and the steps that cut it into
pieces.

The order depends on the seed and the epoch alone. Batch size, accumulation, ranks and the samples'
sizes only say how it is cut, so that a training that goes on with others still meets each sample
once in an epoch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy

from brimful.errors import UsageError


@dataclass(frozen=True)
class Position:
    """Where a training stands in its data. `dataclasses.asdict` makes JSON of it."""

    epoch: int = 0  # epochs completed
    samples: int = 0  # samples of the current epoch already trained on, over all ranks


class StepIndices(NamedTuple):
    """The samples of one step."""

    before: Position
    after: Position  # at the end of an epoch: Position(epoch + 1, 0)
    samples: int  # of this step, over all ranks
    micro_batches: tuple[
        numpy.ndarray, ...
    ]  # this rank's, int64 indices; none where fewer samples than ranks are left
    indices: numpy.ndarray  # all samples of the step over all ranks, in the epoch's order


class EpochSampler:
    """The steps of each epoch.

    A step takes the next ``micro_batch * accumulation * ranks`` samples of the order, in `ranks`
    pieces of (nearly) the same number of samples, each cut into micro-batches of `micro_batch`
    samples. With `max_tokens` a micro-batch ends earlier where one more sample would make ``samples
    * size of the largest`` exceed it.

    With `sizes` (one number of 1 or more for each sample: its tokens, its pixels), each piece is
    sorted by size before it is cut, largest first, so that samples of about the same size are
    padded together. Which samples a step has, and so what it
    learns, stays as it is: batches that were sorted over a whole epoch would give short samples the
    most updates. Without `shuffle` the whole epoch is sorted.

    Raises UsageError for a data set without samples and for a sample larger than `max_tokens`.
    """

    def __init__(
        self,
        length: int,
        *,
        seed: int,
        micro_batch: int,
        accumulation: int,
        ranks: int = 1,
        rank: int = 0,
        drop_last: bool = False,
        shuffle: bool = True,
        sizes: numpy.ndarray | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self.length, self.seed, self.drop_last, self.shuffle = length, seed, drop_last, shuffle
        self.micro_batch, self.accumulation = micro_batch, accumulation
        self.ranks, self.rank = ranks, rank
        self.sizes = None if sizes is None else numpy.asarray(sizes)
        self.max_tokens = max_tokens
        self.step_samples = micro_batch * accumulation * ranks
        self._ordered: tuple[int, numpy.ndarray] | None = None  # the latest epoch
        self._check()

    def order(self, epoch: int) -> numpy.ndarray:
        """The samples of an epoch in the order in which they are trained on: int64, each index
        once.

        Shuffled by sorting raw bits: numpy promises that those stay the same from version to
        version, and does not promise it of its own shuffling, by which a run could not go on after
        an update.
        """
        if self._ordered is None or self._ordered[0] != epoch:
            samples = numpy.arange(self.length)
            if self.shuffle:
                source = numpy.random.PCG64(numpy.random.SeedSequence([self.seed, epoch]))
                samples = numpy.argsort(source.random_raw(self.length), kind="stable")
            elif self.sizes is not None:
                samples = _largest_first(samples, self.sizes)
            self._ordered = (epoch, samples)
        return self._ordered[1]

    def steps(self, start: Position) -> Iterator[StepIndices]:
        """To the end of the epoch that `start` is in; of the next epoch, where no step of that one
        is left.
        """
        before = self.place(start)
        order = self.order(before.epoch)
        while True:
            taken = order[before.samples : before.samples + self.step_samples]
            after = self.place(Position(before.epoch, before.samples + len(taken)))
            yield StepIndices(before, after, len(taken), self._micro_batches(taken), taken)
            if after.epoch != before.epoch:
                return
            before = after

    def steps_per_epoch(self) -> int:
        """Of a whole epoch."""
        return (
            self.length // self.step_samples
            if self.drop_last
            else -(-self.length // self.step_samples)
        )

    def place(self, position: Position) -> Position:
        """`position`, or the start of the next epoch where its epoch has no further step."""
        if not 0 <= position.samples <= self.length or position.epoch < 0:
            raise UsageError(
                f"the training stands at sample {position.samples:,} of epoch {position.epoch}, "
                f"and the data set has {self.length:,} samples",
                "the data set is not the one that the training was begun with",
                "go on with the same data, or start anew",
            )
        left = self.length - position.samples
        enough = self.step_samples if self.drop_last else 1
        return position if left >= enough else Position(position.epoch + 1, 0)

    def _micro_batches(self, taken: numpy.ndarray) -> tuple[numpy.ndarray, ...]:
        """This rank's piece of a step, cut."""
        share, more = divmod(len(taken), self.ranks)
        begin = self.rank * share + min(self.rank, more)
        piece = taken[begin : begin + share + (self.rank < more)]
        if self.sizes is not None:
            piece = _largest_first(piece, self.sizes)
        return tuple(piece[start:stop] for start, stop in self._cuts(piece))

    def _cuts(self, piece: numpy.ndarray) -> Iterator[tuple[int, int]]:
        if self.sizes is None or self.max_tokens is None:
            for start in range(0, len(piece), self.micro_batch):
                yield start, min(start + self.micro_batch, len(piece))
            return
        start, longest = 0, 0
        for at, size in enumerate(self.sizes[piece].tolist()):
            longest = max(longest, size)
            if at - start == self.micro_batch or (at - start + 1) * longest > self.max_tokens:
                yield start, at
                start, longest = at, size
        if start < len(piece):
            yield start, len(piece)

    def _check(self) -> None:
        if self.length <= 0:
            raise UsageError(
                "the data set has 0 samples", "there is nothing to train on", "check how it is made"
            )
        if self.drop_last and self.length < self.step_samples:
            raise UsageError(
                f"a step of {self.step_samples:,} samples is more than the {self.length:,} "
                "samples of the data set",
                "with drop_last there would be no step at all",
                "make the batch smaller or leave drop_last off",
            )
        if self.sizes is not None:
            sizes = self.sizes
            if sizes.shape != (self.length,) or sizes.dtype.kind not in "iu" or sizes.min() < 1:
                raise UsageError(
                    f"sizes of shape {sizes.shape} and type {sizes.dtype} for {self.length:,} "
                    "samples",
                    "there must be one whole number of 1 or more for each sample",
                    "check how the data set makes its `sizes`",
                )
            worst = int(sizes.argmax())
            if self.max_tokens is not None and sizes[worst] > self.max_tokens:
                raise UsageError(
                    f"sample {worst:,} has size {sizes[worst]:,}, and max_tokens is "
                    f"{self.max_tokens:,}",
                    "a sample is not cut, so that it fits into no batch",
                    f"set max_tokens to {sizes[worst]:,} or more, or leave the sample out",
                )
        elif self.max_tokens is not None:
            raise UsageError(
                f"max_tokens = {self.max_tokens:,} without the samples' sizes",
                "no batch can be held to it",
                "give the data set a `sizes`: one number for each sample",
            )


def _largest_first(indices: numpy.ndarray, sizes: numpy.ndarray) -> numpy.ndarray:
    return indices[numpy.argsort(-sizes[indices].astype(numpy.int64), kind="stable")]


# What a pass takes grows with the samples (a head on each), with samples × longest (activations),
# and with samples × longest² (attention that keeps its weights): for each, the micro-batch that has
# most of it.
_POWERS = (0, 1, 2)


def worst_micro_batches(
    sizes: numpy.ndarray, most_samples: int, max_tokens: int | None, at_once: Callable[[int], int]
) -> tuple[numpy.ndarray, ...]:
    """Indices of a few micro-batches, the largest sample of each first.

    at_once: the samples that go through the model at once, of a micro-batch of so many. No
    micro-batch of at most `most_samples` samples and ``samples * longest <= max_tokens`` is larger
    than all of these in its longest sample, nor in samples at once, samples at once × longest, or
    samples at once × longest². `sizes` are 1 or more.
    """
    by_size = numpy.argsort(sizes, kind="stable")
    longest = numpy.asarray(sizes)[by_size].astype(numpy.int64)
    most = numpy.minimum(
        numpy.arange(1, len(longest) + 1), most_samples
    )  # if longest[i] is the longest of them
    if max_tokens is not None:
        most = numpy.minimum(most, max_tokens // longest)
    samples, together = _most_at_once(int(most.max()), at_once)
    last = len(longest) - 1
    scores = (together[most] * longest.astype(numpy.float64) ** power for power in _POWERS)
    # of equal ones the one of the larger samples
    ends = {last, *(last - int(score[::-1].argmax()) for score in scores)}
    return tuple(
        by_size[end - samples[most[end]] + 1 : end + 1][::-1].copy()
        for end in sorted(ends, reverse=True)
    )


def _most_at_once(most: int, at_once: Callable[[int], int]) -> tuple[numpy.ndarray, numpy.ndarray]:
    """For each number of samples up to `most`: how many of them, in a micro-batch, put the most
    through the model at once, and
    that most. Fewer may do so: of 4 with room for 3 there are two pieces of 2, and of 3 there is
    one."""
    together = numpy.array([0, *map(at_once, range(1, most + 1))])
    running = numpy.maximum.accumulate(together)
    samples = numpy.maximum.accumulate(numpy.where(together == running, numpy.arange(most + 1), 0))
    return samples, running
