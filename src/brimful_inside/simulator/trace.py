"""The trace of an imaginary run: every allocation and its end, in order, as lines that can be
replayed.

One JSON array a line, after a header object. Sizes are the bytes requested, before the allocator
rounds them: rounding, segments and fragmentation are the allocator's business and are done anew at
each replay.

    {"trace_version": 1, ...}
    ["malloc", id, nbytes, op]      operation `op` allocates a storage
    ["malloc", id, nbytes, op, name, [ints]]
                                    the same, its size computed by `workspaces.bytes_of(name, ints)`
    ["free", id]                    the storage is gone
    ["stream", n]                   from here on, mallocs are of stream n (0 until there is one)
    ["pool", n]                     from here on, mallocs are of private pool n (0: general ones)
    ["release_pool", n]             its last graph is gone: an emptied cache gives its free segments
                                    back as well
    ["empty_pool", n]               its free segments are given back now
    ["capture", 1] and ["capture", 0]
                                    the capture of a graph begins, ends
    ["retire", id]                  it is gone, but another stream may still be using its block
                                    (`record_stream`)
    ["ready", id]                   that stream is done: the retired block returns to its pool
    ["phase", name]                 from here on, peaks belong to this phase (reset at this moment)
    ["phase_was", name]             the phase that began last was this one, as was seen later
    ["step", n]                     the n-th optimizer step is complete
    ["empty_cache"]                 cached segments are given back
    ["settings", text]              the allocator has other settings now, as PYTORCH_ALLOC_CONF
                                    spells them

`ints` of a workspace are shapes and the like, so that a fit over several traces can compute them at
another batch size. Between them stand notes, which change nothing in a replay: where in the script
and in the model each allocation belongs.

    ["site", n, module, where, during, model]   defines site n
    ["at", n]                                   from here on, mallocs are at site n
    ["tag", id, category, module, model, itemsize]
                                                what the allocation `id` is, for its whole life
    ["at_most", id]                             its size is an upper bound: values decide it
    ["backward", 1] and ["backward", 0]         a backward pass begins, ends
    ["uses", name]                              the script uses "autocast",
                                                "gradient_checkpointing", ...

`module` is a path as `named_modules` of the outermost module calls it ("" for the outermost
itself), `model` that module's class name ("" outside of any module), `where` a line of the user's,
"train.py:12 in main: loss.backward()". At the end stands what ran on the card in the last complete
step, for the clock (simulator/roofline.py has the words), and what ran outside of the training's
passes: how often each kernel did, with the fields of a "run".

    ["run", op, kind, flops, bytes, launches, engine, [batch, m, n, k] or []]
    ["outside", "eval", samples, [[times, op, ...], ...], loader]
                                                in evaluations of so many samples of a loader
    ["outside", "between", times, [[times, op, ...], ...], null]
                                                between two passes over the training's data, those
                                                aside

A loader is named by its place among those of the report."""

from __future__ import annotations

import json
from itertools import chain, islice
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from brimful_inside.simulator.garbage import uncollected
from brimful_inside.simulator.roofline import Kernel

TRACE_VERSION = 1

PARAMETER, GRADIENT, OPTIMIZER_STATE, BUFFER, INPUT = (
    "parameter",
    "gradient",
    "optimizer_state",
    "buffer",
    "input",
)

# What the process was doing: `during` of a site. RECOMPUTATION is a forward pass inside a backward
# pass (checkpointing).
FORWARD, BACKWARD, RECOMPUTATION, OPTIMIZER = "forward", "backward", "recomputation", "optimizer"


class Malloc(NamedTuple):
    id: int
    nbytes: int
    op: str
    workspace: Optional[str] = None  # the formula of its size, in `workspaces.FORMULAS`
    args: Tuple[int, ...] = ()


class Site(NamedTuple):
    number: int
    module: str
    where: str
    during: str = ""
    model: str = ""


class Tag(NamedTuple):
    id: int
    category: str
    module: str = ""
    model: str = ""
    itemsize: int = 0  # bytes of an element; 0: not known


# Rows and notes of one field.
# ruff: noqa: UP014
Free = NamedTuple("Free", [("id", int)])
Stream = NamedTuple("Stream", [("number", int)])
Pool = NamedTuple("Pool", [("number", int)])
ReleasePool = NamedTuple("ReleasePool", [("number", int)])
EmptyPool = NamedTuple("EmptyPool", [("number", int)])
Capture = NamedTuple("Capture", [("begins", bool)])  # 1 or 0 in the trace
Retire = NamedTuple("Retire", [("id", int)])
Ready = NamedTuple("Ready", [("id", int)])
Phase = NamedTuple("Phase", [("name", str)])
PhaseWas = NamedTuple("PhaseWas", [("name", str)])
Step = NamedTuple("Step", [("number", int)])
EmptyCache = NamedTuple("EmptyCache", [])
Settings = NamedTuple("Settings", [("text", str)])
# A GradScaler decides whether the next step is made.
Scaler = NamedTuple("Scaler", [])
At = NamedTuple("At", [("number", int)])
AtMost = NamedTuple("AtMost", [("id", int)])
Backward = NamedTuple("Backward", [("begins", bool)])  # 1 or 0 in the trace
Uses = NamedTuple("Uses", [("name", str)])

Row = Union[
    Malloc,
    Free,
    Phase,
    Scaler,
    Step,
    EmptyCache,
    Settings,
    Stream,
    Pool,
    ReleasePool,
    EmptyPool,
    Capture,
    Retire,
    Ready,
]
Note = Union[Site, At, Tag, AtMost, Backward, Uses]

_ROWS: Dict[str, Any] = {
    "malloc": Malloc,
    "free": Free,
    "stream": Stream,
    "pool": Pool,
    "release_pool": ReleasePool,
    "empty_pool": EmptyPool,
    "capture": Capture,
    "retire": Retire,
    "ready": Ready,
    "phase": Phase,
    "scaler": Scaler,
    "step": Step,
    "empty_cache": EmptyCache,
    "settings": Settings,
}
_NOTES: Dict[str, Any] = {
    "site": Site,
    "at": At,
    "tag": Tag,
    "at_most": AtMost,
    "backward": Backward,
    "uses": Uses,
}


EVALUATION = "eval"
BETWEEN = "between"  # two passes over the training's data


class Outside(NamedTuple):
    """What ran outside of the training's passes."""

    name: str  # `EVALUATION` or `BETWEEN`
    amount: int  # samples, or times
    kernels: Tuple[Tuple[int, Kernel], ...]  # how often each ran
    loader: Optional[int] = None  # of an evaluation: which of the report's


KIND_OF: Dict[Any, str] = {
    row: kind
    for kind, row in [
        *_ROWS.items(),
        *_NOTES.items(),
        ("phase_was", PhaseWas),
        ("run", Kernel),
        ("outside", Outside),
    ]
}


class Trace(NamedTuple):
    header: Dict[str, Any]
    rows: List[Row]
    whole: bool = True  # False: the last line was torn (the run was killed while writing)
    notes: Sequence[Tuple[int, Note]] = ()  # each with the number of rows before it
    runs: Sequence[Kernel] = ()  # what ran on the card in the last complete step
    outside: Sequence[Outside] = ()


class CardTrace(NamedTuple):
    """What one rank did on one card."""

    rank: int
    index: int  # as in cuda:1
    trace: Trace


def encode_row(row: Union[Row, Note, PhaseWas, Kernel, Outside]) -> str:
    """One line, without the newline."""
    parts = [KIND_OF[type(row)], *row]
    if isinstance(row, Outside):
        parts[3] = [(times, *kernel) for times, kernel in row.kernels]
    elif isinstance(row, Malloc) and row.workspace is None:
        del parts[4:]
    elif isinstance(row, Backward):
        parts[1] = int(row.begins)
    return json.dumps(parts, separators=(",", ":"))


def decode_row(parts: List[Any]) -> Row:
    """The row of one line's array. Raises ValueError for a kind of row that is not known."""
    kind = parts[0]
    if kind not in _ROWS:
        raise ValueError("a trace has no row %r" % (kind,))
    if len(parts) > 5:
        parts[5] = tuple(parts[5])  # the args of a workspace
    return _ROWS[kind](*parts[1:])


@uncollected()
def decode(lines: Iterable[str]) -> Trace:
    """The trace in `lines`. A torn last line is left out and `whole` is False; a torn line
    elsewhere is a ValueError."""
    rows: List[Row] = []
    notes: List[Tuple[int, Note]] = []
    runs: List[Kernel] = []
    outside: List[Outside] = []
    header: Optional[Dict[str, Any]] = None
    whole = True
    for value in _values(iter(lines)):
        kind = value[0] if value.__class__ is list else None
        if kind == "free" and header is not None:  # with mallocs, nearly all there is
            rows.append(Free(value[1]))
        elif value is _TORN:
            whole = False
        elif header is None:
            if not isinstance(value, dict) or value.get("trace_version") != TRACE_VERSION:
                raise ValueError(
                    "not a trace of version %d: it starts with %r"
                    % (TRACE_VERSION, str(value)[:80])
                )
            header = value
        elif kind in _NOTES:
            notes.append((len(rows), _NOTES[kind](*value[1:])))
        elif kind == "run":
            runs.append(_kernel(value[1:]))
        elif kind == "outside":
            name, amount, kernels, loader = value[1:]
            outside.append(
                Outside(
                    name,
                    amount,
                    tuple((times, _kernel(fields)) for times, *fields in kernels),
                    loader,
                )
            )
        elif kind == "phase_was":
            rows[max(number for number, row in enumerate(rows) if isinstance(row, Phase))] = Phase(
                value[1]
            )
        else:
            rows.append(decode_row(value))
    return Trace(header or {}, rows, whole, tuple(notes), tuple(runs), tuple(outside))


def _kernel(fields: List[Any]) -> Kernel:
    return Kernel(*fields[:6], shape=tuple(fields[6]))


_TORN = object()
_AT_ONCE = 2000  # lines that are parsed by one call


def _values(lines: Iterator[str]) -> Iterator[Any]:
    """The value of each line; `_TORN` for a last line that cannot be read. Raises ValueError for
    such a line elsewhere."""
    while some := list(islice(lines, _AT_ONCE)):
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
