"""`doctor --calibrate`: measures this machine's card in a process of its own, and keeps what predictions then go by."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import brimful_inside
from brimful.errors import CommandFailed, NoSuchDevice
from brimful.measure import accelerators
from brimful.measure.gpus import calibrations
from brimful.values import Calibration

SCRIPT = Path(brimful_inside.__file__).parent / "calibration.py"
TIME_LIMIT_S = 300.0


def python_here() -> str:
    """The Python that runs the user's scripts, as `doctor` takes it, or brimful's own where that one has no torch."""
    found = shutil.which("python")
    return found if found and accelerators.torch_version(found) else sys.executable


def calibrate(interpreter: str, home: Path | str | None = None, script: Path = SCRIPT) -> tuple[Calibration, Path]:
    """Measures the first card that `interpreter` sees, and writes it down: (what was measured, the file).

    Raises NoSuchDevice where torch sees no CUDA card there, CommandFailed where measuring it failed.
    """
    others = _used_bytes()
    told = _ask(interpreter, script)
    if "none" in told:
        raise NoSuchDevice(
            "cuda",
            problem=f"there is no CUDA card to calibrate: {told['none']}",
            suggestion="run it on the machine with the card, in the environment of your script; see `brimful doctor`",
        )
    calibration = calibration_of(told, others, datetime.date.today().isoformat())
    return calibration, calibrations.keep(calibration, home)


def calibration_of(told: Mapping[str, Any], others: int | None, date: str) -> Calibration:
    """The child's words as a calibration. `others`: bytes that were in use before it started, None where nothing tells."""
    stages = {name: max(0, held - (others or 0)) for name, held in told["outside_bytes"].items()}
    driver = accelerators.visible()
    return Calibration(
        name=told["card"]["name"],
        capability=tuple(told["card"]["capability"]),
        multiprocessors=told["card"]["multiprocessors"],
        total_bytes=told["card"]["total_bytes"],
        context_bytes=stages["training"],
        cudnn_bytes=max(0, stages["cudnn"] - stages["training"]),
        stages_bytes=stages,
        others_bytes=others,
        rates={name: rate for name, rate in told["rates"].items() if rate is not None},
        versions={**told["versions"], "driver": driver[0].driver if driver else None},
        hostname=platform.node(),
        date=date,
    )


def _used_bytes() -> int | None:
    """What other processes hold on the card, before ours is there; None without NVML."""
    cards = accelerators.visible()
    return cards[0].others_bytes if cards else None


def _ask(interpreter: str, script: Path) -> Mapping[str, Any]:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("BRIMFUL_")}
    start = f"import runpy, sys; sys.path.pop(0); runpy.run_path({str(script)!r}, run_name='__main__')"
    try:
        run = subprocess.run(
            [interpreter, "-c", start], capture_output=True, text=True, timeout=TIME_LIMIT_S, env=variables, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandFailed(f"the card could not be calibrated: {error}") from error
    for line in reversed(run.stdout.splitlines()):
        if line.startswith("BRIMFUL"):
            return json.loads(line[len("BRIMFUL") :])
    raise CommandFailed(
        problem=f"the card could not be calibrated: {interpreter} ended with {run.returncode}",
        suggestion="see `brimful doctor`",
        traceback=run.stderr,
    )
