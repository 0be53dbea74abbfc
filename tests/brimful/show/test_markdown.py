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


def test_a_plan_has_its_command_and_its_reasons() -> None:
    text = render_markdown(product.tune_on_cpu())
    assert "```sh\nmy-train --batch-size 256\n```" in text
    assert (
        "| batch\\_size | 64 | 256 | the smallest size within 3% of the fastest one, 947 | "
        "measured |" in text
    )
    assert (
        "| speed | 865 samples/s measured; 2 runs | 962 samples/s measured; 2 runs | 1.11 ×; 2 "
        "turns side by side |" in text
    )


def test_a_prediction_lists_its_phases_and_folds_the_details() -> None:
    text = render_markdown(product.predict_fits())
    assert "| train | 114 MiB | 114 MiB | 1.51 GiB | 1.50 to 1.53 GiB | 4.3 % |" in text
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
