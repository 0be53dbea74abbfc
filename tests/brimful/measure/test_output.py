"""The last lines of what a program printed, as a terminal would show them."""

import pytest

from brimful.measure.output import last_lines


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("one\ntwo\nthree\n", ("two", "three")),
        ("\x1b[1;32mdone\x1b[0m\n\n", ("done",)),
        ("  0%|   |\r 50%|##  |\r100%|####|", ("100%|####|",)),
        (" 10%\r 20%\r\n", (" 20%",)),
        ("\x1b]0;a title\x07text\r\n\x1b[2K\x1b[Aup", ("text", "up")),
        ("bell\x07 and \x08back\n", ("bell and back",)),
        ("", ()),
    ],
)
def test_colours_and_what_a_progress_bar_showed_before_are_left_out(tmp_path, printed, shown):
    path = tmp_path / "stdout.txt"
    path.write_text(printed, newline="")
    assert last_lines(path, 2) == shown
    assert last_lines(tmp_path / "none.txt", 2) == ()
