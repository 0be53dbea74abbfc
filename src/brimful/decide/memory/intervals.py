"""How far a prediction of device memory may be off: the sum of what is uncertain in this program.

What is alive is exact. Uncertain are the context, what PyTorch's allocator reserves beyond what is
alive (by replays under other assumptions, `brimful_inside.simulator.assumptions`), NCCL's buffers,
and sizes beyond what was traced. Each file of ``evidence/`` is one bench's result: errors
(measured - predicted) / predicted.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from brimful.values import IntervalPart, PeakEstimate
from brimful_inside.simulator.allocator_settings import LARGE_SEGMENT
from brimful_inside.simulator.assumptions import (
    LATER_STEPS,
    PLACEMENT,
    SCALED,
    SKIPPED_STEPS,
    WORKSPACES,
)

# Per doubling of the batch size beyond what was seen, for a peak fitted as fixed + linear +
# quadratic: fitted at 4 and 8 and extrapolated to 64, such peaks erred by 5 % on a ResNet and 18 %
# on a small T5, that is up to 6 % a doubling.
GROWTH_PEAKS = 0.06
# The same for extrapolated sizes that no further trace has confirmed.
GROWTH_EXTRAPOLATED = 0.02

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

    situation: str  # SEVERAL_RANKS, STEP_TIME or STEP_TIME_GROUPED
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
    """What was predicted lies within (1 + low) and (1 + high) times that, in 95 of 100 runs."""

    low: float
    high: float
    basis: str


# Of what is predicted to be reserved. Where nothing but the order of segments was in doubt, at most
# 1.6 % less and 0.4 % more was, and one segment, of which another order shares a part.
ALLOCATOR = RelativeInterval(
    -0.016, 0.004, "40 trainings without convolutions on an H200, 26 and 28 November 2026"
)
ALLOCATOR_BYTES = LARGE_SEGMENT
# cuDNN took other workspaces than modelled, at other moments: less was reserved than replays say.
_CONVOLUTIONS = RelativeInterval(-0.12, 0.0, "24 trainings on an H200, 26 and 28 November 2026")
_SCALER = RelativeInterval(
    -0.075, 0.0, "8 trainings on an H200, 28 November 2026, 4 of them off for no known cause"
)
# By what a trial reports: it ran the model as it is without torch.compile.
COMPILED = {
    "torch.compile": RelativeInterval(
        -0.4, 0.05, "assumed: fused code keeps less for the backward pass as a rule"
    ),
    "torch.compile with CUDA graphs": RelativeInterval(
        -0.4, 0.33, "a public training at batch size 1: 31.1 GiB without, 41.2 with reduce-overhead"
    ),
}
# The name under which a trial reports that it does not count what these take.
TRIED, MOST_TRIED_BYTES = "cudnn.benchmark in float32", 16 << 30
_MEASURED = {WORKSPACES: _CONVOLUTIONS, SCALED: _SCALER}
_REPLAYED = {
    PLACEMENT: "replays with new segments above and below the others",
    WORKSPACES: "replays without, with twice as large and with further workspaces",
    SKIPPED_STEPS: "replays with up to three steps skipped",
    SCALED: "a replay with one more block as large as the largest",
    LATER_STEPS: "a replay with the last step six times more",
}


def of_several_ranks(interval: RelativeInterval) -> RelativeInterval:
    """That of a card that trains with others: FSDP's streams hold more than the tensors."""
    bench = max(
        (bench for bench in committed_evidence() if bench.situation == SEVERAL_RANKS),
        key=lambda bench: bench.count,
    )
    basis = f"of several ranks: {bench.basis} ({bench.count} runs, {bench.hardware}, {bench.date})"
    low, high = min(interval.low, bench.low_error), max(interval.high, bench.high_error)
    return RelativeInterval(low, high, basis)


def of_compiled(interval: RelativeInterval, approximations: Iterable[str]) -> RelativeInterval:
    """That of a training whose compiled code is not modelled."""
    compiled = [COMPILED[name] for name in approximations if name in COMPILED]
    return max((interval, *compiled), key=lambda interval: interval.high)


def parts_of(
    reserved_bytes: float,
    interval: RelativeInterval,
    spread: Mapping[str, tuple[int, int]],
) -> tuple[IntervalPart, ...]:
    """What is uncertain of so much memory of PyTorch's. `spread`: bytes below and above it under
    other assumptions."""
    ends = interval.low * reserved_bytes, interval.high * reserved_bytes
    more = ALLOCATOR_BYTES if interval is ALLOCATOR else 0
    name = "torch.compile" if interval in COMPILED.values() else "PyTorch's allocator"
    allocator = IntervalPart(name, math.ceil(-ends[0]), math.ceil(ends[1]) + more, interval.basis)
    parts = [allocator]
    for name, (below, above) in spread.items():
        evidence, measured = _REPLAYED[name], _MEASURED.get(name)
        if measured is not None:
            below = max(below, math.ceil(-measured.low * reserved_bytes))
            evidence += f"; {measured.basis}"
        parts.append(IntervalPart(name, below, above, evidence))
    return tuple(parts)


def widest_first(parts: Iterable[IntervalPart]) -> tuple[IntervalPart, ...]:
    """Without those of nothing."""
    uncertain = [part for part in parts if part.below_bytes or part.above_bytes]
    uncertain.sort(key=lambda part: part.below_bytes + part.above_bytes, reverse=True)
    return tuple(uncertain)


def tried_kernels(free_bytes: int) -> IntervalPart:
    """What cudnn.benchmark may take for a moment, where so much is free: no training needs it, for
    cuDNN passes over a kernel that has no room."""
    evidence = "5 trainings in float32 on an H200, 26 and 28 November 2026: 0.7 to 15.7 GiB more"
    return IntervalPart(TRIED, 0, min(free_bytes, MOST_TRIED_BYTES), evidence)


def with_part(peak: PeakEstimate, part: IntervalPart) -> PeakEstimate:
    """The peak with one more thing that is uncertain."""
    low, high = peak.device_interval_bytes
    return replace(
        peak,
        device_interval_bytes=(max(0, low - part.below_bytes), high + part.above_bytes),
        interval_parts=widest_first((*peak.interval_parts, part)),
    )


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
