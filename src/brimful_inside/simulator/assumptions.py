"""What neither PyTorch's source nor a trace says, so that a replay assumes it: where the driver
places segments, which workspaces cuDNN takes, how many steps a GradScaler skips first, that later
steps do what the traced ones do. How far replays under other assumptions differ is a part of a
prediction's interval."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from brimful_inside.simulator.pools import ABOVE, BELOW
from brimful_inside.simulator.program import Event, Program

PLACEMENT = "where the driver places segments"
WORKSPACES = "cuDNN's workspaces"
SKIPPED_STEPS = "steps that the GradScaler skips"
SCALED = "float16 with a GradScaler"
LATER_STEPS = "steps after the traced ones"

# An event between repeated steps: where memory is as it was at the last of them, it stays so.
ROUND = "round"


class Assumption(NamedTuple):
    """One that differs from the model's."""

    part: str  # of an interval
    placement: int = BELOW  # of segments (`pools.BELOW`)
    workspaces: float = 1.0  # cuDNN's, times as large as modelled
    beside: float = 0.0  # each convolution takes a further workspace, as a share of its result
    skipped: int = 0  # steps that a GradScaler skips before the first one is made
    # One more block as large as the largest: of 8 trainings in float16 on an H200 (2026-11-28) one
    # reserved so much more, and another two fifths of it, for a reason that was not found.
    spare: bool = False
    repeats: int = 0  # of the last step: on a nearly full card the cache is cut further each time


ASSUMPTIONS = (
    Assumption(PLACEMENT, placement=ABOVE),
    Assumption(WORKSPACES, workspaces=0.0),
    Assumption(WORKSPACES, workspaces=2.0),
    Assumption(WORKSPACES, beside=1.0),
    Assumption(SKIPPED_STEPS, skipped=1),
    Assumption(SKIPPED_STEPS, skipped=2),
    Assumption(SKIPPED_STEPS, skipped=3),
    Assumption(SCALED, spare=True),
    Assumption(LATER_STEPS, repeats=6),
)

# Of an event's allocation: which one of the program it was made from, and its size as a share.
_Pick = Tuple[int, float]


def assume(
    program: Program, sizes: Sequence[int], assumption: Assumption
) -> Optional[Tuple[Program, Tuple[int, ...]]]:
    """The program of one card under an assumption, and its sizes; None where the program has
    nothing that the assumption speaks of."""
    if assumption.placement != BELOW:
        return program, tuple(sizes)
    known = program.assumed
    if assumption not in known:
        rows = _rows_under(program, assumption)
        known[assumption] = None if rows is None else _numbered(rows)
    if known[assumption] is None:
        return None
    other, picks = known[assumption]
    largest = max(sizes, default=0)
    return other, tuple(largest if at < 0 else int(sizes[at] * share) for at, share in picks)


# A row is an event with the key of the allocation that it makes or ends, and the pick of one made.
_Row = Tuple[Event, Any, Optional[_Pick]]


def _rows_under(program: Program, assumption: Assumption) -> Optional[List[_Row]]:
    if assumption.skipped or assumption.spare:
        speaks_of_it = ("scaler",) in program.events
    else:
        speaks_of_it = any("convolution" in name for name in program.operations)
    if not speaks_of_it and not assumption.repeats:
        return None
    rows = _rows_of(program)
    if assumption.skipped:
        return _with_skipped(rows, assumption.skipped)
    if assumption.spare:
        return [(("malloc", "spare", None, 0), "spare", (-1, 1.0)), *rows]
    if assumption.repeats:
        return _with_repeats(rows, assumption.repeats)
    result: List[_Row] = []
    for event, key, pick in rows:
        beside = ("beside", key)
        if pick is not None and event[1].startswith("cudnn_"):
            result.append((event, key, (pick[0], assumption.workspaces)))
        elif pick is not None and assumption.beside and "convolution" in event[1]:
            result.append((("malloc", "workspace", None, 0), beside, (key, assumption.beside)))
            result += [(event, key, pick), (("free",), beside, None)]
        else:
            result.append((event, key, pick))
    return result


def _rows_of(program: Program) -> List[_Row]:
    rows: List[_Row] = []
    number = 0
    for event in program.events:
        if event[0] == "malloc":
            rows.append((event, number, (number, 1.0)))
            number += 1
        elif event[0] in ("free", "retire", "ready"):
            rows.append((event[:1], event[1], None))
        else:
            rows.append((event, None, None))
    return rows


def _with_skipped(rows: List[_Row], skipped: int) -> Optional[List[_Row]]:
    """What an optimizer's first step allocated comes with the first step that is made. None unless
    a GradScaler decides about each step, and one of the steps is left."""
    begins = [at for at, row in enumerate(rows) if row[0] == ("scaler",)]
    ends = [at for at, row in enumerate(rows) if row[0][0] == "step"]
    paired = len(begins) >= len(ends) and all(map(int.__lt__, begins, ends))
    if len(ends) <= skipped or not paired or any(map(int.__lt__, begins[1:], ends)):
        return None
    first = rows[begins[0] : ends[0]]
    made_first = {key for _, key, pick in first if pick is not None}
    dropped: Set[Any] = {
        key
        for begin, end in zip(begins[1 : skipped + 1], ends[1 : skipped + 1])
        for _, key, pick in rows[begin:end]
        if pick is not None
    }
    result, ended = [], []
    for at, row in enumerate(rows):
        if at == begins[skipped]:  # the first step that is made
            result += [other for other in first if other[1] in made_first]
            result += ended
        _, key, _ = row
        if key in dropped or (begins[0] <= at < ends[0] and key in made_first):
            continue
        if at < begins[skipped] and key in made_first:  # it ended before it could be made
            ended.append(row)
        else:
            result.append(row)
    return result


def _with_repeats(rows: List[_Row], repeats: int) -> Optional[List[_Row]]:
    """The last steps so many times more, as many of them as come round together (a GAN's two).
    None unless a round did, row by row, what the round before it did."""
    ends = [at + 1 for at, row in enumerate(rows) if row[0][0] == "step"]
    for last in range(len(ends) - 1, 1, -1):
        for together in range(1, last // 2 + 1):
            before, begin, end = (ends[last - together * rounds] for rounds in (2, 1, 0))
            count = sum(pick is not None for _, _, pick in rows[begin:end])
            if end - begin == begin - before and all(
                _outline(_later(row, count)) == _outline(after)
                for row, after in zip(rows[before:begin], rows[begin:end])
            ):
                return _repeated(rows, begin, end, count, repeats)
    return None


def _repeated(rows: List[_Row], begin: int, end: int, count: int, repeats: int) -> List[_Row]:
    """Rows whose round from `begin` to `end`, with `count` allocations, comes `repeats` times
    more. What follows ends what the last of the rounds left."""
    last, times = rows[begin:end], range(1, repeats + 1)
    made = {key for _, key, pick in rows[end:] if pick is not None}
    ended = {
        key + count * time
        for _, key, pick in last
        if pick is None and key is not None
        for time in times
    }
    mark: _Row = ((ROUND,), None, None)
    result = [*rows[:end], mark]
    for time in times:
        result += [*(_later(row, count * time) for row in last), mark]
    return result + [
        _later(row, count * repeats) if row[1] in made or row[1] in ended else row
        for row in rows[end:]
    ]


def _later(row: _Row, allocations: int) -> _Row:
    event, key, pick = row
    return event, None if key is None else key + allocations, pick


def _outline(row: _Row) -> Tuple[Event, Any]:
    """Without the number of a step."""
    event, key, _ = row
    return event[:1] if event[0] == "step" else event, key


def _numbered(rows: List[_Row]) -> Tuple[Program, Tuple[_Pick, ...]]:
    """Their program, without sizes, and what these are of."""
    numbers: Dict[Any, int] = {}
    events: List[Event] = []
    picks: List[_Pick] = []
    for event, key, pick in rows:
        if pick is not None:
            numbers[key] = len(picks)
            picks.append(pick)
            events.append(event)
        else:
            events.append(event if key is None else (*event, numbers[key]))
    return Program(tuple(events), (), ()), tuple(picks)
