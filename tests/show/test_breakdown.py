"""Where the memory goes and what would help, as every view says it."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources

from brimful.codec import decode_entry, encode_entry
from brimful.decide.memory.categories import CATEGORIES
from brimful.show.as_json import prediction_json
from brimful.show.breakdown import NAMES, moment_text, part_rows
from brimful.show.breakdown_chart import COLOURS, breakdown_chart
from brimful.show.html import render_page
from brimful.show.markdown import render_markdown
from brimful.values import Moment, WhatIf
from tests.show import memory_pieces, pieces, records


def record_of(prediction):
    return replace(records.predict_record(), prediction=prediction)


def test_every_category_has_a_name_and_a_colour_for_light_and_dark():
    assert tuple(NAMES) == tuple(COLOURS) == CATEGORIES
    style = resources.files("brimful.show").joinpath("templates/page.css").read_text(encoding="utf-8")
    for category, colour in COLOURS.items():
        name = category.replace("_", "-")
        assert f'.chart [fill="{colour}"] {{ fill: var(--{name}); }}' in style
        light, dark, paper = re.findall(rf"--{name}: (#\w+);", style)
        assert light == paper == colour != dark
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_the_parts_are_shown_largest_first_and_nothing_is_left_out():
    breakdown = memory_pieces.explained().breakdown
    assert breakdown
    rows = part_rows(breakdown)
    assert [row.share for row in rows] == sorted((row.share for row in rows), reverse=True)
    assert abs(sum(row.share for row in rows) - 1) < 1e-9
    assert "buffers" not in {row.name for row in rows}, "what holds nothing needs no row"


def test_the_moment_reads_as_a_place():
    where = "train.py:57 in main: loss.backward()"
    texts = {
        Moment("train", "aten.mm.default", "h.3.mlp", where, "backward"): f"{where} (mm, backward of h.3.mlp)",
        Moment("train", "aten.mm.default", "h.3.mlp", where, "forward"): f"{where} (mm, in h.3.mlp)",
        Moment("train", "aten._foreach_sqrt.default", "", "a.py:2 in f", "optimizer"): (
            "a.py:2 in f (_foreach_sqrt, the optimizer's step)"
        ),
        Moment("eval", "", "", "", ""): "at the beginning of eval",
        Moment("eval", "cublas", "", "", ""): "cublas",
    }
    for moment, text in texts.items():
        assert moment_text(moment) == text


def test_json_has_bytes_by_category_that_add_up_and_every_saving():
    said = memory_pieces.explained()
    assert said.peak
    told = prediction_json(said)
    assert sum(told["breakdown"]["categories_bytes"].values()) == said.peak.device_bytes == told["peak"]["device_bytes"]
    assert told["breakdown"]["peak_set_by"]["where"] == "train.py:57 in main: loss.backward()"
    assert set(told["phase_breakdowns"]) == set(told["phases"])
    assert [saving["source"] for saving in told["what_if"]["savings"]] == ["predicted", "estimate"]
    assert told["what_if"]["others"][0]["code"] == "foreach-off"
    assert prediction_json(pieces.prediction())["breakdown"] is None


def test_the_record_keeps_it_and_old_records_are_read():
    said = memory_pieces.explained()
    assert decode_entry(encode_entry(said)) == said
    old = encode_entry(pieces.prediction()).decode()
    for name in ("breakdown", "phase_breakdowns", "what_if"):
        old = re.sub(rf',"{name}":(null|{{}})', "", old)
    assert "breakdown" not in old
    assert decode_entry(old.encode()) == pieces.prediction()


def test_the_page_has_the_bars_the_tables_and_the_savings():
    page = render_page(record_of(memory_pieces.explained()))
    assert "Where the memory goes" in page and "What would help most" in page
    assert page.count('class="chart wide"') >= 1 and "encoder.layers.0.mlp" in page
    assert "train: activations" in page, "the tooltip of a bar"
    assert "Where the memory goes" not in render_page(record_of(pieces.prediction()))


def test_the_chart_has_one_bar_for_each_phase_in_the_colours_of_the_page():
    said = memory_pieces.explained()
    svg = breakdown_chart({"the whole run": said.breakdown, **said.phase_breakdowns}, 450)
    for name in ("the whole run", *said.phase_breakdowns):
        assert f">{name}<" in svg
    used = set(re.findall(r'fill="(#[0-9a-f]{6})"', svg))
    assert COLOURS["activations"] in used and COLOURS["buffers"] not in used


def test_a_name_of_a_bar_finds_room_in_a_wide_font():
    """In DejaVu Sans, which Linux takes for Helvetica, "the whole run" is 77 pixels wide at size 11."""
    breakdown = memory_pieces.explained().breakdown
    assert breakdown is not None
    short, long = (breakdown_chart({name: breakdown}, 450) for name in ("a", "the whole run"))
    assert all(left_of_the_bars(chart) >= room for chart, room in ((short, 7), (long, 80)))
    assert left_of_the_bars(long) > left_of_the_bars(short), "a short name takes no more room than it needs"


def left_of_the_bars(svg: str) -> float:
    """Pixels of the chart left of its bars: all but those that were asked for, and the 10 of padding at its right."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ', svg)
    assert found is not None
    return float(found.group(1)) - 450 - 10


def test_markdown_has_the_categories_and_the_savings():
    text = render_markdown(record_of(memory_pieces.explained()))
    assert "| activations |" in text and "| gradient checkpointing |" in text and "foreach=False" in text


def test_where_nothing_helps_it_is_said():
    page = render_page(record_of(replace(memory_pieces.explained(), what_if=WhatIf())))
    assert "Nothing that brimful tried would lower the peak" in page
