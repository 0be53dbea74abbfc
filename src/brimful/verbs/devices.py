"""Which device a verb works on, and how much of its memory it may use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from brimful.errors import NoSuchDevice, UsageError
from brimful.measure.device import accelerators, host
from brimful.measure.gpus import custom_gpu
from brimful.measure.gpus.calibrations import find_calibrated
from brimful.units import format_bytes, parse_budget
from brimful.values import Budget, Command, Device, Gpu, Sample
from brimful_inside.laws.allocator import settings_in

DEFAULT_BUDGET = "90%"
_KINDS = ("cuda", "gpu", "xpu", "mps")  # what PyTorch's users call an accelerator
_LEAST_BUDGET = 1 << 20


def card(gpu: str | None, gpu_memory: str | None, home: Path | None = None) -> Gpu | None:
    """The card of the catalogue called `gpu`, with what was measured of it here (see `measure.gpus.calibrations`, for `home`
    too), or one described by its memory; None if neither is given."""
    if gpu and gpu_memory:
        raise UsageError(
            saw=f"both --gpu {gpu} and --gpu-memory {gpu_memory} were given",
            means="they name two different cards",
            do="give one of them",
        )
    if gpu_memory:
        return custom_gpu(gpu_memory)
    return find_calibrated(gpu, home) if gpu else None


def choose(command: Command, device: str, gpu: Gpu | None) -> tuple[Device, accelerators.Accelerator | None]:
    """The device to work on: an imaginary card if one is named, else `device`: "auto", "cpu" or "accelerator".

    "auto" takes the accelerator that is there, else the CPU. Raises NoSuchDevice where an accelerator is asked for and
    there is none.
    """
    if gpu is not None:
        _require_a_modelled_allocator(command)
        return Device("imaginary", f"{gpu.key} (imaginary)", gpu), None
    device = "accelerator" if device in _KINDS else device
    if device not in ("auto", "cpu", "accelerator"):
        raise UsageError(
            saw=f"--device {device}",
            means="a device is auto, cpu or accelerator",
            do="choose which card of several a trial sees by CUDA_VISIBLE_DEVICES; an imaginary card by --gpu NAME",
        )
    if device == "cpu":
        return Device("cpu", "cpu"), None
    found = accelerators.found_by(python_of(command))
    if found:
        return Device("accelerator", found[0].label), found[0]
    if device == "accelerator":
        raise NoSuchDevice(
            "accelerator",
            saw="no accelerator is visible here, neither through NVML nor through torch.accelerator",
            do="see `brimful doctor`; --gpu a100-40gb predicts for a card without one",
        )
    return Device("cpu", "cpu"), None


def _require_a_modelled_allocator(command: Command) -> None:
    """Raises UsageError where the environment asks for an allocator that an imaginary card does not have."""
    try:
        native = settings_in({**os.environ, **command.environment}).native
    except ValueError as error:
        raise UsageError(
            saw=f"PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF): {error}",
            means="PyTorch would refuse it as well",
            do="correct it, or unset it",
        ) from None
    if not native:
        raise UsageError(
            saw="the environment asks for the allocator backend cudaMallocAsync",
            means="its rules are the driver's, and the imaginary card knows PyTorch's own allocator alone",
            do="predict without it (unset PYTORCH_CUDA_ALLOC_CONF), or measure on a real card",
        )


def python_of(command: Command) -> str:
    """The interpreter that the command starts, or brimful's own where the command does not begin with one."""
    first = Path(command.argv[0]).name if command.argv else ""
    return command.argv[0] if first.startswith("python") else sys.executable


def budget_for(device: Device, accelerator: accelerators.Accelerator | None, text: str | None) -> Budget:
    """How much memory may be used: `text` is bytes ("20GiB") or a share of what is free ("90%", the default).

    On an imaginary card all of its usable memory is free, and what is compared is the device peak, context included. On a
    real card that peak also holds what other processes have there, which is therefore added to what is allowed. On a CPU it
    is host memory: the smaller of free RAM and what the cgroup still allows.
    """
    others = 0
    if device.gpu is not None:
        total = free = int(device.gpu.total_bytes.value)
        memory, place = "device", f"{device.gpu.key}'s"
    elif accelerator is not None:
        total, free, memory, place = accelerator.total_bytes, accelerator.free_bytes, "device", f"{accelerator.name}'s"
        others = accelerator.others_bytes
    else:
        total, free, memory, place = host.total_bytes(), host.free_bytes(), "host", "this machine's"
    allowed = parse_budget(text or DEFAULT_BUDGET, free)
    if allowed < _LEAST_BUDGET:
        raise UsageError(
            saw=f"a budget of {format_bytes(allowed)}",
            means="a number alone is bytes, and no training fits into so few",
            do=f"write the unit, as in {text}GiB, or a share of what is free, as in 90%",
        )
    if allowed + others > total:
        raise UsageError(
            saw=f"a budget of {format_bytes(allowed)}",
            means=f"that is more than {place} {format_bytes(total)} of {memory} memory"
            + (f", of which other processes hold {format_bytes(others)}" if others else ""),
            do="give less, or a share of what is free: --budget 90%",
        )
    share = f"{text or DEFAULT_BUDGET} of " if (text or DEFAULT_BUDGET).strip().endswith("%") else f"{text}, of "
    why = f"{share}{format_bytes(free)} free of {place} {format_bytes(total)}"
    if others:
        why += f", and the {format_bytes(others)} that other processes hold"
    return Budget(allowed + others, total, free, memory, why)


def require_that_card(device: Device, sample: Sample) -> None:
    """Raises UsageError where a script of one process trains on another card than the one whose memory the budget is of."""
    used = sample.reports[0].device if len(sample.reports) == 1 else device.label
    if device.kind != "accelerator" or used in (device.label, "cpu"):
        return
    index = used.rpartition(":")[2]
    raise UsageError(
        saw=f"the script trains on {used}, and the budget is of {device.label}",
        means="the two may differ in memory, and in what other processes hold there",
        do=f"let it see that card alone, as its cuda:0: CUDA_VISIBLE_DEVICES={index} brimful ...",
    )
