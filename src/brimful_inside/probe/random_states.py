"""The random states of a process and of a data set: which there are, and keeping them."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import Any, Callable, Iterator, List, Tuple

import torch
from torch.utils.data import Dataset

MOST_NESTED = 3  # Subset, ConcatDataset and the like


def nested(dataset: Any, path: str = "dataset", depth: int = 0) -> Iterator[Tuple[Any, str]]:
    """The data set and those that it wraps, with how a worker names them."""
    yield dataset, path
    for name, value in (
        vars(dataset).items() if depth < MOST_NESTED and hasattr(dataset, "__dict__") else ()
    ):
        for place, part in enumerate(value[:8]) if isinstance(value, list) else ((None, value),):
            if isinstance(part, Dataset):
                yield from nested(
                    part,
                    "%s.%s%s" % (path, name, "" if place is None else "[%d]" % place),
                    depth + 1,
                )


def random_states(dataset: Any) -> List[List[str]]:
    """Generators that the data set holds, as in `Draws`."""
    states = []
    for holder, path in nested(dataset):
        for name, value in getattr(holder, "__dict__", {}).items():
            kind = "%s.%s" % (
                type(value).__module__.lstrip("_").split(".")[0],
                type(value).__name__,
            )
            if isinstance(value, (random.Random, torch.Generator)) or kind in (
                "numpy.Generator",
                "numpy.RandomState",
            ):
                states.append(["%s.%s" % (path, name), kind.replace("numpy.", "numpy.random.")])
    return states


@contextlib.contextmanager
def random_state_kept(*holders: Any) -> Iterator[None]:
    """Python's, numpy's and torch's global states, and generators that are attributes of `holders`,
    are as before after it: reading a script's data must not change what the script draws
    afterwards."""
    restore: List[Callable[[], Any]] = []

    def keep(get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        state = get()
        restore.append(lambda: put(state))

    keep(random.getstate, random.setstate)
    keep(torch.random.get_rng_state, torch.random.set_rng_state)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        keep(numpy.random.get_state, numpy.random.set_state)
    for generator in [
        held for holder in holders for held in (holder, *getattr(holder, "__dict__", {}).values())
    ]:
        if isinstance(generator, random.Random):
            keep(generator.getstate, generator.setstate)
        elif isinstance(generator, torch.Generator) or type(generator).__name__ == "RandomState":
            keep(generator.get_state, generator.set_state)
        elif hasattr(generator, "bit_generator"):
            bits: Any = generator.bit_generator
            keep(
                lambda bits=bits: bits.state, lambda state, bits=bits: setattr(bits, "state", state)
            )
    try:
        yield
    finally:
        for put_back in restore:
            put_back()
