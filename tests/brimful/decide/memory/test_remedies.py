"""What would make it fit, from values alone: what the script does already, and what arithmetic says
of changes.
"""

from dataclasses import replace

import pytest

from brimful.decide.memory import remedies
from brimful.decide.memory.breakdown import annotate
from brimful.decide.memory.remedies import Memory
from brimful_inside.simulator.program import program_of
from brimful_inside.simulator.roofline import Kernel
from brimful_inside.simulator.trace import (
    At,
    Backward,
    Free,
    Malloc,
    Phase,
    Ready,
    Retire,
    Site,
    Step,
    Tag,
    Uses,
)
from tests.brimful.decide.programs import CONTEXT, GIB, MIB, card, one_step, traced

CARD = card(4 * GIB, context=CONTEXT)


def memory(*rows) -> Memory:
    trace = traced(*rows)
    program = program_of(trace)
    return Memory(CARD, program, program.sizes, annotate(trace))


def test_an_epoch_is_replayed_as_far_as_the_first_order_that_does_not_fit():
    small, large = (memory(Malloc(1, size, "aten.mm"), Step(1)) for size in (GIB, 5 * GIB))
    orders = (small.program, large.program, replace(small.program))
    over_an_epoch = replace(small, epochs=orders)
    assert over_an_epoch.verdict == "does_not_fit" and over_an_epoch.rank[0] > small.rank[0]
    assert replace(small, epochs=orders[:1]).verdict == "fits"
    room = CARD.sure_bytes
    assert over_an_epoch.replay(room).full and not orders[2].replays
    assert over_an_epoch.replay(None).peak == large.replay(None).peak


def test_a_script_whose_products_are_of_half_types_has_no_use_for_autocast():
    half, whole = Kernel("aten.mm", "bf16", 10**12, 10**9), Kernel("aten.mm", "tf32", 10**9, 10**9)
    other = Kernel("aten.add", "memory", 0, 10**9)
    steps = ([half, whole, other], [half, *[whole] * 11], [other])
    assert [remedies.computes_in_half(step) for step in steps] == [True, False, False], (
        "no product says it"
    )


def test_what_the_script_does_already_is_known_by_its_trace():
    assert remedies.switched_already(memory(Phase("train"), *one_step(1, 10)).annotated) == set()
    assert remedies.switched_already(
        memory(Uses("autocast"), Phase("train"), *one_step(1, 10)).annotated
    ) == {"mixed-precision"}
    again = [Site(7, "h", "a.py:1 in f", "recomputation", "Net"), At(7), Malloc(90, MIB, "aten.mm")]
    checkpointed = memory(Phase("train"), Backward(True), *again, Backward(False))
    assert remedies.switched_already(checkpointed.annotated) == {"gradient-checkpointing"}


def test_cards_without_bfloat16_need_a_scaler():
    assert "torch.float16" in remedies.autocast_line(
        (7, 5)
    ) and "GradScaler" in remedies.autocast_line((7, 5))
    assert "torch.bfloat16" in remedies.autocast_line(
        (8, 0)
    ) and "GradScaler" not in remedies.autocast_line((8, 0))


def adam_states(itemsize=4, count=2) -> Memory:
    rows = [Malloc(50 + n, 1000 * 4096 * itemsize, "aten.zeros_like") for n in range(count)]
    tags = [Tag(50 + n, "optimizer_state", "h", "Net", itemsize) for n in range(count)]
    small = [
        Malloc(70, 64 * itemsize, "aten.zeros_like"),
        Tag(70, "optimizer_state", "h.norm", "Net", itemsize),
    ]
    return memory(*rows, *tags, *small, Phase("train"), *one_step(1, 10))


@pytest.mark.parametrize("itemsize", [4, 2])
def test_eight_bit_states_take_a_byte_an_element_and_a_scale_for_each_block(itemsize):
    before = adam_states(itemsize)
    allocated = [
        held.replay(None).peak.allocated for held in (before, before.resized(remedies.eight_bit))
    ]
    # blocks of this size are not cut to the element, so that there is some more to save
    assert allocated[0] - allocated[1] == pytest.approx(
        2 * 1000 * 4096 * (itemsize - 1 - 4 / 256), rel=0.04
    )


def test_what_a_step_takes_for_all_parameters_goes_with_a_fused_optimizer_and_is_shared_by_cards():
    step = [
        Site(7, "", "a.py:1 in f", "optimizer", ""),
        At(7),
        Malloc(90, 400 * MIB, "aten._foreach_sqrt"),
        Free(90),
    ]
    held = memory(Phase("train"), *one_step(1, 10), *step, Step(1))
    assert held.replay(None).peak.allocated >= 400 * MIB
    for resize in (remedies.fused, remedies.eight_bit):
        assert held.resized(resize).replay(None).peak.allocated < 400 * MIB
    assert max(held.resized(remedies.sharded(4)).sizes) == 100 * MIB
    elsewhere = memory(
        Phase("train"), *one_step(1, 10), step[0]._replace(during="backward"), *step[1:], Step(1)
    )
    assert max(elsewhere.resized(remedies.fused).sizes) == 400 * MIB, (
        "a backward pass keeps its own"
    )


def test_states_of_one_byte_stay_as_they_are():
    held = adam_states(itemsize=1)
    assert held.resized(remedies.eight_bit).bytes_of("optimizer_state") == held.bytes_of(
        "optimizer_state"
    )


def steps() -> Memory:
    """Two steps: 64 MiB of activations, then 8 MiB of gradients, which are dropped after
    the step.
    """
    rows = [Phase("train")]
    for step in (1, 2):
        first = 10 * step
        rows += [Malloc(first, 64 * MIB, "aten.mm"), Backward(True), Free(first)]
        rows += [
            Malloc(first + 1, 8 * MIB, "aten.mm"),
            Tag(first + 1, "gradient", "h", "Net", 4),
            Backward(False),
        ]
        rows += [Free(first + 1), Step(step)]
    return memory(*rows)


def test_gradients_that_are_summed_live_on_beside_the_activations_and_need_their_room():
    held = steps()
    assert held.bytes_of("gradients") == 8 * MIB
    summed = held.with_all_gradients()
    assert summed.device_bytes == held.device_bytes + 8 * MIB
    assert summed.with_all_gradients().more_bytes == 8 * MIB
    room = held.replay(None).peak.reserved
    assert held.replay(room).full is None and summed.replay(room).full is not None


def test_gradients_that_another_stream_used_last_are_gone_as_well():
    rows = [Phase("train")]
    for number in (1, 2, 3):
        rows += [
            Malloc(number, 8 * MIB, "aten.mm"),
            Tag(number, "gradient", "h", "Net", 4),
            Retire(number),
            Ready(number),
        ]
    assert memory(*rows).bytes_of("gradients") == 8 * MIB


def test_a_smaller_evaluation_shrinks_what_it_makes_and_its_workspaces_and_nothing_else():
    weights = [Malloc(1, 100 * MIB, "aten.empty"), Tag(1, "parameter", "h", "Net", 4)]
    evaluation = [
        Phase("eval"),
        Malloc(90, 200 * MIB, "aten.mm"),
        Malloc(91, 80 * MIB, "cudnn_forward"),
        Free(91),
        Free(90),
    ]
    held = memory(*weights, Phase("train"), *one_step(1, 10), *evaluation)
    assert held.phase == "eval"
    quarter = held.resized(remedies.evaluation_in(4))
    assert [
        (before, after)
        for before, after in zip(held.sizes, quarter.sizes, strict=True)
        if before != after
    ] == [(200 * MIB, 50 * MIB), (80 * MIB, 20 * MIB)]


def test_shards_are_a_part_of_each_and_some_blocks_are_whole():
    rows = []
    for number, module in enumerate(
        ("embedding", "layers.0.up", "layers.0.down", "layers.1.up", "layers.2.up")
    ):
        rows += [Malloc(number, 40 * MIB, "aten.empty"), Tag(number, "parameter", module, "Net", 4)]
    held = memory(*rows, Phase("train"), Malloc(90, 100 * MIB, "aten.mm"), Free(90))
    embedding, parameters, gradients = 2 * 40, 80 + 40 + 40, 80 + 40
    assert remedies.gathered_bytes(held) == (embedding + parameters + gradients) * MIB, (
        "three blocks and gradients of two"
    )
    quarter = held.resized(remedies.sharded(4))
    assert quarter.bytes_of("parameters") == 50 * MIB and quarter.sizes[-1] == 100 * MIB


def test_a_loss_in_chunks_shrinks_the_logits_in_either_precision_and_leaves_layers_alone():
    logits = 64 * MIB
    rows = [Phase("train"), Malloc(1, 40 * MIB, "aten.mm"), Malloc(2, logits // 2, "aten.mm")]
    rows += [
        Malloc(3, logits, "aten._to_copy"),
        Malloc(4, logits, "aten._log_softmax"),
        Backward(True),
        Backward(False),
    ]
    held = memory(*rows)
    resize = remedies.chunked_loss(held)
    assert list(held.resized(resize).sizes) == [40 * MIB, logits // 16, logits // 8, logits // 8]
    assert (
        remedies.chunked_loss(replace(held, card=replace(CARD, context_bytes=100 * GIB))) is None
    ), "too small to matter"
    assert remedies.chunked_loss(memory(Phase("train"), *one_step(1, 10))) is None


def looped(made: str, ends_in_backward: bool = False, keeps: bool = False) -> Memory:
    """Three steps, each of which makes 64 MiB of activations, and 40 MiB that `made` says, which
    the next step ends: before its backward pass, or in it; or none ends, if it `keeps` them."""
    rows = [Phase("train"), Site(1, "", "a.py:7 in f: y = net(x)"), At(1)]
    for step in (1, 2, 3):
        last, activation, result = 10 * step - 10, 10 * step + 1, 10 * step
        ends = [Free(last)] if step > 1 and not keeps else []
        makes = [Malloc(result, 40 * MIB, "aten.mm")]
        makes += [Tag(result, "gradient", "h", "Net", 4)] * (made == "gradient")
        rows += [Malloc(activation, 64 * MIB, "aten.mm")]
        rows += [] if made == "gradient" else makes
        rows += [] if ends_in_backward else ends
        rows += [Backward(True), Free(activation)]
        rows += (makes if made == "gradient" else []) + [Backward(False)]
        rows += (ends if ends_in_backward else []) + [Step(step)]
    return memory(*rows)


@pytest.mark.parametrize(
    ("held", "concerns", "less"),
    [
        (looped("result"), remedies.is_a_result, 40),
        (looped("gradient"), remedies.is_a_gradient, 40),
        (looped("gradient"), remedies.is_a_result, 0),
        # what the next step computes with (a recurrent network's state) cannot end before it
        (looped("result", ends_in_backward=True), remedies.is_a_result, 0),
        (looped("result", keeps=True), remedies.is_a_result, 0),
    ],
)
def test_what_the_next_step_ends_may_end_before_it_unless_that_goes_on_with_it(
    held, concerns, less
):
    sooner = held.freed_sooner(concerns)
    before, after = (memory.replay(None).peak.allocated for memory in (held, sooner))
    assert before - after == less * MIB
    assert bool(held.carried_over(concerns)) == bool(less)
    assert sorted(sooner.program.events) == sorted(held.program.events)


def test_the_result_of_an_evaluation_batch_may_end_before_the_next_one():
    rows = [Phase("eval")]
    for batch in (1, 2, 3):
        of_batch = 10 * batch
        rows += [Malloc(of_batch, MIB, "aten.copy"), Tag(of_batch, "input"), Free(of_batch)]
        rows += [Malloc(of_batch + 1, 100 * MIB, "aten.mm")]
        rows += [Free(of_batch - 9)] if batch > 1 else []
    held = memory(*rows)
    assert list(held.carried_over(remedies.is_a_result)) == [1, 3]
    before, after = (m.device_bytes for m in (held, held.freed_sooner(remedies.is_a_result)))
    assert before - after == 100 * MIB
