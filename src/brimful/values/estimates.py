"""What is concluded about memory and about time."""

from dataclasses import dataclass
from enum import StrEnum

from brimful.values.given import Estimate, Point, Source


class Verdict(StrEnum):
    """Whether a training fits its memory, from good to bad."""

    FITS = "fits"
    TIGHT = "tight"  # only if what is uncertain turns out small
    DOES_NOT_FIT = "does_not_fit"

    @staticmethod
    def badness(verdict: "Verdict | None") -> int:
        """0 for what fits, more for what fits less. None (the command fails there) is worst."""
        return len(Verdict) if verdict is None else list(Verdict).index(verdict)


@dataclass(frozen=True)
class IntervalPart:
    """What is uncertain of a predicted peak, and by how many bytes it may lie below and above."""

    name: str
    below_bytes: int
    above_bytes: int
    evidence: str


@dataclass(frozen=True)
class PeakEstimate:
    """A peak of device memory in its three names (docs/how/one_allocation.md)."""

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    device_interval_bytes: tuple[int, int]  # 95 %
    source: Source
    interval_parts: tuple[IntervalPart, ...]  # whose sum it is, the largest first
    # by so much the device's is lower if nothing is as large as the upper bound at which it counts
    # where only values decide its size (a boolean mask that selects nothing)
    at_most_bytes: int = 0


@dataclass(frozen=True)
class CardPeak:
    """The predicted peak of one card of several."""

    rank: int
    index: int  # as in cuda:1
    peak: PeakEstimate


@dataclass(frozen=True)
class Limits:
    """What a batch size must obey besides the budget."""

    dataset_length: int | None = None
    max_batch_size: int | None = None
    # the largest batch that the script's loader makes, where trials showed one
    loader_cap: int | None = None
    # about the largest whose epoch of uneven batches fits, where one that does not is known
    over_an_epoch: int | None = None


@dataclass(frozen=True)
class MemoryEstimate:
    """What is concluded about memory: a peak for every batch size."""

    memory: str  # "device" or "host"
    # "extrapolated" (each allocation's size, from traces) or "peaks" (fixed + linear + quadratic)
    method: str
    # extrapolated: a trace not used for fitting was reproduced to the byte, as far as the answer
    # needs it
    exact: bool
    fixed_bytes: float | None  # peaks only
    linear_bytes: float | None
    quadratic_bytes: float | None
    curve: tuple[Point, ...]  # predicted, for the page
    probes: tuple[Point, ...]  # what trials showed
    # under budget and limits, by the rule of fitting; None: see `nothing_fits`
    largest_batch_size: int | None
    # "budget", "dataset", "max_batch_size", "loader", "not_followed" (larger sizes take no more)
    limited_by: str | None
    ignores_batch_size: bool = False
    # not even the smallest batch size; False without a largest one: it was not searched for
    nothing_fits: bool = False
    # the largest batch that the script's loader makes, where trials showed one
    loader_cap: int | None = None
    unknown: str = "batch_size"  # the setting that all sizes here are of


@dataclass(frozen=True)
class Moment:
    """An allocation that set a peak."""

    phase: str
    op: str  # "aten.mm.default"; "" where a phase began at its peak
    module: str  # the module that it belongs to, in a backward pass too; "" outside of any
    where: str  # the user's line: "train.py:57 in main: loss.backward()"; "" where there is none
    # "forward", "backward", "recomputation" (of a checkpointed forward pass), "optimizer" or ""
    during: str


@dataclass(frozen=True)
class ModuleShare:
    """What one module holds without its children at a peak."""

    module: str  # its path as named_modules() of the outermost module calls it, or "Net (itself)"
    bytes: int
    categories: dict[str, int]  # of these, by category


@dataclass(frozen=True)
class Alike:
    """Modules whose paths differ in their numbers alone, taken together."""

    pattern: str  # "transformer.h.*.mlp"
    count: int
    bytes: int


@dataclass(frozen=True)
class Held:
    """What a line holds at a peak for some modules, without their children."""

    bytes: int  # of all these modules together
    category: str
    modules: tuple[str, ...]  # as of `ModuleShare`; () outside of any
    where: str  # the user's line, as of `Moment`


@dataclass(frozen=True)
class Breakdown:
    """What the device peak is made of, at the moment when most was live. The parts add up to the
    device peak.
    """

    phase: str  # in which the peak lies
    # bytes by category (docs/how/one_allocation.md), in the order in which they are shown; those
    # at 0 too
    parts: dict[str, int]
    modules: tuple[ModuleShare, ...]  # the ten that hold most
    alike: tuple[Alike, ...]  # the groups that hold most, of two modules or more
    moment: Moment
    # where the allocator took its last segment; None: at the same moment
    grown: Moment | None = None
    # of the whole run: all live blocks by category, module and line, the largest first
    # of the modules those that hold the same are together
    held: tuple[Held, ...] = ()


@dataclass(frozen=True)
class SpeedEstimate:
    points: tuple[Point, ...]  # samples per second, measured, with interval
    best_batch_size: int | None
    knee_batch_size: int | None  # the smallest within the tolerance of the best
    noise: float | None  # relative spread of repeats
    tolerance: float  # 0.03 or the noise, whichever is larger


@dataclass(frozen=True)
class KernelShare:
    """An operation's part of a step's time."""

    op: str  # "convolution_backward"
    share: float  # of the step; all calls together
    # what most of its time is spent on: "compute", "bandwidth", "launches" or "transfer"
    bound_by: str


@dataclass(frozen=True)
class PredictedSpeed:
    """The time of a step on a card where nothing was run, from each kernel's arithmetic and bytes.
    All of it is predicted.

    Loading is not in it: how fast the host loads there cannot be known from here.
    """

    batch_size: int | None  # None: of the command as it stands
    step_s: Estimate
    samples_per_s: Estimate | None  # None where nobody knows how many samples are in a step
    curve: tuple[Point, ...]  # samples per second, up to the largest batch size that fits
    best_batch_size: int | None
    knee_batch_size: int | None  # the smallest within the tolerance of the best
    # where it lies with a host twice as fast, and half as fast
    knee_interval: tuple[int, int] | None
    tolerance: float
    # shares of the step: "compute", "bandwidth", "launches" (the GPU waits for Python), "transfer"
    bound_by: dict[str, float]
    kernels: tuple[KernelShare, ...]  # the operations that take longest
    exact: bool  # the same kernels ran in all traces
    notes: tuple[str, ...] = ()  # what is not in it: "communication between 4 ranks is not counted"
    ranks: int = 1
    batches_per_step: float = 1  # of each rank
    # seconds of it between cards, hidden ones too; the note names the link. None: none seen
    exchange: Estimate | None = None
    # of these, the seconds in which the card computes nothing; None likewise
    exposed: Estimate | None = None
    environments: str | None = None  # the package with which the script plays between its steps

    @property
    def still_rises(self) -> bool:
        """Whether all sizes but the largest one are slower by more than the tolerance: the curve
        ends before its knee.
        """
        knee = self.knee_batch_size
        return knee is not None and knee == max(point.batch_size for point in self.curve)


@dataclass(frozen=True)
class Loading:
    """How fast this machine makes one rank's batches, beside what its card takes. Samples per
    second.
    """

    workers: int  # that the loader asks for
    one_worker: Estimate
    all_workers: Estimate  # of all these; of one where there are none
    card: Estimate | None  # one rank's share of the predicted speed; None where that is not known
    needed: int | None  # workers that keep up with it; None likewise
    binds: bool  # the card waits for what is loaded here
    needed_interval: tuple[int, int] | None = None  # by the ends of `one_worker`
    # of the time in which a worker could have run, the share that it waited for a core, where that
    # is so much that these speeds say nothing; None: they were measured
    busy: float | None = None


@dataclass(frozen=True)
class Epoch:
    """An epoch of the training at the predicted speed, over all ranks."""

    steps: int  # with all their batches, where the script accumulates several
    samples_per_step: int
    samples: int  # without those that drop_last leaves out
    samples_given: bool  # by the user, not by the data that is here
    distinct: int | None  # of these; None where nobody knows
    train_s: Estimate
    waits_for_data: bool  # both times are those of loading as it is here, where that is longer
    evaluated: int | None  # samples of an evaluation; None where none was seen
    evaluation_s: Estimate | None
    # of what runs on the card from one pass over the data to the next, evaluations aside
    between_s: Estimate | None = None
    # with one at the end of the batches that are left, where nobody saw whether the script makes it
    most_steps: int | None = None
