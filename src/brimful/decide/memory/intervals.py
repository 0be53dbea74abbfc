"""How far a prediction of device memory may be off: by bench results on real cards for its kind of
network, or assumed.

Each file of ``evidence/`` is one bench's result: errors of the predicted device peak, (measured -
predicted) / predicted.
"""

import json
import math
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from operator import itemgetter

from brimful.values import Source
from brimful_inside.simulator.program import Program

# Without a bench: the 95th percentile of a first prototype's errors over 160 image models on one
# A100 was 8.4 %.
ASSUMED_ERROR = 0.085

# Per doubling of the batch size beyond what was seen, for a peak fitted as fixed + linear +
# quadratic: fitted at 4 and 8 and extrapolated to 64, such peaks erred by 5 % on a ResNet and 18 %
# on a small T5, that is up to 6 % a doubling.
GROWTH_PEAKS = 0.06
# The same for extrapolated sizes that no further trace has confirmed.
GROWTH_EXTRAPOLATED = 0.02

# Kinds of networks: of linear layers alone; all others by the largest workspace of cuDNN's
# convolutions. Convolutions for which our tables have none are a kind of their own, and so is
# attention without any (language models): no bench has measured either, as nearly every measured
# network without workspaces has a stem of convolutions and no more.
DENSE, NO_WORKSPACES, SMALL_WORKSPACES, WORKSPACES = (
    "dense",
    "no workspaces",
    "small workspaces",
    "workspaces",
)
UNKNOWN_WORKSPACES, NO_CONVOLUTIONS = (
    "convolutions of unknown workspaces",
    "attention without convolutions",
)
WITH_CONVOLUTIONS = (NO_WORKSPACES, UNKNOWN_WORKSPACES, SMALL_WORKSPACES, WORKSPACES)
KINDS = (DENSE, NO_CONVOLUTIONS, *WITH_CONVOLUTIONS)
SMALL = 0.0175  # of the most bytes alive at once
STEM = 0.05  # of all that is allocated: results of convolutions, where these are more than a stem

# Ranks that train together: what FSDP's streams and NCCL hold beside the tensors is in doubt.
SEVERAL_RANKS = "several ranks"

# Situations of their own: errors of predicted step times (predicted_speed.py), where convolutions
# by groups matter and not.
STEP_TIME, STEP_TIME_GROUPED = "step time", "step time, grouped convolutions"


@dataclass(frozen=True)
class Evidence:
    """One bench's result. Errors are relative and signed: above 0 means that more was measured than
    predicted.
    """

    situation: str  # one of KINDS, or SEVERAL_RANKS, STEP_TIME, STEP_TIME_GROUPED
    median_error: float
    # the ends of the interval; how they are made: bench/accuracy.py
    low_error: float
    high_error: float
    count: int
    date: str  # ISO
    hardware: str
    basis: str  # which data, which versions: a sentence
    schema: int = 1


@dataclass(frozen=True)
class RelativeInterval:
    """The device peak lies within (1 + low) and (1 + high) times the prediction, in 95 of
    100 runs.
    """

    low: float
    high: float
    basis: str
    source: Source  # measured (by a bench) or assumed

    def around(self, device_bytes: float, growth: float = 0.0) -> tuple[int, int]:
        """The interval around a predicted device peak, in bytes; `growth` widens both ends
        (extrapolation).
        """
        low = device_bytes * max(0.0, 1 + self.low - growth)
        return math.floor(low), math.ceil(device_bytes * (1 + self.high + growth))


def interval_for(kind: str) -> RelativeInterval:
    """The interval for a kind of network (see `kind_of`): that of its bench with most runs, else
    assumed.
    """
    measured = [bench for bench in committed_evidence() if bench.situation == kind]
    if not measured:
        basis = (
            f"assumed ±{ASSUMED_ERROR:.1%}: no bench has measured networks of this kind ({kind})"
        )
        return RelativeInterval(-ASSUMED_ERROR, ASSUMED_ERROR, basis, Source.ASSUMED)
    best = max(measured, key=lambda e: e.count)
    basis = f"{best.basis} ({best.count} runs, {best.hardware}, {best.date})"
    return RelativeInterval(
        min(best.low_error, 0.0), max(best.high_error, 0.0), basis, Source.MEASURED
    )


def of_several_ranks(interval: RelativeInterval) -> RelativeInterval:
    """The interval of a card that trains with others, from that of the network alone."""
    ranks = interval_for(SEVERAL_RANKS)
    basis = f"{interval.basis}; of several ranks: {ranks.basis}"
    low, high = min(interval.low, ranks.low), max(interval.high, ranks.high)
    return replace(interval, low=low, high=high, basis=basis)


def kind_of(program: Program) -> str:
    """The kind of network by what a trace of a small batch allocates.

    The model of cuDNN's workspaces is the least certain: what counts is the largest, as a share of
    the most bytes alive.
    """
    words = "conv", "attention", "bmm", "._softmax", "_safe_softmax"
    if not any(word in name for name in program.operations for word in words):
        return DENSE
    made = list(zip(map(itemgetter(1), program.allocations), program.sizes, strict=True))
    largest = max((size for name, size in made if name.startswith("cudnn_")), default=0)
    if largest:
        small = largest < SMALL * program.peak_live_bytes(program.sizes)
        return SMALL_WORKSPACES if small else WORKSPACES
    convolved = sum(size for name, size in made if "convolution" in name)
    if not convolved:
        return NO_CONVOLUTIONS
    return UNKNOWN_WORKSPACES if convolved > STEM * sum(program.sizes) else NO_WORKSPACES


def growth(batch_size: float, seen_to: float, per_doubling: float) -> float:
    """How much wider an interval is at `batch_size` when sizes up to `seen_to` were seen; 0 within
    what was seen.
    """
    if batch_size <= seen_to or seen_to <= 0:
        return 0.0
    return per_doubling * math.log2(batch_size / seen_to)


@cache
def committed_evidence() -> tuple[Evidence, ...]:
    """The bench results that came with the package."""
    folder = resources.files("brimful.decide").joinpath("evidence")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)
    return tuple(Evidence(**json.loads(file.read_text(encoding="utf-8"))) for file in files)
