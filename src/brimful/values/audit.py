"""The answer of `audit`."""

from dataclasses import dataclass, field

from brimful.values.command import Setting
from brimful.values.diagnostic import Diagnostic
from brimful.values.number import Source
from brimful_inside.wire import PhasePeak


@dataclass(frozen=True)
class EffectiveBatch:
    """What the script really did."""

    loader_batch_size: int | None
    batches_per_step: float | None
    ranks: int
    samples_per_step: float | None
    # assumed: without a DataLoader they are counted by the model's input
    samples_source: Source = Source.MEASURED


@dataclass(frozen=True)
class Audit:
    """The answer of `audit`."""

    requested: dict[str, Setting]
    effective: EffectiveBatch
    findings: tuple[Diagnostic, ...]
    loading_share: float | None
    step_s: float | None  # median of the measured steps
    peak: PhasePeak | None
    phases: dict[str, PhasePeak]
    not_seen: tuple[str, ...]
    peak_source: Source = Source.MEASURED  # of all peaks; predicted on an imaginary card
    notes: tuple[str, ...] = ()  # what the trial showed besides: "the script used no accelerator"
    # where there are several imaginary ones: "rank 0, cuda:0"
    cards: dict[str, PhasePeak] = field(default_factory=dict)
