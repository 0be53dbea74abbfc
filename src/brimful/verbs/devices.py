"""Which device a verb works on, and how much of its memory it may use."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import NamedTuple

from brimful.errors import NoSuchDevice, UsageError
from brimful.measure import accelerators, host
from brimful.measure.gpus import all_gpus, custom_gpu, loaded_at_once
from brimful.measure.gpus.calibrations import calibrated, find_calibrated
from brimful.units import format_bytes, parse_budget
from brimful.values import Budget, Command, Device, Diagnostic, Gpu, TrialResult
from brimful_inside.simulator.allocator_settings import settings_in

MEASURED_BUDGET, PREDICTED_BUDGET = (
    "90%",
    "100%",
)  # a prediction has its doubt in its interval, a measured peak has none
ALL = "all"  # cards of the catalogue
_KINDS = ("cuda", "gpu", "xpu", "mps")  # what PyTorch's users call an accelerator
_LEAST_BUDGET = 1 << 20
_BARE = re.compile(r"python(3(\.\d+)?)?")
MOST_CARDS = 64  # of one machine; PyTorch is compiled for 120 (c10/cuda/CUDAMacros.h)


class Cards(NamedTuple):
    """Imaginary cards as a command line asks for them."""

    gpu: Gpu
    count: int = 1  # in the machine
    ranks: int | None = None  # of which one is started alone
    as_rank: int | None = None


def cards(
    gpu: str | None,
    gpu_memory: str | None = None,
    home: Path | None = None,
    ranks: int | None = None,
    as_rank: int | None = None,
) -> tuple[Cards, ...]:
    """The cards called `gpu` in the catalogue or in the calibrations of `home`, or one described by
    its memory, and how many: "a100-40gb:3", "l4,a100-40gb:1..4", "all". () if no card is named.
    With `ranks` one of so many is started alone: `as_rank`, by default the first.

    Raises UsageError for counts that make no sense, NoSuchDevice for an unknown card.
    """
    if gpu and gpu_memory:
        problem = f"you gave both --gpu {gpu} and --gpu-memory {gpu_memory}"
        raise UsageError(problem, "they name two different cards", "give one of them")
    asked = gpu or gpu_memory
    _require_sensible_ranks(ranks, as_rank, bool(asked))
    found: dict[tuple[str, int], Cards] = {}
    for part in (asked or "").split(",") if asked else ():
        name, counts = _counted(part.strip(), asked or "")
        if gpu and name == ALL:
            kinds = [calibrated(one, home) for one in all_gpus()]
        else:
            kinds = [find_calibrated(name, home) if gpu else custom_gpu(name)]
        for kind, count in product(kinds, counts):
            found.setdefault(
                (kind.key, count),
                Cards(kind, count, ranks, None if ranks is None else as_rank or 0),
            )
    return tuple(found.values())


def _counted(part: str, asked: str) -> tuple[str, range]:
    """A card's name, and the numbers of them that are asked about: "a100-40gb:1..4"."""
    name, colon, number = part.partition(":")
    first, dots, last = number.partition("..") if colon else ("1", "", "")
    ends = first, last if dots else first
    sensible = all(end.isdecimal() and 1 <= int(end) <= MOST_CARDS for end in ends) and int(
        ends[0]
    ) <= int(ends[1])
    if not name:
        raise UsageError(
            f"{asked}: a name is missing",
            "names stand between commas",
            "write it as in l4,a100-80gb:1..4",
        )
    if not sensible:
        explanation = f"a machine has from 1 to {MOST_CARDS} imaginary cards"
        suggestion = (
            f"write their number behind the colon, as in {name}:8, or the first and the last: "
            f"{name}:1..8"
        )
        raise UsageError(f"{asked}: {number!r} cards", explanation, suggestion)
    return name, range(int(ends[0]), int(ends[1]) + 1)


def _require_sensible_ranks(ranks: int | None, as_rank: int | None, has_card: bool) -> None:
    if ranks is None:
        if as_rank is not None:
            raise UsageError(
                f"--as-rank {as_rank}", "of how many ranks?", "give their number: --ranks 64"
            )
    elif not has_card:
        explanation = "one rank can be started without the others on imaginary cards alone"
        raise UsageError(
            f"--ranks {ranks} without a card", explanation, "name a card: --gpu a100-40gb:8"
        )
    elif not 0 <= (as_rank or 0) < ranks:
        problem, explanation = (
            f"--ranks {ranks} --as-rank {as_rank or 0}",
            "ranks are counted from 0, and there is one at least",
        )
        raise UsageError(problem, explanation, f"give one from 0 to {max(0, ranks - 1)}")


def choose(
    command: Command, device: str, asked: Cards | None
) -> tuple[Device, accelerators.Accelerator | None]:
    """The device to work on: imaginary cards if they are named, else `device`: "auto" (the
    accelerator that is there, else the CPU), "cpu" or "accelerator". Raises NoSuchDevice where
    there is no accelerator."""
    if asked is not None:
        _require_a_modelled_allocator(command)
        at_once = {**os.environ, **command.environment}.get(
            "CUDA_MODULE_LOADING", ""
        ).upper() == "EAGER"
        gpu, count = loaded_at_once(asked.gpu) if at_once else asked.gpu, asked.count
        label = f"{gpu.key} (imaginary)" if count == 1 else f"{count} x {gpu.key} (imaginary)"
        return Device("imaginary", label, gpu, count, asked.ranks, asked.as_rank), None
    device = "accelerator" if device in _KINDS else device
    if device not in ("auto", "cpu", "accelerator"):
        raise UsageError(
            problem=f"--device {device}",
            explanation="a device is auto, cpu or accelerator",
            suggestion="choose which card of several a trial sees by CUDA_VISIBLE_DEVICES; an "
            "imaginary "
            "card by --gpu NAME",
        )
    if device == "cpu":
        return Device("cpu", "cpu"), None
    first = command.argv[0]
    found = accelerators.found_by(
        first if Path(first).name.startswith("python") else sys.executable
    )
    if found:
        return Device("accelerator", found[0].label), found[0]
    if device == "accelerator":
        raise NoSuchDevice(
            "accelerator",
            problem="no accelerator is visible here, neither through NVML nor through "
            "torch.accelerator",
            suggestion="see `brimful doctor`; --gpu a100-40gb predicts for a card without one",
        )
    return Device("cpu", "cpu"), None


def _require_a_modelled_allocator(command: Command) -> None:
    """Raises UsageError where the environment asks for an allocator that an imaginary card does not
    have.
    """
    try:
        native = settings_in({**os.environ, **command.environment}).native
    except ValueError as error:
        problem = f"PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF): {error}"
        raise UsageError(
            problem, "PyTorch would refuse it as well", "correct it, or unset it"
        ) from None
    if not native:
        raise UsageError(
            problem="the environment asks for the allocator backend cudaMallocAsync",
            explanation="its rules are the driver's, and the imaginary card knows PyTorch's own "
            "allocator alone",
            suggestion="predict without it (unset PYTORCH_CUDA_ALLOC_CONF), or measure on a real "
            "card",
        )


def budget_for(
    device: Device, accelerator: accelerators.Accelerator | None, text: str | None
) -> Budget:
    """How much memory may be used: `text` is bytes ("20GiB") or a share of what is free. Without
    it: 90 %, and on an imaginary card all of it, since what is uncertain is in the interval that
    has to fit.

    On an imaginary card all of its usable memory is free, and what is compared is the device peak,
    context included. On a real card that peak also holds what other processes have there, which is
    therefore added to what is allowed. On a CPU it
    is host memory: the smaller of free RAM and what the cgroup still allows.
    """
    text, others = text or (MEASURED_BUDGET if device.gpu is None else PREDICTED_BUDGET), 0
    if device.gpu is not None:
        total = free = int(device.gpu.total_bytes.value)
        memory, place = "device", f"{device.gpu.key}'s"
    elif accelerator is not None:
        total, free, others = (
            accelerator.total_bytes,
            accelerator.free_bytes,
            accelerator.others_bytes,
        )
        memory, place = "device", f"{accelerator.name}'s"
    else:
        total, free, memory, place = host.total_bytes(), host.free_bytes(), "host", "this machine's"
    allowed = parse_budget(text, free)
    if allowed < _LEAST_BUDGET:
        raise UsageError(
            problem=f"a budget of {format_bytes(allowed)}",
            explanation="a number alone is bytes, and no training fits into so few",
            suggestion=f"write the unit, as in {text}GiB, or a share of what is free, as in 90%",
        )
    if allowed + others > total:
        held = f", of which other processes hold {format_bytes(others)}" if others else ""
        raise UsageError(
            problem=f"a budget of {format_bytes(allowed)}",
            explanation=f"that is more than {place} {format_bytes(total)} of {memory} memory{held}",
            suggestion="give less, or a share of what is free: --budget 90%",
        )
    why = (
        f"{text}{'' if text.strip().endswith('%') else ','} of {format_bytes(free)} free of "
        f"{place} {format_bytes(total)}"
    )
    if others:
        why += f", and the {format_bytes(others)} that other processes hold"
    return Budget(allowed + others, total, free, memory, why)


def require_that_card(device: Device, result: TrialResult) -> None:
    """Raises UsageError where a script of one process trains on another card than the one whose
    memory the budget is of.
    """
    used = result.reports[0].device if len(result.reports) == 1 else device.label
    if device.kind != "accelerator" or used in (device.label, "cpu"):
        return
    index = used.rpartition(":")[2]
    raise UsageError(
        problem=f"the script trains on {used}, and the budget is of {device.label}",
        explanation="the two may differ in memory, and in what other processes hold there",
        suggestion=f"let it see that card alone, as its cuda:0: CUDA_VISIBLE_DEVICES={index} "
        "brimful "
        "...",
    )


def with_torch(command: Command) -> tuple[Command, Diagnostic | None]:
    """The command as brimful starts it, and a warning if it replaced a bare ``python``.

    A brimful called by its path (``.venv/bin/brimful``) without the environment being activated
    would start the system's Python, which has no torch. Where brimful's own Python has it, that one
    is taken.
    """
    named, found = command.argv[0], shutil.which(command.argv[0])
    if (
        not _BARE.fullmatch(named)
        or (found and accelerators.torch_version(found))
        or find_spec("torch") is None
    ):
        return command, None
    advice = Diagnostic(
        "other-interpreter",
        f"{named!r} on the PATH is {found or 'not there'}, which has no torch",
        f"brimful runs the command with its own Python, {sys.executable}",
        "activate the environment of your script, or name its Python in the command, if this is "
        "not what you mean",
    )
    return replace(command, argv=(sys.executable, *command.argv[1:])), advice
