"""What every part of `make card` is given: the card, the time until which it may run, and the file
that keeps its rows.
"""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from bench import harness
from brimful.errors import NoSuchDevice
from brimful.measure.gpus import to_card
from brimful.measure.gpus.calibrations import find_calibrated
from brimful.measure.gpus.find import custom_gpu
from brimful.values import Gpu

T = TypeVar("T")
CLOSING_S = 2.0  # of a part's time, to keep what it has
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
        return self.until - time.time() - CLOSING_S

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

    def gpu(self, home: Path | None = None) -> Gpu:
        """The catalogue's card with what was measured of it; by its memory alone where neither
        knows it. `home`: another folder of what was measured.
        """
        try:
            return find_calibrated(self.card["name"], home or self.home)
        except NoSuchDevice:
            return custom_gpu(self.card["total_bytes"], self.card["name"])

    @property
    def context_bytes(self) -> int:
        """Beside PyTorch's allocator."""
        return int(self.gpu().context_bytes.value)

    def imaginary(self) -> dict[str, Any]:
        """The card for `bench.card.child`."""
        capacity = {"capacity_bytes": self.card["total_bytes"] - self.context_bytes}
        return asdict(to_card(self.gpu())) | self.card | capacity


def read(path: Path) -> list[dict[str, Any]]:
    """Whole lines of a result."""
    lines = path.read_text(encoding="utf-8").splitlines(True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]
