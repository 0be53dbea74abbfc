"""Device memory by phase: one meter for a CPU, imaginary cards and real cards, and the peaks that
the script resets as well.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch

from brimful_inside.probe.context import ProcessContext, environment_number, guarded
from brimful_inside.probe.hooks.optimizer_steps import gradients_of_no_optimizer
from brimful_inside.probe.import_hooks import import_hooks
from brimful_inside.wire import Card, CardSeen, LeftOut, PhasePeak

Peaks = Tuple[Optional[int], Optional[int], Optional[int]]  # allocated, reserved, device; bytes
Tree = Dict[str, Any]


def accelerator_type() -> Optional[str]:
    """ "cuda" (ROCm included), "xpu", "mps", ...: what this torch was built for, present or not;
    None on a CPU build.
    """
    current = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    return current.type if current is not None else None


def is_started() -> bool:
    """Whether the script has used the accelerator: before that there is nothing to measure. Does
    not start it.
    """
    kind = accelerator_type()
    if kind is None:
        return False
    is_initialized: Any = getattr(getattr(torch, kind, None), "is_initialized", None)
    return (
        bool(is_initialized()) if is_initialized is not None else torch.accelerator.is_available()
    )


class Held(NamedTuple):
    """What the caching allocators of a process hold now, and how often they had to free their cache
    and try again.
    """

    allocated_bytes: int  # of the fullest card
    reserved_bytes: int
    retries: int  # of all cards


class DeviceMeter:
    """What the probe asks of a device. As it stands here it is that of a CPU, which has no device
    memory.
    """

    context_bytes: Optional[int] = None  # outside PyTorch's allocator
    trace_file: Optional[str] = None
    # How many were made so far; None: the device itself shows whether it works.
    allocations: Optional[int] = None
    clocks: Sequence[Any] = ()  # `imaginary.state.clock.Clock`, one a card

    def start(self, phase: str) -> None:
        """Resets the peaks, at the start of a phase."""

    def phase_was(self, name: str) -> None:
        """The phase that is about to end was this one; of interest to what a trace shows."""

    def step(self, number: int, counts: bool) -> None:
        """A step is complete. `counts`: it is one of those that the trial makes to see what a step
        takes.
        """

    def scaler_decides(self) -> None:
        """A GradScaler decides whether the next step is made."""

    def alive_bytes(self, settle: bool) -> Optional[int]:
        """Of the fullest card, now; None where nobody knows. With `settle` garbage is collected
        first.
        """
        return None

    def in_cycles(self, gradients: int) -> Dict[str, int]:
        """What each step leaves in reference cycles (imaginary.state.garbage.Garbage.read)."""
        return {}

    def operations(self) -> int:
        """On imaginary cards so far; 0 elsewhere."""
        return 0

    def peaks(self) -> Peaks:
        """Of the fullest card, since `start`."""
        return None, None, None

    def held(self) -> Optional[Held]:
        return None

    def leave_worker(self) -> None:
        """This is a forked process that makes batches alone: torch becomes as it was without the
        probe.
        """

    def flush(self) -> None:
        """Writes what is not on the disk yet, before the process ends."""

    def read(self) -> Dict[str, Any]:
        """Fields of `Report`."""
        return {"context_bytes": self.context_bytes, "trace_file": self.trace_file}

    def left_out(self) -> List[LeftOut]:
        """Calls of modules that imaginary cards did not run."""
        return []

    def on_out_of_memory(self, callback: Callable[..., None]) -> None:
        """`callback(error, message)` whenever memory runs out, with the exception or with a message
        alone.
        """


class ImaginaryMeter(DeviceMeter):
    """The imaginary cards, which count for themselves and write the traces. Of several the fullest
    counts.
    """

    def __init__(
        self, gpu: Any, context_bytes: int, peaks: SharedPeaks, trace_files: Dict[int, str]
    ):
        self._gpu = gpu
        self._peaks = peaks
        self._trace_files = trace_files  # by card, as they are opened
        # (allocated, reserved) of each card until the last phase began
        self._highest: Dict[int, Tuple[int, int]] = {}
        self.context_bytes: int = context_bytes
        self.on_out_of_memory = gpu.cards.on_out_of_memory

    def insert(self, card: Card, capacity_bytes: Optional[int]) -> None:
        """This card in place of the one that the process entered with and has not used."""
        from brimful_inside.imaginary import insert

        insert(self._gpu, card, capacity_bytes)
        self.context_bytes = card.context_bytes

    def start(self, phase: str) -> None:
        for index in range(1, self._gpu.count):
            self._keep(index)
            self._peaks.reset_by_probe(index, lambda: None)
        self._keep(0)
        self._peaks.reset_by_probe(0, lambda: self._gpu.cards.phase(phase))

    def phase_was(self, name: str) -> None:
        self._gpu.cards.phase_was(name)

    def _keep(self, index: int) -> None:
        before, now = self._highest.get(index, (0, 0)), self._peaks.peaks(index)
        self._highest[index] = (max(before[0], now[0]), max(before[1], now[1]))

    def step(self, number: int, counts: bool) -> None:
        self._gpu.cards.step(number, counts)

    def scaler_decides(self) -> None:
        self._gpu.cards.scaler_decides()

    def alive_bytes(self, settle: bool) -> Optional[int]:
        if settle:
            self._gpu.garbage.poll()
        return max(ledger.allocator.kept_bytes() for ledger in self._gpu.ledgers)

    def in_cycles(self, gradients: int) -> Dict[str, int]:
        return self._gpu.garbage.read(gradients)

    def operations(self) -> int:
        return sum(ledger.work.launches for ledger in self._gpu.ledgers)

    def peaks(self) -> Peaks:
        allocated, reserved = _fullest(
            [self._peaks.peaks(index) for index in range(self._gpu.count)]
        )
        return allocated, reserved, reserved + self.context_bytes

    def leave_worker(self) -> None:
        self._gpu.leave()

    def held(self) -> Optional[Held]:
        cards = [ledger.allocator for ledger in self._gpu.ledgers]
        return Held(
            *_fullest([(c.allocated, c.reserved) for c in cards]),
            sum(c.num_alloc_retries for c in cards),
        )

    @guarded
    def flush(self) -> None:
        self._gpu.cards.end_trace()

    @property
    def trace_file(self) -> Optional[str]:
        """Of the card that was used first."""
        return next(iter(self._trace_files.values()), None)

    def read(self) -> Dict[str, Any]:
        return {
            **super().read(),
            "approximations": {str(name): int(n) for name, n in self._gpu.approximations.items()},
            "unknown_read": self._gpu.known.unknown_read,
            "communicators": sorted(self._gpu.communicators.values()),
            "split_over": self._gpu.split_over,
            "alike": sorted(map(list, self._gpu.machine.alike)),
            "unstepped": self._unstepped(),
            "cards": self._cards(),
        }

    def _unstepped(self) -> Dict[str, int]:
        annotations = self._gpu.annotations
        roots = () if annotations is None else annotations.calls.living_roots()
        return gradients_of_no_optimizer(roots)

    def left_out(self) -> List[LeftOut]:
        annotations = self._gpu.annotations
        return [] if annotations is None else list(annotations.repeats.left_out.values())

    def _cards(self) -> List[CardSeen]:
        """Each card that was used, where there are several."""
        cards = []
        for index in range(self._gpu.count) if self._gpu.count > 1 else ():
            self._keep(index)
            allocated, reserved = self._highest[index]
            if reserved:
                cards.append(
                    CardSeen(
                        index,
                        PhasePeak(allocated, reserved, reserved + self.context_bytes, None),
                        self._trace_files.get(index),
                    )
                )
        return cards

    @property
    def clocks(self) -> Sequence[Any]:
        return self._gpu.clocks

    @property
    def allocations(self) -> Optional[int]:
        return sum(ledger.allocations for ledger in self._gpu.ledgers)


class AcceleratorMeter(DeviceMeter):
    """Real cards, through torch. Of several that one process uses, the fullest counts."""

    def __init__(self, peaks: SharedPeaks):
        self._peaks = peaks
        # this torch has no statistics of this kind of device (MPS, in some versions)
        self._unknown = not peaks.known
        self._observes_memory = False
        self._on_out_of_memory: Any = None

    def _read(self, of_card: Callable[[int], Any]) -> List[Any]:
        """`of_card` of each card, once torch has started them: the probe starts none (the script
        may still fork). Else [].
        """
        if self._unknown or not is_started():
            return []
        self._observe_memory()
        try:
            return [of_card(index) for index in range(torch.accelerator.device_count())]
        except RuntimeError:  # NotImplementedError is one
            self._unknown = True
            return []

    def start(self, phase: str) -> None:
        self._read(self._peaks.reset_on)

    def peaks(self) -> Peaks:
        cards = self._read(self._peaks.peaks)
        if not cards:
            return (None, None, None) if self._unknown else (0, 0, 0)
        allocated, reserved = _fullest(cards)
        context = self.context_bytes
        return allocated, reserved, None if context is None else reserved + context

    def held(self) -> Optional[Held]:
        cards = self._read(self._peaks.now)
        return (
            Held(*_fullest([card[:2] for card in cards]), sum(card[2] for card in cards))
            if cards
            else None
        )

    @property
    def context_bytes(self) -> Optional[int]:
        """What the fullest card holds outside PyTorch's allocator: the context, and other processes
        if there are any.
        """
        cards = self._read(self._peaks.peaks)
        module: Any = getattr(torch, accelerator_type() or "cuda")
        if not cards or not hasattr(module, "mem_get_info"):
            return None
        fullest = max(range(len(cards)), key=lambda index: cards[index][1])
        has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
        if has_context is not None and not has_context(fullest):
            # asking a card for its memory makes a context on it: not where the script has none
            return None
        try:
            free, total = module.mem_get_info(fullest)
            return max(0, total - free - module.memory_reserved(fullest))
        except RuntimeError:  # the device is in an error state
            return None

    def on_out_of_memory(self, callback: Callable[..., None]) -> None:
        self._on_out_of_memory = callback

    def _observe_memory(self) -> None:
        """The allocator's own observer runs before the exception is raised, and can be set once
        CUDA is initialized.
        """
        attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
        if self._observes_memory or attach is None or self._on_out_of_memory is None:
            return
        self._observes_memory = True

        def observer(device: int, wanted: int, device_total: int, device_free: int) -> None:
            message = (
                "CUDA out of memory. Tried to allocate %d bytes on cuda:%d, of whose %d bytes %d "
                "are free"
            )
            self._on_out_of_memory(None, message % (wanted, device, device_total, device_free))

        attach(observer)


def _fullest(cards: List[Tuple[int, int]]) -> Tuple[int, int]:
    return max(card[0] for card in cards), max(card[1] for card in cards)


# --- the meter of a trial ---

_imaginary: Optional[ImaginaryMeter] = None  # one a process: a forked rank keeps its parent's


def meter_for(context: ProcessContext) -> DeviceMeter:
    """Prepares the device of the trial: an imaginary card is there from here on."""
    global _imaginary
    if context.config.device == "imaginary":
        _imaginary = _imaginary or _enter_imaginary(context)
        return _imaginary
    kind = accelerator_type()
    if context.config.device != "cpu" and kind is not None:
        return AcceleratorMeter(shared_peaks(kind))
    if context.config.device == "accelerator":
        context.note(
            "this torch (%s) knows no accelerator: the script ran on the CPU" % torch.__version__
        )
    return DeviceMeter()


def _enter_imaginary(context: ProcessContext) -> ImaginaryMeter:
    from brimful_inside.imaginary import enter
    from brimful_inside.imaginary.cuda_api.compiler import TRITON_LAUNCHERS, pass_over
    from brimful_inside.imaginary.operators.library_kernels import COMPILED_PARTS
    from brimful_inside.simulator.allocator_settings import settings_from

    config = context.config
    if config.card is None:
        raise ValueError("the trial config names an imaginary device and no card")
    files: Dict[int, str] = {}

    def open_trace(index: int) -> Any:
        file, files[index] = _open_trace(context, index if files else None)
        return file

    count = visible_cards(config.cards, os.environ)
    trace, settings = open_trace if config.trace else None, settings_from(config.allocator_conf)
    gpu = enter(config.card, config.capacity_bytes, trace, config.what_if, count, settings=settings)
    for module, meet in {**dict.fromkeys(TRITON_LAUNCHERS, pass_over), **COMPILED_PARTS}.items():
        import_hooks.when_imported(module, functools.partial(meet, gpu))
    return ImaginaryMeter(gpu, config.card.context_bytes, shared_peaks("cuda"), files)


def visible_cards(cards: int, environment: Mapping[str, str]) -> int:
    """How many of the cards CUDA_VISIBLE_DEVICES leaves, one at least: scripts and launchers set it
    for a card of their own.
    """
    names = environment.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return cards
    return max(1, min(cards, len([name for name in names.split(",") if name.strip()])))


def _open_trace(context: ProcessContext, index: Optional[int]) -> Tuple[Any, str]:
    """trace-<rank>.jsonl of a rank's first card, trace-<rank>-cuda<index>.jsonl of others; a helper
    process adds its id.
    """
    stem = "trace-%d%s" % (environment_number("RANK"), "" if index is None else "-cuda%d" % index)
    of_process = "%s-%d.jsonl" % (stem, os.getpid())
    for name in (stem + ".jsonl", of_process) if context.role == "rank" else (of_process,):
        try:
            return open(
                os.path.join(context.config.folder, name), "x", encoding="utf-8", buffering=1 << 20
            ), name
        except FileExistsError:
            continue
    raise FileExistsError(of_process)


# --- peaks that two read ---

# The functions of torch._C behind torch.cuda, torch.xpu and torch.accelerator: (reads the
# statistics, resets the peaks).
_OF_ALL = ("_accelerator_getDeviceStats", "_accelerator_resetPeakStats")
FUNCTIONS = {
    "cuda": [("_cuda_memoryStats", "_cuda_resetPeakMemoryStats"), _OF_ALL],
    "xpu": [("_xpu_memoryStats", "_xpu_resetPeakMemoryStats"), _OF_ALL],
}


class SharedPeaks:
    """The peaks of all devices of one kind, once a process: whoever resets, script or probe, the
    other keeps what they were.
    """

    def __init__(self, kind: str):
        # device -> what the script's peaks were when the probe last reset
        self._script: Dict[int, Tree] = {}
        self._probe: Dict[int, Tree] = {}
        self._stats: Any = None
        self._reset: Any = None
        self.known = False  # whether this torch has peaks of that kind of device at all
        for stats_name, reset_name in FUNCTIONS.get(kind, [_OF_ALL]):
            if hasattr(torch._C, stats_name) and hasattr(torch._C, reset_name):
                self._patch(stats_name, reset_name)

    def _patch(self, stats_name: str, reset_name: str) -> None:
        stats, reset = getattr(torch._C, stats_name), getattr(torch._C, reset_name)
        if not self.known:
            self._stats, self._reset, self.known = stats, reset, True

        def stats_for_script(device: int) -> Tree:
            return _with_peaks(stats(device), self._script.get(device))

        def reset_by_script(device: int) -> Any:
            self._keep(self._probe, device)
            self._script.pop(device, None)
            return reset(device)

        setattr(torch._C, stats_name, stats_for_script)
        setattr(torch._C, reset_name, reset_by_script)

    def _keep(self, view: Dict[int, Tree], device: int) -> None:
        view[device] = _with_peaks(self._stats(device), view.get(device))

    def reset_by_probe(self, device: int, reset: Callable[[], Any]) -> None:
        """`reset` sets the peaks back; the script's view keeps them."""
        self._keep(self._script, device)
        self._probe.pop(device, None)
        reset()

    def reset_on(self, device: int) -> None:
        self.reset_by_probe(device, lambda: self._reset(device))

    def now(self, device: int) -> Tuple[int, int, int]:
        """(allocated bytes, reserved bytes, how often the allocator freed its cache and tried
        again).
        """
        stats = self._stats(device)
        return (*_bytes(stats, "current"), int(stats.get("num_alloc_retries", 0)))

    def peaks(self, device: int) -> Tuple[int, int]:
        """(allocated, reserved) bytes, since the probe's last reset."""
        return _bytes(_with_peaks(self._stats(device), self._probe.get(device)), "peak")


shared_peaks = functools.lru_cache(maxsize=None)(SharedPeaks)  # one for each kind


def _bytes(stats: Tree, which: str) -> Tuple[int, int]:
    """(allocated, reserved): "current" or "peak" of all pools."""
    allocated, reserved = (
        stats.get(name, {}).get("all", {}) for name in ("allocated_bytes", "reserved_bytes")
    )
    return int(allocated.get(which, 0)), int(reserved.get(which, 0))


def _with_peaks(now: Tree, kept: Any) -> Tree:
    """`now` with each "peak" raised to the one that was kept."""
    if not kept:
        return now
    raised: Tree = {}
    for key, value in now.items():
        if isinstance(value, dict):
            raised[key] = _with_peaks(value, kept.get(key))
        else:
            raised[key] = max(value, kept.get(key, value)) if key == "peak" else value
    return raised
