"""What is concluded about memory."""

from dataclasses import dataclass
from enum import StrEnum

from brimful.values.number import Point, Source


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
class PeakEstimate:
    """A peak of device memory in its three names (docs/quantities.md)."""

    allocated_bytes: int
    reserved_bytes: int
    device_bytes: int
    device_interval_bytes: tuple[int, int]  # 95 %
    source: Source
    interval_basis: str  # the bench result it rests on, or why it is assumed


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
class Breakdown:
    """What the device peak is made of, at the moment when most was live. The parts add up to the
    device peak.
    """

    phase: str  # in which the peak lies
    # bytes by category (docs/quantities.md), in the order in which they are shown; those at 0 too
    parts: dict[str, int]
    modules: tuple[ModuleShare, ...]  # the ten that hold most
    alike: tuple[Alike, ...]  # the groups that hold most, of two modules or more
    moment: Moment
    # where the allocator took its last segment; None: at the same moment
    grown: Moment | None = None
