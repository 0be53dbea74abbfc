"""A card that was measured on this machine, as rows and as data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from brimful.show.facts import FactRow
from brimful.show.words import Shown, bytes_text
from brimful.units import format_duration
from brimful.values import Calibration, Source

_STAGES = {
    "bare": "the CUDA context alone",
    "tensor": "and a first tensor and kernel",
    "cublas": "and a matrix product",
    "training": "and training steps",
    "cudnn": "and convolutions",
}


def calibration_rows(calibration: Calibration, place: str) -> list[FactRow]:
    """What was measured and where it is kept (`place`)."""
    measured = Source.MEASURED
    rows = [
        FactRow("card", Shown(calibration.name)),
        FactRow("usable memory", Shown(bytes_text(calibration.total_bytes), measured)),
        FactRow("CUDA context", Shown(bytes_text(calibration.context_bytes), measured, note="outside PyTorch's allocator")),
        FactRow("cuDNN adds", Shown(bytes_text(calibration.cudnn_bytes), measured)),
    ]
    rows += [
        FactRow(f"  {_STAGES.get(name, name)}", Shown(bytes_text(n), measured)) for name, n in calibration.stages_bytes.items()
    ]
    if calibration.others_bytes is None:
        rows.append(FactRow("other processes", Shown("not known: NVML tells nothing, so the card is taken to have been free")))
    else:
        rows.append(FactRow("other processes", Shown(f"{bytes_text(calibration.others_bytes)}, taken off", measured)))
    rows += [FactRow(*_rate(name, value)) for name, value in calibration.rates.items()]
    versions = ", ".join(f"{name} {version}" for name, version in calibration.versions.items() if version)
    rows.append(FactRow("versions", Shown(versions)))
    rows.append(FactRow("kept in", Shown(place)))
    return rows


def _rate(name: str, value: float) -> tuple[str, Shown]:
    if name.endswith("_flops"):
        return f"products in {name.removesuffix('_flops')}", Shown(f"{value / 1e12:.4g} TFLOPS", Source.MEASURED)
    if name.endswith("_bytes_per_s"):
        label = {"bandwidth": "memory bandwidth", "link": "from unpinned host memory"}.get(
            name.removesuffix("_bytes_per_s"), name
        )
        return label, Shown(f"{value / 1e9:.4g} GB/s", Source.MEASURED)
    label = {"kernel_s": "a small kernel", "dispatch_s": "dispatching an operation"}.get(name, name)
    return label, Shown(format_duration(value), Source.MEASURED)


def calibration_json(calibration: Calibration, place: str) -> dict[str, Any]:
    return {**asdict(calibration), "capability": list(calibration.capability), "file": place}
