"""Sections of a prediction: speed, cards, where the memory goes, what would help."""

import io
from dataclasses import replace

import pytest

from brimful.decide.memory import breakdown
from brimful.show.charts import COLOURS
from brimful.show.console import make_console, show_record
from brimful.show.prediction_facts import speed_facts
from brimful.show.prediction_sections import (
    card_groups,
    moment_text,
    prediction_sections,
    speed_figure,
)
from brimful.show.section import Facts, Sentences, Table
from brimful.show.text import CATEGORIES, Cell, bytes_text
from brimful.values import (
    Answer,
    CardPeak,
    Diagnostic,
    Estimate,
    Moment,
    Point,
    PredictedSpeed,
    Prediction,
    Source,
    Verdict,
    WhatIf,
)
from tests.brimful.show import product


def prediction() -> Prediction:
    return product.predict_oom().prediction  # type: ignore[return-value]


def speed(**changes: object) -> PredictedSpeed:
    return replace(prediction().speed, **changes)  # type: ignore[arg-type]


def table(value: Prediction, start: str) -> Table:
    (found,) = [one for one in prediction_sections(value) if one.title.startswith(start)]
    return found


EXCHANGE = Estimate(0.0275, Source.PREDICTED, 0.0214, 0.0641, "PCIe 4.0")
EXCHANGING = {
    "ranks": 3,
    "exchange": EXCHANGE,
    "exposed": Estimate(0.0075, Source.PREDICTED, 0.0, 0.0641),
}


def speed_rows(value: PredictedSpeed) -> dict[str, Cell]:
    return {fact.name: fact.cell for fact in speed_facts(value)}


def test_what_is_exchanged_and_what_of_it_is_not_hidden_have_a_row_each() -> None:
    rows = speed_rows(speed(**EXCHANGING))
    exposed = rows["not hidden by computation"]
    assert (exposed.text, exposed.interval) == ("7.50 ms", "0 to 64.1 ms")
    assert rows["between cards"].interval == "21.4 to 64.1 ms"


def test_a_curve_that_rises_to_its_end_has_no_knee() -> None:
    points = [Point(n, Estimate(10.0 * n, Source.PREDICTED)) for n in (16, 24, 32)]
    rises = speed(curve=tuple(points), knee_batch_size=32, best_batch_size=32)
    assert speed_rows(rises)["knee"].text == "throughput still grows at the largest batch size"
    short = speed(curve=tuple(points[:1]), knee_batch_size=16, best_batch_size=16)
    assert "knee" not in speed_rows(short)
    ends = speed(curve=tuple(points), knee_batch_size=24, best_batch_size=24)
    assert speed_rows(ends)["knee"].text == "batch size 24"


def test_a_curve_is_drawn_where_there_is_one() -> None:
    assert len(speed_figure(prediction())) == 1
    assert (
        speed_figure(replace(prediction(), speed=speed(curve=())))
        == speed_figure(replace(prediction(), speed=None))
        == []
    )


def test_a_phase_that_no_trial_reached_is_not_seen() -> None:
    last = table(replace(prediction(), not_seen=("test",)), "Peaks by phase").rows[-1]
    assert [cell.text for cell in last[:2]] == ["test", "not seen"]


@pytest.mark.parametrize(
    ("cards", "names"),
    [
        ([(0, 0, 5), (0, 1, 5), (0, 2, 5)], ["each of 3 cards"]),
        ([(0, 0, 5), (0, 1, 7)], ["cuda:1", "cuda:0"]),
        ([(0, 0, 5), (1, 1, 7), (2, 0, 5)], ["rank 1, cuda:1", "rank 0, cuda:0; rank 2, cuda:0"]),
        (
            [(rank, 0, 5 + (rank == 6)) for rank in range(7)],
            ["rank 6, cuda:0", "rank 0, cuda:0 and 5 more"],
        ),
    ],
)
def test_cards_that_need_the_same_are_one_row_the_fullest_first(
    cards: list[tuple[int, int, int]], names: list[str]
) -> None:
    peak = prediction().peak
    found = [CardPeak(rank, index, replace(peak, device_bytes=size)) for rank, index, size in cards]
    assert [name for name, _ in card_groups(found)] == names
    rows = table(replace(prediction(), cards=tuple(found)), "Peaks by phase").rows
    assert [row[0].text for row in rows][-len(names) - 1 :] == [*names, "the whole run"]


def test_every_category_has_a_name_and_a_colour() -> None:
    assert tuple(CATEGORIES) == tuple(COLOURS) == breakdown.CATEGORIES
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_the_moment_reads_as_a_place() -> None:
    where = "train.py:57 in main: loss.backward()"
    texts = {
        Moment("train", "aten.mm.default", "h.3.mlp", where, "backward"): (
            f"{where} (mm, backward of h.3.mlp)"
        ),
        Moment("train", "aten.mm.default", "h.3.mlp", where, "forward"): (
            f"{where} (mm, in h.3.mlp)"
        ),
        Moment("train", "aten._foreach_sqrt.default", "", "a.py:2 in f", "optimizer"): (
            "a.py:2 in f (_foreach_sqrt, the optimizer's step)"
        ),
        Moment("eval", "", "", "", ""): "the beginning of eval",
        Moment("eval", "cublas", "", "", ""): "cublas",
    }
    assert {moment: moment_text(moment) for moment in texts} == texts


def test_what_would_help_is_shown_with_how_to_write_it_and_what_does_not_help() -> None:
    value = prediction()
    found = table(value, "What would make it fit at batch size 3,000")
    assert found.rows[0][0].text == "as it is" and found.rows[0][2].text == "does not fit"
    assert [row[0].text for row in found.rows[1:]] == [
        f"+ {one.what}" for one in value.what_if.remedies
    ]
    assert found.rows[-1][2].text == "fits"
    assert all(
        any(note.startswith(f"{one.what}: {one.how}") for note in found.notes)
        for one in value.what_if.remedies
    )
    instead = replace(value.what_if.remedies[0], what="rounded sizes", how="X=1", basis="less")
    notes = table(
        replace(value, what_if=replace(value.what_if, instead=(instead,))),
        "What would make it fit at batch size 3,000",
    ).notes
    (note,) = [note for note in notes if note.startswith("in place of expandable segments")]
    peak = bytes_text(instead.device_bytes)
    assert f", rounded sizes: {peak} (estimate), " in note and ": X=1 (less" in note
    nothing = prediction_sections(replace(prediction(), what_if=WhatIf()))
    assert any(
        isinstance(one, Sentences) and one.sentences[0].startswith("No change that brimful tried")
        for one in nothing
    )


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"largest_batch_size": None}, "not searched"),
        ({"largest_batch_size": None, "nothing_fits": True}, "none"),
        ({}, "1,733"),
    ],
)
def test_a_size_that_was_not_searched_is_not_called_none(changes: dict, shown: str) -> None:
    sections = prediction_sections(replace(prediction(), **changes))
    (facts,) = [one for one in sections if isinstance(one, Facts)]
    assert dict(facts.rows)["largest that fits"].text == shown


def test_a_table_without_speed_says_why_and_what_has_it() -> None:
    unknown = Diagnostic(
        "no-clock", "only its memory is known", "so no speed is predicted", "name it: --gpu NAME"
    )
    sizes = (Answer({"batch_size": 64}, Verdict.FITS, Estimate(2**30, Source.PREDICTED)),)
    without = replace(prediction(), speed=None, rows=sizes, rows_of="sizes", warnings=(unknown,))
    words = "Only its memory is known, so no speed is predicted; name it: --gpu NAME."
    assert words in table(without, "What each batch size means").notes
    stream = io.StringIO()
    record = replace(product.predict_oom(), prediction=without)
    show_record(make_console(stream, width=200), record, full=False)
    assert stream.getvalue().lower().count("only its memory is known") == 1
    grid = replace(product.predict_grid().prediction, warnings=(unknown,))
    assert words in table(grid, "Memory and speed").notes


def test_a_size_of_which_the_memory_is_not_known_says_so() -> None:
    peak = Estimate(2**30, Source.PREDICTED)
    sizes = (
        Answer({"batch_size": 3}),
        Answer({"batch_size": 64}, Verdict.FITS, peak, traced=False),
        Answer({"batch_size": 80}, Verdict.FITS, peak, is_least=True),
        Answer({"batch_size": 96}, Verdict.DOES_NOT_FIT),
    )
    rows = table(
        replace(prediction(), rows=sizes, rows_of="sizes"), "What each batch size means"
    ).rows
    assert [row[1].text for row in rows] == [
        "not known",
        "1.00 GiB*",
        "over 1.00 GiB",
        "out of memory",
    ]
