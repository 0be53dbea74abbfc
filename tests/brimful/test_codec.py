import dataclasses
import json
import math

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from brimful import codec, values
from brimful.errors import OtherSchema, RecordUnreadable, WireUnreadable
from brimful_inside import wire
from tests import strategies

VALUES = [
    one
    for one in vars(values).values()
    if dataclasses.is_dataclass(one) and one.__module__.startswith("brimful.")
]
slow_to_draw = settings(deadline=None, max_examples=10, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("cls", VALUES, ids=lambda cls: cls.__name__)
def test_every_value_comes_back_as_it_was_written(cls):
    @slow_to_draw
    @given(strategies.values_of(cls))
    def check(value):
        line = codec.encode(value)
        assert b"\n" not in line
        assert codec.decode(line, cls) == value

    check()


@slow_to_draw
@given(strategies.entries)
def test_every_entry_comes_back_as_it_was_written(entry):
    line = codec.encode_entry(entry)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert codec.decode_entry(line) == (
        dataclasses.replace(entry, schema=codec.SCHEMA)
        if isinstance(entry, values.Opened)
        else entry
    )


@slow_to_draw
@given(st.lists(strategies.events, max_size=4))
def test_every_event_of_the_wire_comes_back_as_the_child_wrote_it(tmp_path_factory, events):
    events = [
        dataclasses.replace(e, version=wire.WIRE_VERSION)
        if isinstance(e, wire.ProcessStarted)
        else e
        for e in events
    ]
    path = tmp_path_factory.mktemp("wire") / "wire-1.jsonl"
    path.write_bytes(b"".join(map(wire.encode_event, events)))
    assert codec.read_wire(path) == events


@slow_to_draw
@given(strategies.values_of(wire.TrialConfig))
def test_a_child_reads_the_config_that_the_parent_wrote(tmp_path_factory, config):
    config = dataclasses.replace(config, version=wire.WIRE_VERSION)
    path = tmp_path_factory.mktemp("config") / "trial_config.json"
    path.write_bytes(codec.encode(config))
    assert wire.read_config(str(path)) == config


def test_a_loss_that_diverged_is_kept_in_a_record_and_null_for_others():
    value = values.Estimate(math.nan, values.Source.MEASURED, low=-math.inf)
    back = codec.decode(codec.encode(value), values.Estimate)
    assert math.isnan(back.value) and back.low == -math.inf
    expected = {"value": None, "source": "measured", "low": None, "high": None, "note": None}
    assert json.loads(codec.to_json(value), parse_constant=pytest.fail) == expected


def test_a_torn_last_line_of_the_wire_is_left_out(tmp_path):
    first, second = wire.Progress("train", 1, 2.0), wire.Progress("train", 2, 3.0)
    whole = wire.encode_event(first) + wire.encode_event(second)
    path = tmp_path / "wire-1.jsonl"
    for end in range(len(whole) + 1):
        path.write_bytes(whole[:end])
        assert codec.read_wire(path) == [first, second][: whole[:end].count(b"\n")]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{not json}\n", "line 1"),
        (b"[]\n", "line 1"),
        (b'{"event": "dance"}\n', "line 1"),
        (b'{"event": "progress", "phase": 3}\n', "line 1"),
        (b"\xff\xfe\n", "line 1"),
        (
            wire.encode_event(wire.ProcessStarted(1, "rank", 0, [], version=wire.WIRE_VERSION + 1)),
            f"version {wire.WIRE_VERSION + 1}",
        ),
    ],
)
def test_a_damaged_line_in_the_middle_of_the_wire_and_another_version_are_reported(
    tmp_path, line, said
):
    path = tmp_path / "wire-1.jsonl"
    path.write_bytes(line + wire.encode_event(wire.Progress("train", 1, 2.0)))
    with pytest.raises(WireUnreadable, match=said):
        codec.read_wire(path)


def test_progress_is_picked_out_of_a_line_and_anything_else_is_none():
    progress = wire.Progress("eval", 7, 1.5)
    assert codec.event_of(wire.encode_event(progress), wire.Progress) == progress
    for line in (b"", b"{", b"[]", b'{"event": "report"}', b'{"event": "progress"}', b"\xff"):
        assert codec.event_of(line, wire.Progress) is None


@pytest.mark.parametrize(
    ("schema", "words", "advice"),
    [(codec.OLDEST_SCHEMA - 1, "an older", "again"), (codec.SCHEMA + 1, "a newer", "Upgrade")],
)
def test_an_entry_of_another_schema_names_the_version_that_wrote_it_and_what_to_do(
    schema, words, advice
):
    machine = b'"machine":{"brimful_version":"0.0.9"}'
    with pytest.raises(
        OtherSchema, match=rf"{words} brimful \(0.0.9\) with schema {schema}"
    ) as caught:
        codec.decode_entry(b'{"entry":"opened","schema":%d,%s}' % (schema, machine))
    assert advice in caught.value.suggestion
    with pytest.raises(OtherSchema, match=f"{words} brimful with"):
        codec.decode_entry(b'{"entry":"sample","schema":%d}' % schema)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"nonsense",
        b"3",
        b'{"entry":"riddle","schema":2}',
        b'{"entry":"note","schema":2,"code":4}',
    ],
)
def test_what_is_no_entry_is_refused(line):
    with pytest.raises(RecordUnreadable):
        codec.decode_entry(line)


def test_a_field_that_a_later_version_added_does_no_harm():
    line = codec.encode_entry(values.Diagnostic("a", "b", "c", "d")).replace(
        b'"code"', b'"colour":"red","code"'
    )
    assert codec.decode_entry(line) == values.Diagnostic("a", "b", "c", "d")


def test_a_wire_with_damaged_lines_gives_what_can_be_read_of_a_run(tmp_path):
    """As a disk leaves it that was full for a while: a part of a line, and the next one behind
    it.
    """
    whole = [wire.Progress("train", step, 1.0) for step in range(3)]
    lines = [wire.encode_event(event) for event in whole]
    path = tmp_path / "wire-1.jsonl"
    path.write_bytes(lines[0] + lines[1][:20] + lines[2] + lines[1] + lines[2][:-5])
    assert codec.read_wire_leniently(path) == ([whole[0], whole[1]], False)
    path.write_bytes(lines[0] + lines[1][:-5])
    assert codec.read_wire_leniently(path) == ([whole[0]], True)
    assert codec.read_wire_leniently(tmp_path / "not there") == ([], False)
    with pytest.raises(WireUnreadable):
        path.write_bytes(lines[1][:20] + lines[0])
        codec.read_wire(path)


@slow_to_draw
@given(st.dictionaries(st.text(), strategies.values_of(values.Baseline), max_size=3))
def test_baselines_come_back_as_they_were_written_with_a_line_for_each_that_holds(baselines):
    figures = [number for baseline in baselines.values() for number in baseline.figures.values()]
    assume(all(map(math.isfinite, figures)))
    text = codec.encode_lock(baselines)
    assert codec.decode_lock(text) == baselines
    held = [row for baseline in baselines.values() for row in baseline.held]
    assert text.count('\n        {"bytes": ') == len(held)


def test_a_line_of_the_script_with_braces_and_brackets_stays_whole():
    where = 'train.py in main: x = {"bytes": [1,\n 2]}, "}"'
    held = (values.Held(8, "activations", ("a", "b"), where),)
    baseline = values.Baseline("0.1.0", "2.9.1", "l4", 8, {"step_s": 0.1}, "train", held)
    text = codec.encode_lock({"gpt": baseline})
    assert codec.decode_lock(text) == {"gpt": baseline}
    assert '{"bytes": 8, "category": "activations", "modules": ["a", "b"], "where": ' in text
