"""A training on the engine without `brimful run`, by what it writes into its own folder: log.jsonl,
and config.json, which says where it ends."""

import contextlib
import json
from pathlib import Path
from typing import Any

from brimful.measure.output import tail
from brimful.values import Estimate, Heartbeat, Source

LOG = "log.jsonl"
_BYTES = 1 << 20  # of the log: its last hours


def read(folder: Path) -> tuple[Heartbeat | None, Estimate | None, tuple[str, ...]]:
    """(How far it is by its last line of progress, what time is left, what it had to say).

    Of the newest start: a training that is resumed appends to its log.
    """
    rows: list[dict[str, Any]] = []
    for line in tail(folder / LOG, _BYTES).splitlines():
        with contextlib.suppress(ValueError):  # a line that is cut off
            row = json.loads(line)
            rows = [row] if row["event"] == "settings" else [*rows, row]
    said = tuple(filter(None, (row.get("sentence") or row.get("problem") for row in rows)))
    newest = next((row for row in reversed(rows) if "samples_per_s" in row), None)
    if newest is None:
        return None, None, said
    rate, loss = newest["samples_per_s"], newest["loss"]
    beat = Heartbeat("train", newest["step"], newest["elapsed_s"], samples_per_s=rate, loss=loss)
    config: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    at = {"max_steps": newest["step"], "epochs": newest["epoch"]}
    name = next((name for name in at if config.get(name) and at[name] and rate), None)
    if name is None:
        return beat, None, said
    left_s = newest["samples"] * (config[name] / at[name] - 1) / rate
    return beat, Estimate(left_s, Source.ESTIMATE, note=f"{name} {config[name]:g}"), said
