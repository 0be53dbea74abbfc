"""Real accelerators of this machine, without importing torch here.

NVIDIA cards are asked through NVML, which sees what PyTorch cannot: other processes' memory, the driver. Cards of other
makers are asked through `torch.accelerator` in a process of the script's own Python (`ask_python`).
"""

from __future__ import annotations

import json
import os
import subprocess
import warnings
from dataclasses import dataclass


@dataclass(frozen=True)
class Accelerator:
    """One real card. `free_bytes` counts what every process on it leaves."""

    index: int  # as torch numbers it, after CUDA_VISIBLE_DEVICES
    kind: str  # "cuda", "xpu", "mps", ... as torch.device names it
    name: str
    total_bytes: int
    free_bytes: int
    driver: str | None = None

    @property
    def label(self) -> str:
        return f"{self.kind}:{self.index}"


def visible() -> tuple[Accelerator, ...]:
    """NVIDIA cards by NVML, in the order that CUDA_VISIBLE_DEVICES gives them; () without a card or a driver."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pynvml  # the module of the package nvidia-ml-py

            pynvml.nvmlInit()
    except Exception:  # no driver, no library, no permission: each is "no card" here, and `doctor` says so
        return ()
    try:
        cards = [_by_nvml(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        return _as_torch_numbers_them(pynvml, cards)
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _by_nvml(pynvml, index: int) -> Accelerator:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    name = pynvml.nvmlDeviceGetName(handle)
    driver = pynvml.nvmlSystemGetDriverVersion()
    return Accelerator(index, "cuda", _string(name), int(memory.total), int(memory.free), _string(driver))


def _as_torch_numbers_them(pynvml, cards: list[Accelerator]) -> tuple[Accelerator, ...]:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return tuple(cards)
    by_uuid = {_string(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(c.index))): c for c in cards}
    picked: list[Accelerator] = []
    for word in (part.strip() for part in chosen.split(",")):
        if word.isdigit() and int(word) < len(cards):
            card = cards[int(word)]
        else:
            card = next((c for uuid, c in by_uuid.items() if word and uuid.startswith(word)), None)
        if card is None:  # CUDA stops at the first entry that it does not know
            break
        picked.append(Accelerator(len(picked), card.kind, card.name, card.total_bytes, card.free_bytes, card.driver))
    return tuple(picked)


_QUESTION = """
import json, torch
found = []
kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
if kind is not None:
    for index in range(torch.accelerator.device_count()):
        module = torch.get_device_module(kind)
        name = getattr(module, "get_device_name", lambda i: kind.type)(index)
        free, total = getattr(module, "mem_get_info", lambda i: (0, 0))(index)
        found.append([index, kind.type, name, total, free])
print("BRIMFUL" + json.dumps(found))
"""


def ask_python(python: str, timeout_s: float = 60.0) -> tuple[Accelerator, ...]:
    """What `torch.accelerator` shows in the interpreter `python`; () where it has no torch or shows nothing."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("BRIMFUL_")}
    try:
        run = subprocess.run(
            [python, "-c", _QUESTION], capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    for line in run.stdout.splitlines():
        if line.startswith("BRIMFUL"):
            return tuple(Accelerator(*row) for row in json.loads(line[len("BRIMFUL") :]))
    return ()


def _string(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
