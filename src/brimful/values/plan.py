"""What `tune` chose."""

from dataclasses import dataclass, field
from enum import StrEnum

from brimful.values.command import EffectiveSetting
from brimful.values.diagnostic import Diagnostic
from brimful.values.number import Estimate
from brimful_inside.wire import Place


class Objective(StrEnum):
    FASTEST = "fastest"
    LARGEST = "largest"
    FIT = "fit"


@dataclass(frozen=True)
class TriedSize:
    """A batch size as a row of the table of `tune`. Each number says whether it was measured at
    this size, or predicted.
    """

    batch_size: int
    fits: bool | None  # within the budget; None: not known
    peak_bytes: Estimate | None  # of the memory that the budget is of; None where a trial ran out
    effective_batch: Estimate | None  # samples in an update, over all ranks
    updates_per_epoch: Estimate | None
    epoch_s: Estimate | None


@dataclass(frozen=True)
class Plan:
    """The chosen settings, and the command to paste."""

    objective: Objective
    settings: tuple[EffectiveSetting, ...]
    environment: dict[str, str]
    command_line: str  # to paste, environment included
    verified: bool  # these settings were run in a trial that fitted
    trials: int
    out_of_memory_trials: int
    peak_bytes: Estimate | None = None
    samples_per_s: Estimate | None = None
    # the user's own settings, measured in the same session
    baseline_samples_per_s: Estimate | None = None
    # how many times as fast as these, both run by turns; None where it is these, or not known
    gain: Estimate | None = None
    partial: str | None = None  # what ended the search before its time; None: it came to its end
    warnings: tuple[Diagnostic, ...] = ()
    sizes: tuple[TriedSize, ...] = ()  # ascending
    # setting -> where brimful sets it in a script without a flag
    places: dict[str, Place] = field(default_factory=dict)
    # digests of the files that the command loaded or names, by path
    sources: dict[str, str] = field(default_factory=dict)
