"""The device of a trial: none, an imaginary card, or what torch finds."""

from __future__ import annotations

import os
from typing import Any, Optional, Tuple

import torch

from brimful_inside.probe.accelerator import accelerator_type
from brimful_inside.probe.hub import Hub, number_of
from brimful_inside.probe.meters import AcceleratorDevice, ImaginaryDevice, NoDevice
from brimful_inside.probe.peaks import SharedPeaks

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
    from brimful_inside.imaginary import enter

    orders = hub.orders
    if orders.card is None:
        raise ValueError("the orders name an imaginary device and no card")
    trace, name = _open_trace(hub) if orders.trace else (None, None)
    gpu = enter(orders.card, orders.capacity_bytes, trace)
    return ImaginaryDevice(gpu, orders.card.context_bytes, SharedPeaks.of("cuda"), name)


def _open_trace(hub: Hub) -> Tuple[Any, str]:
    """A rank's trace is trace-<rank>.jsonl; another process with that rank (a helper of the script) gets a name of its own."""
    rank = number_of("RANK")
    names = ["trace-%d-%d.jsonl" % (rank, os.getpid())]
    if hub.role == "rank":
        names.insert(0, "trace-%d.jsonl" % rank)
    for name in names:
        try:
            return open(os.path.join(hub.orders.folder, name), "x", encoding="utf-8", buffering=1 << 20), name
        except FileExistsError:
            continue
    raise FileExistsError(names[-1])
