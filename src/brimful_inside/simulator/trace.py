"""The trace of an imaginary run: every allocation and its end, in order, as lines that can be replayed.

One JSON array a line, after a header object. Sizes are the bytes asked for, before the allocator rounds them: rounding,
segments and fragmentation are the allocator's business and are done anew at each replay.

    {"trace_version": 1, ...}
    ["malloc", id, nbytes, op]                a storage is born in operation `op`
    ["malloc", id, nbytes, op, law, [ints]]   the same, its size computed by `workspaces.bytes_of(law, ints)`
    ["free", id]                              it dies
    ["stream", n]                             from here on, mallocs are of stream n (0 until the first such row)
    ["pool", n]                               from here on, mallocs are of private pool n (0: of the general ones)
    ["release_pool", n]                       its last graph is gone: an emptied cache gives its free segments back as well
    ["empty_pool", n]                         its free segments are given back now
    ["retire", id]                            it dies, but another stream may still be using its block (`record_stream`)
    ["ready", id]                             that stream is done: the retired block returns to its pool
    ["phase", name]                           from here on, peaks belong to this phase (reset at this moment)
    ["step", n]                               the n-th optimizer step is complete
    ["empty_cache"]                           cached segments are given back
    ["settings", text]                        the allocator has other settings now, as PYTORCH_ALLOC_CONF spells them

Between them stand notes (simulator/annotations.py), which no replay needs, and at the end what ran on the card in the last
complete step, for the clock (simulator/roofline.py has the words):

    ["run", op, kind, flops, bytes, launches, engine, [batch, m, n, k] or []]

`ints` of a law are shapes and the like, so that a fit over several traces can compute them at another batch size.
"""

from __future__ import annotations

import json
from itertools import chain, islice
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from brimful_inside.simulator.annotations import (
    KINDS,
    At,
    Backward,
    Note,
    Site,
    Tag,
    Uses,
    decode_note,
    note_parts,
)
from brimful_inside.simulator.roofline import Kernel

TRACE_VERSION = 1


class Malloc(NamedTuple):
    id: int
    nbytes: int
    op: str
    law: Optional[str] = None
    args: Tuple[int, ...] = ()


class Free(NamedTuple):
    id: int


class Stream(NamedTuple):
    number: int


class Pool(NamedTuple):
    number: int


class ReleasePool(NamedTuple):
    number: int


class EmptyPool(NamedTuple):
    number: int


class Retire(NamedTuple):
    id: int


class Ready(NamedTuple):
    id: int


class Phase(NamedTuple):
    name: str


class Step(NamedTuple):
    number: int


class EmptyCache(NamedTuple):
    pass


class Settings(NamedTuple):
    text: str


Row = Union[Malloc, Free, Phase, Step, EmptyCache, Settings, Stream, Pool, ReleasePool, EmptyPool, Retire, Ready]

_OF_A_NUMBER: Dict[str, Any] = {
    "stream": Stream,
    "pool": Pool,
    "release_pool": ReleasePool,
    "empty_pool": EmptyPool,
    "retire": Retire,
    "ready": Ready,
}
_KIND_OF = {kind: name for name, kind in _OF_A_NUMBER.items()}


class Trace(NamedTuple):
    header: Dict[str, Any]
    rows: List[Row]
    whole: bool = True  # False: the last line was torn (the run was killed while writing)
    notes: Sequence[Tuple[int, Note]] = ()  # each with the number of rows before it
    runs: Sequence[Kernel] = ()  # what ran on the card in the last complete step


class CardTrace(NamedTuple):
    """What one rank did on one card."""

    rank: int
    index: int  # as in cuda:1
    trace: Trace


def encode_row(row: Union[Row, Note, Kernel]) -> str:
    """One line, without the newline."""
    if isinstance(row, Kernel):
        return json.dumps(["run", *row], separators=(",", ":"))
    if isinstance(row, (Site, At, Tag, Backward, Uses)):
        return json.dumps(note_parts(row), separators=(",", ":"))
    if isinstance(row, Malloc):
        parts: List[Any] = ["malloc", row.id, row.nbytes, row.op]
        if row.law is not None:
            parts += [row.law, list(row.args)]
    elif isinstance(row, Free):
        parts = ["free", row.id]
    elif type(row) in _KIND_OF:
        parts = [_KIND_OF[type(row)], *row]
    elif isinstance(row, Phase):
        parts = ["phase", row.name]
    elif isinstance(row, Step):
        parts = ["step", row.number]
    elif isinstance(row, Settings):
        parts = ["settings", row.text]
    else:
        parts = ["empty_cache"]
    return json.dumps(parts, separators=(",", ":"))


def decode_row(parts: List[Any]) -> Row:
    """The row of one line's array. Raises ValueError for a kind of row that is not known."""
    kind = parts[0]
    if kind == "malloc":
        return Malloc(
            parts[1], parts[2], parts[3], parts[4] if len(parts) > 4 else None, tuple(parts[5]) if len(parts) > 5 else ()
        )
    if kind == "free":
        return Free(parts[1])
    if kind in _OF_A_NUMBER:
        return _OF_A_NUMBER[kind](parts[1])
    if kind == "phase":
        return Phase(parts[1])
    if kind == "step":
        return Step(parts[1])
    if kind == "empty_cache":
        return EmptyCache()
    if kind == "settings":
        return Settings(parts[1])
    raise ValueError("a trace has no row %r" % (kind,))


def decode(lines: Iterable[str]) -> Trace:
    """The trace in `lines`. A torn last line is left out and told by `whole`; a torn line elsewhere is a ValueError."""
    rows: List[Row] = []
    notes: List[Tuple[int, Note]] = []
    runs: List[Kernel] = []
    header: Optional[Dict[str, Any]] = None
    for value in _values(iter(lines)):
        kind = value[0] if value.__class__ is list else None
        if kind == "free" and header is not None:  # with mallocs, nearly all there is
            rows.append(Free(value[1]))
        elif value is _TORN:
            return Trace(header or {}, rows, whole=False, notes=tuple(notes), runs=tuple(runs))
        elif header is None:
            if not isinstance(value, dict) or value.get("trace_version") != TRACE_VERSION:
                raise ValueError("not a trace of version %d: it starts with %r" % (TRACE_VERSION, str(value)[:80]))
            header = value
        elif kind in KINDS:
            notes.append((len(rows), decode_note(value)))
        elif kind == "run":
            runs.append(Kernel(*value[1:7], shape=tuple(value[7])))
        else:
            rows.append(decode_row(value))
    return Trace(header or {}, rows, notes=tuple(notes), runs=tuple(runs))


_TORN = object()
_AT_ONCE = 2000  # lines that are parsed by one call


def _values(lines: Iterator[str]) -> Iterator[Any]:
    """The value of each line; `_TORN` for a last line that cannot be read. Raises ValueError for such a line elsewhere."""
    while True:
        some = list(islice(lines, _AT_ONCE))
        if not some:
            return
        try:
            values = json.loads("[%s]" % ",".join(some))
        except ValueError:
            values = None
        if values is not None and len(values) == len(some):
            yield from values
            continue
        for number, line in enumerate(some):
            try:
                value = json.loads(line)
            except ValueError:
                if any(rest.strip() for rest in chain(some[number + 1 :], lines)):
                    raise ValueError("a trace is damaged in its middle: %r" % line[:80]) from None
                yield _TORN
                return
            yield value
