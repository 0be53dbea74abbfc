"""The device of a trial: none, an imaginary card, or what torch finds."""

from __future__ import annotations

import functools
import os
from typing import Any, Dict, Mapping, Optional, Tuple

import torch

from brimful_inside.probe.accelerator import accelerator_type
from brimful_inside.probe.context import ProcessContext, number_of
from brimful_inside.probe.hooks.import_hooks import waiting
from brimful_inside.probe.memory.device_memory import AcceleratorDevice, ImaginaryDevice, NoDevice
from brimful_inside.probe.memory.peak_stats import SharedPeaks

_imaginary: Optional[ImaginaryDevice] = None  # one a process: a forked rank keeps the one it was born with


def device_for(context: ProcessContext) -> Any:
    """Makes the device ready: an imaginary card is there from here on."""
    global _imaginary
    if context.config.device == "imaginary":
        if _imaginary is None:
            _imaginary = _enter_imaginary(context)
        return _imaginary
    if context.config.device != "accelerator":
        return NoDevice()
    kind = accelerator_type()
    if kind is None:
        context.note("this torch (%s) knows no accelerator: the script ran on the CPU" % torch.__version__)
        return NoDevice()
    return AcceleratorDevice(SharedPeaks.of(kind))


def _enter_imaginary(context: ProcessContext) -> ImaginaryDevice:
    from brimful_inside.imaginary import enter
    from brimful_inside.imaginary.operators.compiled_kernels import TRITON_LAUNCHERS, pass_over

    config = context.config
    if config.card is None:
        raise ValueError("the orders name an imaginary device and no card")
    files: Dict[int, str] = {}

    def open_trace(index: int) -> Any:
        file, files[index] = _open_trace(context, index if files else None)
        return file

    count = visible(config.cards, os.environ)
    trace = None if not config.trace else open_trace(0) if count == 1 else open_trace
    gpu = enter(config.card, config.capacity_bytes, trace, config.what_if, count)
    for module in TRITON_LAUNCHERS:
        waiting.wait_for(module, functools.partial(pass_over, gpu))
    return ImaginaryDevice(gpu, config.card.context_bytes, SharedPeaks.of("cuda"), files)


def visible(cards: int, environment: Mapping[str, str]) -> int:
    """How many of the cards CUDA_VISIBLE_DEVICES leaves, one at least: scripts and launchers set it for a card of their own."""
    names = environment.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return cards
    named = [name for name in names.split(",") if name.strip()]
    return max(1, min(cards, len(named)))


def _open_trace(context: ProcessContext, index: Optional[int]) -> Tuple[Any, str]:
    """A rank's trace is trace-<rank>.jsonl, of its first card; of another card `index` it is trace-<rank>-cuda<index>.jsonl.

    Another process with that rank (a helper of the script) gets a name of its own.
    """
    rank = number_of("RANK")
    of_card = "" if index is None else "-cuda%d" % index
    names = ["trace-%d%s-%d.jsonl" % (rank, of_card, os.getpid())]
    if context.role == "rank":
        names.insert(0, "trace-%d%s.jsonl" % (rank, of_card))
    for name in names:
        try:
            return open(os.path.join(context.config.folder, name), "x", encoding="utf-8", buffering=1 << 20), name
        except FileExistsError:
            continue
    raise FileExistsError(names[-1])
