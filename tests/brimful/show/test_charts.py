"""The curves: what must be visible in them, and that the page's style sheet knows their colours."""

import html
import re
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from xml.etree import ElementTree

import altair as alt
import pytest

from brimful.show.charts import (
    COLOURS,
    PALETTE,
    WIDTHS,
    breakdown_chart,
    drawn,
    memory_chart,
    speed_chart,
)
from brimful.values import Estimate, MemoryEstimate, Point, Source
from tests.brimful.show import product


def colours(svg: str) -> set[str]:
    return set(re.findall(r'(?:fill|stroke)="(#[0-9a-f]{3,8})"', svg))


def labels(svg: str) -> list[str]:
    root = ElementTree.fromstring(svg.replace("xlink:", ""))
    return ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("text")]


def titles(svg: str) -> list[str]:
    return re.findall(r"<title>([^<]*)</title>", svg)


STYLE = resources.files("brimful.show").joinpath("templates/page.css").read_text(encoding="utf-8")


def test_every_colour_of_a_chart_has_a_rule_in_the_style_sheet_for_light_and_dark() -> None:
    cpu, card = product.tune_on_cpu(), product.predict_fits()
    charts = [
        chart
        for _, width in WIDTHS
        for chart in (
            memory_chart(cpu.memory, cpu.opened.budget, 256, width),
            memory_chart(card.memory, card.opened.budget, 16_280, width),
            tuned(width, cpu.plan.baseline_samples_per_s),
        )
    ]
    for svg in charts:
        used = colours(svg) - {"#ddd", "#888"}  # Vega's defaults, drawn with no stroke width
        assert {PALETTE["fit"], PALETTE["limit"]} <= used <= set(PALETTE.values()), used
    for role, colour in PALETTE.items():
        assert f'.chart [fill="{colour}"] {{ fill: var(--{role}); }}' in STYLE
        assert f'.chart [stroke="{colour}"] {{ stroke: var(--{role}); }}' in STYLE
        assert re.search(rf"--{role}: (#\w+)", STYLE).group(1) == colour  # type: ignore[union-attr]


def tuned(width: int, before: Estimate) -> str:
    speed = product.tune_on_cpu().speed
    marks = {"within 3 %": speed.knee_batch_size, "fastest": speed.best_batch_size}
    return speed_chart(speed.points, speed.best_batch_size, 0.03, marks, width, (64, before))


def memory(largest: int | None, budget_bytes: int, chosen: int | None) -> str:
    record = product.tune_on_cpu()
    budget = replace(record.opened.budget, bytes=budget_bytes)
    return memory_chart(replace(record.memory, largest_batch_size=largest), budget, chosen, 450)


@pytest.mark.parametrize(
    ("draw", "said", "absent", "title"),
    [
        (
            lambda: memory(220, 2**30, 64),
            {"64 chosen", "220 largest", "budget 1.00 GiB", "the machine has 16.0 GiB"},
            None,
            "batch size 64: 114 MiB, measured",
        ),
        (
            lambda: memory(None, int(15.9 * 2**30), None),
            {"budget 15.9 GiB of 16.0 GiB"},
            "has",
            None,
        ),
        (
            lambda: tuned(450, Estimate(218.4, Source.MEASURED)),
            {"256 within 3 %", "947 fastest", "64 as it was"},
            None,
            r"batch size 947: 989\.6 samples/s.*",
        ),
    ],
    ids=["memory", "a budget next to the total", "speed"],
)
def test_a_chart_marks_sizes_and_limits_each_once(
    draw: Callable[[], str], said: set[str], absent: str | None, title: str | None
) -> None:
    svg = draw()
    shown = labels(svg)
    assert said <= set(shown) and not any(absent and absent in label for label in shown)
    assert title is None or any(re.fullmatch(title, each) for each in titles(svg))


def test_the_bars_of_a_breakdown_have_names_and_colours_for_light_and_dark() -> None:
    prediction = product.predict_oom().prediction
    svg = breakdown_chart(
        {"the whole run": prediction.breakdown, **prediction.phase_breakdowns}, 450
    )
    assert {"the whole run", "start", "train", "eval"} <= set(labels(svg))
    for category, colour in COLOURS.items():
        name = category.replace("_", "-")
        assert f'.chart [fill="{colour}"] {{ fill: var(--{name}); }}' in STYLE
        assert f".swatch.{name} {{ background: var(--{name}); }}" in STYLE
        light, dark, paper = re.findall(rf"--{name}: (#\w+);", STYLE)
        assert light == paper == colour != dark


@pytest.mark.parametrize("points", [0, 1, 2])
def test_estimates_with_hardly_a_point_are_still_drawn(points: int) -> None:
    some = tuple(Point(2**i, Estimate(1e9 * (i + 1), Source.MEASURED)) for i in range(points))
    estimate = MemoryEstimate("device", "peaks", False, None, None, None, some, some, None, None)
    ElementTree.fromstring(memory_chart(estimate, None, None, 300).replace("xlink:", ""))
    if points:
        assert "1 fastest" in labels(speed_chart(some, 1, 0.03, {"fastest": 1}, 300))


def test_characters_at_which_the_drawing_would_end_the_process_are_left_out() -> None:
    odd = "".join(map(chr, (*range(32), *range(127, 160), 0xD800, 0xDCFF, 0xFFFE, 0x1F600)))
    kept = 'back\\slash "quote" \\u0041 ä €'
    values = alt.Data(values=[{"name": kept + odd + "end", "x": 1}])
    svg = drawn(alt.Chart(values).mark_bar().encode(x="x:Q", y="name:N"), "a summary")
    assert html.escape(kept, quote=False) in svg.replace("&quot;", '"')
