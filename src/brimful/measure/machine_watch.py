"""This machine at one moment, for who watches a run: its cards by NVML, its host memory and cores.

Source: NVML's API reference, "Device Queries" and "Clocks event reasons".
"""

import contextlib
import time
from collections.abc import Collection
from typing import Any

import psutil

from brimful.measure import accelerators, host
from brimful.measure.process_tree import MemorySampler, ProcessTree
from brimful.values import CardProcess, CardStatus, HostStatus

_ORPHANS_EVERY_S = 30.0  # looks at each process of the machine
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
    """Reads this machine again and again."""

    def __init__(self) -> None:
        self._tree: ProcessTree | None = None
        self._nvml: Any = None
        with contextlib.suppress(Exception):  # no driver, no library, no permission: no card
            import pynvml

            pynvml.nvmlInit()  # stays so: beginning anew can take a second
            self._nvml = pynvml

    def follow(self, tree: ProcessTree) -> None:
        """From now on these processes are watched."""
        self._tree = tree
        self._memory, self._orphans_s = MemorySampler(tree), 0.0

    def read(self) -> tuple[tuple[CardStatus, ...], HostStatus]:
        pids, cards, held_bytes = None, (), 0
        if self._tree is not None:
            now_s = time.monotonic()
            thorough = now_s >= self._orphans_s
            pids = [process.pid for process in self._tree.members(thorough)]
            if thorough and pids:
                self._orphans_s = now_s + _ORPHANS_EVERY_S
            self._memory.poll(now_s)
            held_bytes = self._memory.latest_bytes if pids else 0
        with contextlib.suppress(Exception):  # none, or taken away meanwhile
            count = self._nvml.nvmlDeviceGetCount()
            cards = tuple(_card(self._nvml, index, pids or ()) for index in range(count))
        return cards, HostStatus(
            total_bytes=host.total_bytes(),
            free_bytes=host.free_bytes(),
            cgroup_limit_bytes=host.Cgroup().memory_limit_bytes(),
            cores=host.cores(),
            busy_cores=host.busy_cores(0.1),
            processes=None if pids is None else len(pids),
            processes_bytes=held_bytes or None,
        )


def _card(nvml: Any, index: int, watched: Collection[int]) -> CardStatus:
    card = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(name: str, *more: Any) -> Any:
        """None for what this card, this driver or this binding does not say."""
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            return getattr(nvml, f"nvmlDeviceGet{name}")(card, *more)

    memory, busy = accelerators.memory_of(nvml, card), ask("UtilizationRates")
    power, limit = ask("PowerUsage"), ask("EnforcedPowerLimit")
    # drivers before 535 know them by the second name
    reasons = ask("CurrentClocksEventReasons") or ask("CurrentClocksThrottleReasons") or 0
    held = [p for p in ask("ComputeRunningProcesses") or () if p.usedGpuMemory is not None]
    return CardStatus(
        index=index,
        name=nvml.nvmlDeviceGetName(card),
        total_bytes=int(memory.total),
        used_bytes=int(memory.used),
        processes=tuple(
            CardProcess(p.pid, _name_of(p.pid), int(p.usedGpuMemory), p.pid in watched)
            for p in sorted(held, key=lambda p: -p.usedGpuMemory)
        ),
        busy_share=None if busy is None else busy.gpu / 100,
        power_w=None if power is None else power / 1000,
        power_limit_w=None if limit is None else limit / 1000,
        temperature_c=ask("Temperature", 0),  # 0: of the chip
        clock_mhz=ask("ClockInfo", 1),  # 1: of its multiprocessors
        highest_clock_mhz=ask("MaxClockInfo", 1),
        throttled_by=tuple(text for bit, text in _THROTTLED_BY.items() if reasons & bit),
    )


def _name_of(pid: int) -> str:
    """ "?" for a process of another container."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).name()
    return "?"
