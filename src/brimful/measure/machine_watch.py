"""This machine at one moment, for who watches a run: its cards by NVML, its host memory and cores.

Sources: NVML's API reference, "Device Queries" and "Clocks event reasons".
"""

import contextlib
import time
from collections.abc import Callable, Collection
from typing import Any

import psutil

from brimful.measure import accelerators, host
from brimful.measure.process_tree import MemorySampler, ProcessTree
from brimful.values import CardProcess, CardStatus, HostStatus

# How often the memory of all processes is read, and the share of the time that this may take: the
# kernel walks over their pages meanwhile (as in `measure.attempt`).
_MEMORY_EVERY_S, _MEMORY_TIME_SHARE = 5.0, 0.002
# why a clock is not higher, by the bits of nvmlDeviceGetCurrentClocksEventReasons; without 0x1, an
# idle card
_THROTTLED_BY = {
    0x2: "clocks set for applications",
    0x4: "its power limit",
    0x8: "a slowdown of the hardware",
    0x10: "sync boost with another card",
    0x20: "its temperature (software)",
    0x40: "its temperature (hardware)",
    0x80: "an external power brake",
    0x100: "clocks set for the display",
}


class MachineWatch:
    """Reads this machine again and again. `tree`: the processes that are watched."""

    def __init__(self, tree: ProcessTree | None, clock: Callable[[], float] = time.monotonic):
        self._tree, self._clock = tree, clock
        self._memory = (
            MemorySampler(tree, None, _MEMORY_EVERY_S, _MEMORY_TIME_SHARE) if tree else None
        )
        self._nvml = _nvml()
        psutil.cpu_percent()  # of the time between two calls: the first one begins it
        self._looked = False

    def read(self) -> tuple[tuple[CardStatus, ...], HostStatus]:
        watched = [p.pid for p in self._tree.members(thorough=True)] if self._tree else None
        if self._memory is not None:
            self._memory.poll(self._clock())
        share, self._looked = (psutil.cpu_percent() / 100 if self._looked else None), True
        memory_bytes = self._memory.latest_bytes if self._memory is not None and watched else None
        here = HostStatus(
            total_bytes=host.total_bytes(),
            free_bytes=host.free_bytes(),
            cgroup_limit_bytes=host.Cgroup().memory_limit_bytes(),
            cores=host.cores(),
            busy_share=share,
            processes=len(watched) if watched is not None else None,
            processes_bytes=memory_bytes or None,
        )
        return _cards(self._nvml, watched or ()), here


def _nvml() -> Any:
    """The driver, for as long as this process lives: beginning anew can take a second. None without
    one."""
    with contextlib.suppress(Exception):  # no driver, no library, no permission: no card
        import pynvml

        pynvml.nvmlInit()
        return pynvml
    return None


def _cards(nvml: Any, watched: Collection[int]) -> tuple[CardStatus, ...]:
    with contextlib.suppress(Exception):  # a driver that is taken away meanwhile
        return tuple(_card(nvml, index, watched) for index in range(nvml.nvmlDeviceGetCount()))
    return ()


def _card(nvml: Any, index: int, watched: Collection[int]) -> CardStatus:
    card = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(name: str, *more: Any) -> Any:
        """None for what this card, this driver or this binding does not say."""
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            return getattr(nvml, name)(card, *more)
        return None

    memory = accelerators.memory_of(nvml, card)
    busy = ask("nvmlDeviceGetUtilizationRates")
    power, limit = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    if reasons is None:
        reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons")  # drivers before 535
    held = {
        process.pid: process.usedGpuMemory
        for process in ask("nvmlDeviceGetComputeRunningProcesses") or ()
        if process.usedGpuMemory is not None
    }
    return CardStatus(
        index=index,
        name=nvml.nvmlDeviceGetName(card),
        total_bytes=int(memory.total),
        used_bytes=int(memory.used),
        processes=tuple(
            CardProcess(pid, _name_of(pid), int(size), pid in watched)
            for pid, size in sorted(held.items(), key=lambda item: -item[1])
        ),
        busy_share=busy.gpu / 100 if busy is not None else None,
        power_w=power / 1000 if power is not None else None,
        power_limit_w=limit / 1000 if limit is not None else None,
        temperature_c=ask("nvmlDeviceGetTemperature", 0),  # 0: of the chip
        clock_mhz=ask("nvmlDeviceGetClockInfo", 1),  # 1: of its multiprocessors
        highest_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", 1),
        throttled_by=tuple(text for bit, text in _THROTTLED_BY.items() if (reasons or 0) & bit),
    )


def _name_of(pid: int) -> str:
    """ "?" for a process of another container."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).name()
    return "?"
