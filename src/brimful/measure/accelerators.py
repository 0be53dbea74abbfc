"""Real accelerators of this machine, without importing torch here.

NVML describes NVIDIA cards, with other processes' memory and the driver. Cards of other makers, and
those that NVML does not number as CUDA does, `torch.accelerator` describes in a process of the
script's own Python (`ask_python`).
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Accelerator:
    """One real card. `free_bytes` counts what every process on it leaves, `others_bytes` what they
    hold.
    """

    index: int  # as torch numbers it, after CUDA_VISIBLE_DEVICES
    kind: str  # "cuda", "xpu", "mps", ... as torch.device names it
    name: str
    total_bytes: int
    free_bytes: int
    driver: str | None = None
    others_bytes: int = 0
    sliced: bool = False  # MIG: what a process sees of it is less than its numbers say

    @property
    def label(self) -> str:
        return f"{self.kind}:{self.index}"


def found_by(python: str) -> tuple[Accelerator, ...]:
    """The cards that a script sees which runs in the interpreter `python`, as it numbers them; ()
    where there is none.
    """
    cards, asked = _by_driver()
    # CUDA counts the fastest card first unless CUDA_DEVICE_ORDER says PCI_BUS_ID (CUDA C++
    # Programming Guide, environment variables), and of a card that is cut up (MIG) it sees a slice.
    alike = len({card.name for card in cards}) == 1
    in_order = alike or os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    numbered_by_nvml = in_order and not any(card.sliced for card in cards)
    return asked if asked and numbered_by_nvml else ask_python(python) or asked


def visible() -> tuple[Accelerator, ...]:
    """NVIDIA cards by NVML, in the order that CUDA_VISIBLE_DEVICES gives them; () without a card or
    a driver.
    """
    return _by_driver()[1]


def _by_driver() -> tuple[list[Accelerator], tuple[Accelerator, ...]]:
    """(all cards of this machine, those that CUDA_VISIBLE_DEVICES leaves)."""
    # no driver, no library, no permission: each is "no card", as `doctor` says
    with contextlib.suppress(Exception), _nvml() as pynvml:
        cards = [_by_nvml(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        return cards, _as_torch_numbers_them(pynvml, cards)
    return [], ()


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pynvml  # the module of the package nvidia-ml-py

        pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _by_nvml(pynvml, index: int) -> Accelerator:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory, sliced = memory_of(pynvml, handle), False
    with contextlib.suppress(pynvml.NVMLError):  # most cards cannot be cut up
        sliced = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    return Accelerator(
        index=index,
        kind="cuda",
        name=pynvml.nvmlDeviceGetName(handle),
        total_bytes=int(memory.total),
        free_bytes=int(memory.free),
        driver=pynvml.nvmlSystemGetDriverVersion(),
        others_bytes=int(memory.used),
        sliced=sliced,
    )


def memory_of(pynvml, handle):
    """NVML's `total`, `free` and `used` of a card, in bytes. `used` is without the driver's own
    reserve, but with drivers before 510."""
    try:
        return pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetMemoryInfo(handle)


def _as_torch_numbers_them(pynvml, cards: list[Accelerator]) -> tuple[Accelerator, ...]:
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return tuple(cards)
    by_uuid = {
        pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(card.index)): card
        for card in cards
    }
    picked: list[Accelerator] = []
    for word in (part.strip() for part in chosen.split(",")):
        if word.isdigit() and int(word) < len(cards):
            card = cards[int(word)]
        else:
            card = next((c for uuid, c in by_uuid.items() if word and uuid.startswith(word)), None)
        if card is None:  # CUDA stops at the first entry that it does not know
            break
        picked.append(replace(card, index=len(picked)))
    return tuple(picked)


# The question's own context counts as used: at most this much was seen of one
# (measure/gpus/cards.py).
_CONTEXT_BYTES = 1882 << 20

_QUESTION = """
import json, torch
found = []
kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
if kind is not None:
    for index in range(torch.accelerator.device_count()):
        module = torch.get_device_module(kind)
        name = getattr(module, "get_device_name", lambda i: kind.type)(index)
        if hasattr(module, "mem_get_info"):
            free, total = module.mem_get_info(index)
        elif hasattr(module, "recommended_max_memory"):  # MPS
            total = module.recommended_max_memory()
            free = total - module.driver_allocated_memory()
        else:  # XPU until 2.7 or so
            free = total = module.get_device_properties(index).total_memory
        found.append([index, kind.type, name, total, free])
print("BRIMFUL" + json.dumps(found))
"""


def ask_python(python: str) -> tuple[Accelerator, ...]:
    """What `torch.accelerator` shows in the interpreter `python`; () where it has no torch or shows
    nothing.
    """
    return tuple(
        Accelerator(
            index, kind, name, total, free, others_bytes=max(0, total - free - _CONTEXT_BYTES)
        )
        for index, kind, name, total, free in json.loads(_answer(python, _QUESTION) or "[]")
    )


def torch_version(python: str) -> str | None:
    """The version of torch that the interpreter `python` has, without importing it; None if it has
    none or does not start.
    """
    ours = os.path.dirname(sys.executable) == os.path.dirname(os.path.abspath(python))
    if ours and os.path.samefile(python, sys.executable):
        from importlib import metadata  # takes a twentieth of the start of brimful

        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version("torch")
        return None
    return _answer(python, "import importlib.metadata as m; print('BRIMFUL' + m.version('torch'))")


def is_older(version: str, than: tuple[int, int]) -> bool:
    """Whether a version such as "2.5.1+cu124" is older than `than`, by its first two numbers."""
    numbers = tuple(map(int, re.findall(r"\d+", version)[:2]))
    return len(numbers) == 2 and numbers < than


def _answer(python: str, question: str) -> str | None:
    """What the program `question` prints behind BRIMFUL in that interpreter; None where it
    cannot.
    """
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("BRIMFUL_")
    }
    try:
        run = subprocess.run(
            [python, "-c", question],
            capture_output=True,
            text=True,
            timeout=60.0,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    answer = re.search(r"^BRIMFUL(.*)", run.stdout, re.MULTILINE)
    return answer[1] if answer else None
