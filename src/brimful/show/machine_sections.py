"""Sections about machines and cards: the catalogue, this machine, and what `doctor --calibrate`
measured.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from brimful.show.section import Column, Facts, Findings, Section, Sentences, Table
from brimful.show.text import Cell, bytes_cell, bytes_text, seconds_text
from brimful.units import counted
from brimful.values import Calibration, Diagnostic, Estimate, Gpu, Machine, Source

_STAGES = {
    "bare": "the CUDA context alone",
    "tensor": "and a first tensor and kernel",
    "cublas": "and a matrix product",
    "training": "and training steps",
    "cudnn": "and convolutions",
}
_RATES = {
    "bandwidth_bytes_per_s": "memory bandwidth",
    "link_bytes_per_s": "from unpinned host memory",
    "kernel_s": "a small kernel",
    "dispatch_s": "dispatching an operation",
}


def machine_facts(machine: Machine) -> tuple[tuple[str, Cell], ...]:
    bytes_of = {
        "host memory": machine.host_total_bytes,
        "host memory free": machine.host_free_bytes,
        "limit of the cgroup": machine.cgroup_limit_bytes,
        "/dev/shm": machine.shm_bytes,
    }
    return (
        ("machine", Cell(f"{machine.hostname}, {machine.system}")),
        ("processor", Cell(f"{machine.cpu_name}, {counted(machine.cores, 'core')} usable")),
        *(
            (name, Cell(bytes_text(n), Source.MEASURED))
            for name, n in bytes_of.items()
            if n is not None
        ),
        ("accelerators", Cell(", ".join(machine.accelerators) or "none")),
        ("Python", Cell(machine.python_version)),
        ("brimful", Cell(machine.brimful_version)),
    )


def card_facts(gpu: Gpu) -> tuple[tuple[str, Cell], ...]:
    peaks = {
        "fp32": gpu.fp32_flops,
        "tf32": gpu.tf32_flops,
        "fp16": gpu.fp16_flops,
        "bf16": gpu.bf16_flops,
    }
    return (
        ("name", Cell(gpu.name)),
        ("usable memory", bytes_cell(gpu.total_bytes)),
        ("CUDA context", bytes_cell(gpu.context_bytes)),
        (
            "compute capability",
            Cell("{}.{}, {} multiprocessors".format(*gpu.capability, gpu.multiprocessors)),
        ),
        ("memory bandwidth", _scaled(gpu.bandwidth_bytes_per_s, 1e9, "GB/s")),
        *(
            [("link to other cards", _scaled(link, 1e9, "GB/s"))]
            if (link := gpu.peer_bytes_per_s)
            else []
        ),
        *(
            [
                (
                    "clock it holds",
                    Cell(f"{held.value:.0%} of the peaks'", held.source, note=held.note),
                )
            ]
            if (held := gpu.sustained_clock)
            else []
        ),
        *(
            (f"peak {name}", _scaled(value, 1e12, "TFLOP/s"))
            for name, value in peaks.items()
            if value is not None
        ),
    )


def _scaled(value: Estimate, unit: float, name: str) -> Cell:
    return Cell(f"{value.value / unit:,.4g} {name}", value.source, note=value.note)


def doctor_sections(machine: Machine, findings: Sequence[Diagnostic]) -> list[Section]:
    """What this machine is, and what stands in the way of good measurements."""
    return [
        Facts("", machine_facts(machine)),
        Findings("Findings", tuple(findings)) if findings else Sentences("", ("No issues found.",)),
    ]


def gpu_sections(gpus: Iterable[Gpu], prices: Mapping[str, Estimate]) -> list[Section]:
    """The catalogue of cards, with prices by their keys. d: datasheet, m: measured, a: assumed."""
    numbers = ("usable", "context", "GB/s", "fp32", "fp16", "$/h")
    columns = [Column("card"), *(Column(name, right=True) for name in numbers)]
    rows = tuple(
        (
            Cell(gpu.key, tone="strong"),
            *(_short(value, 1 << 30, "3g") for value in (gpu.total_bytes, gpu.context_bytes)),
            _short(gpu.bandwidth_bytes_per_s, 1e9),
            _short(gpu.fp32_flops, 1e12),
            _short(gpu.fp16_flops, 1e12),
            Cell(f"{price.value:.2f}" if (price := prices.get(gpu.key)) is not None else "–"),
            Cell(re.sub("NVIDIA |GeForce |Tesla ", "", gpu.name)),
        )
        for gpu in gpus
    )
    notes = (
        "Usable memory and CUDA context in GiB, memory bandwidth in GB/s, peaks in TFLOP/s.",
        "Prices of clouds an hour, in US dollars, assumed; `brimful gpus --prices FILE` keeps "
        "your own.",
        "m: measured, d: from a datasheet, a: assumed; `brimful gpus --json` has the sources.",
    )
    return [Table("", (*columns, Column("name")), rows, notes)]


def _short(value: Estimate | None, unit: float, digits: str = "4g") -> Cell:
    return Cell(
        "–" if value is None else f"{value.value / unit:,.{digits}} {value.source.value[0]}"
    )


def calibration_sections(calibration: Calibration, place: str) -> list[Section]:
    """What `doctor --calibrate` measured, and the file (`place`) that keeps it."""
    measured = Source.MEASURED
    others = Cell("not known: NVML reports nothing, so the card is assumed free")
    if calibration.others_bytes is not None:
        others = Cell(f"{bytes_text(calibration.others_bytes)}, subtracted", measured)
    versions = ", ".join(
        f"{name} {version}" for name, version in calibration.versions.items() if version
    )
    rows = (
        ("card", Cell(calibration.name)),
        ("usable memory", Cell(bytes_text(calibration.total_bytes), measured)),
        (
            "CUDA context",
            Cell(
                bytes_text(calibration.context_bytes), measured, note="outside PyTorch's allocator"
            ),
        ),
        ("cuDNN adds", Cell(bytes_text(calibration.cudnn_bytes), measured)),
        *(
            (f"  {_STAGES.get(name, name)}", Cell(bytes_text(n), measured))
            for name, n in calibration.stages_bytes.items()
        ),
        ("other processes", others),
        *(_rate(name, value) for name, value in calibration.rates.items()),
        ("versions", Cell(versions)),
        ("file", Cell(place)),
    )
    return [Facts("", rows)]


def _rate(name: str, value: float) -> tuple[str, Cell]:
    if name.endswith("_flops"):
        return f"products in {name.removesuffix('_flops')}", Cell(
            f"{value / 1e12:.4g} TFLOPS", Source.MEASURED
        )
    text = f"{value / 1e9:.4g} GB/s" if name.endswith("_bytes_per_s") else seconds_text(value)
    return _RATES.get(name, name), Cell(text, Source.MEASURED)
