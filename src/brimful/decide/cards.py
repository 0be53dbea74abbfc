"""Several cards, each with a trace of its own: one program made of theirs, and the worst of what they show.

A batch size fits when it fits on every card of every rank, so laws, searches and curves work on all cards at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from brimful.decide.memory.program import Event, Program
from brimful_inside.simulator.replay import Peaks, Played, worst

__all__ = ["joined", "worst_of"]


def joined(programs: Sequence[Program]) -> Program:
    """The programs one after another, each on a card of its own (`Program.parts`). One alone is itself."""
    if len(programs) == 1:
        return programs[0]
    events: list[Event] = []
    for number, program in enumerate(programs):
        events += [("card", number), *program.events]
    sizes = tuple(size for program in programs for size in program.sizes)
    return Program(tuple(events), sizes, tuple(args for program in programs for args in program.args))


def worst_of(played: Sequence[Played]) -> Played:
    """The highest peaks of any card; full where one is."""
    phases: dict[str, Peaks] = {}
    peak = Peaks(0, 0, 0)
    for one in played:
        peak = worst(peak, one.peak)
        for name, peaks in one.phases.items():
            phases[name] = worst(phases.get(name), peaks)
    full = next((one.full for one in played if one.full is not None), None)
    return Played(phases, peak, full, sum(one.rows_played for one in played))
