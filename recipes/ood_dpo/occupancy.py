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

from brimful.measure.course import Course
from brimful_inside.script import is_imaginary
from recipes.common.cache import write_json

Starts = list[dict[str, Any]]


@contextlib.contextmanager
def watched(device: torch.device, file: Path, every_s: float = 1.0) -> Iterator[Starts]:
    """What `file` holds; when the block ends, with this start: its device, and points (seconds,
    share of the memory in use, share of the time busy or None).
    """
    starts: Starts = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    course = Course[tuple[float, float, float | None]](every_s)
    ends, begun = threading.Event(), time.monotonic()

    def watch() -> None:
        ended = is_imaginary()
        psutil.cpu_percent()  # answers for the time since this thread asked before
        while not ended:
            ended = ends.wait(every_s)
            seconds = time.monotonic() - begun
            used, busy = psutil.virtual_memory().percent / 100, psutil.cpu_percent() / 100
            if device.type == "cuda":
                free, total = torch.cuda.mem_get_info(device)
                used, busy = 1 - free / total, None
                with contextlib.suppress(Exception):  # NVML and its errors are the driver's
                    busy = torch.cuda.utilization(device) / 100
            course.add(seconds, (round(seconds, 1), used, busy))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield starts
    finally:
        ends.set()
        thread.join()
        if course.points:  # none on an imaginary card
            starts.append({"device": str(device), "points": course.points})
            write_json(file, starts)
