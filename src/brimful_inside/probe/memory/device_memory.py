"""Device memory by phase: none on a CPU, the imaginary card's, or a real card's."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple

import torch

from brimful_inside.probe.accelerator import accelerator_type, is_started
from brimful_inside.probe.context import guarded
from brimful_inside.probe.memory.peak_stats import SharedPeaks
from brimful_inside.probe.timing.run_counters import Held
from brimful_inside.wire import CardSeen, PhasePeak

Peaks = Tuple[Optional[int], Optional[int], Optional[int]]  # allocated, reserved, device; bytes


class NoDevice:
    """A CPU has no device memory."""

    context_bytes: Optional[int] = None
    trace_file: Optional[str] = None
    approximations: Dict[str, int] = {}  # noqa: RUF012
    cards: List[CardSeen] = []  # noqa: RUF012
    communicators: List[int] = []  # noqa: RUF012
    split_over = 1

    def start(self, name: str) -> None:
        pass

    def step(self, number: int) -> None:
        pass

    def alive_bytes(self, settle: bool) -> Optional[int]:
        return None

    def peaks(self) -> Peaks:
        return None, None, None

    def held(self) -> Optional[Held]:
        return None

    def flush(self) -> None:
        pass

    def on_out_of_memory(self, callback: Any) -> None:
        pass


class ImaginaryDevice:
    """The imaginary cards, which keep the books themselves and write the traces. Of several the fullest counts."""

    def __init__(self, gpu: Any, context_bytes: int, peaks: SharedPeaks, trace_files: Dict[int, str]):
        self._gpu = gpu
        self._peaks = peaks
        self._trace_files = trace_files  # by card, as they are opened
        self._highest: Dict[int, Tuple[int, int]] = {}  # (allocated, reserved) of each card until the last phase began
        self.context_bytes: Optional[int] = context_bytes

    @property
    def trace_file(self) -> Optional[str]:
        """Of the card that was used first."""
        return next(iter(self._trace_files.values()), None)

    def start(self, name: str) -> None:
        for index in range(1, self._gpu.count):
            self._keep(index)
            self._peaks.reset_by_probe(index, lambda: None)
        self._keep(0)
        self._peaks.reset_by_probe(0, lambda: self._gpu.phase(name))

    def _keep(self, index: int) -> None:
        before = self._highest.get(index, (0, 0))
        now = self._peaks.peaks(index)
        self._highest[index] = (max(before[0], now[0]), max(before[1], now[1]))

    @property
    def cards(self) -> List[CardSeen]:
        """Each card that was used, where there are several."""
        seen = []
        for index in range(self._gpu.count) if self._gpu.count > 1 else ():
            self._keep(index)
            allocated, reserved = self._highest[index]
            if reserved:
                peak = PhasePeak(allocated, reserved, reserved + (self.context_bytes or 0), None)
                seen.append(CardSeen(index, peak, self._trace_files.get(index)))
        return seen

    @property
    def split_over(self) -> int:
        return self._gpu.split_over

    @property
    def communicators(self) -> List[int]:
        return sorted(self._gpu.communicators.values())

    def step(self, number: int) -> None:
        self._gpu.step(number)

    @property
    def births(self) -> Optional[int]:
        """How often memory was taken on the cards: while it changes, the process is at work."""
        return sum(ledger.allocations for ledger in self._gpu.ledgers)

    def alive_bytes(self, settle: bool) -> Optional[int]:
        """Of the fullest card, now. With `settle` garbage is collected first, where brimful has the collector wait."""
        if settle:
            self._gpu.garbage.poll()
        return max(ledger.allocator.allocated for ledger in self._gpu.ledgers)

    def peaks(self) -> Peaks:
        of_cards = [self._peaks.peaks(index) for index in range(self._gpu.count)]
        allocated, reserved = (max(values) for values in zip(*of_cards))
        return allocated, reserved, reserved + (self.context_bytes or 0)

    def held(self) -> Optional[Held]:
        cards = [ledger.allocator for ledger in self._gpu.ledgers]
        retries = sum(card.num_alloc_retries for card in cards)
        return Held(max(card.allocated for card in cards), max(card.reserved for card in cards), retries)

    @guarded
    def flush(self) -> None:
        self._gpu.end_trace()

    def on_out_of_memory(self, callback: Any) -> None:
        self._gpu.on_out_of_memory(callback)

    @property
    def approximations(self) -> Dict[str, int]:
        return {str(name): int(count) for name, count in self._gpu.approximations.items()}


class AcceleratorDevice:
    """Real cards, through torch. Of several that one process uses, the fullest counts."""

    trace_file: Optional[str] = None
    approximations: Dict[str, int] = {}  # noqa: RUF012
    cards: List[CardSeen] = []  # noqa: RUF012
    communicators: List[int] = []  # noqa: RUF012
    split_over = 1

    def __init__(self, peaks: SharedPeaks):
        self._peaks = peaks
        self._untold = False  # this torch has the functions, and not for this kind of device (MPS, in some versions)
        self._watches_memory = False
        self._on_out_of_memory: Any = None

    def _devices(self) -> List[int]:
        """The cards, once torch has started them: nothing of ours may start one (the script may still fork)."""
        if self._untold or not self._peaks.known or not is_started():
            return []
        self._watch_memory()
        return list(range(torch.accelerator.device_count()))

    def start(self, name: str) -> None:
        try:
            for device in self._devices():
                self._peaks.reset_on(device)
        except RuntimeError:  # NotImplementedError is one
            self._untold = True

    def step(self, number: int) -> None:
        pass

    def alive_bytes(self, settle: bool) -> Optional[int]:
        return None

    def peaks(self) -> Peaks:
        read = self._read()
        if not read:
            return (None, None, None) if self._untold or not self._peaks.known else (0, 0, 0)
        allocated, reserved = max(peak[0] for peak in read), max(peak[1] for peak in read)
        context = self.context_bytes
        return allocated, reserved, None if context is None else reserved + context

    def _read(self) -> List[Tuple[int, int]]:
        """(allocated, reserved) of each card; [] where none was started or torch does not tell."""
        try:
            return [self._peaks.peaks(device) for device in self._devices()]
        except RuntimeError:
            self._untold = True
            return []

    def held(self) -> Optional[Held]:
        """None where no card was started, or torch does not tell."""
        try:
            cards = [self._peaks.now(device) for device in self._devices()]
        except RuntimeError:
            self._untold = True
            return None
        return Held(max(c[0] for c in cards), max(c[1] for c in cards), sum(c[2] for c in cards)) if cards else None

    @property
    def context_bytes(self) -> Optional[int]:
        """What the fullest card holds outside PyTorch's allocator: the context, and other processes if there are any."""
        read = self._read()
        module: Any = getattr(torch, accelerator_type() or "cuda")
        if not read or not hasattr(module, "mem_get_info"):
            return None
        device = max(range(len(read)), key=lambda index: read[index][1])
        if not _has_context(device):
            return None
        try:
            free, total = module.mem_get_info(device)
            return max(0, total - free - module.memory_reserved(device))
        except RuntimeError:  # the device is in an error state
            return None

    def flush(self) -> None:
        pass

    def on_out_of_memory(self, callback: Any) -> None:
        self._on_out_of_memory = callback

    def _watch_memory(self) -> None:
        """The allocator's own observer: it speaks before the exception is raised, and can be set once CUDA runs."""
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if self._watches_memory or attach is None or self._on_out_of_memory is None:
            return
        self._watches_memory = True

        def observer(device: int, wanted: int, device_total: int, device_free: int) -> None:
            message = "CUDA out of memory. Tried to allocate %d bytes on cuda:%d, of whose %d bytes %d are free"
            self._on_out_of_memory(None, message % (wanted, device, device_total, device_free))

        attach(observer)


def _has_context(device: int) -> bool:
    """Asking a card for its memory makes a context on it: not on one that the script does not use."""
    asks = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return asks is None or bool(asks(device))
