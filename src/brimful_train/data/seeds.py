"""A random state for each sample, from the seed, the epoch and the sample's index.

So an augmentation draws the same whichever worker makes the sample, in whatever batch and on
whatever rank, and again after a resume; and making samples in the training's own process leaves the
training's random states as they were.
"""

import contextlib
import copy
import random
from typing import Any, Self

import numpy
import torch
from torch.utils.data import Dataset, get_worker_info

from brimful_train.rng_state import Randomness

_BITS = (1 << 64) - 1


def seed_of(seed: int, epoch: int, index: int) -> int:
    """64 bits that look independent for neighbouring arguments: SplitMix64 (Steele, Lea and Flood,
    "Fast Splittable Pseudorandom Number Generators", 2014), one round for each.
    """
    state = 0
    for number in (seed, epoch, index):
        state = (state ^ number) + 0x9E3779B97F4A7C15 & _BITS
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _BITS
        state = (state ^ state >> 27) * 0x94D049BB133111EB & _BITS
        state ^= state >> 31
    return state


def set_random_states(value: int) -> None:
    """Sets torch's (on the CPU), numpy's global and Python's. `value` has 64 bits."""
    torch.default_generator.manual_seed(value)
    numpy.random.seed(value & 0xFFFFFFFF)
    random.seed(value)


def kept_random_states() -> contextlib.AbstractContextManager[None]:
    """Restores the same three afterwards."""
    return Randomness(torch.device("cpu")).kept()


class SeededSamples(Dataset):
    """A data set whose samples are made in random states of their own: torch's on the CPU, numpy's
    global one and Python's.

    A generator that the data set keeps for itself goes its own way. The epoch is shared with
    workers, which may outlive it.
    """

    def __init__(self, data: Any, seed: int) -> None:
        self.data = data
        self._seed = seed
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def begin(self, epoch: int) -> None:
        """What is made from now on is of this epoch."""
        self._epoch.fill_(epoch)

    def __copy__(self) -> Self:
        """Of the data set too: a file that a copy opens at its first use is not open in the
        original.
        """
        copied = type(self)(self.data, self._seed)
        with contextlib.suppress(Exception):  # a __getattr__ that recurses: it serves as it is
            copied.data = copy.copy(self.data)
        copied._epoch = self._epoch
        return copied

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Any) -> list[Any]:
        with contextlib.nullcontext() if get_worker_info() is not None else kept_random_states():
            return [self._made(int(index)) for index in indices]

    def _made(self, index: int) -> Any:
        set_random_states(seed_of(self._seed, int(self._epoch), index))
        return self.data[index]
