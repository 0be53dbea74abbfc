"""Sections about machines and cards."""

import io
from dataclasses import replace

import pytest

from brimful.measure.gpus import CARDS
from brimful.measure.gpus.prices import prices
from brimful.show.console import make_console, show_sections
from brimful.show.machine_sections import (
    calibration_sections,
    card_facts,
    gpu_sections,
)
from brimful.values import Calibration

MEASURED = Calibration(
    name="NVIDIA H200",
    capability=(9, 0),
    multiprocessors=132,
    total_bytes=150_109_945_856,
    context_bytes=610 << 20,
    cudnn_bytes=240 << 20,
    stages_bytes={"bare": 480 << 20, "cudnn": 850 << 20},
    others_bytes=0,
    rates={"bandwidth_bytes_per_s": 4.1e12, "bf16_flops": 7.1e14, "kernel_s": 1.9e-6},
    versions={"torch": "2.13.0", "driver": None},
    hostname="box",
    date="2026-11-20",
)


def test_every_card_of_the_catalogue_is_listed_with_the_sources_of_its_numbers() -> None:
    (table,) = gpu_sections(CARDS, prices())
    assert [row[0].text for row in table.rows] == [gpu.key for gpu in CARDS]
    for gpu in CARDS:
        assert all(
            cell.source
            for name, cell in card_facts(gpu)
            if name.startswith(("usable", "CUDA", "memory", "peak"))
        )


@pytest.mark.parametrize(
    ("others", "text"),
    [(1 << 30, "1.00 GiB, subtracted"), (None, "not known: NVML reports nothing")],
)
def test_a_calibration_shows_what_each_stage_took_the_rates_and_the_file(
    others: int | None, text: str
) -> None:
    (facts,) = calibration_sections(replace(MEASURED, others_bytes=others), "h200.json")
    rows = {name.strip(): cell.text for name, cell in facts.rows}
    rates = {
        "memory bandwidth": "4100 GB/s",
        "products in bf16": "710 TFLOPS",
        "a small kernel": "1.90 µs",
    }
    assert rows.items() >= rates.items()
    assert rows["other processes"].startswith(text)
    assert (rows["and convolutions"], rows["versions"], rows["file"]) == (
        "850 MiB",
        "torch 2.13.0",
        "h200.json",
    )


def test_each_card_stands_in_one_line_at_80_columns() -> None:
    stream = io.StringIO()
    show_sections(make_console(stream, width=80), gpu_sections(CARDS, prices()))
    lines = stream.getvalue().splitlines()
    broken = [
        gpu.key for gpu in CARDS if sum(line.startswith(gpu.key + " ") for line in lines) != 1
    ]
    table = lines[2 : lines.index(next(line for line in lines if line.startswith("Usable memory")))]
    assert not broken and len(table) - len(CARDS) <= 6, "long names may take a second line"
