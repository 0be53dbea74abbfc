"""What every part of `make card` is given: the card, the time until which it may run, and the file
that keeps its rows.
"""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from bench import harness
from brimful.errors import NoSuchDevice
from brimful.measure.gpus import context, find_gpu, to_card
from brimful.measure.gpus.calibrations import with_calibration
from brimful.values import Calibration, Estimate, Gpu

T = TypeVar("T")
RESULTS = "results.jsonl"
_KEEPING = threading.Lock()


@dataclass(frozen=True)
class Bench:
    """`part`: the name that its rows have; `call`: its module:function. `card`: as torch describes
    it; `real`: whether it is here. `until`: seconds of time.time().
    """

    part: str
    call: str
    card: dict[str, Any]
    real: bool
    out: Path
    scratch: Path
    until: float

    def keep(self, row: dict[str, Any]) -> None:
        """A line, written at once."""
        line = json.dumps({"part": self.part, **row}) + "\n"
        with _KEEPING, open(self.out / RESULTS, "a", encoding="utf-8") as file:
            file.write(line)
        harness.say(line[:300].rstrip())

    def rows(self) -> list[dict[str, Any]]:
        return read(self.out / RESULTS)

    @property
    def left_s(self) -> float:
        return self.until - time.time()

    def few(self, items: list[T], count: int) -> list[T]:
        """All of them on a card; without one so many that each kind has been tried."""
        return items if self.real else items[:count]

    def each(self, items: list[T], workers: int, make: Callable[[T], dict[str, Any]]) -> None:
        """Keep a row of each, so many at a time, until the time is up; a row that fails holds its
        error.
        """

        def keep(item: T) -> None:
            if self.left_s <= 0:
                return
            try:
                row = make(item)
            except (Exception, SystemExit) as error:  # whatever happens to one row, others go on
                row = {"of": str(item)[:200], "error": f"{type(error).__name__}: {error}"}
            self.keep(row)

        with ThreadPoolExecutor(max(1, workers)) as pool:
            list(pool.map(keep, items))

    @property
    def home(self) -> Path:
        """Of brimful's records and of what was calibrated."""
        return self.scratch / "home"

    @cached_property
    def calibration(self) -> Calibration | None:
        kept = next((row["calibration"] for row in self.rows() if row.get("calibration")), None)
        return Calibration(**kept | {"capability": tuple(kept["capability"])}) if kept else None

    @property
    def catalogued(self) -> Gpu | None:
        """The catalogue's card of that name; None where it has none."""
        try:
            return find_gpu(self.card["name"])
        except NoSuchDevice:
            return None

    @property
    def gpu(self) -> Gpu | None:
        """The same with what was measured of it."""
        plain, calibration = self.catalogued, self.calibration
        return with_calibration(plain, calibration) if plain and calibration else plain

    @property
    def gpu_words(self) -> list[str]:
        """Of `brimful predict`."""
        gpu = self.catalogued
        return (
            ["--gpu", gpu.key] if gpu else ["--gpu-memory", f"{self.card['total_bytes'] >> 20}MiB"]
        )

    @property
    def context(self) -> Estimate:
        """Bytes beside PyTorch's allocator, by the calibration where there is one."""
        card, gpu = self.card, self.gpu
        assumed = context(tuple(card["capability"]), card["multiprocessors"])
        return gpu.context_bytes if gpu else assumed

    def imaginary(self) -> dict[str, Any]:
        """The card for `bench.card.child`."""
        held, gpu = int(self.context.value), self.gpu
        capacity = {"context_bytes": held, "capacity_bytes": self.card["total_bytes"] - held}
        return {**(asdict(to_card(gpu)) if gpu else {}), **self.card, **capacity}


def read(path: Path) -> list[dict[str, Any]]:
    """Whole lines of a result."""
    lines = path.read_text(encoding="utf-8").splitlines(True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
