"""The parts of `make card` that look at the card itself: what it takes and gives, and what it
answers before its first use.
"""

import json
import subprocess
import sys
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from bench import harness
from bench.card.bench import Bench


def calibrate(bench: Bench) -> None:
    """As `brimful doctor --calibrate`; without a card its child alone, on an imaginary one."""
    if bench.real:
        from brimful.verbs import doctor

        bench.keep({"calibration": asdict(doctor.calibrate(sys.executable, bench.home)[0])})
    else:
        bench.keep({"tried": harness.apart("bench.card.first", "calibrated", bench.imaginary())})


def calibrated(card: dict[str, Any]) -> dict[str, Any]:
    from bench.traced import imagined
    from brimful_inside.calibration import calibrate as measure
    from brimful_inside.wire import Card

    with imagined(
        Card(**{name: value for name, value in card.items() if name != "capacity_bytes"})
    ):
        return measure()


def first_use(bench: Bench) -> None:
    _lines_of(bench, "bench.card.first_use")


def captcha_profile(bench: Bench) -> None:
    _lines_of(bench, "bench.card.captcha_profile")


def _lines_of(bench: Bench, module: str) -> None:
    """The JSON lines that a module prints; a sentence where this clone has none of that name."""
    if find_spec(module) is None:
        return bench.keep({"skipped": f"this clone has no {module}"})
    command = [sys.executable, "-m", module]
    run = subprocess.Popen(
        command, cwd=harness.ROOT, env=harness.environment(), stdout=subprocess.PIPE, text=True
    )
    for line in run.stdout or ():
        if line.startswith("{"):
            bench.keep(json.loads(line))
    if run.wait() not in (0, 1):
        bench.keep({"error": f"{module} ended with {run.returncode}"})
