"""The curves: what must be visible in them, and that the page's style sheet knows their colours."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources
from xml.etree import ElementTree

import pytest

from brimful.show.charts import PALETTE, WIDTHS, memory_chart, speed_chart
from brimful.values import Estimate, MemoryEstimate, Point, Source, SpeedEstimate
from tests.show import pieces, records


def colours(svg: str) -> set[str]:
    return set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]{3,8})"', svg))


def labels(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg.replace("xlink:", ""))
    return ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("text")]


def titles(svg: str) -> list[str]:
    return re.findall(r"<title>([^<]*)</title>", svg)


def every_chart() -> list[str]:
    cpu, card = records.tune_on_cpu(), records.tune_on_card()
    assert cpu.memory and cpu.speed and cpu.plan and cpu.plan.baseline_samples_per_s and card.memory
    drawn = []
    for _, width in WIDTHS:
        drawn.append(memory_chart(cpu.memory, cpu.opened.budget, 48, width))
        drawn.append(memory_chart(card.memory, card.opened.budget, 1181, width))
        drawn.append(speed_chart(cpu.speed, (64, cpu.plan.baseline_samples_per_s), width))
    return drawn


def test_every_colour_of_a_chart_has_a_rule_in_the_style_sheet_for_light_and_dark() -> None:
    style = resources.files("brimful.show").joinpath("templates/page.css").read_text(encoding="utf-8")
    for svg in every_chart():
        used = colours(svg) - {"#ddd", "#888"}  # Vega's defaults, drawn with no stroke width
        assert used <= set(PALETTE.values()), used
    for role, colour in PALETTE.items():
        assert f'.chart [fill="{colour}"] {{ fill: var(--{role}); }}' in style
        assert f'.chart [stroke="{colour}"] {{ stroke: var(--{role}); }}' in style
        assert re.search(rf"--{role}: (#\w+)", style).group(1) == colour  # type: ignore[union-attr]


def test_the_colours_that_are_looked_for_would_be_noticed() -> None:
    assert colours('<path fill="#123456" stroke="none"/>') == {"#123456"}


def test_the_memory_chart_shows_probes_budget_total_and_both_sizes() -> None:
    record = records.tune_on_cpu()
    assert record.memory
    svg = memory_chart(record.memory, record.opened.budget, 48, 450)
    shown = labels(svg)
    assert "48 chosen" in shown and "600 largest" in shown
    assert "budget 13.7 GiB" in shown and "the machine has 16.0 GiB" in shown
    assert "batch size 512: 11.5 GiB, measured" in titles(svg)


def test_a_budget_next_to_the_total_is_one_label() -> None:
    record = records.tune_on_cpu()
    assert record.memory and record.opened.budget
    near = replace(record.opened.budget, bytes=int(15.9 * 2**30))
    shown = labels(memory_chart(record.memory, near, None, 450))
    assert "budget 15.9 GiB of 16.0 GiB" in shown
    assert not any("has" in label for label in shown)


def test_the_speed_chart_shows_the_knee_the_fastest_and_the_users_own() -> None:
    belief = pieces.speed_belief()
    svg = speed_chart(belief, (64, Estimate(218.4, Source.MEASURED)), 450)
    shown = labels(svg)
    assert "48 within 3 %" in shown and "128 fastest" in shown and "64 as it was" in shown
    assert "batch size 128: 312.2 samples/s (307.5 to 316.9), measured" in titles(svg)


@pytest.mark.parametrize("points", [0, 1, 2])
def test_beliefs_with_hardly_a_point_are_still_drawn(points: int) -> None:
    some = tuple(Point(2**i, Estimate(1e9 * (i + 1), Source.MEASURED)) for i in range(points))
    belief = MemoryEstimate("device", "peaks", False, None, None, None, some, some, None, None)
    ElementTree.fromstring(memory_chart(belief, None, None, 300).replace("xlink:", ""))
    if points:
        speed = SpeedEstimate(some, some[0].batch_size, some[0].batch_size, None, 0.03)
        assert "1 fastest" in labels(speed_chart(speed, None, 300))


def test_the_same_belief_gives_the_same_chart() -> None:
    assert every_chart() == every_chart()
