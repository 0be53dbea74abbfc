"""The state of every random generator that a training step may draw from: taken before a step, put back to replay it."""

from __future__ import annotations

import ctypes
import functools
import random
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

__all__ = ["RandomState", "Randomness"]


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
        self._numpy: dict[str, Any] | None = None  # as it was last taken, and what was seen of the generator then
        self._numpy_seen: tuple | None = None
        self._python: tuple | None = None
        self._python_seen: tuple | None = None

    def seed(self, seed: int, rank: int) -> None:
        """Each rank draws numbers of its own: two ranks with the same dropout masks would learn from fewer of them."""
        words = np.random.SeedSequence((seed, rank)).generate_state(4, np.uint32)
        torch.manual_seed(int(words[0]) << 32 | int(words[1]))  # all devices too
        random.seed(int(words[2]))
        np.random.seed(int(words[3]))

    def take(self) -> RandomState:
        return self._with(random.getstate(), np.random.get_state(legacy=False))  # type: ignore[arg-type]

    def take_again(self) -> RandomState:
        """As `take`, for every step. Python's and NumPy's states are taken anew only where a look at their memory says that
        they have changed.

        Of NumPy's, that memory is all of the state but the second half of a pair of normal numbers; while none is kept, none
        can come without a change. (Only who sets a state by hand, over the very same memory, could slip one in: a checkpoint
        uses `take`.)
        """
        seen = _python_now()
        if self._python is None or seen is None or seen != self._python_seen:
            self._python, self._python_seen = random.getstate(), seen
        seen = _numpy_now()
        if self._numpy is None or seen is None or seen != self._numpy_seen or self._numpy["has_gauss"]:
            self._numpy, self._numpy_seen = np.random.get_state(legacy=False), seen  # type: ignore[assignment]
        assert self._numpy is not None
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


# A Mersenne Twister has 624 words and a place in them. A draw moves the place, and after the last word makes all of them anew,
# as seeding does (but for word 0, which seeding sets to a constant): the place and three words tell whether anything happened.
_LOOKED_AT = (1, 312, 623)


def _numpy_now() -> tuple | None:
    """What is seen of NumPy's global generator; None where it is no Mersenne Twister."""
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # NumPy 1.24; its stubs leave it out
    if type(generator) is not np.random.MT19937:
        return None
    memory = _memory(generator.ctypes.state_address)
    return (memory[624], *(memory[word] for word in _LOOKED_AT))


def _python_now() -> tuple | None:
    """What is seen of Python's global generator; None where its memory is not laid out as CPython has it."""
    generator = getattr(random.getstate, "__self__", None)
    if type(generator) is not random.Random or not _layout_is_known():
        return None
    memory = _memory(id(generator) + object.__basicsize__)  # its place stands before its words
    return (memory[0], *(memory[1 + word] for word in _LOOKED_AT), generator.gauss_next)  # type: ignore[attr-defined]


@functools.cache
def _memory(address: int) -> Any:
    return (ctypes.c_uint32 * 625).from_address(address)


@functools.cache
def _layout_is_known() -> bool:
    """Tried on a generator of its own, whose words and place are asked for in the official way as well."""
    if sys.implementation.name != "cpython":
        return False
    generator = random.Random(1)
    generator.random()
    _, words, _ = generator.getstate()
    memory = (ctypes.c_uint32 * 625).from_address(id(generator) + object.__basicsize__)
    return list(memory) == [words[624], *words[:624]]
