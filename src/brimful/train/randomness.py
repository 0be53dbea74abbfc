"""The state of every random generator that a training step may draw from: taken before a step, put back to replay it."""

from __future__ import annotations

import ctypes
import random
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
    keeps its seed and offset on the host. `take_again` leaves NumPy's share out where nothing has drawn from it.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._of_device: Any = None if device.type == "cpu" else getattr(torch, device.type, None)
        self._numpy: dict[str, Any] | None = None  # as it was last taken, and the generator's memory then
        self._numpy_memory = b""

    def seed(self, seed: int, rank: int) -> None:
        """Each rank draws numbers of its own: two ranks with the same dropout masks would learn from fewer of them."""
        words = np.random.SeedSequence((seed, rank)).generate_state(4, np.uint32)
        torch.manual_seed(int(words[0]) << 32 | int(words[1]))  # all devices too
        random.seed(int(words[2]))
        np.random.seed(int(words[3]))

    def take(self) -> RandomState:
        return self._with(np.random.get_state(legacy=False))  # type: ignore[arg-type]

    def take_again(self) -> RandomState:
        """As `take`, for every step. NumPy's state is taken anew only where its generator's memory has changed.

        That memory is all of the state but the second half of a pair of normal numbers; while none is kept, none can come
        without a change. (Only who sets a state by hand, over the very same memory, could slip one in: a checkpoint uses
        `take`.)
        """
        memory = _memory_of_numpy()
        if self._numpy is None or not memory or memory != self._numpy_memory or self._numpy["has_gauss"]:
            self._numpy, self._numpy_memory = np.random.get_state(legacy=False), memory  # type: ignore[assignment]
        assert self._numpy is not None
        return self._with(self._numpy)

    def _with(self, of_numpy: dict[str, Any]) -> RandomState:
        device = self._of_device.get_rng_state(self._device) if self._of_device is not None else None
        return RandomState(torch.get_rng_state(), device, random.getstate(), of_numpy)

    def put_back(self, state: RandomState) -> None:
        torch.set_rng_state(state.host)
        if self._of_device is not None and state.device is not None:
            self._of_device.set_rng_state(state.device, self._device)
        random.setstate(state.python)
        np.random.set_state(state.numpy)


def _memory_of_numpy() -> bytes:
    """What NumPy's global Mersenne Twister holds: 624 words and its place in them. Empty where another generator was put in."""
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]  # NumPy 1.24; its stubs leave it out
    return ctypes.string_at(generator.ctypes.state_address, 4 * 625) if type(generator) is np.random.MT19937 else b""
