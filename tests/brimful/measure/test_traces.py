"""Traces are read once, and again when they have changed."""

import gc
import os

import pytest

from brimful.measure import traces
from brimful_inside.simulator.trace import Phase, PhaseWas, decode, encode_row

HEADER = '{"trace_version": 1}\n'


def test_a_trace_is_decoded_once(tmp_path, monkeypatch):
    path = tmp_path / "trace-0.jsonl"
    path.write_text(HEADER + '["malloc",1,512,"op"]\n')
    first = traces._read(path)
    assert first is not None and traces._read(path) is first
    monkeypatch.setattr(traces, "_KEPT_BYTES", 0)
    assert traces._read(path) == first and traces._read(path) is not first, (
        "a large one is not kept in memory"
    )


def test_a_trace_that_has_changed_is_read_anew(tmp_path):
    path = tmp_path / "trace-0.jsonl"
    path.write_text(HEADER)
    assert traces._read(path).rows == []
    path.write_text(HEADER + '["malloc",1,512,"op"]\n')
    os.utime(path, ns=(1, 1))
    assert len(traces._read(path).rows) == 1


def test_a_trace_that_cannot_be_read_is_none(tmp_path):
    assert traces._read(tmp_path / "none.jsonl") is None
    (tmp_path / "odd.jsonl").write_text('["malloc",1,512,"op"]\n')
    assert traces._read(tmp_path / "odd.jsonl") is None


def test_a_phase_that_turned_out_to_be_another_is_read_as_that_one():
    lines = [
        '["phase","train"]',
        '["malloc",1,10,"a"]',
        '["phase","eval"]',
        '["free",1]',
        '["phase_was","train"]',
        '["phase","eval"]',
    ]
    rows = decode([HEADER, *lines]).rows
    assert [row.name for row in rows if isinstance(row, Phase)] == ["train", "train", "eval"]
    assert encode_row(PhaseWas("train")) == lines[4]


def test_the_collector_rests_while_a_trace_is_read_and_is_then_as_it_was():
    looked: list[bool] = []

    def lines():
        yield HEADER
        looked.append(gc.isenabled())

    assert gc.isenabled()
    decode(lines())
    assert looked == [False] and gc.isenabled()
    gc.disable()
    try:
        decode([HEADER])
        assert not gc.isenabled(), "who had it off has it off"
    finally:
        gc.enable()
    with pytest.raises(ValueError, match="not a trace"):
        decode(['["malloc",1,512,"op"]\n'])
    assert gc.isenabled(), "also after an error"
