"""How many threads an operation on the CPU is divided among: fewer than PyTorch takes where other
work, or other ranks, want the cores.

The threads of an operation wait for each other at its end. One whose core does other work makes all
of them wait, so that two threads on two busy cores are many times slower than one.
"""

import os
from dataclasses import replace

import torch

from brimful.decide.loading import Host
from brimful.measure import host as machine
from brimful.units import counted
from brimful.values import EffectiveSetting, Source

_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_OVERRULES = "OMP_NUM_THREADS overrules"


def choose_threads(host: Host, device: torch.device) -> EffectiveSetting:
    """Sets the number of threads of this process, unless the user did. The row has it, and why."""
    now, cores = torch.get_num_threads(), len(machine.allowed_cores())
    given = next((f"{name} says so" for name in _VARIABLES if name in os.environ), None)
    if given is None and now not in (cores, machine.physical_cores()):  # PyTorch's own choices
        given = "the script called torch.set_num_threads"
    if given is not None:
        return EffectiveSetting("threads", now, now, given)
    busy = machine.busy_cores() if device.type == "cpu" and now > 1 else 0
    chosen = max(1, min(now, host.cores // host.ranks, (cores - busy) // host.ranks))
    if chosen != now:
        torch.set_num_threads(chosen)
    why = counted(host.cores, "core") + (f" for {host.ranks} ranks" if host.ranks > 1 else "")
    why += f", {busy} busy with other work" if busy else ""
    return EffectiveSetting("threads", None, chosen, f"{why}; {_OVERRULES}", Source.MEASURED)


def adopt_threads(row: EffectiveSetting, threads: int, cores: int) -> EffectiveSetting:
    """The row of a training that goes on from a checkpoint made with so many `threads` on so many
    cores: it takes them again, since the last bits of a sum depend on how it is divided. Not where
    the user gave a number, nor on a machine with other cores.
    """
    if threads == row.effective:
        return row
    if row.requested is None and cores == machine.cores():
        torch.set_num_threads(threads)
        why = "as before the checkpoint, so that results stay the same bit for bit"
        return replace(row, effective=threads, why=f"{why}; {_OVERRULES}")
    changed = f"{threads} before the checkpoint: the last bits of results may differ"
    return replace(row, why=f"{row.why}; {changed}")
