"""Which device a verb works on, and how much of its memory it may use."""

import os
import re
import shutil
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import NamedTuple, TypedDict

from brimful.decide.loading import Host
from brimful.errors import NoSuchDevice, UsageError
from brimful.measure import accelerators, host
from brimful.measure.gpus import CARDS, custom_gpu, find_gpu, loaded_at_once, others_named
from brimful.measure.gpus.calibrations import calibrated, find_calibrated
from brimful.units import counted, format_bytes, parse_budget, parse_link
from brimful.values import (
    Budget,
    Command,
    Device,
    Diagnostic,
    Estimate,
    Gpu,
    Report,
    Source,
    TrialResult,
)
from brimful_inside.simulator.allocator_settings import settings_in

# A prediction has its doubt in its interval, a measured peak has none.
MEASURED_BUDGET, PREDICTED_BUDGET = "90%", "100%"
ALL = "all"  # cards of the catalogue
_KINDS = ("cuda", "gpu", "xpu", "mps")  # what PyTorch's users call an accelerator
_LEAST_BUDGET = 1 << 20
_BARE = re.compile(r"python(3(\.\d+)?)?")
# of a machine where only ranks are named (assumed: so many have the servers that are rented for
# trainings over several machines)
MACHINE_CARDS = 8
MOST_CARDS = 64  # of one machine; PyTorch is compiled for 120 (c10/cuda/CUDAMacros.h)


class CardNames(TypedDict, total=False):
    """The keywords by which the verbs take an imaginary card: those of `CardRequest`."""

    gpu: str | None
    gpu_memory: str | None
    ranks: int | None
    as_rank: int | None
    link: str | None


@dataclass(frozen=True)
class CardRequest:
    """Imaginary cards as they are named: in the catalogue or by their memory, with their numbers
    ("a100-40gb:3", "l4,a100-40gb:1..4", "all"). With `ranks`, or the machines behind the cards
    ("h100:8x4"), one of so many is started alone: `as_rank`, by default the first. `link`: of each
    card, between machines ("400Gb").
    """

    gpu: str | None = None
    gpu_memory: str | None = None
    ranks: int | None = None
    as_rank: int | None = None
    link: str | None = None

    @property
    def names(self) -> str:
        return self.gpu or self.gpu_memory or ""


HERE = CardRequest()  # the device of this machine


class Cards(NamedTuple):
    """Imaginary cards of one kind in a machine."""

    gpu: Gpu
    count: int = 1
    ranks: int | None = None  # of which one is started alone
    as_rank: int | None = None


def cards(request: CardRequest, home: Path | None = None) -> tuple[Cards, ...]:
    """The cards of a request, by the catalogue and the calibrations of `home`; () if it names none.

    Raises UsageError for counts that make no sense, NoSuchDevice for an unknown card.
    """
    gpu, names, ranks = request.gpu, request.names, request.ranks
    if gpu and request.gpu_memory:
        raise UsageError(
            f"you gave both --gpu {gpu} and --gpu-memory {request.gpu_memory}",
            "they name two different cards",
            "give one of them",
        )
    named: dict[tuple[str, int, int | None], Cards] = {}
    for part in names.split(",") if names else ():
        name, counts, machines = _counted(part.strip(), names)
        if gpu and name == ALL:
            kinds = [calibrated(kind, home) for kind in CARDS]
        else:
            kinds = [find_calibrated(name, home) if gpu else custom_gpu(name)]
        for kind, count in product(kinds, counts or (_in_each(ranks),)):
            wanted = count * machines if machines > 1 and ranks is None else ranks
            _require_sensible_ranks(replace(request, ranks=wanted), count * machines, machines)
            as_rank = None if wanted is None else request.as_rank or 0
            kind = _with_network(kind, request.link) if (wanted or 0) > count else kind
            named.setdefault((kind.key, count, wanted), Cards(kind, count, wanted, as_rank))
    if not named:
        _require_sensible_ranks(request, 0, 1)
    if request.link and not any((each.ranks or 0) > each.count for each in named.values()):
        raise UsageError(
            f"--link {request.link} with one machine",
            "it is the network between machines",
            "name their number behind that of the cards: --gpu h100:8x4",
        )
    return tuple(named.values())


def _with_network(gpu: Gpu, link: str | None) -> Gpu:
    """By default what NVIDIA's machines of eight cards have for each: a DGX H100 400 Gb/s, a DGX
    A100 200."""
    if link is not None:
        network = Estimate(parse_link(link), Source.DATASHEET, note=f"{link}, as given")
    else:
        gigabits = 400 if gpu.capability >= (9, 0) else 200
        note = f"{gigabits} Gb/s for each card, assumed"
        network = Estimate(gigabits * 1e9 / 8, Source.ASSUMED, note=note)
    return replace(gpu, network_bytes_per_s=network)


def _in_each(ranks: int | None) -> int:
    """Cards of a machine where nobody named their number."""
    return min(ranks or 1, MACHINE_CARDS)


def which_was_taken(request: CardRequest) -> list[Diagnostic]:
    """What a name of several cards was taken to be, and ranks without a number of cards."""
    parts = [part.strip() for part in request.names.split(",")]
    ranks, each = request.ranks, _in_each(request.ranks)
    machines = -(-(ranks or 1) // each)
    return [
        Diagnostic(
            "machines-assumed",
            f"{ranks} ranks, and nobody said how many cards of {name} a machine has",
            f"{counted(machines, 'machine')} of {counted(each, 'card')} assumed, and a rank on "
            "each card",
            f"name them as cards x machines: {name}:{each}x{machines}",
        )
        for name in dict.fromkeys(parts)
        if ranks and ranks > 1 and ":" not in name
    ] + [
        Diagnostic(
            "which-card",
            f"{name} is taken to be {(taken := find_gpu(name)).key} ({taken.name})",
            f"the catalogue also has {', '.join(others)}",
            f"name the one you mean: --gpu {others[0]}",
        )
        for name in sorted({part.partition(":")[0] for part in parts if request.gpu})
        if (others := others_named(name))
    ]


def _counted(part: str, names: str) -> tuple[str, range | None, int]:
    """A card's name, the numbers of them that are asked about ("a100-40gb:1..4"; None: none was
    named), and the machines that have as many ("h100:8x4").
    """
    name, colon, number = part.partition(":")
    number, times, machines = number.partition("x")
    first, dots, last = number.partition("..") if colon else ("1", "", "")
    ends = first, last if dots else first
    if not name:
        raise UsageError(
            f"{names}: a name is missing",
            "commas separate the names of cards",
            "write it as in l4,a100-80gb:1..4",
        )
    sensible = all(end.isdecimal() and 1 <= int(end) <= MOST_CARDS for end in ends)
    several = not times or (machines.isdecimal() and int(machines) >= 1 and not dots)
    if not sensible or not several or int(ends[0]) > int(ends[1]):
        raise UsageError(
            f"{names}: {number + times + machines!r} cards",
            f"a machine has from 1 to {MOST_CARDS} imaginary cards",
            f"write their number behind the colon, as in {name}:8, or the first and the last: "
            f"{name}:1..8; of several machines {name}:8x4",
        )
    counts = range(int(ends[0]), int(ends[1]) + 1) if colon else None
    return name, counts, int(machines or 1)


def _require_sensible_ranks(request: CardRequest, cards: int, machines: int) -> None:
    """`cards`: of all machines."""
    ranks, as_rank = request.ranks, request.as_rank
    if machines > 1 and ranks != cards:
        raise UsageError(
            f"{request.names} with --ranks {ranks}",
            f"{machines} machines have {cards} cards, and a rank has one",
            "leave out --ranks",
        )
    if ranks is None and as_rank is not None:
        raise UsageError(
            f"--as-rank {as_rank} without --ranks",
            "brimful has to know how many ranks the training has",
            "give their number: --ranks 64",
        )
    if ranks is not None and not request.names:
        raise UsageError(
            f"--ranks {ranks} without a card",
            "brimful starts one rank without the others only on imaginary cards",
            "name a card: --gpu a100-40gb:8",
        )
    if ranks is not None and not 0 <= (as_rank or 0) < ranks:
        raise UsageError(
            f"--ranks {ranks} --as-rank {as_rank or 0}",
            "ranks are counted from 0, and there is at least one",
            f"give one from 0 to {max(0, ranks - 1)}",
        )


def choose(
    command: Command, device: str, cards: Cards | None
) -> tuple[Device, accelerators.Accelerator | None]:
    """The device to work on: imaginary cards if they are named, else `device`: "auto" (the
    accelerator that is there, else the CPU), "cpu" or "accelerator". Raises NoSuchDevice where
    there is no accelerator."""
    if cards is not None:
        _require_a_modelled_allocator(command)
        loading = {**os.environ, **command.environment}.get("CUDA_MODULE_LOADING", "")
        gpu = loaded_at_once(cards.gpu) if loading.upper() == "EAGER" else cards.gpu
        name = gpu.key if cards.count == 1 else f"{cards.count} x {gpu.key}"
        chosen = Device("imaginary", "", gpu, cards.count, cards.ranks, cards.as_rank)
        name = f"{chosen.machines} machines of {name}" if chosen.machines > 1 else name
        return replace(chosen, label=f"{name} (imaginary)"), None
    device = "accelerator" if device in _KINDS else device
    if device not in ("auto", "cpu", "accelerator"):
        raise UsageError(
            problem=f"--device {device}",
            explanation="a device is auto, cpu or accelerator",
            suggestion="to choose one card of several, set CUDA_VISIBLE_DEVICES; to name an "
            "imaginary card, give --gpu NAME",
        )
    visible = []
    if device != "cpu":
        first = command.argv[0]
        is_python = Path(first).name.startswith("python")
        visible = accelerators.found_by(first if is_python else sys.executable)
    if visible:
        return Device("accelerator", visible[0].label), visible[0]
    if device == "accelerator":
        raise NoSuchDevice(
            "accelerator",
            problem="neither NVML nor torch.accelerator shows an accelerator here",
            suggestion="see `brimful doctor`; --gpu a100-40gb predicts for a card without one",
        )
    return Device("cpu", "cpu"), None


def without_torch(command: Command, device: str) -> Device:
    """As `choose` without imaginary cards. Where any device will do and no driver shows a card,
    which of them the script takes is left to it: only its own torch knows."""
    if device != "auto":
        return choose(command, device, None)[0]
    card = next(iter(accelerators.visible()), None)
    return Device("auto", "auto") if card is None else Device("accelerator", card.label)


def _require_a_modelled_allocator(command: Command) -> None:
    """Raises UsageError where the environment asks for an allocator that an imaginary card does not
    have.
    """
    try:
        settings = settings_in({**os.environ, **command.environment})
    except ValueError as error:
        raise UsageError(
            f"PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF): {error}",
            "PyTorch would refuse it as well",
            "correct it, or unset it",
        ) from None
    if not settings.native:
        raise UsageError(
            problem="the environment asks for the allocator backend cudaMallocAsync",
            explanation="its rules are the driver's, and the imaginary card knows only PyTorch's "
            "own allocator",
            suggestion="unset PYTORCH_CUDA_ALLOC_CONF to predict without it, or measure on a real "
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


def host_of(report: Report) -> Host:
    """This machine as it is now, with the ranks and cards of a process of a trial on it."""
    ranks = max(1, report.world_size)
    cards = ranks if report.device != "cpu" else 0
    return Host(host.free_bytes(), host.cores(), host.shm_free_bytes(), ranks, cards)


def require_that_card(device: Device, result: TrialResult) -> None:
    """Raises UsageError where a script of one process trains on another card than the one whose
    memory the budget is of.
    """
    used = result.reports[0].device if len(result.reports) == 1 else device.label
    if device.kind != "accelerator" or used in (device.label, "cpu"):
        return

    raise UsageError(
        problem=f"the script trains on {used}, and the budget is of {device.label}",
        explanation="the two may differ in memory, and in what other processes hold there",
        suggestion="show it only that card, as its cuda:0: "
        f"CUDA_VISIBLE_DEVICES={used.rpartition(':')[2]} brimful ...",
    )


def with_torch(command: Command) -> tuple[Command, Diagnostic | None]:
    """The command as brimful starts it, and a warning if it replaced a bare ``python``.

    A brimful called by its path (``.venv/bin/brimful``) without the environment being activated
    would start the system's Python, which has no torch. Where brimful's own Python has it, that one
    is taken.
    """
    named, path = command.argv[0], shutil.which(command.argv[0])
    if not _BARE.fullmatch(named) or (path and accelerators.torch_version(path)):
        return command, None
    if find_spec("torch") is None:
        return command, None
    advice = Diagnostic(
        "other-interpreter",
        f"{named!r} on the PATH is {path or 'not there'}, which has no torch",
        f"brimful runs the command with its own Python, {sys.executable}",
        "activate the environment of your script, or name its Python in the command, if this is "
        "not what you mean",
    )
    return replace(command, argv=(sys.executable, *command.argv[1:])), advice
