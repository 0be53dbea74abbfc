"""`doctor`: what this machine is, and what stands in the way of good measurements here. Starts no trial."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from brimful.measure import accelerators, host
from brimful.record import record_home
from brimful.units import format_bytes
from brimful.values import Diagnostic, Machine

_SMALL_SHM_BYTES = 1 << 30
_SMALL_DISK_BYTES = 1 << 30


def doctor(interpreter: str | None = None, home: Path | None = None) -> tuple[Machine, tuple[Diagnostic, ...]]:
    """This machine, and advice where something was seen. `interpreter` is the Python that runs the user's scripts."""
    machine = host.machine()
    interpreter = interpreter or shutil.which("python") or sys.executable
    checks = (
        _torch(interpreter),
        _accelerator(interpreter),
        _shared_memory(machine),
        _cgroup(machine),
        _records(home),
    )
    return machine, tuple(advice for advice in checks if advice is not None)


def _torch(interpreter: str) -> Diagnostic | None:
    seen = accelerators.torch_version(interpreter)
    if seen is None:
        return Diagnostic(
            "no-torch",
            f"{interpreter} cannot import torch",
            "trials run in the Python of your command, which needs torch",
            "activate the environment of your script before calling brimful",
        )
    if accelerators.is_older(seen, (2, 6)):
        return Diagnostic(
            "old-torch", f"torch {seen} in {interpreter}", "brimful is made for torch 2.6 and newer", "update torch"
        )
    return None


def _accelerator(interpreter: str) -> Diagnostic | None:
    by_nvml = accelerators.visible()
    by_torch = accelerators.ask_python(interpreter)
    if by_nvml and not by_torch:
        return Diagnostic(
            "torch-sees-no-card",
            f"the driver shows {by_nvml[0].name}, and torch in {interpreter} sees no accelerator",
            "trials would run on the CPU",
            "install a build of torch for this driver, or look at CUDA_VISIBLE_DEVICES",
        )
    if not by_torch:
        return Diagnostic(
            "no-accelerator",
            "no accelerator is visible here",
            "`tune` and `audit` work on the CPU; `--gpu NAME` predicts for a card without having it",
            "see `brimful gpus`",
        )
    used = [card for card in by_nvml if card.free_bytes < 0.9 * card.total_bytes]
    if used:
        return Diagnostic(
            "card-in-use",
            f"{format_bytes(used[0].total_bytes - used[0].free_bytes)} of {used[0].label} are in use already",
            "budgets are taken of what is free, and timings suffer from other processes",
            "look at `nvidia-smi` for processes that you no longer need",
        )
    return None


def _shared_memory(machine: Machine) -> Diagnostic | None:
    if machine.shm_bytes is None or machine.shm_bytes >= _SMALL_SHM_BYTES:
        return None
    return Diagnostic(
        "small-shared-memory",
        f"/dev/shm has {format_bytes(machine.shm_bytes)}",
        "DataLoader workers hand their batches over through it; with large batches they die of a bus error",
        "give the container more (docker run --shm-size 8g), or use fewer workers",
    )


def _cgroup(machine: Machine) -> Diagnostic | None:
    if machine.cgroup_limit_bytes is None:
        return None
    return Diagnostic(
        "memory-limit",
        f"a cgroup limits this process to {format_bytes(machine.cgroup_limit_bytes)} of host memory",
        "the kernel kills what goes over it (signal 9), whatever the host has free",
        "nothing: brimful counts with the smaller of the two",
    )


def _records(home: Path | None) -> Diagnostic | None:
    folder = record_home(home)
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free >= _SMALL_DISK_BYTES:
        return None
    return Diagnostic(
        "disk-nearly-full",
        f"{format_bytes(free)} free where records are kept ({folder})",
        "a trial keeps its output and traces there",
        "free some space, or set BRIMFUL_HOME",
    )
