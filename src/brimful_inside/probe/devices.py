"""The device of a trial: none, an imaginary card, or what torch finds."""

from __future__ import annotations

import functools
import os
from typing import Any, Dict, Mapping, Optional, Tuple

import torch

from brimful_inside.probe.accelerator import accelerator_type
from brimful_inside.probe.hub import Hub, number_of
from brimful_inside.probe.meters import AcceleratorDevice, ImaginaryDevice, NoDevice
from brimful_inside.probe.peaks import SharedPeaks
from brimful_inside.probe.waiting import waiting

_imaginary: Optional[ImaginaryDevice] = None  # one a process: a forked rank keeps the one it was born with


def device_for(hub: Hub) -> Any:
    """Makes the device ready: an imaginary card is there from here on."""
    global _imaginary
    if hub.orders.device == "imaginary":
        if _imaginary is None:
            _imaginary = _enter_imaginary(hub)
        return _imaginary
    if hub.orders.device != "accelerator":
        return NoDevice()
    kind = accelerator_type()
    if kind is None:
        hub.note("this torch (%s) knows no accelerator: the script ran on the CPU" % torch.__version__)
        return NoDevice()
    return AcceleratorDevice(SharedPeaks.of(kind))


def _enter_imaginary(hub: Hub) -> ImaginaryDevice:
    from brimful_inside.imaginary import enter, enter_several
    from brimful_inside.imaginary.libraries.triton_kernels import CLASSES, pass_over

    orders = hub.orders
    if orders.card is None:
        raise ValueError("the orders name an imaginary device and no card")
    files: Dict[int, str] = {}

    def open_trace(index: int) -> Any:
        file, files[index] = _open_trace(hub, index if files else None)
        return file

    count = visible(orders.cards, os.environ)
    if count == 1:
        gpu = enter(orders.card, orders.capacity_bytes, open_trace(0) if orders.trace else None, orders.what_if)
    else:
        gpu = enter_several(orders.card, count, orders.capacity_bytes, open_trace if orders.trace else None, orders.what_if)
    for module in CLASSES:
        waiting.wait_for(module, functools.partial(pass_over, gpu))
    return ImaginaryDevice(gpu, orders.card.context_bytes, SharedPeaks.of("cuda"), files)


def visible(cards: int, environment: Mapping[str, str]) -> int:
    """How many of the cards CUDA_VISIBLE_DEVICES leaves, one at least: scripts and launchers set it for a card of their own."""
    names = environment.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return cards
    named = [name for name in names.split(",") if name.strip()]
    return max(1, min(cards, len(named)))


def _open_trace(hub: Hub, index: Optional[int]) -> Tuple[Any, str]:
    """A rank's trace is trace-<rank>.jsonl, of its first card; of another card `index` it is trace-<rank>-cuda<index>.jsonl.

    Another process with that rank (a helper of the script) gets a name of its own.
    """
    rank = number_of("RANK")
    of_card = "" if index is None else "-cuda%d" % index
    names = ["trace-%d%s-%d.jsonl" % (rank, of_card, os.getpid())]
    if hub.role == "rank":
        names.insert(0, "trace-%d%s.jsonl" % (rank, of_card))
    for name in names:
        try:
            return open(os.path.join(hub.orders.folder, name), "x", encoding="utf-8", buffering=1 << 20), name
        except FileExistsError:
            continue
    raise FileExistsError(names[-1])
