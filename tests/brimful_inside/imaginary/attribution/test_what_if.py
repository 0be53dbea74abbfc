"""One thing is done otherwise than the script does it: what changes, and what does not."""

import io

import pytest
import torch
from torch import nn

from brimful_inside.imaginary import enter
from brimful_inside.imaginary.attribution.what_if import blocks_that_repeat, lower_precision
from brimful_inside.simulator.trace import RECOMPUTATION, Malloc, Site, Uses
from tests.brimful_inside.imaginary.conftest import card

from .training import Block, Net, traced, train

BATCH = 512


def program(trace):
    return [(row.op, row.nbytes) for row in trace.rows if isinstance(row, Malloc)]


def plain():
    train(Net(), batch=BATCH)


def in_autocast():
    train(Net(), autocast=True, batch=BATCH)


def test_autocast_changes_nothing_where_it_is_on():
    assert program(traced(in_autocast, ["autocast"])[0]) == program(traced(in_autocast)[0])


def test_what_a_model_answers_in_evaluation_comes_in_float32():
    answers = []

    def evaluate():
        with torch.no_grad():
            answers.extend(Net().cuda().eval()(torch.randn(4, 64).cuda()) for _ in range(2))

    trace, _ = traced(evaluate, ["autocast"])
    assert [answer.dtype for answer in answers] == [torch.float32] * 2
    assert any(row.nbytes == 4 * 256 * 2 for row in trace.rows if isinstance(row, Malloc)), (
        "the layers ran in two bytes"
    )


def test_older_cards_are_given_float16():
    assert (lower_precision((7, 5)), lower_precision([8, 0])) == (torch.float16, torch.bfloat16)


def test_checkpointing_from_outside_is_as_the_script_would_write_it():
    wanted, peak = traced(lambda: train(Net(checkpoints=True), batch=BATCH))
    trace, changed_peak = traced(plain, ["checkpointing"])
    assert program(trace) == program(wanted)
    assert abs(changed_peak - peak) <= BATCH * 64 * 4, "the last batch may die a moment sooner"
    assert peak < traced(plain)[1]
    again = {
        note.module
        for _, note in trace.notes
        if isinstance(note, Site) and note.during == RECOMPUTATION
    }
    assert {f"layers.{n}.drop" for n in range(3)} <= again
    assert Uses("what_if: 3 blocks of layers") in [note for _, note in trace.notes]


@pytest.mark.parametrize(
    "order",
    [["autocast"], ["autocast", "checkpointing"], ["checkpointing", "autocast"]],
    ids="-".join,
)
def test_from_outside_it_is_as_the_script_would_write_it_whichever_comes_first(order):
    wanted, peak = traced(
        lambda: train(Net(checkpoints=len(order) > 1), autocast=True, batch=BATCH)
    )
    trace, changed_peak = traced(plain, order)
    assert program(trace) == program(wanted)
    assert abs(changed_peak - peak) <= (BATCH * 64 * 4 if len(order) > 1 else 0)
    assert peak < traced(plain)[1]


def test_a_models_own_checkpointing_is_taken_where_it_has_one():
    class Own(Net):
        supports_gradient_checkpointing = True

        def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
            assert gradient_checkpointing_kwargs == {"use_reentrant": False}
            self.checkpoints = True

    def work():
        Own().cuda()(torch.randn(BATCH, 64).cuda()).sum().backward()

    trace, peak = traced(work, ["checkpointing"])
    assert peak < traced(work)[1]
    assert Uses("what_if: own model.gradient_checkpointing_enable()") in [
        note for _, note in trace.notes
    ]


@pytest.mark.parametrize("has_it", [True, False])
def test_timms_switch_is_taken_unless_the_model_refuses_it(has_it):
    class Timm(Net):
        def set_grad_checkpointing(self, enable=True):
            assert has_it, "gradient checkpointing not supported"
            self.checkpoints = enable

    trace, _ = traced(
        lambda: Timm().cuda()(torch.randn(BATCH, 64).cuda()).sum().backward(), ["checkpointing"]
    )
    used = "own model.set_grad_checkpointing()" if has_it else "3 blocks of layers"
    assert Uses("what_if: " + used) in [note for _, note in trace.notes]


def test_the_blocks_that_repeat_are_those_that_have_parts_the_innermost():
    stages = nn.Sequential(
        *(nn.ModuleDict({"blocks": nn.Sequential(Block(8), Block(8))}) for _ in range(2))
    )
    layers = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))  # are no blocks
    blocks_and_head = nn.Sequential(Block(8), Block(8), nn.Linear(8, 8))
    for model, expected in (
        (stages, {"0.blocks": 2, "1.blocks": 2}),
        (layers, {}),
        (blocks_and_head, {"": 2}),
    ):
        assert {path: len(blocks) for path, blocks in blocks_that_repeat(model)} == expected


def test_an_unknown_name_and_a_missing_trace_are_refused():
    for file, what_if, words in (
        (io.StringIO(), "magic", "no what-if is called 'magic'"),
        (None, "autocast", "needs a trace"),
    ):
        with pytest.raises(ValueError, match=words):
            enter(card(), None, file, what_if=[what_if])


def test_autocast_is_reported_as_used_where_the_script_uses_it_and_not_where_we_do():
    for work, what_if in ((in_autocast, []), (plain, ["autocast"]), (plain, [])):
        notes = [note for _, note in traced(work, what_if)[0].notes]
        assert (Uses("autocast") in notes) is (work is in_autocast)
