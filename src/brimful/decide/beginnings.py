"""What laws and a trace at another batch size have in common: as many rows from the start as are the same, to the byte.

Batch sizes differ in how a run goes on, not in how it begins: an epoch is over sooner with larger batches, and evaluation gets
fewer of them. If by the last common row no size above some edge has room, none has, whatever comes after; unless a larger size
goes another way before that row, of which no trace below it could tell.
"""

from __future__ import annotations

from dataclasses import replace

from brimful.decide.memory.program import Program
from brimful.decide.memory.size_model import SizeModel

__all__ = ["common_beginning"]


def common_beginning(laws: SizeModel, program: Program, batch_size: int) -> SizeModel | None:
    """The laws of the rows that a trace at `batch_size` confirms; None where it confirms no allocation."""
    rows = _rows_in_common(laws, program, batch_size)
    begun = laws.program.first(rows)
    births = len(begun.sizes)
    if not births:
        return None
    args = {birth: law for birth, law in laws.arg_laws.items() if birth < births}
    return replace(laws, program=begun, law_of=laws.law_of[:births], arg_laws=args)


def _rows_in_common(laws: SizeModel, program: Program, batch_size: int) -> int:
    birth, predicted = 0, laws.sizes_at(batch_size)
    for row, (mine, theirs) in enumerate(zip(laws.program.events, program.events, strict=False)):
        if mine != theirs:
            return row
        if mine[0] == "malloc":
            if predicted[birth] != program.sizes[birth]:
                return row
            birth += 1
    return min(len(laws.program.events), len(program.events))
