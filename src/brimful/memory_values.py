"""Peaks, where the memory went, and what would save some: values without logic. (Import them from `brimful.values`.)"""

from __future__ import annotations

from dataclasses import dataclass

from brimful.basic_values import Source


@dataclass(frozen=True)
class Moment:
    """An allocation that set a peak."""

    phase: str
    op: str  # "aten.mm.default"; "" where a phase began at its peak
    module: str  # the module that it belongs to, in a backward pass too; "" outside of any
    where: str  # the user's line: "train.py:57 in main: loss.backward()"; "" where there is none
    during: str  # "forward", "backward", "recomputation" (of a checkpointed forward pass), "optimizer" or ""


@dataclass(frozen=True)
class ModuleShare:
    """What one module holds by itself, without its children, at a peak."""

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
    """What the device peak is made of, at the moment when most was live. The parts add up to the device peak."""

    phase: str  # in which the peak lies
    parts: dict[str, int]  # bytes by category (docs/quantities.md), in the order in which they are shown; those at 0 too
    modules: tuple[ModuleShare, ...]  # the ten that hold most
    alike: tuple[Alike, ...]  # the groups that hold most, of two modules or more
    outside_bytes: int  # of what is live, what belongs to no module
    moment: Moment
    grown: Moment | None = None  # where the allocator took its last segment; None: at the same moment


@dataclass(frozen=True)
class Saving:
    """A change of the script that would lower the peak at the batch size that was asked about."""

    code: str  # "mixed-precision", "gradient-checkpointing", "accumulation-2", ...
    what: str  # "bf16 autocast"
    how: str  # what to write in the script
    source: Source  # predicted: the command was run with it on the imaginary card; estimate: arithmetic on what was seen
    saved_bytes: int  # of the device peak
    new_peak_bytes: int  # the device peak
    fits: bool  # its upper bound is within the budget
    largest_batch_size: int | None = None  # that would fit then; None where it was not worked out
    basis: str = ""  # what an estimate rests on


@dataclass(frozen=True)
class NoSaving:
    """A change that was tried and does not help, or cannot be tried."""

    code: str
    what: str
    why: str


@dataclass(frozen=True)
class WhatIf:
    """What would help most."""

    savings: tuple[Saving, ...] = ()  # the largest first
    others: tuple[NoSaving, ...] = ()


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
