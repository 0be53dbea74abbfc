"""Notes in a trace: where in the script and in the model each allocation belongs. They change nothing in a replay.

    ["site", n, module, where, during, model]          defines site n
    ["at", n]                                          from here on, mallocs are at site n
    ["tag", id, category, module, model, itemsize]     what the allocation `id` is, for its whole life
    ["backward", 1] and ["backward", 0]                a backward pass begins, ends
    ["uses", name]                                     the script uses "autocast", "gradient_checkpointing", ...

`module` is a path as `named_modules` of the outermost module calls it ("" for the outermost itself), `model` that module's
class name ("" outside of any module), `where` a line of the user's, "train.py:12 in main: loss.backward()".
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Union

PARAMETER, GRADIENT, OPTIMIZER_STATE, BUFFER, INPUT = "parameter", "gradient", "optimizer_state", "buffer", "input"

# What the process was doing: `during` of a site. RECOMPUTATION is a forward pass inside a backward pass (checkpointing).
FORWARD, BACKWARD, RECOMPUTATION, OPTIMIZER = "forward", "backward", "recomputation", "optimizer"


class Site(NamedTuple):
    number: int
    module: str
    where: str
    during: str = ""
    model: str = ""


class At(NamedTuple):
    number: int


class Tag(NamedTuple):
    id: int
    category: str
    module: str = ""
    model: str = ""
    itemsize: int = 0  # bytes of an element; 0: not known


class Backward(NamedTuple):
    begins: bool


class Uses(NamedTuple):
    name: str


Note = Union[Site, At, Tag, Backward, Uses]

KINDS: Dict[str, Any] = {"site": Site, "at": At, "tag": Tag, "backward": Backward, "uses": Uses}


def decode_note(parts: List[Any]) -> Note:
    """The note of one line's array; `parts[0]` is in KINDS."""
    if parts[0] == "backward":
        return Backward(bool(parts[1]))
    return KINDS[parts[0]](*parts[1:])


def note_parts(note: Note) -> List[Any]:
    """The line's array."""
    if isinstance(note, Backward):
        return ["backward", int(note.begins)]
    return [type(note).__name__.lower(), *note]
