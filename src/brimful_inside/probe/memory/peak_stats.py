"""Peaks that two read: the allocator keeps one set of peaks a device, and both the script and the probe reset it.

Whoever resets, the other's view keeps what the peaks were until then. So the script's max_memory_allocated() reads as it
would without brimful, and a phase keeps its peak when the script resets.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import torch

Tree = Dict[str, Any]
# The functions of torch._C behind torch.cuda, torch.xpu and torch.accelerator: (reads the statistics, resets the peaks).
FUNCTIONS = {
    "cuda": [
        ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats"),
        ("_accelerator_getDeviceStats", "_accelerator_resetPeakStats"),
    ],
    "xpu": [("_xpu_memoryStats", "_xpu_resetPeakMemoryStats"), ("_accelerator_getDeviceStats", "_accelerator_resetPeakStats")],
}


class SharedPeaks:
    """The peaks of all devices of one kind. Made once a process by `of`, which puts it between torch and torch._C."""

    _made: Dict[str, SharedPeaks] = {}  # noqa: RUF012

    def __init__(self, kind: str):
        self._script: Dict[int, Tree] = {}  # device -> what the script's peaks were when the probe last reset
        self._probe: Dict[int, Tree] = {}
        self._stats: Any = None
        self._reset: Any = None
        for stats_name, reset_name in FUNCTIONS.get(kind, FUNCTIONS["cuda"][1:]):
            if hasattr(torch._C, stats_name) and hasattr(torch._C, reset_name):
                self._put_between(stats_name, reset_name)

    @classmethod
    def of(cls, kind: str) -> SharedPeaks:
        if kind not in cls._made:
            cls._made[kind] = cls(kind)
        return cls._made[kind]

    @property
    def known(self) -> bool:
        """Whether this torch tells peaks of that kind of device at all."""
        return self._stats is not None

    def _put_between(self, stats_name: str, reset_name: str) -> None:
        stats, reset = getattr(torch._C, stats_name), getattr(torch._C, reset_name)
        if self._stats is None:
            self._stats, self._reset = stats, reset

        def stats_for_script(device: int) -> Tree:
            return _with_peaks(stats(device), self._script.get(device))

        def reset_by_script(device: int) -> Any:
            _keep(self._probe, device, self._stats)
            self._script.pop(device, None)
            return reset(device)

        setattr(torch._C, stats_name, stats_for_script)
        setattr(torch._C, reset_name, reset_by_script)

    def reset_by_probe(self, device: int, reset: Callable[[], Any]) -> None:
        """`reset` sets the peaks back; the script's view keeps them."""
        _keep(self._script, device, self._stats)
        self._probe.pop(device, None)
        reset()

    def reset_on(self, device: int) -> None:
        self.reset_by_probe(device, lambda: self._reset(device))

    def now(self, device: int) -> Tuple[int, int, int]:
        """(allocated bytes, reserved bytes, how often the allocator gave back its cache and tried again)."""
        stats = self._stats(device)
        return _now(stats, "allocated_bytes"), _now(stats, "reserved_bytes"), int(stats.get("num_alloc_retries", 0))

    def peaks(self, device: int) -> Tuple[int, int]:
        """(allocated, reserved) bytes, since the probe's last reset."""
        stats = _with_peaks(self._stats(device), self._probe.get(device))
        return _peak(stats, "allocated_bytes"), _peak(stats, "reserved_bytes")


def _peak(stats: Tree, name: str) -> int:
    return int(stats.get(name, {}).get("all", {}).get("peak", 0))


def _now(stats: Tree, name: str) -> int:
    return int(stats.get(name, {}).get("all", {}).get("current", 0))


def _keep(view: Dict[int, Tree], device: int, stats: Any) -> None:
    view[device] = _with_peaks(stats(device), view.get(device))


def _with_peaks(now: Tree, kept: Any) -> Tree:
    """`now` with each "peak" raised to the one that was kept."""
    if not kept:
        return now
    result: Tree = {}
    stack: List[Tuple[Tree, Tree, Any]] = [(result, now, kept)]
    while stack:
        into, source, other = stack.pop()
        for key, value in source.items():
            if isinstance(value, dict):
                into[key] = {}
                stack.append((into[key], value, other.get(key, {})))
            else:
                into[key] = max(value, other.get(key, value)) if key == "peak" else value
    return result
