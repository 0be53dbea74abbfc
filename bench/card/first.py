"""The parts of `make card` that look at the card itself: what it takes and gives, and what it
answers before its first use.
"""

import contextlib
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, fields
from importlib.util import find_spec
from typing import Any

from bench import harness
from bench.card.bench import Bench

_ON_AN_IMAGINARY_CARD = """
import json, sys
from bench.card import first
first.called(sys.argv[1], json.loads(sys.argv[2]))
"""


def calibrate(bench: Bench) -> None:
    """As `brimful doctor --calibrate`; without a card its child alone, on an imaginary one."""
    if bench.real:
        from brimful.verbs import doctor

        bench.keep({"calibration": asdict(doctor.calibrate(sys.executable, bench.home)[0])})
    else:
        bench.keep({"tried": harness.apart("bench.card.first", "calibrated", bench.imaginary())})


def calibrated(card: dict[str, Any]) -> dict[str, Any]:
    from brimful_inside.calibration import calibrate as measure

    with on_imaginary(card):
        return measure()


@contextlib.contextmanager
def on_imaginary(card: dict[str, Any]) -> Iterator[None]:
    from bench.traced import imagined
    from brimful_inside.wire import Card

    with imagined(Card(**{name.name: card[name.name] for name in fields(Card)})):
        yield


def first_use(bench: Bench) -> None:
    if bench.real:
        return lines_of(bench, "bench.card.first_use", "-m", "bench.card.first_use")
    card = json.dumps(bench.imaginary())
    words = ("-c", _ON_AN_IMAGINARY_CARD, "bench.card.first_use", card)
    return lines_of(bench, "bench.card.first_use", *words)


def called(module: str, card: dict[str, Any]) -> None:
    with on_imaginary(card):
        importlib.import_module(module).main()


def captcha_profile(bench: Bench) -> None:
    lines_of(bench, "bench.card.captcha_profile", "-m", "bench.card.captcha_profile")


def lines_of(bench: Bench, module: str, *words: str) -> None:
    """The JSON lines that a module prints; a sentence where this clone has none of that name."""
    if find_spec(module) is None:
        return bench.keep({"skipped": f"this clone has no {module}"})
    command, environment = [sys.executable, *words], harness.environment()
    run = subprocess.Popen(
        command, cwd=harness.ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    count = 0
    for line in filter(lambda line: line.startswith("{"), run.stdout or ()):
        bench.keep(json.loads(line))
        count += 1
    if run.wait() and not count:  # a code of 1 beside lines says that some are unexpected
        bench.keep({"error": f"{module} ended with {run.returncode}"})
