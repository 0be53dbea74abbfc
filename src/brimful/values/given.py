"""What questions and answers are made of: numbers that say where they come from, the command, cards
and devices, and what a person should know."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from brimful_inside.wire import Place


class Source(StrEnum):
    """Where a number comes from."""

    MEASURED = "measured"
    PREDICTED = "predicted"
    DATASHEET = "datasheet"
    ASSUMED = "assumed"
    ESTIMATE = "estimate"  # arithmetic on predicted numbers; nothing like it was run


@dataclass(frozen=True)
class Estimate:
    """A number with its source and, where it is not exact, an interval (95 %)."""

    value: float
    source: Source
    low: float | None = None
    high: float | None = None
    note: str | None = None  # what it rests on: a bench's file, a datasheet's address, "4 repeats"

    def with_all(self, change: Callable[[float], float]) -> "Estimate":
        """The value and both ends of the interval, each changed alike."""
        low, high = (None if end is None else change(end) for end in (self.low, self.high))
        return replace(self, value=change(self.value), low=low, high=high)


@dataclass(frozen=True)
class Point:
    """One batch size with its peak or its speed, for curves."""

    batch_size: int
    value: Estimate


Setting = int | float | str | bool


@dataclass(frozen=True)
class Command:
    """The user's argv, with ``{name}`` where a setting goes."""

    argv: tuple[str, ...]
    # setting -> the flag it was found behind
    found_flags: dict[str, str] = field(default_factory=dict)
    # placeholder -> what stood there in the user's own command
    given: dict[str, Setting] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)  # added to the child's environment
    # setting -> where the script has its number, where no flag takes it
    places: dict[str, Place] = field(default_factory=dict)


@dataclass(frozen=True)
class EffectiveSetting:
    """One setting: what was requested, what is in force, and why."""

    name: str
    requested: Setting | None  # in the user's command or configuration; None: nothing
    effective: Setting | None
    why: str
    source: Source | None = None  # what the decision rests on; None: it rests on no number


@dataclass(frozen=True)
class HostSetting(EffectiveSetting):
    """One that takes host memory, beside what this machine has room for."""

    place: str = ""  # where what is requested stands: "--batch-size", "config.py:7"
    room: int | bool = 0


@dataclass(frozen=True)
class HostRoom:
    """What a command asks of this machine to load its data, and what there is room for."""

    summary: str  # what matters most, as one sentence
    settings: tuple[HostSetting, ...] = ()  # none where the trial saw no DataLoader


@dataclass(frozen=True)
class Diagnostic:
    """A finding of audit, or a warning: what was seen, what it means, what to do."""

    code: str
    problem: str
    explanation: str
    suggestion: str
    where: str = ""  # the line of the script that it is about: "sft.py:10"; "" where there is none


@dataclass(frozen=True)
class Gpu:
    """A card of the catalogue. Each number has its source; see docs/how/one_allocation.md for what
    the bytes are.
    """

    key: str  # "a100-40gb"
    name: str  # as torch.cuda.get_device_name() shows it
    total_bytes: Estimate  # usable, as torch.cuda.mem_get_info()[1] shows it
    context_bytes: Estimate
    capability: tuple[int, int]
    multiprocessors: int
    bandwidth_bytes_per_s: Estimate
    fp32_flops: Estimate
    tf32_flops: Estimate | None
    fp16_flops: Estimate | None  # dense, tensor cores where there are some
    bf16_flops: Estimate | None
    # share of the clock of these peaks that its power limit lets it hold; None: all
    sustained_clock: Estimate | None = None
    cudnn_bytes: Estimate | None = None  # what cuDNN adds to the context once a convolution has run
    # its link to others of a machine, each way; the note says which; None: not known
    peer_bytes_per_s: Estimate | None = None
    # of each card, to other machines, each way; None: one machine
    network_bytes_per_s: Estimate | None = None
    # "context measured on 2026-11-20 on this machine (...)"; None: as the catalogue has it
    calibration: str | None = None
    # rates measured with it, by the names of Calibration.rates
    reached: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Calibration:
    """What was measured of a real card on its machine (`doctor --calibrate`)."""

    name: str  # as torch.cuda.get_device_name() shows it
    capability: tuple[int, ...]
    multiprocessors: int
    total_bytes: int  # usable, as torch.cuda.mem_get_info()[1] shows it
    # on the card beside PyTorch's segments, after some training steps without a convolution
    context_bytes: int
    cudnn_bytes: int  # what convolutions added to that
    # the same after each stage: "bare", "tensor", "cublas", "training", "cudnn"
    stages_bytes: dict[str, int]
    others_bytes: int | None  # held by other processes before, and taken off; None: not known
    # reached: *_bytes_per_s, *_flops (operations per second), kernel_s and dispatch_s (seconds)
    rates: dict[str, float]
    versions: dict[str, str | int | None]  # torch, cuda, cudnn, driver
    hostname: str
    date: str  # ISO


@dataclass(frozen=True)
class Device:
    """What a trial runs on."""

    # "cpu", "accelerator" or "imaginary"; of a run also "auto": its reports say which was taken
    kind: str
    label: str  # "cpu", "cuda:0", "a100-40gb (imaginary)"
    gpu: Gpu | None = None  # imaginary only
    cards: int = 1  # imaginary: so many of them in the machine
    # imaginary: one rank of so many is started alone; None: the command starts its ranks itself
    ranks: int | None = None
    as_rank: int | None = None  # which one

    @property
    def machines(self) -> int:
        """That so many ranks take, one on each card."""
        return -(-(self.ranks or 1) // self.cards)


@dataclass(frozen=True)
class Budget:
    """How much memory the user allows, and of which kind."""

    bytes: int
    total_bytes: int  # what the machine or card has
    free_bytes: int  # what is free before the trial
    memory: str  # "device" or "host"
    why: str  # "90 % of 38.3 GiB free"


@dataclass(frozen=True)
class Machine:
    """What this machine is, from outside. For records and `doctor`."""

    hostname: str
    system: str
    cpu_name: str
    cores: int  # by affinity and cgroup quota
    host_total_bytes: int
    host_free_bytes: int
    cgroup_limit_bytes: int | None
    shm_bytes: int | None
    python_version: str
    brimful_version: str
    accelerators: tuple[str, ...] = ()  # names, by NVML or torch
