"""What grows over a training, by the completed trial whose batch size is nearest, and what the peak
is by its end.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter

from brimful.ask.reading import CardView, MemoryAnswer
from brimful.decide.loaders_seen import loaders, samples_of, steps_of_an_epoch
from brimful.decide.memory.leaks import (
    SMALL_SHARE,
    Growth,
    evaluation_collects,
    growths,
    memory_that_grows,
    with_growth,
)
from brimful.units import noun_of
from brimful.values import Diagnostic, TrialResult, Verdict
from brimful_inside.simulator.trace import At, Free, Malloc, Ready, Retire, Site, Step, Trace


def growths_at(view: CardView, size: int | None) -> tuple[list[Growth], int | None]:
    """(What grows, the size of the trial that shows it)."""
    completed = {n: result for n, result in view.trials.completed().items() if result.reports}
    if not completed:
        return [], size
    nearest = min(completed, key=lambda n: abs(math.log((n or 1) / (size or 1))))
    result = completed[nearest]
    report = result.reports[0]
    if not report.growth:
        return [], nearest
    steps = report.steps, steps_of_an_epoch(result)
    programs = view.programs(nearest) if "eval" in report.growth else ()
    return growths(report.growth, steps, _evaluation_batches(result), programs), nearest


def _evaluation_batches(result: TrialResult) -> float | None:
    """Of the longest evaluation, its last batch as the part of one that it is."""
    parts = [
        min(loader.length, samples / loader.batch_size)
        for loader in loaders(result, "eval")
        if loader.length and loader.batch_size and (samples := samples_of(loader))
    ]
    return max(parts, default=None)


def at_the_end(view: CardView, answer: MemoryAnswer) -> MemoryAnswer:
    """The answer for the end of the epoch and of the evaluation."""
    budget = view.budget.bytes
    for growth in growths_at(view, answer.size)[0]:
        peak = answer.phases.get(growth.phase)
        if peak is None or growth.more_bytes < SMALL_SHARE * peak.device_bytes:
            continue
        peak = with_growth(peak, growth)
        answer = replace(answer, phases={**answer.phases, growth.phase: peak})
        if answer.peak is not None and peak.device_bytes > answer.peak.device_bytes:
            answer = replace(answer, peak=peak)
        if peak.device_bytes > budget:
            fills_up = answer.verdict != Verdict.DOES_NOT_FIT
            answer = replace(answer, verdict=Verdict.DOES_NOT_FIT, fills_up=fills_up)
        elif peak.device_interval_bytes[1] > budget and answer.verdict == Verdict.FITS:
            answer = replace(answer, verdict=Verdict.TIGHT)
    return answer


def about_growth(view: CardView, answer: MemoryAnswer) -> Iterator[Diagnostic]:
    growing, nearest = growths_at(view, answer.size)
    if answer.peak is None or not growing:
        return
    other = f" (at a {noun_of(view.trials.unknown)} of {nearest})" * (nearest != answer.size)
    evaluations = loaders(view.trials.completed()[nearest], "eval")
    samples = max((samples_of(loader) or 0 for loader in evaluations), default=0)
    for growth in growing:
        before = answer.phases.get(growth.phase, answer.peak).device_bytes
        if growth.more_bytes >= SMALL_SHARE * (before - growth.more_bytes):
            before -= growth.more_bytes  # `at_the_end` has added it
        where = _made_at(view.trials.trace(nearest), growth) + other
        if warning := memory_that_grows(growth, before, view.budget.bytes, where):
            yield warning
        if warning := evaluation_collects(growth, before, samples or None):
            yield warning


def _made_at(trace: Trace | None, growth: Growth) -> str:
    """ " at train.py:58": where the script makes most of what each step leaves; "" where that is
    not known."""
    if trace is None or growth.phase != "train":
        return ""
    alive: dict[int, tuple[str, int]] = {}
    held: list[Counter[str]] = []  # bytes by line, at the end of each step
    for row, line in _with_lines(trace):
        if isinstance(row, Malloc):
            if row.id == growth.made:
                return f" at {line}" if line else ""
            alive[row.id] = line, row.nbytes
        elif isinstance(row, Free | Retire | Ready):
            alive.pop(row.id, None)
        elif isinstance(row, Step):
            held.append(Counter())
            for where, nbytes in alive.values():
                held[-1][where] += nbytes
    lines = held[-1] - held[-2] if len(held) > 1 else Counter[str]()
    line = max(lines, key=lines.__getitem__, default="")
    return f" at {line}" if line else ""


def _with_lines(trace: Trace) -> Iterator[tuple[object, str]]:
    """The rows and notes in their order, each with the line of the script that was at work."""
    sites: dict[int, str] = {}
    where = ""
    rows = [(number, 1, row) for number, row in enumerate(trace.rows)]
    notes = [(number, 0, note) for number, note in trace.notes]
    for _, _, row in sorted([*notes, *rows], key=itemgetter(0, 1)):
        if isinstance(row, Site):
            sites[row.number] = row.where.split(": ")[0]
        elif isinstance(row, At):
            where = sites[row.number]
        yield row, where
