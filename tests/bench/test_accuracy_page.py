"""The table of accuracy: estimate ÷ measured."""

from bench import accuracy_page


def test_the_page_and_its_figure_are_what_the_results_make(tmp_path):
    page = tmp_path / "accuracy.md"
    text = accuracy_page.PAGE.read_text("utf-8")
    page.write_text(text.replace("| 32 |", "| 33 |"), "utf-8")
    accuracy_page.write(page)
    assert page.read_text("utf-8") == text
    assert page.with_suffix(".svg").read_text("utf-8") == accuracy_page.FIGURE.read_text("utf-8")


def test_a_row_has_its_extremes_its_median_and_how_many_are_too_low():
    assert accuracy_page.table({"kind": [0.9, 0.99, 1.2]}).splitlines()[-1] == (
        "| kind | 3 | 0.90 | 0.990 | 1.20 | 2 |"
    )
