"""Where the memory went: the parts add up to the device peak, each allocation has one category,
each module its own bytes.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.decide.memory.breakdown import CATEGORIES, LiveBlocks, annotate, break_down
from brimful.decide.memory.size_model import fit_size_model
from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.allocator_settings import DEFAULT_SETTINGS, settings_from
from brimful_inside.simulator.program import program_of
from brimful_inside.simulator.replay import replay, replay_cards
from brimful_inside.simulator.trace import At, Backward, Free, Malloc, Phase, Site, Tag
from tests.brimful.decide.programs import CONTEXT, FORWARD, MIB, network, one_step, traced
from tests.brimful_inside.simulator.random_programs import program_from, random_program

CONFIGURATIONS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "roundup_power2_divisions:4",
]


def broken_down(trace, **more):
    program = program_of(trace)
    return break_down(program, program.sizes, annotate(trace), CONTEXT, **more)


def replayed(trace, settings=DEFAULT_SETTINGS):
    program = program_of(trace)
    (breakdown,) = replay_cards(program, program.sizes, settings)
    return breakdown


def categories(trace):
    return [allocation.category for allocation in annotate(trace).allocations]


@pytest.mark.parametrize("conf", CONFIGURATIONS)
@given(st.integers(0, 400), st.integers(1, 500))
@settings(max_examples=40, deadline=None)
def test_the_parts_add_up_to_the_device_peak_of_the_run_and_of_each_phase(conf, seed, batch_size):
    trace, program_settings = network(seed).trace(batch_size), settings_from(conf)
    played, made = replayed(trace, program_settings), broken_down(trace, settings=program_settings)
    assert sum(made.whole.parts.values()) == played.peak.reserved + CONTEXT
    assert {name: sum(b.parts.values()) for name, b in made.phases.items()} == {
        name: peaks.reserved + CONTEXT for name, peaks in played.phases.items()
    }
    live = sum(made.whole.parts[name] for name in CATEGORIES if name not in ("cache", "context"))
    assert live == played.peak.allocated
    assert sum(share.bytes for share in made.whole.modules) <= live


@given(st.integers(0, 100), st.integers(1, 300))
def test_the_notes_of_one_trace_serve_every_batch_size(seed, batch_size):
    script = network(seed)
    small, asked = script.trace(5), script.trace(batch_size)
    model = fit_size_model({5: program_of(small), 12: program_of(script.trace(12))})
    extrapolated = break_down(model.program, model.sizes_at(batch_size), annotate(small), CONTEXT)
    assert extrapolated == broken_down(asked)


def test_annotations_of_another_program_are_refused():
    trace, other = network(1).trace(5), traced(Malloc(1, 10, "aten.zeros"))
    program = program_of(trace)
    with pytest.raises(ValueError, match="annotated"):
        break_down(program, program.sizes, annotate(other), CONTEXT)


SETUP = Site(9, "", "train.py:1 in main: net.cuda()")
WEIGHT = [
    SETUP,
    At(9),
    Malloc(1, MIB, "aten._to_copy.default"),
    Tag(1, "input"),
    Tag(1, "parameter", "layers.0", "Net", 4),
]


def test_a_tag_or_its_life_gives_each_allocation_its_category():
    trace = traced(
        *WEIGHT,
        Malloc(2, MIB, "aten.clone.default"),
        Phase("train"),
        Malloc(3, MIB, "aten._to_copy.default"),
        Tag(3, "input"),
        Malloc(4, MIB, "cublas", "cublas", (8, 0, 213)),
        Malloc(5, MIB, "sort (temporary)", "cudnn_like"),
        Free(5),
        *one_step(1, 10),
        *one_step(2, 20),
        *one_step(3, 30),
    )
    assert categories(trace) == [
        "parameters",
        "other",
        "inputs",
        "workspaces",
        "temporaries",
        *["activations", "temporaries", "temporaries", "gradients", "temporaries"] * 3,
    ]


def test_results_that_the_script_collects_are_no_activations():
    steps = [
        [Malloc(100 + n, 512, "aten.mean.default"), *one_step(n, 10 * n)] for n in (1, 2, 3, 4)
    ]
    breakdown = categories(
        traced(*WEIGHT, Phase("train"), *(row for step in steps for row in step))
    )
    assert [breakdown[1 + 6 * n] for n in range(4)] == [
        "other",
        "other",
        "activations",
        "activations",
    ], "two steps show nothing"


def test_a_forward_pass_that_is_done_again_makes_activations():
    rows = [
        FORWARD,
        At(0),
        Backward(True),
        Site(5, "layers.0", "train.py:9 in main: loss.backward()", "recomputation", "Net"),
        At(5),
        Malloc(7, MIB, "aten.mm.default"),
        Backward(False),
    ]
    assert categories(traced(Phase("train"), *rows)) == ["activations"]


def test_the_moment_names_the_operation_the_module_and_the_line():
    made = broken_down(traced(*WEIGHT, Phase("train"), *one_step(1, 10)))
    moment = made.whole.moment
    assert (moment.phase, moment.op, moment.module, moment.during) == (
        "train",
        "aten.mm.default",
        "layers.0",
        "backward",
    )
    assert moment.where == "train.py:9 in main: loss.backward()"
    assert made.whole.parts["activations"] == 3 * MIB and made.whole.parts["gradients"] == MIB
    (share,) = made.whole.modules
    assert (share.module, share.bytes) == ("layers.0", 7 * MIB)
    assert share.categories == {
        "parameters": MIB,
        "gradients": MIB,
        "activations": 3 * MIB,
        "temporaries": 2 * MIB,
    }


def test_a_phase_that_never_holds_more_than_it_found_has_its_peak_at_its_beginning():
    made = broken_down(
        traced(
            *WEIGHT,
            Malloc(2, 5 * MIB, "aten.mm"),
            Phase("train"),
            Free(2),
            Malloc(3, MIB, "aten.mm"),
        )
    )
    assert (
        made.phases["train"].moment.op == "" and sum(made.phases["train"].parts.values()) >= 6 * MIB
    )


def test_where_the_allocator_grew_last_is_named_if_it_is_another_moment():
    large = [
        Malloc(2, 30 * MIB, "aten.mm"),
        Free(2),
        *[Malloc(n, MIB // 2, "aten.small") for n in range(10, 20)],
    ]
    made = broken_down(traced(Phase("train"), *large))
    assert made.whole.moment.op == "aten.mm"
    assert made.whole.grown is not None and made.whole.grown.op == "aten.small"


def test_several_models_keep_their_names_and_one_needs_none():
    assert [
        {
            share.module
            for share in broken_down(
                traced(*WEIGHT, Malloc(5, MIB, "aten.mm"), Tag(5, "parameter", "layers.0", model))
            ).whole.modules
        }
        for model in ("Net", "Critic")
    ] == [{"layers.0"}, {"Net: layers.0", "Critic: layers.0"}]


def test_modules_that_repeat_are_taken_together_and_layers_of_one_list_are_not():
    paths = [f"h.{n}.mlp.{layer}" for n in range(6) for layer in (0, 2)]
    made = [
        (Malloc(n, (n % 2 + 1) * MIB, "aten.mm"), Tag(n, "parameter", path, "N"))
        for n, path in enumerate(paths)
    ]
    tags = [row for pair in made for row in pair]
    whole = broken_down(traced(*tags)).whole
    alike = [(group.pattern, group.count, group.bytes) for group in whole.alike]
    assert alike == [("h.*.mlp.2", 6, 12 * MIB), ("h.*.mlp.0", 6, 6 * MIB)]
    assert len(whole.modules) == 10
    several = broken_down(
        traced(*tags, Malloc(99, 512, "aten.mm"), Tag(99, "parameter", "main.0", "Critic"))
    ).whole
    assert several.alike[0].pattern == "N: h.*.mlp.2"


@pytest.mark.parametrize("conf", CONFIGURATIONS)
@given(seed=st.integers(0, 1 << 40))
@settings(max_examples=40, deadline=None)
def test_live_blocks_are_those_of_the_allocator_and_each_visit_is_as_high_as_the_replay_shows(
    conf, seed
):
    program, live, held = random_program(random.Random(seed), 120), LiveBlocks(), [{}]

    def observe(event, addresses, allocator):
        live(event, addresses, allocator)
        numbers = {address: number for number, address in enumerate(addresses) if address}
        held.append({numbers[address]: block[0] for address, block in allocator._live.items()})

    played = replay(
        program,
        program.sizes,
        CachingAllocator(None, settings_from(conf), detailed=False),
        observe=observe,
    )
    assert [live.at(moment) for moment in range(len(held))] == held
    for name, peaks in played.phases.items():
        visits = [visit for visit in live.visits if visit.phase == name]
        assert max(visit.allocated for visit in visits) == peaks.allocated
        assert max(visit.reserved for visit in visits) == peaks.reserved
        assert all(sum(live.at(visit.allocated_at).values()) == visit.allocated for visit in visits)


def test_a_moment_before_everything_shows_nothing_and_a_phase_begins_at_no_allocation():
    program = program_from(
        [("malloc", "a", None, 0), ("phase", "train"), ("malloc", "b", None, 0)], [MIB, 0]
    )
    live = LiveBlocks()
    replay(program, program.sizes, CachingAllocator(), observe=live)
    assert [live.at(moment) for moment in range(4)] == [{}, {0: MIB}, {0: MIB}, {0: MIB}]
    assert [live.allocation_at(moment) for moment in range(4)] == [None, 0, None, 1]


def test_averages_of_the_weights_that_were_copied_to_the_card_are_no_inputs():
    average = [Malloc(2, MIB, "aten._to_copy.default"), Tag(2, "input")]
    dataset = [Malloc(3, 7 * MIB, "aten._to_copy.default"), Tag(3, "input")]
    batch = [
        Malloc(4, MIB, "aten._to_copy.default"),
        Tag(4, "input"),
    ]  # as large as a weight, and gone after its step
    steps = [*one_step(1, 10), Free(4), *one_step(2, 20), *one_step(3, 30)]
    breakdown = categories(traced(*WEIGHT, *average, *dataset, Phase("train"), *batch, *steps))
    assert breakdown[:4] == ["parameters", "other", "inputs", "inputs"]
