"""`doctor`: what this machine is, and what stands in the way of good measurements; `--calibrate`
measures its card.
"""

import contextlib
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import brimful_inside
from brimful.errors import CommandFailed, NoSuchDevice
from brimful.measure import accelerators, host
from brimful.measure.gpus import calibrations
from brimful.record import record_home
from brimful.trials import devices
from brimful.trials.results import OLDEST_TORCH
from brimful.units import counted, format_bytes
from brimful.values import Calibration, Command, Diagnostic, Machine

SCRIPT = Path(brimful_inside.__file__).parent / "calibration.py"
TIME_LIMIT_S = 300.0  # of a calibration
_SMALL_SHM_BYTES = 1 << 30
_SMALL_DISK_BYTES = 1 << 30
_BUSY = 1.5  # processes a core; assumed
_CPUS = Path("/sys/devices/system/cpu")
# Findings: without which nothing works, what spoils measurements, what is slower than it need be,
# and what is as it is.
_RANKS = (
    *("no-torch", "torch-sees-no-card", "disk-nearly-full"),
    *("card-in-use", "busy-machine", "small-shared-memory"),
    *("slow-clock", "old-torch"),
    *("no-accelerator", "other-interpreter", "memory-limit"),
)


def doctor() -> tuple[Machine, tuple[Diagnostic, ...]]:
    """This machine, and what stands in the way, what matters most first. Starts no trial."""
    machine = host.machine()
    interpreter, other_python = _python()
    version = accelerators.torch_version(interpreter)
    findings = (
        *_about_torch(interpreter, version),
        *(_about_cards(interpreter) if version is not None else ()),
        *_about_the_processor(machine),
        *_about_memory(machine),
        *_about_the_disk(),
        *([other_python] if other_python else []),
    )
    return machine, tuple(sorted(findings, key=lambda finding: _RANKS.index(finding.code)))


def _python() -> tuple[str, Diagnostic | None]:
    """(The Python by which brimful runs the user's scripts, why it is not the one on the PATH.)"""
    command, why = devices.with_torch(Command(("python",)))
    return shutil.which(command.argv[0]) or sys.executable, why


def _about_torch(interpreter: str, version: str | None) -> Iterator[Diagnostic]:
    if version is None:
        yield Diagnostic(
            "no-torch",
            f"{interpreter} cannot import torch",
            "trials run in the Python of your command, which needs torch",
            "activate the environment of your script before calling brimful",
        )
    elif accelerators.is_older(version, OLDEST_TORCH):
        yield Diagnostic(
            "old-torch",
            f"torch {version} in {interpreter}",
            "brimful is made for torch 2.6 and newer",
            "update torch",
        )


def _about_cards(interpreter: str) -> Iterator[Diagnostic]:
    by_nvml = accelerators.visible()
    by_torch = accelerators.ask_python(interpreter)
    used = [card for card in by_nvml if card.free_bytes < 0.9 * card.total_bytes]
    if by_nvml and not by_torch:
        yield Diagnostic(
            "torch-sees-no-card",
            f"the driver shows {by_nvml[0].name}, and torch in {interpreter} sees no accelerator",
            "trials would run on the CPU",
            "install a build of torch for this driver, or check CUDA_VISIBLE_DEVICES",
        )
    elif not by_torch:
        yield Diagnostic(
            "no-accelerator",
            "no accelerator is visible here",
            "`run`, `tune` and `audit` work on the CPU; `--gpu NAME` predicts for a card without "
            "having it",
            "see `brimful gpus`",
        )
    elif used:
        yield Diagnostic(
            "card-in-use",
            f"{format_bytes(used[0].total_bytes - used[0].free_bytes)} of {used[0].label} are in "
            "use already",
            "budgets are taken of what is free, and timings suffer from other processes",
            "check `nvidia-smi` for processes that you no longer need",
        )


def _about_the_processor(machine: Machine) -> Iterator[Diagnostic]:
    load, cores = os.getloadavg()[0], os.cpu_count() or machine.cores  # both of the whole machine
    if load > _BUSY * cores:
        yield Diagnostic(
            "busy-machine",
            f"{load:.1f} processes want the processor's {counted(cores, 'core')} (mean of the last "
            "minute)",
            "what is timed now comes out slow, and the threads of a training on the CPU wait for "
            "each other",
            "measure when the machine is quiet; train on the CPU beside other work with "
            "OMP_NUM_THREADS=1",
        )
    slow = False
    with contextlib.suppress(OSError):
        slow = any(
            (folder / "scaling_governor").read_text().strip() == "powersave"
            # Under these drivers the hardware chooses the clock, whatever the governor's name.
            and not (folder / "scaling_driver").read_text().startswith(("intel_p", "amd-p"))
            for folder in _CPUS.glob("cpu*/cpufreq")
        )
    if slow:
        yield Diagnostic(
            "slow-clock",
            "the processor is kept at its lowest clock (governor powersave)",
            "loading and the CPU's part of each step take longer than they need to",
            "set another: cpupower frequency-set -g performance",
        )


def _about_memory(machine: Machine) -> Iterator[Diagnostic]:
    if machine.shm_bytes is not None and machine.shm_bytes < _SMALL_SHM_BYTES:
        yield Diagnostic(
            "small-shared-memory",
            f"/dev/shm has {format_bytes(machine.shm_bytes)}",
            "DataLoader workers hand their batches over through it; with large batches they die "
            "of a bus error",
            "give the container more (docker run --shm-size 8g), or use fewer workers",
        )
    limit = machine.cgroup_limit_bytes
    if limit is not None and limit <= machine.host_total_bytes:
        yield Diagnostic(
            "memory-limit",
            f"a cgroup limits this process to {format_bytes(limit)} of host memory",
            "the kernel kills what goes over it (signal 9), whatever the host has free",
            "nothing: brimful counts with the smaller of the two",
        )


def _about_the_disk() -> Iterator[Diagnostic]:
    folder = record_home()
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < _SMALL_DISK_BYTES:
        yield Diagnostic(
            "disk-nearly-full",
            f"{format_bytes(free)} free where records are kept ({folder})",
            "a trial keeps its output and traces there",
            "free some space, or set BRIMFUL_HOME",
        )


def calibrate(
    interpreter: str | None = None, home: Path | str | None = None, script: Path = SCRIPT
) -> tuple[Calibration, Path]:
    """Measures the first card that `interpreter` sees, and keeps that for later predictions: (what
    it measured, the file).

    `interpreter`: None for the Python that runs the user's scripts, or brimful's own where that one
    has no torch. Raises NoSuchDevice where torch sees no CUDA card there, CommandFailed where
    measuring it failed.
    """
    interpreter = interpreter or _python()[0]
    cards = accelerators.visible()
    answer = _ask(interpreter, script)
    if "none" in answer:
        raise NoSuchDevice(
            "cuda",
            problem=f"there is no CUDA card to calibrate: {answer['none']}",
            suggestion="run it on the machine with the card, in the environment of your script; "
            "see `brimful doctor`",
        )
    calibration = _calibration_of(answer, cards[0] if cards else None)
    return calibration, calibrations.keep(calibration, home)


def _calibration_of(
    answer: Mapping[str, Any], card: accelerators.Accelerator | None
) -> Calibration:
    """The child's answer without what other processes held on the card before it started; `card`:
    None without NVML.
    """
    others = card.others_bytes if card else None
    stages = {name: max(0, held - (others or 0)) for name, held in answer["outside_bytes"].items()}
    return Calibration(
        name=answer["card"]["name"],
        capability=tuple(answer["card"]["capability"]),
        multiprocessors=answer["card"]["multiprocessors"],
        total_bytes=answer["card"]["total_bytes"],
        context_bytes=stages["training"],
        cudnn_bytes=max(0, stages["cudnn"] - stages["training"]),
        stages_bytes=stages,
        others_bytes=others,
        rates={name: rate for name, rate in answer["rates"].items() if rate is not None},
        versions={**answer["versions"], "driver": card.driver if card else None},
        hostname=platform.node(),
        date=datetime.date.today().isoformat(),
    )


def _ask(interpreter: str, script: Path) -> Mapping[str, Any]:
    """What the calibration script prints in a process of its own."""
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("BRIMFUL_")
    }
    start = (
        f"import runpy, sys; sys.path.pop(0); runpy.run_path({str(script)!r}, run_name='__main__')"
    )
    try:
        run = subprocess.run(
            [interpreter, "-c", start],
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_S,
            env=variables,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandFailed(f"the card could not be calibrated: {error}") from error
    for line in reversed(run.stdout.splitlines()):
        if line.startswith("BRIMFUL"):
            return json.loads(line[len("BRIMFUL") :])
    raise CommandFailed(
        f"the card could not be calibrated: {interpreter} ended with {run.returncode}",
        suggestion="see `brimful doctor`",
        traceback=run.stderr,
    )
