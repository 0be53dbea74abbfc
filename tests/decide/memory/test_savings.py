"""What would save memory, from values alone: what is worth a trial, what an estimate says, how a change is judged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.memory import savings
from brimful.decide.memory.breakdown import annotate, break_down
from brimful.decide.memory.size_model import fit_size_model
from brimful.values import NoSaving, Saving, Source
from brimful_inside.simulator.program import program_of
from brimful_inside.simulator.trace import At, Backward, Free, Malloc, Phase, Ready, Retire, Site, Step, Tag, Uses
from tests.decide.programs import CONTEXT, GIB, MIB, card, one_step, traced

CARD = card(4 * GIB, context=CONTEXT)


def found(*rows):
    """The whole run's breakdown of a trace, its notes, and its program."""
    trace = traced(*rows)
    program, annotated = program_of(trace), annotate(trace)
    made = break_down(program, program.sizes, annotated, CONTEXT)
    assert made is not None
    return made, annotated, program


def codes(annotated):
    """(what is worth a trial, what the script does already)."""
    changes, used = savings.changes_to_run(annotated, (8, 0))
    return [change.code for change in changes], [one.code for one in used]


def test_what_the_script_does_already_is_not_run_again():
    assert codes(found(Phase("train"), *one_step(1, 10))[1]) == (["mixed-precision", "gradient-checkpointing"], [])
    used = found(Uses("autocast"), Phase("train"), *one_step(1, 10))[1]
    assert codes(used) == (["gradient-checkpointing"], ["mixed-precision"])
    again = [Site(7, "h", "a.py:1 in f", "recomputation", "Net"), At(7), Malloc(90, MIB, "aten.mm")]
    checkpointed = found(Phase("train"), Backward(True), *again, Backward(False))[1]
    assert codes(checkpointed) == (["mixed-precision"], ["gradient-checkpointing"])


def test_cards_without_bfloat16_need_a_scaler():
    annotated = found(Phase("train"), *one_step(1, 10))[1]
    hows = {c: savings.changes_to_run(annotated, c)[0][0].how for c in ((7, 5), (8, 0))}
    assert "torch.float16" in hows[7, 5] and "GradScaler" in hows[7, 5]
    assert "torch.bfloat16" in hows[8, 0] and "GradScaler" not in hows[8, 0]


@given(st.integers(1, 40 * GIB), st.integers(0, 40 * GIB), st.sampled_from([Source.PREDICTED, Source.ESTIMATE]))
def test_a_change_that_saves_nothing_is_never_listed_as_saving(before, after, source):
    judged = savings.judged(CARD, "mixed-precision", "how", before, after, source)
    if isinstance(judged, Saving):
        assert judged.saved_bytes == before - after >= MIB
        assert judged.new_peak_bytes == after and judged.source is source
        assert judged.fits == (CARD.around(after)[1] <= CARD.budget_bytes)
    else:
        assert before - after < max(MIB, before / 1000) and isinstance(judged, NoSaving)
        assert ("higher" in judged.why) == (after - before >= max(MIB, before / 1000))


def adam_states(itemsize=4, count=2):
    rows = [Malloc(50 + n, 1000 * 4096 * itemsize, "aten.zeros_like") for n in range(count)]
    tags = [Tag(50 + n, "optimizer_state", "h", "Net", itemsize) for n in range(count)]
    small = [Malloc(70, 64 * itemsize, "aten.zeros_like"), Tag(70, "optimizer_state", "h.norm", "Net", itemsize)]
    return found(*rows, *tags, *small, Phase("train"), *one_step(1, 10))[0]


@pytest.mark.parametrize("itemsize", [4, 2])
def test_eight_bit_states_take_a_byte_an_element_and_a_scale_for_each_block(itemsize):
    saving = savings.eight_bit_states(CARD, adam_states(itemsize), ["AdamW"], 2 * GIB)
    assert isinstance(saving, Saving) and saving.source is Source.ESTIMATE
    # blocks of this size are not cut to the element, so that there is some more to save
    assert saving.saved_bytes == pytest.approx(2 * 1000 * 4096 * (itemsize - 1 - 4 / 2048), rel=0.03)
    assert saving.how == "bitsandbytes.optim.AdamW8bit in place of AdamW"


def test_optimizers_that_have_no_such_form_and_those_without_states_have_no_saving():
    assert savings.eight_bit_states(CARD, adam_states(), ["Muon"], GIB) is None
    assert savings.eight_bit_states(CARD, found(Phase("train"), *one_step(1, 10))[0], ["AdamW"], GIB) is None


def at_size(batch):
    """Two steps whose activations grow with the batch; gradients of 8 MiB are dropped after each step."""
    rows = [Phase("train")]
    for step in (1, 2):
        first = 10 * step
        rows += [Malloc(first, batch * MIB, "aten.mm"), Backward(True), Malloc(first + 1, 8 * MIB, "aten.mm")]
        rows += [Tag(first + 1, "gradient", "h", "Net", 4), Free(first), Backward(False), Free(first + 1), Step(step)]
    return traced(*rows)


def test_micro_batches_hold_a_part_of_the_activations_and_all_of_the_gradients():
    traces = {size: at_size(size) for size in (5, 12)}
    model = fit_size_model({size: program_of(trace) for size, trace in traces.items()})
    assert model is not None
    annotated = annotate(traces[5])
    assert savings.most_gradients(model.program, model.sizes_at(64), annotated) == 8 * MIB
    before = sum(break_down(model.program, model.sizes_at(64), annotated, CONTEXT).whole.parts.values())
    halves, quarters = savings.micro_batches(CARD, model, annotated, 64, before)
    assert (halves.saved_bytes, quarters.saved_bytes) == (32 * MIB, 48 * MIB)
    assert (halves.code, halves.what) == ("accumulation-2", "2 micro-batches of 32")
    assert [s.code for s in savings.micro_batches(CARD, model, annotated, 12, before)] == ["accumulation-2"], (
        "5 is the smallest"
    )


def test_gradients_that_another_stream_used_last_are_gone_as_well():
    rows = [Phase("train")]
    for number in (1, 2, 3):
        rows += [Malloc(number, 8 * MIB, "aten.mm"), Tag(number, "gradient", "h", "Net", 4), Retire(number), Ready(number)]
    program, annotated = program_of(traced(*rows)), annotate(traced(*rows))
    assert savings.most_gradients(program, program.sizes, annotated) == 8 * MIB
