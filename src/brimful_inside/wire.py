"""The messages between brimful and the processes that it starts: the trial config one way, events
the other way. The config is one JSON file, its path in the environment (`TRIAL_CONFIG_VARIABLE`).
Each process appends events to its ``wire-<pid>.jsonl``, a line written whole or not at all; of
several reports the last counts. In a whole run snapshots replace each other in
``latest-<event>-<pid>.jsonl``. The files of processes that have ended the parent puts together in
``wire-ended.jsonl``. Units are in the names; absent is ``None``."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Type, Union

WIRE_VERSION = 3
# of a trial that ends otherwise, by the clock, by samples or with the script itself
NO_LIMIT = 1_000_000_000
TRIAL_CONFIG_VARIABLE = "BRIMFUL_TRIAL_CONFIG"
# the descriptor of a socket: this process is forked for each trial
SHARED_IMPORTS_VARIABLE = "BRIMFUL_SHARED_IMPORTS"
EVAL_BATCHES = 2
# What an exception can say of itself (`Failure.meaning`).
DOES_NOT_FIT = "does-not-fit"  # memory is missing, and no smaller batch helps
SMALLER_FITS = "smaller-fits"  # memory was missing, and a smaller batch may do
ANOTHER_RANK = "another-rank"  # it only tells that another rank failed
DOES_NOT_FIT_ELSEWHERE = "does-not-fit-elsewhere"  # the same, and for memory as `DOES_NOT_FIT`
# how the error begins that names the call and its place in the script
CANNOT_RUN = "the imaginary GPU cannot run"
# in a trial's folder, by process: its scans of the data sets, for later trials
SCANS_FILE = "scans-%s.jsonl"
# in the folder of a whole run: the number of each signal that its first process handled, a byte
SIGNALS_FILE = "signals"
ALONE_VARIABLE = "BRIMFUL_ALONE"  # set for one rank of many that is started without the others


@dataclass(frozen=True)
class Card:
    """An imaginary accelerator (the catalogue in ``brimful.measure.gpus`` has the sources)."""

    name: str  # torch.cuda.get_device_name()
    total_bytes: int  # torch.cuda.mem_get_info()[1]
    context_bytes: int  # what the CUDA context holds before the first tensor
    capability: List[int]  # [major, minor]
    multiprocessors: int
    # of its memory; None: not known, so steps are not timed
    bandwidth_bytes_per_s: Optional[float] = None
    # peak operations per second: "fp32", "tf32", "fp16", "bf16"
    flops: Dict[str, float] = field(default_factory=dict)
    # capabilities of other cards that the trial may speak for as well
    others: List[List[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """Where a script without a flag has the number of a setting, as a trial found it
    (`probe/script_text`). `kind` "script": a literal of its text, from which the loader's number
    comes, or, without a loader, one that the model's input has as its first dimension. "loader":
    the number is set where the loader is made."""

    kind: str
    file: str  # of the literal, or of the innermost line of the user's own that makes the loader
    line: int
    column: int  # in bytes, as in `ast`; 0 for a loader
    number: int  # what stands there
    text: str  # that line
    loader: str  # "data.py:51": where the loader is made; "" without one
    # the calls that lead there, innermost first: "/path/data.py:51"
    calls: List[str] = field(default_factory=list)
    # the same of loaders that keep their number
    not_calls: List[List[str]] = field(default_factory=list)
    others: List[str] = field(default_factory=list)  # where else the script's text has this number
    # the smallest number that `min` or `max` sets beside it: beyond it the loader may not follow
    limit: Optional[int] = None
    # where: "train.py:25 (`min(batch, 4)`)"; of a loader, whose number that line does not limit
    limited_at: str = ""


@dataclass(frozen=True)
class Ends:
    """When the steps of a trial end, and what it shows of evaluations."""

    steps: int = 3  # measured optimizer steps, after the warm-up
    warmup_steps: int = 1
    see_eval: bool = True  # continue after the measured steps until the script has evaluated
    eval_batches: int = EVAL_BATCHES  # that an evaluation loader gives before it ends early
    # the steps go on until reserved memory has not risen for so many of them
    settles_after: Optional[int] = None
    # `steps` is NO_LIMIT: they end so many seconds after the first, after so many samples over all
    # ranks, or with the script; evaluations are whole
    after_s: Optional[float] = None
    after_samples: Optional[int] = None
    # fewer steps where each has many backward passes: they end after so many of those
    after_passes: Optional[int] = None


@dataclass(frozen=True)
class TrialConfig:
    """How the child runs one trial, or a whole run."""

    folder: str  # the trial's folder: wire files, traces, and whatever the script would have saved
    # "cpu", "accelerator" (a real one), "auto" (one of those two, of a whole run) or "imaginary"
    device: str
    card: Optional[Card] = None  # with device "imaginary"
    # imaginary: raise OutOfMemoryError beyond this; None is without limit
    capacity_bytes: Optional[int] = None
    # imaginary: PYTORCH_ALLOC_CONF as a replay of the trace takes it to begin with
    allocator_conf: str = ""
    cards: int = 1  # imaginary: how many of them each process sees
    ends: Ends = field(default_factory=Ends)
    trace: bool = False  # imaginary: write every allocation to trace-<rank>.jsonl
    # imaginary: changes to the script (imaginary/attribution/what_if.py)
    what_if: List[str] = field(default_factory=list)
    # tune malloc so that the resident high-water mark is true (slower steps)
    measure_host_memory: bool = False
    worst_batch: bool = True  # scan the samples, and make the batches of the largest ones
    # where a training loader draws at random, its batches are as drawn but for this one and the
    # next, which are the largest of many drawn at random
    largest_at: Optional[int] = None
    # `SCANS_FILE`s of earlier trials of the same data, newest last
    scans: List[str] = field(default_factory=list)
    # look for what an audit reports besides: a checksum of each batch, how an epoch is drawn, ...
    audits: bool = False
    keep_out: bool = True  # writes go to the trial's folder, trackers are off, nothing is resumed
    cut: bool = True  # False: a whole run, nothing ends early
    # what brimful.setting(name, default) answers
    settings: Dict[str, Any] = field(default_factory=dict)
    # imaginary: time the training loader, in batches of up to so many samples
    time_loader: Optional[int] = None
    # of loaders' numbers: "script" (text and loaders), "loader" (those alone) or "workers"
    find_places: Optional[str] = None
    # setting -> where its value is set in a script without a flag
    places: Dict[str, Place] = field(default_factory=dict)
    watches_branches: bool = False  # report the branches of the script that no step took
    reach: List[str] = field(default_factory=list)  # "train.py:88": lines that it is to come to
    parent_pid: Optional[int] = None  # the trial's first process ends when this one does
    version: int = WIRE_VERSION


@dataclass(frozen=True)
class ProcessStarted:
    """The first event of each process."""

    pid: int
    # "launcher" (torchrun, accelerate launch, a shell's python), "rank", "worker" (of a DataLoader,
    # a pool), or "child", forked or spawned, which may be anything else
    role: str
    rank: int
    argv: List[str]
    # the variables that a launcher, the command's first process, added for it
    launched_with: Optional[Dict[str, str]] = None
    version: int = WIRE_VERSION


@dataclass(frozen=True)
class TorchImported:
    """torch was imported in this process."""

    torch_version: str


@dataclass(frozen=True)
class RunCounters:
    """What a rank of a whole run (`cut` is False) has done so far, and the memory it holds now."""

    samples: Optional[int]  # trained on by this rank; None where they cannot be counted
    train_s: float  # of training, by the host's clock, without evaluations
    loading_s: float  # of it spent waiting for data
    # as the engine reports it, else of the latest step; None where reading it would wait for a
    # device
    loss: Optional[float]
    allocated_bytes: Optional[int]  # now, of the fullest card; None on a CPU
    reserved_bytes: Optional[int]
    # how often the allocators freed their cache and tried again, of all cards
    alloc_retries: Optional[int]
    # polls in a row (a step or more apart) in which that number grew, the longest so far
    retry_streak: int = 0
    # the engine reports it so; else it is what went backward in this rank
    loss_is_of_all_ranks: bool = False


@dataclass(frozen=True)
class Progress:
    """At most twice a second: for the parent's display and its time limits."""

    phase: str
    steps: int
    unix_s: float
    counters: Optional[RunCounters] = None  # of a whole run
    rank: int = 0
    batches: int = 0  # of DataLoaders, so far
    backward_passes: int = 0


@dataclass(frozen=True)
class Failure:
    """An exception that ended the script, or out of memory wherever it was raised (a script may
    catch it and continue)."""

    # "out_of_device_memory", "out_of_host_memory" or another of `simulator.oom_patterns`,
    # "unsupported" (a call that the imaginary GPU lacks), "crashed"
    kind: str
    type: str  # the exception's qualified name
    message: str
    traceback: str  # as Python prints it
    where: Optional[str]  # "file.py:12 in train", the innermost frame in the user's own code
    phase: str
    step: int
    caught: bool  # True if the script continued
    # True if the measured steps were complete (brimful's early stop may be the cause)
    after_measured: bool = False
    # "script", "worker" (of a loader), "refused" (no trial can try the command), "card" (an
    # imaginary one), "shapes" (PyTorch's kernel that tells them), "sandbox", "ended" (a loader that
    # brimful ended has no more batches), or "brimful" (a defect of ours)
    raised_by: str = "script"
    # The attribute `brimful_meaning` of the exception, by which a library says what its error means
    # without being known by name: `DOES_NOT_FIT`, `SMALLER_FITS`, `ANOTHER_RANK`, or
    # `DOES_NOT_FIT_ELSEWHERE`, or one of `signals.MEANINGS`; "" of all other exceptions.
    meaning: str = ""
    worker_signal: int = 0  # that had ended a loader's worker; 0: none


@dataclass(frozen=True)
class PhasePeak:
    """The peaks of one phase, reset at its start and read at its end; the worst of its visits."""

    allocated_bytes: Optional[int]  # live tensors; None on a CPU
    reserved_bytes: Optional[int]  # held by PyTorch's caching allocator; None on a CPU
    device_bytes: Optional[int]  # reserved + context (+ others on a real card); None on a CPU
    host_bytes: Optional[int]  # resident memory of this process; true in a memory trial only
    visits: int = 1
    cached: bool = False  # the work of the phase was cached, so its peak means nothing
    host_is_true: bool = False  # malloc was set to return freed memory at once


@dataclass(frozen=True)
class OptimizerSeen:
    """One optimizer that stepped (a wrapper and the optimizer it wraps count as one)."""

    name: str  # class name, of the inner one where wrapped
    steps: int
    parameters: int  # elements over all groups
    learning_rates: List[float]  # by group, in force at the last step
    first_learning_rates: List[float]  # by group, in force at the first step
    uses_closure: bool = False
    # Of the groups that a scheduler manages: "initial_lr", and "max_lr" (OneCycleLR, CyclicLR). []
    # without a scheduler.
    initial_learning_rates: List[float] = field(default_factory=list)
    max_learning_rates: List[float] = field(default_factory=list)
    # a group has relative_step=True (Adafactor): its learning rate is never read
    relative_steps: bool = False
    made_with: Optional[float] = None  # the learning rate that its constructor was given


@dataclass(frozen=True)
class BatchSeen:
    """One batch as the loader gave it."""

    # by the sampler's indices where there are some, else by the first dimension; None: unknown
    samples: Optional[int]
    shapes: List[List[int]]  # of its tensors, in order
    # of about a thousand strided values; None where not wanted or not possible
    checksum: Optional[str]


@dataclass(frozen=True)
class Draws:
    """How a loader's samples are drawn, as an audit sees it."""

    dataset: str  # class name
    # indices that the sampler gives in an epoch, in this rank; None: not known
    drawn: Optional[int]
    distinct: Optional[int]
    # the data set ignores the index, and picks one of the samples that it holds
    picks_at_random: bool
    # generators that the data set holds: ["dataset.random", "random.Random"]
    random_states: List[List[str]]
    seeds_workers: bool  # the loader has a worker_init_fn
    # of the first batches of its own workers, where brimful makes those of the trial itself
    checksums: List[str]


@dataclass(frozen=True)
class LoadingSpeed:
    """How fast so many workers made batches: samples per second, the median of some bursts and
    their ends.
    """

    median: float
    low: float
    high: float
    # of the time in which they could have run, the share that they waited for a core; None: the
    # kernel does not say
    waited: Optional[float] = None


@dataclass(frozen=True)
class LoaderSeen:
    """One DataLoader that was iterated."""

    # "train", "eval", or "beside": its batches go into steps with those of a training loader
    role: str
    batch_size: Optional[int]  # the loader's own; None where a batch sampler decides
    dataset_length: Optional[int]  # None for iterable datasets
    length: Optional[int]  # batches per epoch, before brimful ends it early
    sampler: str  # class name of the sampler or batch sampler
    sampler_samples: Optional[int]  # what the sampler gives in an epoch, in this rank
    drop_last: bool
    workers: int
    pin_memory: bool
    batches_seen: int
    samples_seen: Optional[int]
    batches: List[BatchSeen]  # at most the first 64
    iterations: int = 1  # how often it was iterated
    # by number of workers (`TrialConfig.time_loader`)
    speeds: Dict[str, LoadingSpeed] = field(default_factory=dict)
    draws: Optional[Draws] = None  # in audits
    batch_s: Optional[float] = None  # in audits, of an evaluation: from one batch to the next
    # where its batch size can be set; with `TrialConfig.find_places` alone
    places: List[Place] = field(default_factory=list)
    # where its number of workers can be, without harm; likewise
    workers_place: Optional[Place] = None
    prefetch_factor: Optional[int] = None  # batches that each worker makes ahead


@dataclass(frozen=True)
class WorstBatch:
    """How the trial came to train on the largest batch."""

    scanned: int  # samples measured
    dataset_length: Optional[int]
    varies: bool
    # a sentence: which dimensions vary and which samples were taken, or why none was scanned
    what: str
    indices: List[int] = field(default_factory=list)
    # the earlier trial that scanned; this one found some samples to be the same
    scanned_in: Optional[str] = None
    # in this batch, where a batch sampler's batches have different numbers of samples
    samples: Optional[int] = None
    mean_samples: Optional[float] = None  # of the batches that the sampler gave; likewise
    drawn: int = 0  # batches drawn at random whose largest is among the trial's, which are as drawn


@dataclass(frozen=True)
class CardSeen:
    """One of several imaginary cards that a process used."""

    index: int  # as in cuda:1
    peak: PhasePeak  # over the whole process
    trace_file: Optional[str] = None  # name in the trial's folder


@dataclass(frozen=True)
class Precision:
    """In which format a training computes, as an audit sees it."""

    capability: List[int]  # of the card
    weights: List[str]  # dtypes of the parameters that are trained
    autocast: Optional[str]  # dtype; None: it was not used
    tf32: bool  # for matrix products of float32
    # share of the weights' elements that are convolutions', which TF32 is for by default
    convolutions: float


@dataclass(frozen=True)
class Asked:
    """A number that an audited script, its files of settings or its environment has under a name
    that asks for a setting, and what becomes of it."""

    setting: str  # "batch_size", "num_workers", "prefetch_factor", "accumulation" or "lr"
    name: str  # "batch_size_per_gpu"
    requested: Union[int, float]
    place: str  # "config.py:7", "environment variable BATCH_SIZE"; "" where not known
    # What the script does with it: "read"; "unread" (it shows the name at most); "replaced" (the
    # line `changed_at` puts another number in its place). "passed": a number as it stands in a
    # call, which asks for nothing.
    use: str
    effective: Union[int, float, None] = None  # what is in force; None where that is not known
    changed_at: str = ""  # "sft.py:10", which has the number in force
    text: str = ""  # "min(config.batch_size_per_gpu, 2)"


@dataclass(frozen=True)
class NotRun:
    """A branch of the script that works with tensors and that no step of a trial took, though its
    condition may come true later."""

    file: str
    line: int  # of the condition
    condition: str  # "step > args.penalty_after"
    first_line: int  # of what did not run; 0: the condition always held, and nothing stands beside
    last_line: int
    evaluates: bool  # an evaluation is among it


@dataclass(frozen=True)
class LeftOut:
    """Work of a trial that was not run, since what was run shows it (`brimful_inside.left_out`)."""

    what: str  # "micro-batches of Model", "batches of loader 1" of `loaders`
    shown: int  # how many were run
    left_out: Optional[int]  # how many those stand for; None: not known
    kernels: Optional[int] = None  # that each of them is taken to have run; None: not counted


@dataclass(frozen=True)
class Report:
    """What the probe of one rank measured."""

    rank: int
    world_size: int
    device: str  # "cpu", "cuda:0", "imaginary"
    device_name: Optional[str]
    torch_version: str
    ended: str  # "steps_done", "script_ended", "out_of_memory", "crashed", "running" (a snapshot)
    steps: int  # by the optimizer that stepped first, warm-up included
    warmup_steps: int
    # of each measured step, end to end; [] on an imaginary card
    step_s: List[float] = field(default_factory=list)
    # on a CPU: the process's processor time in each of them
    cpu_s: List[float] = field(default_factory=list)
    # of it spent waiting for data; [] where not known
    loading_s: List[float] = field(default_factory=list)
    # batches that went into each step
    micro_batches_per_step: List[int] = field(default_factory=list)
    samples_per_step: List[Optional[int]] = field(default_factory=list)
    optimizers: List[OptimizerSeen] = field(default_factory=list)
    loaders: List[LoaderSeen] = field(default_factory=list)
    phases: Dict[str, PhasePeak] = field(default_factory=dict)
    # of each step, warm-up included: the sum of what its backward passes began from, without a
    # GradScaler's factor; None where that is no single number. [] where reading waits for a device
    losses: List[Optional[float]] = field(default_factory=list)
    worst_batch: Optional[WorstBatch] = None
    peak_unphased: Optional[PhasePeak] = None  # over the whole process
    context_bytes: Optional[int] = None  # device memory outside PyTorch's allocator
    trace_file: Optional[str] = None  # name in the trial's folder
    # imaginary: "nonzero" -> uses of an upper bound for a shape
    approximations: Dict[str, int] = field(default_factory=dict)
    # of the environment, in the script's end: simulator.allocator_settings.ignored_in
    ignored_settings: List[str] = field(default_factory=list)
    unknown_read: bool = False  # imaginary: the host read a value that nobody can know
    notes: List[str] = field(default_factory=list)  # sentences: "no optimizer stepped", ...
    sources: List[str] = field(default_factory=list)  # the user's own Python files that it loaded
    # files that the script wrote, redirected to the trial's folder
    wrote: List[str] = field(default_factory=list)
    # when the first step began: files written earlier hold nothing trained
    first_step_unix_s: Optional[float] = None
    # where a process has several imaginary cards: those that were used
    cards: List[CardSeen] = field(default_factory=list)
    # a batch is split over so many cards of this process (nn.DataParallel); real ones: in audits
    split_over: int = 1
    # ranks of each NCCL group that was used on an imaginary card
    communicators: List[int] = field(default_factory=list)
    # of `Card.others`: where all would have been done in the same way
    alike: List[List[int]] = field(default_factory=list)
    # Imaginary: leaks. "train": bytes that each step leaves on the card; "eval": bytes that each
    # batch of an evaluation leaves, which gave "eval_seen" batches of "eval_length" (absent where
    # not known). "cycles": bytes that each step leaves in reference cycles, most of it by the
    # allocation of number "cycles_made" in the trace, of at most "cycles_alive" steps at once
    # (absent: nothing collects them). What does not grow is absent.
    growth: Dict[str, int] = field(default_factory=dict)
    # imaginary: bytes of gradients whose weights no optimizer holds, by their module's class
    unstepped: Dict[str, int] = field(default_factory=dict)
    counters: Optional[RunCounters] = None  # of a whole run
    # in audits: lines of the script that wait for a value of a card
    device_reads: Dict[str, int] = field(default_factory=dict)
    precision: Optional[Precision] = None  # in audits, on a card
    # where the batch size of a training without a loader may be set
    places: List[Place] = field(default_factory=list)
    left_out: List[LeftOut] = field(default_factory=list)
    asked: List[Asked] = field(default_factory=list)  # in audits, of the first rank
    # as the script reports it, where its data has fewer samples
    batch_asked: Optional[int] = None
    # wherever it is started again, it goes on from its own newest checkpoint, as it reports
    resumes_itself: bool = False
    # the package of environments that the script may play in, where no loader gave training data
    environments: Optional[str] = None
    # whether a DataLoader gave no batch, and none did over its data
    unused_loader: bool = False
    not_run: List[NotRun] = field(default_factory=list)  # of the first rank
    not_reached: List[str] = field(default_factory=list)  # of `TrialConfig.reach`


EVENTS: Dict[str, Type[Any]] = {
    "process_started": ProcessStarted,
    "torch_imported": TorchImported,
    "progress": Progress,
    "failure": Failure,
    "report": Report,
}
_NAMES = {event: name for name, event in EVENTS.items()}


def encode_event(event: Any) -> bytes:
    """One line for the wire file, newline included."""
    return (json.dumps({"event": _NAMES[type(event)], **dataclasses.asdict(event)}) + "\n").encode()


class Writer:
    """Appends events of this process to its wire file. One write call a line, so that a kill cannot
    tear two lines."""

    def __init__(self, folder: str, pid: Optional[int] = None):
        self.path = os.path.join(folder, "wire-%d.jsonl" % (pid or os.getpid()))
        self._descriptor = os.open(
            self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o644
        )
        # until this process ends: then brimful puts its file and those of others together
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def write(self, event: Any) -> None:
        os.write(self._descriptor, encode_event(event))

    def replace(self, event: Any) -> None:
        """Keeps `event` as the latest of its kind, in a file of its own, which another process
        never reads in part."""
        path = latest_path(self.path, _NAMES[type(event)])
        with open(path + ".new", "wb") as file:
            file.write(encode_event(event))
        os.replace(path + ".new", path)


def latest_path(wire_path: str, event: str) -> str:
    """Where the process of this wire file keeps its latest `event` ("progress" or "report") of a
    whole run."""
    folder, name = os.path.split(wire_path)
    return os.path.join(folder, name.replace("wire-", "latest-%s-" % event, 1))


def read_config(path: str) -> TrialConfig:
    """The trial config at `path`. Raises ValueError if another version of brimful wrote it."""
    with open(path, encoding="utf-8") as file:
        raw = json.load(file)
    if raw.get("version") != WIRE_VERSION:
        raise ValueError(
            "the trial config is of wire version %r, this probe reads %d"
            % (raw.get("version"), WIRE_VERSION)
        )
    card = raw.pop("card", None)
    places = {name: Place(**place) for name, place in raw.pop("places", {}).items()}
    ends = Ends(**raw.pop("ends"))
    return TrialConfig(card=Card(**card) if card else None, places=places, ends=ends, **raw)
