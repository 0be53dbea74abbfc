"""A `Status` in Prometheus' text format, for node_exporter's textfile collector.

Source: Prometheus, "Exposition formats", and node_exporter's README, "Textfile Collector".
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from brimful.errors import DiskFull, UsageError
from brimful.values import State, Status

# labels and a value
Samples = Sequence[tuple[Mapping[str, object], float | None]]


def prometheus_text(status: Status) -> str:
    """All that is known, each metric with its help; what is not known is left out."""
    beat, expected, left, host = status.beat, status.expected, status.left, status.host
    of = {"run": status.of}
    peak, rate = (expected.peak_bytes, expected.samples_per_s) if expected else (None, None)
    here: dict[str, tuple[str, float | None]] = {
        "going": ("1 while it goes on, else 0", float(status.state is State.GOING)),
        "exit_code": ("of brimful, once it has ended", status.exit_code),
        "steps": ("of the optimizer, so far", beat and beat.steps),
        "seconds": ("since it began", beat and beat.seconds),
        "silent_seconds": ("since it printed or reported something", status.silent_s),
        "loss": ("of the latest step, or as the script reports it", beat and beat.loss),
        "samples_per_second": ("of late", beat and beat.samples_per_s),
        "expected_samples_per_second": ("by an earlier record", rate and rate.value),
        "loading_ratio": ("of the training time, waited for data", beat and beat.loading_share),
        "left_seconds": ("an estimate", left and left.seconds),
        "noise_scale_samples": ("of the gradient", status.noise_scale),
        "allocated_bytes": ("by PyTorch, on the fullest card", beat and beat.allocated_bytes),
        "reserved_bytes": ("by PyTorch, on the fullest card", beat and beat.reserved_bytes),
        "device_bytes": ("of its processes, on the fullest card", status.device_bytes),
        "host_bytes": ("of its processes, on the host", host.processes_bytes),
        "expected_peak_bytes": ("by an earlier record", peak and peak.value),
        "findings": ("how many there are", len(status.findings)),
    }
    metrics: list[tuple[str, str, Samples]] = [
        (name, text, [(of, value)]) for name, (text, value) in here.items()
    ]
    machine = {"total_bytes": host.total_bytes, "free_bytes": host.free_bytes}
    metrics += [
        (f"machine_{name}", "of host memory, or of the cgroup's", [({}, value)])
        for name, value in machine.items()
    ]
    by_card = {
        "used_bytes": "by all processes",
        "total_bytes": "of memory",
        "busy_share": "of the last moment, in which a kernel ran",
        "power_w": "watts",
        "temperature_c": "degrees Celsius",
        "clock_mhz": "of the multiprocessors",
    }
    metrics += [
        (
            f"card_{name}",
            text,
            [({"card": c.index, "name": c.name}, getattr(c, name)) for c in status.cards],
        )
        for name, text in by_card.items()
    ]
    return "".join(_metric(*metric) for metric in metrics)


def _metric(name: str, text: str, samples: Samples) -> str:
    known = [(labels, value) for labels, value in samples if value is not None]
    if not known:
        return ""
    lines = [f"# HELP brimful_{name} {text}", f"# TYPE brimful_{name} gauge"]
    for labels, value in known:
        pairs = ",".join(f'{label}="{_escaped(of)}"' for label, of in labels.items())
        lines.append(f"brimful_{name}{{{pairs}}} {float(value)!r}")
    return "\n".join(lines) + "\n"


def _escaped(value: object) -> str:
    return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def export(status: Status, path: Path) -> None:
    """Whole or not at all: a collector never reads half of it. Raises UsageError, DiskFull."""
    aside = path.with_name(f".{path.name}.writing")  # collectors read names that end in .prom
    try:
        aside.write_text(prometheus_text(status), encoding="utf-8")
        os.replace(aside, path)
    except OSError as error:
        if DiskFull.caused(error):
            raise DiskFull(str(path), kept="the metrics written before") from error
        raise UsageError(
            f"{path} could not be written: {error.strerror}", "", "name another file with --export"
        ) from error
