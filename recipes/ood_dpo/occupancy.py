"""How full and how busy the card is while a sweep runs, whoever uses it; without a card, the
machine.
"""

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Any, Self

import psutil
import torch

from brimful_inside.script import is_imaginary
from recipes.common.cache import write_json

MOST = 240  # points of a curve: from there on every second one is left out, and the next come later


class Occupancy:
    """Watches `device` from entering to leaving. `starts` is what `file` holds: of each start of
    the sweep that ended, its device, and points (seconds, share of the memory in use, share of the
    time busy or None).
    """

    def __init__(self, device: torch.device, file: Path, every_s: float = 1.0) -> None:
        self._device, self._file, self._every_s = device, file, every_s
        self.starts: list[dict[str, Any]] = []
        with contextlib.suppress(FileNotFoundError, ValueError):
            self.starts = json.loads(file.read_text(encoding="utf-8"))
        self._points: list[tuple[float, float, float | None]] = []
        self._ends, self._begun = threading.Event(), time.monotonic()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if not is_imaginary():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        if self._thread.ident is not None:
            self._thread.join()
            self.starts.append({"device": str(self._device), "points": self._points})
            write_json(self._file, self.starts)

    def _watch(self) -> None:
        ended = False
        psutil.cpu_percent()  # answers for the time since this thread asked before
        while not ended:
            ended = self._ends.wait(self._every_s)
            self._points.append((round(time.monotonic() - self._begun, 1), *self._now()))
            if len(self._points) >= MOST:
                del self._points[::2]
                self._every_s *= 2

    def _now(self) -> tuple[float, float | None]:
        if self._device.type != "cuda":
            return psutil.virtual_memory().percent / 100, psutil.cpu_percent() / 100
        free, total = torch.cuda.mem_get_info(self._device)
        try:
            busy = torch.cuda.utilization(self._device) / 100
        except Exception:  # NVML and its errors are the driver's
            busy = None
        return 1 - free / total, busy
