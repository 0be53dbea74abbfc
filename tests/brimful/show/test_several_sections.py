"""Tables of several cards and of several settings, and their sentence."""

import io
from dataclasses import replace

from brimful.measure.gpus import find_gpu
from brimful.show.console import make_console, show_record
from brimful.show.headline import headline
from brimful.show.several_sections import dollars_text, which_sentence, which_table
from brimful.values import Answer, Diagnostic, Estimate, Record, Solved, Source
from tests.brimful.show import product


def record(*which: Answer):
    one = product.predict_fits()
    return replace(one, prediction=replace(one.prediction, rows=which, rows_of="cards"))


def screen(record: Record) -> str:
    stream = io.StringIO()
    show_record(make_console(stream, width=80), record, full=False)
    return stream.getvalue()


def line(
    key: str, cards: int = 1, verdict: str | None = "fits", cost: float | None = 0.16, **more
) -> Answer:
    peak = product.predict_fits().prediction.peak  # type: ignore[union-attr]
    price = (
        None
        if cost is None
        else Estimate(0.8 * cards, Source.ASSUMED, note="https://modal.com/pricing")
    )
    numbers = {
        "peak_bytes": Estimate(peak.device_bytes, peak.source),
        "largest": 3000,
        "samples_per_s": Estimate(4100.0, Source.PREDICTED),
        "epoch_s": Estimate(734.0, Source.PREDICTED),
        "price_per_h": price,
        "epoch_price": None if cost is None else Estimate(cost, Source.ASSUMED),
    }
    at = {"gpu": find_gpu(key), "cards": cards, "verdict": verdict}
    return Answer({"batch_size": 3000}, **{**at, **numbers, **more})


def test_the_headline_names_the_cheapest_that_fits_and_says_that_its_price_is_assumed():
    found = record(line("l4"), line("a100-80gb", 4, cost=0.9), line("t4", verdict="does_not_fit"))
    assert headline(found).sentence.startswith(
        "Of 3 cards 2 fit; the cheapest is NVIDIA L4: 12 min 14 s an epoch (predicted), for "
        "$0.16 (price assumed). Batch size"
    )
    none = record(line("l4", verdict="does_not_fit"), line("t4", verdict="tight"))
    assert which_sentence(none.prediction) == "Of 2 cards none fits for sure. "


def test_of_another_setting_the_table_and_the_headline_name_the_largest_value():
    found = record(
        line("a100-80gb", largest=9_412),
        line("l4", largest=2_048),
    )
    found = replace(
        found, prediction=replace(found.prediction, solved=Solved("max_length", 9_412, 9_412))
    )
    assert headline(found).sentence.startswith(
        "Of 2 cards 2 fit; NVIDIA A100-SXM4-80GB has the largest max_length. max_length 9,412"
    )
    shown = screen(found)
    assert "9,412" in shown and "2,048" in shown and "Largest: the max_length that fits." in shown


def test_the_short_screen_has_a_line_a_card_within_80_columns_and_the_next_command():
    cards = [
        line(
            key,
            4 if key == "a100-80gb-pcie" else 1,
            cost=None if key == "l4" else 1.5,
            slow_loading=key == "l4",
        )
        for key in ("a100-80gb-pcie", "rtx3080-20gb", "l4")
    ]
    failed = Answer(
        {"batch_size": 64}, gpu=find_gpu("t4"), problem="the script raised an error: no bfloat16"
    )
    shown = screen(record(*cards, failed)).splitlines()
    assert all(len(row.rstrip()) <= 80 for row in shown)
    for name in ("a100-80gb-pcie:4", "rtx3080-20gb", "l4", "t4"):
        assert sum(row.startswith(name + " ") for row in shown) == 1
    assert any("12 min 14 s*" in row for row in shown)
    starts = ("*: this machine loads", "t4: the script raised an error: no bfloat16", "next  ")
    assert all(any(row.startswith(start) for row in shown) for start in starts)


def test_cards_that_the_command_leaves_idle_are_named_below_the_table():
    found = which_table(
        record(line("l4"), line("l4", 2, unused=1), line("t4", 4, unused=3)).prediction
    )
    assert any(
        note.startswith("The command leaves cards idle") and note.endswith(": l4:2, t4:4.")
        for note in found.notes
    )
    assert not any("idle" in note for note in which_table(record(line("l4")).prediction).notes)


def test_dollars_keep_two_digits_that_say_something():
    assert [dollars_text(value) for value in (1234.5, 12.0, 0.1, 0.0312, 0.00021, 6e-6)] == [
        "$1,234.50",
        "$12.00",
        "$0.10",
        "$0.031",
        "$0.00021",
        "under $0.0001",
    ]


# --- a grid of settings ---


def test_a_warning_that_changes_what_the_table_means_stands_with_it() -> None:
    found = product.predict_grid()
    said = (
        Diagnostic("changes-nothing", "num_workers changes nothing", "", "leave it out"),
        Diagnostic("x", "a note", "", ""),
    )
    shown = screen(replace(found, prediction=replace(found.prediction, warnings=said)))
    assert "\nwarning   num_workers changes nothing" in shown and "a note" not in shown
