"""A grid of settings on a terminal, in Markdown and as a heat map."""

from __future__ import annotations

import io
import re
from dataclasses import replace

from brimful.show.console import make_console, show_record
from brimful.show.html import render_page
from brimful.show.markdown import render_markdown
from brimful.values import Estimate, GridCell, Record, Source
from tests.show import product


def record() -> Record:
    one = product.predict_fits()
    assert one.prediction is not None and one.prediction.peak is not None
    rate = Estimate(326_000.0, Source.PREDICTED)
    cells = []
    for size in (1, 2, 4, 8):
        for length in (512, 1024, 2048, 4096):
            fits, settings = size * length < 10_000, {"batch_size": size, "max_length": length}
            traced, best = size in (1, 2, 8), settings == {"batch_size": 4, "max_length": 512}
            verdict = "fits" if fits else "does_not_fit"
            cells.append(GridCell(settings, verdict, one.prediction.peak, traced or best, rate, rate, best))
    cells[-1] = replace(cells[-1], verdict=None, peak=None, problem="the script raised an error")
    return replace(one, prediction=replace(one.prediction, grid=tuple(cells)))


def screen(width: int) -> str:
    out = io.StringIO()
    show_record(make_console(out, width), record(), full=False)
    return out.getvalue()


def test_sixteen_cells_are_whole_on_eighty_columns_and_say_how_they_were_found() -> None:
    text = screen(80)
    assert len(re.findall(r"326,000", text)) == 14, "every cell that fits, and the headline"
    assert text.count("does not fit") == 2 and "fails" in text
    assert text.count("GiB*") == 3 and "* is extrapolated" in text
    assert text.startswith("Of 16 combinations 13 fit") and "tokens/s" in text
    assert "batch_size 8, max_length 4,096: the script raised an error" in " ".join(text.split())


def test_markdown_has_the_table_and_the_page_a_heat_map_with_a_field_for_each_cell() -> None:
    assert "| 512 | 1,024 | 2,048 | 4,096 |" in render_markdown(record())
    page = render_page(record())
    fields = re.findall(r"<title>(batch_size[^<]*)</title>", page)
    assert len(fields) == 2 * 16, "for a wide window and a narrow one"
    assert any("batch_size 4, max_length 1,024" in field and "extrapolated" in field for field in fields)
