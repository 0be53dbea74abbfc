"""The card of this machine from outside: its name, its driver, and what is in use on it at a
moment.
"""

import json
import subprocess
import sys
import threading
import time
from typing import Any, Self

from brimful.measure import accelerators

SETTLED_S = 2.0  # at most so long for the memory of a process that has ended to be given back
MIB = 1 << 20

_QUESTION = """
import json, torch
if not torch.cuda.is_available():
    raise SystemExit("torch %s sees no CUDA card" % torch.__version__)
p = torch.cuda.get_device_properties(0)
print("BRIMFUL" + json.dumps({
    "card": {"name": p.name, "total_bytes": torch.cuda.mem_get_info()[1],
             "capability": [p.major, p.minor], "multiprocessors": p.multi_processor_count},
    "versions": {"torch": torch.__version__, "cuda": torch.version.cuda,
                 "cudnn": torch.backends.cudnn.version()}}))
"""


def describe(python: str = sys.executable, question: str = _QUESTION) -> dict[str, Any]:
    """{"card": name, total_bytes, capability, multiprocessors; "versions": torch, cuda, cudnn} as
    torch says them in a process of its own. Raises LookupError with a sentence where there is no
    CUDA card."""
    run = subprocess.run(
        [python, "-c", question], capture_output=True, text=True, timeout=300, check=False
    )
    for line in run.stdout.splitlines():
        if line.startswith("BRIMFUL"):
            return json.loads(line[len("BRIMFUL") :])
    output = run.stderr.strip().splitlines()
    raise LookupError(
        output[-1] if output else f"{python} ended with {run.returncode} without a word"
    )


def driver_and_used() -> tuple[str | None, int | None]:
    """(the driver's version, bytes of the first visible card in use) by NVML, else by nvidia-smi;
    else None.
    """
    cards = accelerators.visible()
    if cards:
        return cards[0].driver, cards[0].others_bytes
    query = [
        "nvidia-smi",
        "--query-gpu=driver_version,memory.used",
        "--format=csv,noheader,nounits",
    ]
    try:
        run = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
        driver, used = run.stdout.splitlines()[0].split(",")
        return driver.strip(), int(used) * MIB
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        return None, None


def used_bytes_settled() -> int | None:
    """What is in use before a job starts: read until it falls no more."""
    deadline, before = time.monotonic() + SETTLED_S, driver_and_used()[1]
    while before is not None and time.monotonic() < deadline:
        time.sleep(0.1)
        now = driver_and_used()[1]
        if now is None or now >= before:
            break
        before = now
    return before


class Watch:
    """The most that was in use on the card while the block ran, by NVML, ten times a second. None
    without NVML.
    """

    def __init__(self) -> None:
        self.peak_bytes: int | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            cards = accelerators.visible()
            if not cards:
                return
            self.peak_bytes = max(self.peak_bytes or 0, cards[0].others_bytes)
