"""A grid of settings on a terminal, in Markdown and as a heat map."""

import io
import re
from dataclasses import replace

from brimful.show.console import make_console, show_record
from brimful.show.heat_map import Field, heat_map
from brimful.show.html import render_page
from brimful.show.markdown import render_markdown
from brimful.values import Diagnostic
from tests.brimful.show import product


def screen(width: int) -> str:
    out = io.StringIO()
    show_record(make_console(out, width), product.predict_grid(), full=False)
    return out.getvalue()


def test_sixteen_cells_are_whole_on_eighty_columns_and_say_how_they_were_found() -> None:
    text = screen(80)
    assert len(re.findall(r"326,000", text)) == 11, "every cell that fits, and the headline"
    assert text.count("does not fit") == 2 and "fails" in text
    assert text.count("GiB*") == 3 and "* is extrapolated" in text
    assert text.startswith("Of 16 combinations 10 fit") and "tokens/s" in text
    assert "batch_size 8, max_length 4,096: the script raised an error" in " ".join(text.split())


def test_a_warning_that_changes_what_the_table_means_stands_below_it() -> None:
    found = product.predict_grid()
    assert found.prediction is not None
    said = (
        Diagnostic("changes-nothing", "num_workers changes nothing", "", "leave it out"),
        Diagnostic("x", "a note", "", ""),
    )
    out = io.StringIO()
    show_record(
        make_console(out, 80),
        replace(found, prediction=replace(found.prediction, warnings=said)),
        full=False,
    )
    assert (
        "warning  num_workers changes nothing" in out.getvalue() and "a note" not in out.getvalue()
    )


def test_markdown_has_the_table_and_the_page_a_heat_map_with_a_field_for_each_cell() -> None:
    assert "| 512 | 1,024 | 2,048 | 4,096 |" in render_markdown(product.predict_grid())
    page = render_page(product.predict_grid())
    fields = re.findall(r"<title>(batch_size[^<]*)</title>", page)
    assert len(fields) == 2 * 16, "for a wide window and a narrow one"
    assert any(
        "batch_size 4, max_length 2,048" in field and "extrapolated" in field for field in fields
    )


def test_a_heat_map_with_narrow_fields_turns_names_leaves_out_labels_and_frames_one() -> None:
    fields = [
        Field(str(d), f"{1000 * a:,}", 0.5, "fits", "16.6", "", d == a == 3)
        for d in range(8)
        for a in range(1, 9)
    ]
    wide, narrow = (heat_map(fields, "batch_size", "max_length", width) for width in (450, 160))
    assert wide.count(">16.6<") == 64 and "rotate(315)" not in wide
    assert ">16.6<" not in narrow and "rotate(315)" in narrow
    for drawn in (wide, narrow):
        assert len(re.findall(r'stroke="#24272c" stroke-width="1.5"', drawn)) == 1
    several = render_page(product.predict_grid())
    assert ">16.9<" in several and "Device peak in GiB" in several
