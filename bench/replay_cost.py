"""What replaying stored traces costs: the quick way and the allocator itself by turns, and the search for the largest size.

    python -m bench.replay_cost trial-001/trace-0.jsonl trial-002/trace-0.jsonl --batch-sizes 5 12 --gib 40

The traces are of one command at two batch sizes, as `brimful predict` leaves them in its run's folder. Told are processor
seconds, the least of several turns; both ways must show the same, or there is an error.
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
from brimful.decide.memory.program import program_of
from brimful.decide.memory.size_model import SizeModel, fit_size_model
from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.plain_replay import play_plain
from brimful_inside.simulator.replay import play_code
from brimful_inside.simulator.trace import decode

GIB = 1 << 30
CONTEXT_BYTES = 500 << 20  # assumed: this is a bench of the arithmetic, not of a card


@dataclass(frozen=True)
class ReplayCost:
    """Processor seconds. `largest` is the batch size that the search found."""

    events: int
    allocator_s: float
    plain_s: float | None  # None: the program is not plain
    search_s: float
    largest: int | None
    replayed_whole: int  # sizes; those of the search that were seen to be too large are not among them
    too_large: int


def laws_of(texts: Sequence[str], batch_sizes: Sequence[int]) -> SizeModel:
    """The laws through traces, as their files' text. Raises ValueError where there are none."""
    programs = {size: program_of(decode(text.splitlines())) for size, text in zip(batch_sizes, texts, strict=True)}
    laws = fit_size_model(programs)
    if laws is None:
        raise ValueError("the traces differ in the order of their allocations: there are no laws through them")
    return laws


def cost_of(laws: SizeModel, memory_bytes: int, turns: int) -> ReplayCost:
    """The cost on a card of `memory_bytes`. Raises ValueError where the two ways show different things."""
    capacity = memory_bytes - CONTEXT_BYTES
    card = Card(memory_bytes, CONTEXT_BYTES, interval=interval_for(kind_of(laws.program)), capacity_bytes=capacity)
    peaks = ExtrapolatedPeaks(laws, card)
    search_s, largest = _timed(lambda: peaks.largest(min(laws.fitted_at), None))
    sizes = laws.sizes_at(largest or min(laws.fitted_at))
    code, plain = laws.program.code, laws.program.plain[0]
    slow, quick = [], []
    for _ in range(turns):
        slow.append(_timed(lambda: play_code(code, sizes, CachingAllocator(capacity, detailed=False))))
        if plain is not None:
            quick.append(_timed(lambda: play_plain(plain, sizes, capacity_bytes=capacity)))
    if any(seen.phases != slow[0][1].phases for _, seen in quick):
        raise ValueError("the quick replay shows other peaks than the allocator")
    allocator_s = min(seconds for seconds, _ in slow)
    plain_s = min((seconds for seconds, _ in quick), default=None)
    return ReplayCost(len(code), allocator_s, plain_s, search_s, largest, len(peaks._played), len(peaks._too_large))


def _timed(suggestion: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    seen = suggestion()
    return time.process_time() - begun, seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[5, 12], help="at which they were taken")
    parser.add_argument("--gib", type=float, default=40.0, help="the card's memory")
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()
    laws = laws_of([path.read_text(encoding="utf-8") for path in args.traces], args.batch_sizes)
    cost = cost_of(laws, int(args.gib * GIB), args.turns)
    print(f"{cost.events} events; one replay by the allocator {cost.allocator_s * 1e3:.1f} ms", end="")
    if cost.plain_s is None:
        print("; the program is not plain")
    else:
        print(f", the quick way {cost.plain_s * 1e3:.1f} ms ({cost.allocator_s / cost.plain_s:.2f} times as quick)")
    print(f"largest batch size {cost.largest}: {cost.search_s:.2f} s, ", end="")
    print(f"{cost.replayed_whole} sizes replayed to the end, {cost.too_large} seen to be too large before it")


if __name__ == "__main__":
    main()
