"""What the parent tells the child (orders) and what the child tells the parent (hello, progress, failure, report).

The orders are one JSON file whose path stands in the environment (`ORDERS_VARIABLE`). Each process of the child writes a
file of its own, ``wire-<pid>.jsonl`` in the trial's folder: one event a line, ``{"event": NAME, ...fields}``. A line is
written whole or not at all, so a process killed at any moment leaves a readable file. Of several reports the last counts.

In a whole run, which may last for days, snapshots replace each other in files of their own, ``latest-<event>-<pid>.jsonl``.

Units are in the names; absent is ``None``. Both sides import this module; it needs the standard library alone.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

WIRE_VERSION = 1
TRIAL_CONFIG_VARIABLE = "BRIMFUL_TRIAL_CONFIG"
SCANS_FILE = "scans-%s.jsonl"  # in a trial's folder, by process: what its scans of the data sets saw, for later trials
ALONE_VARIABLE = "BRIMFUL_ALONE"  # set for one rank of many that is started without the others


@dataclass(frozen=True)
class Card:
    """An imaginary accelerator as the child must know it (the catalogue in ``brimful.measure.gpus`` has the sources)."""

    name: str  # as torch.cuda.get_device_name() would say it
    total_bytes: int  # as torch.cuda.mem_get_info()[1] would say it
    context_bytes: int  # what the CUDA context holds before the first tensor
    capability: List[int]  # [major, minor]
    multiprocessors: int
    bandwidth_bytes_per_s: Optional[float] = None  # of its memory; None: not known, and there is no clock then
    flops: Dict[str, float] = field(default_factory=dict)  # peak operations per second: "fp32", "tf32", "fp16", "bf16"


@dataclass(frozen=True)
class TrialConfig:
    """One trial, as the child has to carry it out."""

    folder: str  # the trial's folder: wire files, traces, and whatever the script would have saved
    device: str  # "cpu", "accelerator" (a real one) or "imaginary"
    card: Optional[Card] = None  # with device "imaginary"
    capacity_bytes: Optional[int] = None  # imaginary: raise OutOfMemoryError beyond this; None is without limit
    cards: int = 1  # imaginary: how many of them each process sees
    steps: int = 3  # measured optimizer steps, after the warm-up
    warmup_steps: int = 1
    eval_batches: int = 2  # batches an evaluation loader gives before it is cut
    see_eval: bool = True  # go on after the measured steps until the script's own evaluation was seen
    trace: bool = False  # imaginary: write every allocation to trace-<rank>.jsonl
    what_if: Optional[str] = (
        None  # imaginary: one thing is done otherwise than in the script (imaginary/attribution/what_if.py)
    )
    measure_host_memory: bool = False  # tune malloc so that the resident high-water mark is true (slower steps)
    worst_batch: bool = True  # scan the samples, and make the batches of the largest ones
    scans: List[str] = field(default_factory=list)  # such files of earlier trials that looked at the same samples, newest last
    checksums: bool = False  # a checksum of each batch (for audit)
    keep_out: bool = True  # writes of checkpoints go to the trial's folder, trackers are off, nothing is resumed
    cut: bool = True  # False: the whole run, nothing ended early (a training under a plan)
    settings: Dict[str, Any] = field(default_factory=dict)  # what brimful.setting(name, default) answers
    parent_pid: Optional[int] = None  # the trial's first process ends with this one, however that ends
    version: int = WIRE_VERSION


@dataclass(frozen=True)
class Hello:
    """The first event of each process."""

    pid: int
    ppid: int
    role: str  # "launcher" (torchrun, accelerate launch, a shell's python), "rank" or "worker" (of a DataLoader, a pool)
    rank: int
    world_size: int
    argv: List[str]
    executable: str
    python_version: str
    started_unix_s: float
    version: int = WIRE_VERSION


@dataclass(frozen=True)
class TorchImported:
    """torch was imported in this process and the probe is in place."""

    torch_version: str
    cuda_build: Optional[str]


@dataclass(frozen=True)
class Tally:
    """What a rank of a whole run (`cut` is False) has done and holds. Counted to its end, unlike the lists of a report."""

    samples: Optional[int]  # trained on by this rank; None where nobody can count them
    train_s: float  # of training by the host's clock: steps end to end, evaluations not counted
    loading_s: float  # of it, waited for data
    loss: Optional[float]  # of the latest step: what went backward for it; None where reading it would wait for a device
    allocated_bytes: Optional[int]  # now, of the fullest card; None on a CPU
    reserved_bytes: Optional[int]
    alloc_retries: Optional[int]  # how often the allocator gave back its cache and tried again, of all cards
    retry_streak: int = 0  # looks running (each a step or more) in which that number grew, the longest so far


@dataclass(frozen=True)
class Progress:
    """Now and then (at most twice a second): for the parent's display and its patience."""

    phase: str
    steps: int
    unix_s: float
    tally: Optional[Tally] = None  # of a whole run
    rank: int = 0


@dataclass(frozen=True)
class Failure:
    """An exception that left the script, or out of memory wherever it was raised (a script may catch it and go on)."""

    kind: str  # "out_of_device_memory", "out_of_host_memory", "unsupported" (a call that the imaginary GPU lacks), "crashed"
    type: str  # the exception's qualified name
    message: str
    traceback: str  # as Python prints it
    where: Optional[str]  # "file.py:12 in train", the innermost frame in the user's own code
    phase: str
    step: int
    caught: bool  # True if the script went on afterwards
    after_measured: bool = False  # True if the measured steps were complete already (brimful's early end may be the cause)


@dataclass(frozen=True)
class PhasePeak:
    """The peaks of one phase, reset at its start and read at its end; the worst of its visits."""

    allocated_bytes: Optional[int]  # live tensors; None on a CPU
    reserved_bytes: Optional[int]  # held by PyTorch's caching allocator; None on a CPU
    device_bytes: Optional[int]  # reserved + context (+ others on a real card); None on a CPU
    host_bytes: Optional[int]  # resident memory of this process; true in a memory trial only
    visits: int = 1
    cached: bool = False  # the phase said that its work was cached, so that its peak says nothing
    host_is_true: bool = False  # host_bytes was measured with malloc set to give freed memory back


@dataclass(frozen=True)
class OptimizerSeen:
    """One optimizer that stepped (a wrapper and what it wraps are one)."""

    name: str  # class name, of the inner one where wrapped
    steps: int
    parameters: int  # elements over all groups
    learning_rates: List[float]  # by group, in force at the last step
    first_learning_rates: List[float]  # by group, in force at the first step
    skipped_steps: int = 0  # asked of a GradScaler and skipped because gradients overflowed
    wrapped_by: Optional[str] = None
    uses_closure: bool = False
    # Of the groups that a scheduler has touched: what it took over from the constructor ("initial_lr") and the top it goes
    # up to ("max_lr", OneCycleLR and CyclicLR). With these a warm-up is no surprise. [] where no scheduler was seen.
    initial_learning_rates: List[float] = field(default_factory=list)
    max_learning_rates: List[float] = field(default_factory=list)


@dataclass(frozen=True)
class BatchSeen:
    """One batch as the loader gave it."""

    samples: Optional[int]  # by the sampler's indices where there are some, else by the first dimension; None: unknown
    shapes: List[List[int]]  # of its tensors, in order
    checksum: Optional[str]  # of some thousand strided values; None where not asked for or not possible


@dataclass(frozen=True)
class LoaderSeen:
    """One DataLoader that was iterated."""

    role: str  # "train" or "eval"
    batch_size: Optional[int]  # the loader's own; None where a batch sampler decides
    dataset_length: Optional[int]  # None for iterable datasets
    length: Optional[int]  # batches per epoch before any cutting
    sampler: str  # class name of the sampler or batch sampler
    sampler_samples: Optional[int]  # what the sampler gives in an epoch, in this rank
    drop_last: bool
    workers: int
    pin_memory: bool
    batches_seen: int
    samples_seen: Optional[int]
    wait_s: Optional[float]  # waited for all its batches; None on an imaginary card
    batches: List[BatchSeen]  # at most the first 64
    iterations: int = 1  # how often it was iterated


@dataclass(frozen=True)
class WorstBatch:
    """What was done so that a trial meets the largest batch."""

    scanned: int  # samples looked at
    dataset_length: Optional[int]
    varies: bool
    what: str  # a sentence: what varies and which samples were taken, or why nothing was scanned
    indices: List[int] = field(default_factory=list)
    scanned_in: Optional[str] = None  # the earlier trial that looked; here some were looked at, and were the same


@dataclass(frozen=True)
class CardSeen:
    """One of several imaginary cards that a process used."""

    index: int  # as in cuda:1
    peak: PhasePeak  # over the whole process
    trace_file: Optional[str] = None  # name in the trial's folder


@dataclass(frozen=True)
class Report:
    """What one rank saw."""

    rank: int
    local_rank: int
    world_size: int
    device: str  # "cpu", "cuda:0", "imaginary"
    device_name: Optional[str]
    device_total_bytes: Optional[int]
    torch_version: str
    ended: str  # "steps_done", "script_ended", "out_of_memory", "crashed", "running" (a snapshot of a run still going on)
    steps: int  # by the optimizer that sets the pace, warm-up included
    warmup_steps: int
    step_s: List[float]  # of each measured step, end to end; [] on an imaginary card
    loading_s: List[float]  # of it, waited for data, by measured step; [] where not known
    micro_batches_per_step: List[int]  # batches that went into each step
    samples_per_step: List[Optional[int]]
    optimizers: List[OptimizerSeen]
    loaders: List[LoaderSeen]
    phases: Dict[str, PhasePeak]
    losses: List[float]  # at each backward() on a scalar; [] on an imaginary card, and of one of several ranks on a real one
    worst_batch: Optional[WorstBatch]
    peak_unphased: Optional[PhasePeak]  # over the whole process
    context_bytes: Optional[int]  # device memory outside PyTorch's allocator
    trace_file: Optional[str]  # name in the trial's folder
    approximations: Dict[str, int]  # imaginary: "nonzero" -> how often an upper bound stood in for a shape nobody can know
    notes: List[str]  # sentences: "no optimizer stepped", "steps skipped by the GradScaler: 3", ...
    wrote: List[str]  # files the script wanted to write and that went to the trial's folder
    first_step_unix_s: Optional[float] = None  # when the first step began: what was written before it was prepared, not learnt
    cards: List[CardSeen] = field(default_factory=list)  # where a process has several imaginary cards: those that were used
    split_over: int = 1  # imaginary: a batch is split over so many cards of this process (nn.DataParallel)
    communicators: List[int] = field(default_factory=list)  # ranks of each NCCL group that was used on an imaginary card
    # Imaginary: what piles up. "train": bytes that each step leaves on the card; "eval": bytes that each batch of an evaluation
    # leaves, which gave "eval_seen" batches of "eval_length" (absent where not known). What does not grow is absent.
    growth: Dict[str, int] = field(default_factory=dict)
    tally: Optional[Tally] = None  # of a whole run


EVENTS = {cls.__name__.lower(): cls for cls in (Hello, TorchImported, Progress, Failure, Report)}


def encode_event(event: Any) -> bytes:
    """One line for the wire file, newline included."""
    name = type(event).__name__.lower()
    if name not in EVENTS:
        raise TypeError("not an event of the wire: %r" % (event,))
    return (json.dumps({"event": name, **dataclasses.asdict(event)}) + "\n").encode()


class Writer:
    """Appends events of this process to its wire file. One write call a line, so that a kill cannot tear two lines."""

    def __init__(self, folder: str, pid: Optional[int] = None):
        self.path = os.path.join(folder, "wire-%d.jsonl" % (pid or os.getpid()))
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o644)

    def write(self, event: Any) -> None:
        os.write(self._descriptor, encode_event(event))

    def replace(self, event: Any) -> None:
        """Keeps `event` as the latest of its kind, in a file of its own, so that a run of many days takes no room for it.

        Another process sees the one before or this one, never a part (rename(2) is atomic).
        """
        place = latest_path(self.path, type(event).__name__.lower())
        with open(place + ".new", "wb") as file:
            file.write(encode_event(event))
        os.replace(place + ".new", place)


def latest_path(wire_path: str, event: str) -> str:
    """Where the process of this wire file keeps its latest `event` ("progress" or "report") of a whole run."""
    folder, name = os.path.split(wire_path)
    return os.path.join(folder, name.replace("wire-", "latest-%s-" % event, 1))


def read_orders(path: str) -> TrialConfig:
    """The orders at `path`. Raises ValueError if they are of another version."""
    with open(path, encoding="utf-8") as file:
        raw = json.load(file)
    if raw.get("version") != WIRE_VERSION:
        raise ValueError("these orders are of wire version %r, this brimful speaks %d" % (raw.get("version"), WIRE_VERSION))
    card = raw.pop("card", None)
    known = {f.name for f in dataclasses.fields(TrialConfig)}
    return TrialConfig(card=Card(**card) if card else None, **{k: v for k, v in raw.items() if k in known})
