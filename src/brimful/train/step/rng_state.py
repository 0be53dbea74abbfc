"""The state of every random generator that a training step may draw from: taken before a step, put back to replay it."""

from __future__ import annotations

import ctypes
import functools
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class RandomState:
    """What the generators of one process hold: torch's on the host and on the device, Python's and NumPy's global ones."""

    host: torch.Tensor
    device: torch.Tensor | None  # None where the device is the host
    python: tuple
    numpy: dict[str, Any]

    def as_tree(self) -> dict[str, Any]:
        """Tensors and JSON values alone, for a checkpoint."""
        version, words, gauss = self.python
        keys = self.numpy["state"]["key"]
        return {
            "host": self.host,
            "device": self.device,
            "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
            "numpy": {
                "key": torch.from_numpy(keys.astype(np.int64)),
                "pos": int(self.numpy["state"]["pos"]),
                "has_gauss": int(self.numpy["has_gauss"]),
                "gauss": float(self.numpy["gauss"]),
            },
        }

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> RandomState:
        python, numpy_ = tree["python"], tree["numpy"]
        return cls(
            host=tree["host"].cpu(),
            device=None if tree["device"] is None else tree["device"].cpu(),
            python=(python["version"], tuple(python["words"].tolist()), python["gauss"]),
            numpy={
                "bit_generator": "MT19937",
                "state": {"key": numpy_["key"].cpu().numpy().astype(np.uint32), "pos": numpy_["pos"]},
                "has_gauss": numpy_["has_gauss"],
                "gauss": numpy_["gauss"],
            },
        )


class Randomness:
    """The generators that belong to a training on `device`.

    Taking the state costs some 40 µs (measured: NumPy's 32 µs, Python's 9 µs) and waits for no device: a CUDA generator
    keeps its seed and offset on the host. `take_again` leaves out the share of those that nothing has drawn from.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._of_device: Any = None if device.type == "cpu" else getattr(torch, device.type, None)
        self._numpy: dict[str, Any] | None = None  # as it was last taken, and the memory of the generator then
        self._numpy_memory = _Memory(_numpy_words)
        self._python: tuple | None = None
        self._python_memory = _Memory(_python_words)

    def seed(self, seed: int, rank: int) -> None:
        """Each rank draws numbers of its own: two ranks with the same dropout masks would learn from fewer of them."""
        words = np.random.SeedSequence((seed, rank)).generate_state(4, np.uint32)
        torch.manual_seed(int(words[0]) << 32 | int(words[1]))  # all devices too
        random.seed(int(words[2]))
        np.random.seed(int(words[3]))

    def take(self) -> RandomState:
        return self._with(random.getstate(), np.random.get_state(legacy=False))  # type: ignore[arg-type]

    def take_again(self) -> RandomState:
        """As `take`, for every step: Python's and NumPy's states are taken anew where their memory shows a change.

        Of NumPy's, that memory is all of the state but the second half of a pair of normal numbers; while none is kept, none
        can come without a change. (Only who sets a state by hand, over the very same memory, could slip one in: a checkpoint
        uses `take`.)
        """
        python, numpy = getattr(random.getstate, "__self__", None), np.random.get_bit_generator()  # type: ignore[attr-defined]  # of NumPy 1.24
        if not self._python_memory.is_as_it_was(python) or self._python is None:
            self._python = random.getstate()
        if not self._numpy_memory.is_as_it_was(numpy) or self._numpy is None or self._numpy["has_gauss"]:
            self._numpy = np.random.get_state(legacy=False)  # type: ignore[assignment]
        return self._with(self._python, self._numpy)

    def _with(self, of_python: tuple, of_numpy: dict[str, Any]) -> RandomState:
        device = self._of_device.get_rng_state(self._device) if self._of_device is not None else None
        return RandomState(torch.get_rng_state(), device, of_python, of_numpy)

    def put_back(self, state: RandomState) -> None:
        torch.set_rng_state(state.host)
        if self._of_device is not None and state.device is not None:
            self._of_device.set_rng_state(state.device, self._device)
        random.setstate(state.python)
        np.random.set_state(state.numpy)


class _Memory:
    """The memory of a generator, compared as a whole: 2.5 kB take less time than PyTorch's and NumPy's own calls."""

    def __init__(self, words_of: Callable[[Any], memoryview | None]):
        self._words_of = words_of
        self._generator: Any = None  # kept, so that its memory stays its own
        self._words: memoryview | None = None
        self._seen: tuple | None = None

    def is_as_it_was(self, generator: Any) -> bool:
        """Since the last call. No where nothing is known of how `generator` lies in memory."""
        if generator is not self._generator:
            self._generator, self._words, self._seen = generator, self._words_of(generator), None
        if self._words is None:
            return False
        before, self._seen = self._seen, (self._words.tobytes(), getattr(generator, "gauss_next", None))
        return before == self._seen


# A Mersenne Twister has 624 words and a place in them.


def _numpy_words(generator: Any) -> memoryview | None:
    """None where it is no Mersenne Twister."""
    return _view(generator.ctypes.state_address) if type(generator) is np.random.MT19937 else None


def _python_words(generator: Any) -> memoryview | None:
    """None where its memory is not laid out as CPython has it: its place, then its words."""
    known = type(generator) is random.Random and _layout_is_known()
    return _view(id(generator) + object.__basicsize__) if known else None


def _view(address: int) -> memoryview:
    return memoryview((ctypes.c_uint32 * 625).from_address(address)).cast("B")


@functools.cache
def _layout_is_known() -> bool:
    """Tried on a generator of its own, whose words and place are compared with those of the official way."""
    if sys.implementation.name != "cpython":
        return False
    generator = random.Random(1)
    generator.random()
    _, words, _ = generator.getstate()
    memory = _view(id(generator) + object.__basicsize__).cast("I").tolist()
    return memory == [words[624], *words[:624]]
