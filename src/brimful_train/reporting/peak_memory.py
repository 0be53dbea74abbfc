"""Memory by phase: each phase's peak is its own, reset at its start and read at its end.

On a card: what PyTorch's allocator had allocated and reserved. On a CPU: the process's own resident
memory, by the kernel's high-water mark; where that cannot be reset, a phase's peak is the peak up
to its end.
"""

import contextlib
import re
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil
import torch

from brimful.errors import DoesNotFit
from brimful.units import format_bytes, parse_budget
from brimful.values import EffectiveSetting
from brimful_inside import script

TRAIN, EVAL = "train", "eval"


@dataclass
class Peak:
    """The most that one phase held. None: not measured here, or never reached."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    host_bytes: int | None = None
    cached: bool = False  # the phase's work was cached, so that its peak says nothing

    def larger(self, other: Self) -> None:
        for name in ("allocated_bytes", "reserved_bytes", "host_bytes"):
            values = [v for v in (getattr(self, name), getattr(other, name)) if v is not None]
            setattr(self, name, max(values, default=None))
        self.cached = self.cached and other.cached


class Peaks:
    """Peaks of named phases on `device`. A phase within another one interrupts it."""

    def __init__(self, device: torch.device | str = "cpu"):
        self.device = torch.device(device)
        self._meter: _CardMeter | _HostMeter = (
            _HostMeter() if self.device.type == "cpu" else _CardMeter(self.device)
        )
        self.of: dict[str, Peak] = {}
        self._open: list[str] = []

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[Peak]:
        """A stretch with its own peak; `.cached = True` on it says that its work was cached."""
        visit = Peak()
        self._fold()
        self._open.append(name)
        self._meter.reset()
        try:
            if name in (TRAIN, EVAL):  # which a probe around this process sees for itself
                yield visit
            else:
                with script.phase(name) as noted:
                    yield visit
                    noted.cached = visit.cached
        finally:
            self._fold(visit.cached)
            self._open.pop()
            self._meter.reset()

    def during(self, work: Callable[[], object]) -> Peak:
        """The peak while `work` runs. It counts for the phase around it as well."""
        self._fold()
        self._meter.reset()
        work()
        return self._meter.peak()

    def read(self, name: str) -> Peak:
        """A phase's peak so far, also while it lasts."""
        self._fold()
        return self.of.get(name, Peak())

    def now_bytes(self) -> int:
        """Allocated on the card, resident on the host, at this moment."""
        return self._meter.now_bytes()

    def _fold(self, cached: bool = False) -> None:
        if self._open:
            peak = self._meter.peak()
            peak.cached = cached
            self.of.setdefault(self._open[-1], peak).larger(peak)


class _CardMeter:
    def __init__(self, device: torch.device):
        self._device = device
        self._memory: Any = getattr(torch, device.type)

    def reset(self) -> None:
        """Before the first use of the device there is nothing to reset, and PyTorch refuses."""
        if self._memory.is_initialized():
            self._memory.reset_peak_memory_stats(self._device)

    def peak(self) -> Peak:
        return Peak(
            allocated_bytes=self._memory.max_memory_allocated(self._device),
            reserved_bytes=self._memory.max_memory_reserved(self._device),
        )

    def now_bytes(self) -> int:
        return self._memory.memory_allocated(self._device)


class _HostMeter:
    """This process's resident memory, without its workers'."""

    def reset(self) -> None:
        """proc(5): writing 5 to clear_refs resets VmHWM to what is resident now."""
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def peak(self) -> Peak:
        """VmHWM, or where a kernel has none (some sandboxes) what getrusage(2) knows."""
        mark = re.search(r"^VmHWM:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return Peak(host_bytes=(usage.ru_maxrss if mark is None else int(mark[1])) * 1024)

    def now_bytes(self) -> int:
        return psutil.Process().memory_info().rss


def limit_memory(budget: str, device: torch.device) -> EffectiveSetting:
    """Holds this process to a budget, beyond which allocations fail as out of memory. Returns what
    is in force.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        wanted = parse_budget(budget, free)
        torch.cuda.set_per_process_memory_fraction(min(1.0, wanted / total), device)
        return EffectiveSetting(
            "memory_budget",
            budget,
            format_bytes(min(wanted, total)),
            f"of {format_bytes(total)} on {device}, by PyTorch's allocator",
        )
    if device.type != "cpu":
        return EffectiveSetting(
            "memory_budget", budget, None, f"PyTorch has no limit for {device.type}"
        )
    return _limit_host_memory(budget)


def _limit_host_memory(budget: str) -> EffectiveSetting:
    wanted = parse_budget(budget, psutil.virtual_memory().available)
    memory = psutil.Process().memory_full_info()
    if wanted <= memory.uss:
        raise DoesNotFit(
            f"config.memory_budget = {budget!r} is {format_bytes(wanted)}, and this process "
            f"holds {format_bytes(memory.uss)} before the training begins",
            "PyTorch itself, what the script imports and the data take as much.",
            "Raise it.",
        )
    # The kernel limits what is mapped, and a budget means what is used: what is mapped and
    # untouched now does not count.
    untouched = max(0, getattr(memory, "data", 0) - memory.uss)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = wanted + untouched
    if hard != resource.RLIM_INFINITY and limit > hard:
        return EffectiveSetting(
            "memory_budget",
            budget,
            format_bytes(max(0, hard - untouched)),
            "the system's own limit is lower",
        )
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return EffectiveSetting(
        "memory_budget",
        budget,
        format_bytes(wanted),
        "what this process allocates on the host (RLIMIT_DATA), without the libraries it loads",
    )
