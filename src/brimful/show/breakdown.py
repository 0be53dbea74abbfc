"""Where the memory went, in words: categories, modules, and the line that set the peak. For every view alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brimful.show.words import bytes_text, share_text
from brimful.values import Breakdown, Moment

#: What each category is called; docs/quantities.md says what each is.
NAMES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations",
    "inputs": "inputs",
    "buffers": "buffers",
    "temporaries": "temporaries",
    "workspaces": "workspaces",
    "other": "other tensors of the script",
    "cache": "cache and fragmentation",
    "context": "CUDA context",
}

_DURING = {
    "backward": "backward",
    "recomputation": "a forward pass done again in the backward pass",
    "optimizer": "the optimizer's step",
    "forward": "forward",
}


@dataclass(frozen=True)
class PartRow:
    """One row of a table of parts."""

    name: str
    bytes: str
    share: float  # of the whole
    detail: str = ""


def part_rows(breakdown: Breakdown) -> list[PartRow]:
    """The categories that hold something, the largest first, with their share of the device peak."""
    whole = max(1, sum(breakdown.parts.values()))
    parts = sorted(((size, name) for name, size in breakdown.parts.items() if size), key=lambda part: -part[0])
    return [PartRow(NAMES.get(name, name), bytes_text(size), size / whole) for size, name in parts]


def module_rows(breakdown: Breakdown) -> list[PartRow]:
    """The modules that hold most, with what they hold."""
    whole = max(1, sum(breakdown.parts.values()))
    return [
        PartRow(share.module, bytes_text(share.bytes), share.bytes / whole, _held(share.categories, share.bytes))
        for share in breakdown.modules
    ]


def alike_rows(breakdown: Breakdown) -> list[PartRow]:
    """Modules that repeat, taken together: "12 of transformer.h.*.mlp"."""
    whole = max(1, sum(breakdown.parts.values()))
    return [PartRow(f"{g.count} of {g.pattern}", bytes_text(g.bytes), g.bytes / whole) for g in breakdown.alike]


def moment_text(moment: Moment) -> str:
    """ "train.py:57 in main: loss.backward() (mm, backward of encoder.layers.3.mlp)"."""
    if not moment.op:
        return f"at the beginning of {moment.phase}"
    during = _DURING.get(moment.during, "")
    module = moment.module
    if module and moment.during == "backward":
        during = f"backward of {module}"
    elif module:
        during = f"in {module}" + (f", {during}" if moment.during == "recomputation" else "")
    inner = ", ".join(text for text in (op_text(moment.op), during) if text)
    return f"{moment.where} ({inner})" if moment.where else inner


def op_text(op: str) -> str:
    """ "aten.mm.default" as "mm"."""
    parts = op.split(".")
    return parts[1] if parts[0] == "aten" and len(parts) > 1 else op


def share_rows(rows: list[PartRow]) -> list[tuple[str, str, str, str]]:
    return [(row.name, row.bytes, share_text(row.share), row.detail) for row in rows]


def breakdown_json(breakdown: Breakdown) -> dict[str, Any]:
    """The breakdown as `--json` has it: bytes by category, which add up to the device peak, and the modules."""
    return {
        "phase": breakdown.phase,
        "source": "predicted",
        "categories_bytes": dict(breakdown.parts),
        "modules": [
            {"module": share.module, "bytes": share.bytes, "categories_bytes": dict(share.categories)}
            for share in breakdown.modules
        ],
        "alike": [{"pattern": g.pattern, "count": g.count, "bytes": g.bytes} for g in breakdown.alike],
        "outside_modules_bytes": breakdown.outside_bytes,
        "peak_set_by": _moment_json(breakdown.moment),
        "reserved_grown_by": None if breakdown.grown is None else _moment_json(breakdown.grown),
    }


def _moment_json(moment: Moment) -> dict[str, Any]:
    return {
        "phase": moment.phase,
        "op": moment.op or None,
        "module": moment.module or None,
        "where": moment.where or None,
        "during": moment.during or None,
    }


def _held(categories: dict[str, int], whole: int) -> str:
    """The categories that make up most of what a module holds: "activations 81%, parameters 12%"."""
    largest = sorted(categories.items(), key=lambda part: -part[1])[:3]
    return ", ".join(f"{NAMES.get(name, name)} {share_text(size / whole)}" for name, size in largest if size >= whole / 20)
