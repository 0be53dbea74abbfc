"""Random states, kept while we look at a script's data: looking must not change what the script draws afterwards."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import Any, Callable, Iterator, List

import torch


@contextlib.contextmanager
def untouched(*holders: Any) -> Iterator[None]:
    """Python's, numpy's and torch's global states, and generators that are attributes of `holders`, are as before after it."""
    restore: List[Callable[[], Any]] = []
    _keep(restore, random.getstate, random.setstate)
    _keep(restore, torch.random.get_rng_state, torch.random.set_rng_state)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        _keep(restore, numpy.random.get_state, numpy.random.set_state)
    for holder in holders:
        for generator in _generators_of(holder):
            _keep_generator(restore, generator)
    try:
        yield
    finally:
        for put_back in restore:
            put_back()


def _keep(restore: List[Callable[[], Any]], get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
    state = get()
    restore.append(lambda: put(state))


def _generators_of(holder: Any) -> List[Any]:
    if isinstance(holder, (torch.Generator, random.Random)) or hasattr(holder, "bit_generator"):
        return [holder]
    return [value for value in getattr(holder, "__dict__", {}).values() if _is_generator(value)]


def _is_generator(value: Any) -> bool:
    return isinstance(value, (torch.Generator, random.Random)) or hasattr(value, "bit_generator")


def _keep_generator(restore: List[Callable[[], Any]], generator: Any) -> None:
    if isinstance(generator, torch.Generator):
        _keep(restore, generator.get_state, generator.set_state)
    elif isinstance(generator, random.Random):
        _keep(restore, generator.getstate, generator.setstate)
    else:
        bits = generator.bit_generator
        _keep(restore, lambda: bits.state, lambda state: setattr(bits, "state", state))
