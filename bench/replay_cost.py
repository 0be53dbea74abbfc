"""What replaying stored traces costs: one replay, and the search for the largest size.

    python -m bench.replay_cost trial-001/trace-0.jsonl trial-002/trace-0.jsonl --batch-sizes 5 12
    --gib 40

The traces are of one command at two batch sizes, as `brimful predict` leaves them in its run's
folder. Times are processor seconds, the least of several turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brimful.decide.memory.fit import Card, ExtrapolatedPeaks
from brimful.decide.memory.intervals import interval_for, kind_of
from brimful.decide.memory.size_model import SizeModel, fit_size_model
from brimful_inside.simulator.program import program_of
from brimful_inside.simulator.trace import decode

GIB = 1 << 30
CONTEXT_BYTES = 500 << 20  # assumed: this is a bench of the arithmetic, not of a card


@dataclass(frozen=True)
class ReplayCost:
    """Processor seconds. `largest` is the batch size that the search found."""

    events: int
    replay_s: float
    search_s: float
    largest: int | None
    replayed_whole: (
        int  # sizes; those of the search that were seen to be too large are not among them
    )
    too_large: int


def model_of(texts: Sequence[str], batch_sizes: Sequence[int]) -> SizeModel:
    """The sizes fitted through traces, as their files' text. Raises ValueError where the traces'
    events differ.
    """
    programs = {
        size: program_of(decode(text.splitlines()))
        for size, text in zip(batch_sizes, texts, strict=True)
    }
    model = fit_size_model(programs)
    if model is None:
        raise ValueError(
            "the traces differ in the order of their allocations: no sizes can be fitted through "
            "them"
        )
    return model


def cost_of(model: SizeModel, memory_bytes: int, turns: int) -> ReplayCost:
    """The cost on a card of `memory_bytes`."""
    capacity = memory_bytes - CONTEXT_BYTES
    card = Card(
        memory_bytes,
        CONTEXT_BYTES,
        interval=interval_for(kind_of(model.program)),
        capacity_bytes=capacity,
    )
    peaks = ExtrapolatedPeaks(model, card)
    search_s, largest = _timed(lambda: peaks.largest(min(model.fitted_at), None))
    size = largest or min(model.fitted_at)
    replay_s = min(
        _timed(lambda: model.replay_at(size, card.settings, capacity))[0] for _ in range(turns)
    )
    return ReplayCost(
        len(model.program.events),
        replay_s,
        search_s,
        largest,
        sum(peaks._fits.values()),
        list(peaks._fits.values()).count(False),
    )


def _timed(do: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    result = do()
    return time.process_time() - begun, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument(
        "--batch-sizes", nargs="+", type=int, default=[5, 12], help="at which they were taken"
    )
    parser.add_argument("--gib", type=float, default=40.0, help="the card's memory")
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()
    model = model_of([path.read_text(encoding="utf-8") for path in args.traces], args.batch_sizes)
    cost = cost_of(model, int(args.gib * GIB), args.turns)
    print(f"{cost.events} events; one replay takes {cost.replay_s * 1e3:.1f} ms")
    print(f"largest batch size {cost.largest}: {cost.search_s:.2f} s, ", end="")
    print(
        f"{cost.replayed_whole} sizes replayed to the end, {cost.too_large} seen to be too large "
        "before it"
    )


if __name__ == "__main__":
    main()
