"""The worst micro-batches that a course can cut, whatever the epoch: what is tried before the first step.

The order of an epoch cannot begin with them: how many samples a micro-batch has follows from its size and from `max_tokens`,
and the order must not, as a training may go on with others. A memory limit of 1,000 tokens cuts one sample of 600, and later
two of 500, which need more.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy

from brimful.train.data.epoch_sampler import Position, StepIndices
from brimful.train.task import Batch

__all__ = ["MadeStep", "worst_micro_batches"]

# What a pass takes grows with the samples (a head on each), with samples × longest (activations), and with samples ×
# longest² (attention that keeps its weights): for each, the micro-batch that has most of it.
_POWERS = (0, 1, 2)


def worst_micro_batches(
    sizes: numpy.ndarray, most_samples: int, max_tokens: int | None, at_once: Callable[[int], int]
) -> tuple[numpy.ndarray, ...]:
    """Indices of a few micro-batches, the largest sample of each first.

    at_once: the samples that go through the model at once, of a micro-batch of so many. No micro-batch of at most
    `most_samples` samples and ``samples * longest <= max_tokens`` is larger than all of these in its longest sample, nor in
    samples at once, samples at once × longest, or samples at once × longest². `sizes` are 1 or more.
    """
    by_size = numpy.argsort(sizes, kind="stable")
    longest = numpy.asarray(sizes)[by_size].astype(numpy.int64)
    most = numpy.minimum(numpy.arange(1, len(longest) + 1), most_samples)  # if longest[i] is the longest of them
    if max_tokens is not None:
        most = numpy.minimum(most, max_tokens // longest)
    samples, together = _most_at_once(int(most.max()), at_once)
    last = len(longest) - 1
    ends = [last]
    for power in _POWERS:
        score = together[most] * longest.astype(numpy.float64) ** power
        ends.append(last - int(score[::-1].argmax()))  # of equal ones the one of the larger samples
    return tuple(by_size[end - samples[most[end]] + 1 : end + 1][::-1].copy() for end in sorted(set(ends), reverse=True))


def _most_at_once(most: int, at_once: Callable[[int], int]) -> tuple[numpy.ndarray, numpy.ndarray]:
    """For each number of samples up to `most`: how many of them, in a micro-batch, put the most through the model at once, and
    that most. Fewer may do so: of 4 with room for 3 there are two pieces of 2, and of 3 there is one."""
    together = numpy.array([0, *map(at_once, range(1, most + 1))])
    running = numpy.maximum.accumulate(together)
    samples = numpy.maximum.accumulate(numpy.where(together == running, numpy.arange(most + 1), 0))
    return samples, running


class MadeStep:
    """The data of a step that is made on request and comes from no loader. A `StepData`."""

    def __init__(
        self,
        micro_batches: tuple[numpy.ndarray, ...],
        make: Callable[[numpy.ndarray], object],
        load: Callable[[object, tuple[int, int, int]], Batch],
    ) -> None:
        together = numpy.concatenate(micro_batches)
        self.indices = StepIndices(Position(), Position(), len(together), micro_batches, together)
        self.samples = len(together)
        self.parts = tuple(len(part) for part in micro_batches)
        self._make, self._load = make, load
        self._made: tuple[int, object] | None = None  # the latest: one at a time, as they are large

    def load(self, part: int, start: int, stop: int) -> Batch:
        """Cut from the whole micro-batch, padded as that is."""
        if self._made is None or self._made[0] != part:
            self._made = None
            self._made = (part, self._make(self.indices.micro_batches[part]))
        return self._load(self._made[1], (start, stop, self.parts[part]))
