"""How full and how busy the card is while a sweep runs, whoever uses it; without a card, the
machine.
"""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch

from brimful_inside.script import is_imaginary
from recipes.common.cache import write_json

MOST = 240  # points of a curve: from there on every second one is left out, and the next come later
Starts = list[dict[str, Any]]


@contextlib.contextmanager
def watched(device: torch.device, file: Path, every_s: float = 1.0) -> Iterator[Starts]:
    """What `file` holds; when the block ends, with this start: its device, and points (seconds,
    share of the memory in use, share of the time busy or None).
    """
    starts: Starts = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    points: list[tuple[float, float, float | None]] = []
    ends, begun = threading.Event(), time.monotonic()

    def watch() -> None:
        ended, pause_s = is_imaginary(), every_s
        psutil.cpu_percent()  # answers for the time since this thread asked before
        while not ended:
            ended = ends.wait(pause_s)
            points.append((round(time.monotonic() - begun, 1), *_now(device)))
            if len(points) >= MOST:
                del points[::2]
                pause_s *= 2

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield starts
    finally:
        ends.set()
        thread.join()
        if points:  # none on an imaginary card
            starts.append({"device": str(device), "points": points})
            write_json(file, starts)


def _now(device: torch.device) -> tuple[float, float | None]:
    if device.type != "cuda":
        return psutil.virtual_memory().percent / 100, psutil.cpu_percent() / 100
    free, total = torch.cuda.mem_get_info(device)
    busy = None
    with contextlib.suppress(Exception):  # NVML and its errors are the driver's
        busy = torch.cuda.utilization(device) / 100
    return 1 - free / total, busy
