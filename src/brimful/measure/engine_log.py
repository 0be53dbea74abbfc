"""A training on the engine that runs without brimful, by what it writes into its own folder:
log.jsonl, and config.json, which says where it ends."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from brimful.measure.output import tail
from brimful.values import Diagnostic, Heartbeat, TimeLeft

LOG = "log.jsonl"
_BYTES = 1 << 20  # of the log: its last hours


class EngineLog(NamedTuple):
    """What the folder says now."""

    beat: Heartbeat | None  # by its last line of progress; None: there is none yet
    left: TimeLeft | None
    warnings: tuple[Diagnostic, ...]
    messages: tuple[str, ...]
    finished: bool  # it has come to the epochs or steps that it was asked for


def read(folder: Path) -> EngineLog:
    """Of the folder's newest training: it appends to the log when it is resumed."""
    rows = list(filter(None, map(_row, tail(folder / LOG, _BYTES).splitlines())))
    beginnings = [at for at, row in enumerate(rows) if row["event"] == "settings"]
    rows = rows[beginnings[-1] :] if beginnings else rows
    newest = next((row for row in reversed(rows) if row["event"] in ("progress", "epoch")), None)
    warnings = [row for row in rows if row["event"] == "warning"]
    texts = ("code", "problem", "explanation", "suggestion")
    share, of = _share(newest, folder) if newest else (None, "")
    rate = newest["samples_per_s"] if newest else None
    return EngineLog(
        beat=Heartbeat(
            phase="train",
            steps=newest["step"],
            seconds=newest["elapsed_s"],
            samples_per_s=rate,
            loss=newest["loss"],
        )
        if newest
        else None,
        left=TimeLeft(newest["samples"] * (1 / share - 1) / rate, of)
        if newest and share and rate
        else None,
        warnings=tuple(Diagnostic(*(row.get(name, "") for name in texts)) for row in warnings),
        messages=tuple(row["sentence"] for row in rows if row["event"] == "message"),
        finished=share is not None and share >= 1,
    )


def _row(line: str) -> dict[str, Any] | None:
    """None for a line that is cut off."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and "event" in row else None


def _share(newest: dict[str, Any], folder: Path) -> tuple[float | None, str]:
    """How much of the training is done, and of what; None where config.json does not say."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None, ""
    if config.get("max_steps"):
        return newest["step"] / config["max_steps"], f"max_steps {config['max_steps']:,}"
    if config.get("epochs"):
        return newest["epoch"] / config["epochs"], f"epochs {config['epochs']:g}"
    return None, ""
