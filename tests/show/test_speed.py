"""A predicted speed in words, as JSON, and on the page."""

from __future__ import annotations

import re
from dataclasses import replace

from brimful.codec import decode_entry, encode_entry, to_json
from brimful.show import html
from brimful.show.charts import predicted_speed_chart
from brimful.show.markdown import render_markdown
from brimful.show.speed import speed_json, speed_rows, speed_sentence
from brimful.values import Source
from tests.show import pieces, records


def test_the_sentence_says_level_interval_knee_and_what_binds():
    said = speed_sentence(pieces.predicted_speed())
    assert said == (
        "About 1,110 samples/s at 1,024 (predicted, 790 to 1,440); the knee is at 192: 98 % of the best; "
        "bound by memory bandwidth (71 %)."
    )


def test_a_speed_of_several_ranks_says_at_once_that_their_talk_is_not_in_it():
    said = speed_sentence(replace(pieces.predicted_speed(), ranks=64))
    assert "(predicted, 790 to 1,440; without the talk between 64 ranks)" in said


def test_a_command_as_it_stands_has_a_speed_and_no_knee():
    said = speed_sentence(pieces.predicted_speed(None))
    assert "knee" not in said
    assert " at " not in said.split("samples/s")[1].split("(")[0]


def test_where_nobody_knows_the_samples_in_a_step_its_time_is_said():
    said = speed_sentence(replace(pieces.predicted_speed(), samples_per_s=None, curve=()))
    assert said.startswith("About 926 ms a step at 1,024 (predicted)")


def test_every_row_with_a_number_says_that_it_is_predicted():
    rows = speed_rows(replace(pieces.prediction(), speed=pieces.predicted_speed()))
    numbers = [row for row in rows if re.search(r"\d", row.value.text) and not row.name.startswith("speed's")]
    assert len(numbers) >= 5
    assert all(row.value.source is Source.PREDICTED for row in numbers)
    assert speed_rows(pieces.prediction()) == []


def test_shares_too_small_to_matter_are_not_named():
    rows = {row.name: row.value.text for row in speed_rows(replace(pieces.prediction(), speed=pieces.predicted_speed()))}
    assert "copies from the host" not in rows["bound by"]
    assert rows["bound by"].startswith("memory bandwidth 71 %")


def test_loading_is_null_in_json_for_nobody_can_know_it_from_here():
    told = speed_json(pieces.predicted_speed())
    assert told is not None
    assert told["bound_by"]["loading"] is None
    assert told["knee_batch_size"] == 192
    assert told["samples_per_s"]["source"] == "predicted"
    assert len(told["curve"]) == 16
    assert to_json(told)
    assert speed_json(None) is None


def test_a_prediction_with_a_speed_survives_the_record_and_an_old_one_is_read():
    with_speed = replace(pieces.prediction(), speed=pieces.predicted_speed())
    assert decode_entry(encode_entry(with_speed)) == with_speed
    old = encode_entry(with_speed).decode()
    old = old[: old.index(',"speed":')] + "}"
    assert decode_entry(old.encode()) == replace(with_speed, speed=None)


def test_the_chart_marks_the_knee_the_largest_and_what_was_asked():
    svg = predicted_speed_chart(pieces.predicted_speed(), 5543, 450)
    for label in ("192 knee", "5,543 largest", "1,024 asked"):
        assert label in svg
    once = predicted_speed_chart(pieces.predicted_speed(5543), 5543, 450)
    assert "5,543 largest" in once
    assert "asked" not in once


def test_the_page_shows_the_curve_only_where_there_is_one():
    record = records.predict_record()
    with_speed = replace(record, prediction=replace(pieces.prediction(), speed=pieces.predicted_speed()))
    page = html.render_page(with_speed)
    for text in ("Speed, predicted", "192 knee", "bound by"):
        assert text in page
    assert html._predicted_speed(replace(pieces.prediction(), speed=pieces.predicted_speed(None))) is None
    assert html._predicted_speed(pieces.prediction()) is None


def test_markdown_says_the_sentence():
    record = replace(records.predict_record(), prediction=replace(pieces.prediction(), speed=pieces.predicted_speed()))
    assert "the knee is at 192" in render_markdown(record)
