"""A `Status` in Prometheus' text format, for node_exporter's textfile collector: every number that
`--json` has, by the same names.

Source: Prometheus, "Exposition formats", and node_exporter's README, "Textfile Collector".
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from brimful.codec import to_builtins
from brimful.errors import UsageError
from brimful.values import State, Status

_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def prometheus_text(status: Status) -> str:
    """What is not known is left out. Parts of a list are told apart by a label of its name."""
    metrics: dict[str, list[str]] = {}
    numbers = to_builtins(replace(status, device=None)) | {"going": status.state is State.GOING}
    for name, labels, value in _numbers(numbers, "brimful", {"of": status.of}):
        pairs = ",".join(f'{label}="{text.translate(_ESCAPED)}"' for label, text in labels.items())
        metrics.setdefault(name, []).append(f"{name}{{{pairs}}} {float(value)!r}\n")
    return "".join(f"# TYPE {name} gauge\n{''.join(rows)}" for name, rows in metrics.items())


def _numbers(value: Any, name: str, labels: dict[str, str]) -> Iterator[tuple[str, Any, float]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _numbers(part, f"{name}_{key}", labels)
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from _numbers(part, name, {**labels, name.rpartition("_")[2]: str(number)})
    elif isinstance(value, int | float):
        yield name, labels, value


def export(status: Status, path: Path) -> None:
    """Whole or not at all: a collector never reads half of it. Raises UsageError."""
    aside = path.with_name(f".{path.name}.writing")  # collectors read names that end in .prom
    try:
        aside.write_text(prometheus_text(status), encoding="utf-8")
        os.replace(aside, path)
    except OSError as error:
        raise UsageError(f"--export {path} could not be written: {error.strerror}") from error
