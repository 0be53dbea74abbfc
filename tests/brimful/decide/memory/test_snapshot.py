"""A predicted run for PyTorch's viewer: its peaks, the stack and category of each allocation."""

import pickle
import pickletools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.decide.memory.breakdown import annotate
from brimful.decide.memory.snapshot import Recorded, snapshot_of_cards
from brimful_inside.simulator.allocator_settings import DEFAULT_SETTINGS, settings_from
from brimful_inside.simulator.program import program_of
from brimful_inside.simulator.replay import replay_cards
from brimful_inside.simulator.trace import At, Free, Malloc, Phase, Site, Step, Tag, Trace
from tests.brimful.decide.programs import MIB, network

# What the reader at pytorch.org/memory_viz knows (torch/utils/viz/MemoryViz.js, `unpickle`).
OPCODES = """
    APPENDS BINGET BININT BININT1 BININT2 EMPTY_DICT EMPTY_LIST FRAME LONG1 LONG_BINGET MARK
    MEMOIZE PROTO SETITEMS SHORT_BINUNICODE STOP TUPLE2 APPEND NEWFALSE BINPUT BINUNICODE
    EMPTY_TUPLE NEWTRUE NONE BINFLOAT TUPLE TUPLE1 TUPLE3 LONG_BINPUT LIST DICT SETITEM
"""
MLP = Site(0, "blocks.3.mlp", "train.py:88 in main: loss = model(x)", "forward", "GPT")
MODEL = Site(1, "", "train.py:12 in <module>: model.cuda()", "", "")
ROWS = [
    Phase("setup"),
    Malloc(1, 4 * MIB, "aten.randn.default"),
    Phase("train"),
    Malloc(2, 0, "aten.empty.memory_format"),
    Malloc(3, 3 * MIB, "aten.addmm.default"),
    Free(3),
    Step(1),
    Free(2),
    Free(1),
]


def recorded(trace, settings=DEFAULT_SETTINGS, capacity=None):
    program = program_of(trace)
    return Recorded(program, program.sizes, annotate(trace), settings, capacity)


def allocated(entries):
    held = [0]
    for entry in entries:
        sign = {"alloc": 1, "free_requested": -1}.get(entry["action"], 0)
        held.append(held[-1] + sign * entry["size"])
    return held


@pytest.fixture(scope="module")
def small():
    notes = [(1, MODEL), (1, At(1)), (2, Tag(1, "parameter", "head", "GPT", 4)), (3, MLP)]
    trace = Trace({}, ROWS, True, [*notes, (3, At(0))])
    return snapshot_of_cards([recorded(trace)], DEFAULT_SETTINGS)


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "roundup_power2_divisions:4"])
@given(seed=st.integers(0, 400), batch_size=st.integers(1, 500))
@settings(max_examples=25, deadline=None)
def test_the_timeline_rises_to_the_predicted_peak_to_the_byte(conf, seed, batch_size):
    trace, allocator = network(seed).trace(batch_size), settings_from(conf)
    program = program_of(trace)
    (replayed,) = replay_cards(program, program.sizes, allocator)
    card = recorded(trace, allocator)
    snapshot = snapshot_of_cards([card, card], allocator)
    first, second = snapshot["device_traces"]
    assert max(allocated(first)) == max(allocated(second)) == replayed.peak.allocated
    reserved = sum(s["total_size"] for s in snapshot["segments"] if s["device"] == 1)
    assert reserved == replayed.peak.reserved, "nothing is given back in these"


def test_what_the_script_frees_at_its_end_is_left_out(small):
    (entries,) = small["device_traces"]
    assert allocated(entries)[-1] == 4 * MIB
    assert sum(segment["allocated_size"] for segment in small["segments"]) == 4 * MIB


def test_an_allocation_has_its_operation_line_modules_and_category(small):
    (entries,) = small["device_traces"]
    weight, activation = [entry for entry in entries if entry["action"] == "alloc"]
    assert weight["category"] == "parameters" and weight["user_metadata"] == "parameters of head"
    assert activation["category"] == "temporaries"
    frames = [(frame["filename"], frame["line"], frame["name"]) for frame in activation["frames"]]
    assert frames == [
        ("operation", 0, "aten.addmm.default (forward)"),
        ("train.py", 88, "main: loss = model(x)"),
        ("module", 0, "GPT.blocks.3.mlp"),
        ("module", 0, "GPT.blocks.3"),
        ("module", 0, "GPT.blocks"),
        ("module", 0, "GPT"),
    ]
    kept = [b for s in small["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
    assert [block["frames"] for block in kept] == [weight["frames"]]


def test_an_entry_is_of_the_category_without_which_the_viewer_fails(small):
    categories = [entry["category"] for entry in small["device_traces"][0]]
    assert categories[0] == "unknown" and categories.count("unknown") < len(categories)


def test_phases_and_steps_stand_where_they_begin_and_end(small):
    (entries,) = small["device_traces"]
    marks = [(mark["name"], mark["stage"]) for mark in small["external_annotations"]]
    assert marks == [("setup", "START"), ("train", "START"), ("step 1", "END")]
    assert small["external_annotations"][-1]["time_us"] == len(entries)
    assert [entry["time_us"] for entry in entries] == list(range(len(entries)))


def test_the_viewer_can_read_every_byte(small):
    used = {opcode.name for opcode, *_ in pickletools.genops(pickle.dumps(small, 4))}
    assert used <= set(OPCODES.split())
