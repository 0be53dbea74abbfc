"""The same record as markdown."""

import pytest

from brimful.show.markdown import code_block, escape, render_markdown, table
from tests.brimful.show import product


@pytest.mark.parametrize("name", product.ALL)
def test_every_table_has_as_many_cells_in_each_row(name: str) -> None:
    text = render_markdown(product.ALL[name]())
    assert text.startswith("**brimful ")
    width = None
    for line in text.splitlines():
        if not line.startswith("| "):
            width = None
            continue
        cells = line.replace("\\|", "").count("|")
        assert width in (None, cells), line
        width = cells


def test_a_prediction_lists_its_phases_and_folds_the_details() -> None:
    text = render_markdown(product.predict_fits())
    assert "| train | 114 MiB | 114 MiB | 1.51 GiB | 1.51 to 1.53 GiB | 4.3 % |" in text
    assert text.index("Peaks by phase") < text.index("<details>") < text.index("By category")


@pytest.mark.parametrize("name", ["hostile", "hostile-run"])
def test_what_comes_from_outside_means_itself(name: str) -> None:
    text = render_markdown(product.ALL[name]())
    outside_code = "".join(part for index, part in enumerate(text.split("```")) if index % 2 == 0)
    assert "<script>" not in outside_code
    assert escape("a|b\n`c` *d*") == "a\\|b \\`c\\` \\*d\\*"


def test_a_fence_is_longer_than_the_backticks_within_and_a_table_without_rows_is_nothing() -> None:
    assert code_block("echo ````") == "`````\necho ````\n`````"
    assert table(("a", "b"), []) == ""
