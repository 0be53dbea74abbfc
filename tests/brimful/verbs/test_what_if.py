"""Where the memory goes, and what would help most, in worlds where the truth is known."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from brimful import predict
from brimful.ask.epochs import Epochs
from brimful.ask.reading import MemoryAnswer
from brimful.decide.memory import changes, uneven
from brimful.decide.memory.changes import Situation
from brimful.decide.memory.remedies import Memory
from brimful.decide.memory.size_model import fit_size_model
from brimful.errors import Interrupted, Terminated
from brimful.values import Outcome, Source
from brimful.verbs import what_if
from brimful.verbs.what_if import explain
from brimful_inside.simulator.program import joined, program_of
from brimful_inside.simulator.roofline import BY_GRAPH, BY_OPTIMIZER, MEMORY, Kernel
from brimful_inside.simulator.trace import CardTrace, Free, Malloc, Settings, Tag, Uses
from tests.brimful.decide.programs import card, network
from tests.brimful.verbs.world import COMMAND, GIB, MIB, Ragged, Uneven, World, work

ASKED = ("my-train", "--batch-size", "100")


def run(world, argv=ASKED, memory="4GiB", **more):
    return work(world, predict, argv, gpu_memory=memory, **more).prediction


def world(**more):
    return World(linear=100 * MIB, helps={"checkpointing": 0.25, "autocast": 0.5}, **more)


def test_the_cheapest_changes_come_first_each_on_top_of_the_last_until_it_fits():
    there = world()
    prediction = run(there)
    assert prediction.verdict == "does_not_fit" and prediction.what_if is not None
    last = prediction.what_if.remedies[-1]
    assert last.verdict == "fits" and all(
        remedy.verdict != "fits" for remedy in prediction.what_if.remedies[:-1]
    )
    parts = -(-100 // prediction.largest_batch_size)
    assert last.code == f"accumulation-{parts}" and last.source is Source.ESTIMATE, (
        "as few parts as fit"
    )
    size = -(-100 // parts)
    assert last.device_bytes == pytest.approx(
        prediction.peak.device_bytes - (100 - size) * 100 * MIB, rel=0.02
    )
    assert f"batches of {size}, optimizer.step() after every {parts}" in last.how
    assert not any(trial.what_ifs for trial in there.launched), (
        "no trial where arithmetic on the search's own tells"
    )


def test_where_no_micro_batch_is_small_enough_switches_are_tried_together():
    there = world(fixed=3 * GIB)
    prediction = run(there, ("my-train", "--batch-size", "1"), memory="3.55GiB")
    codes = [remedy.code for remedy in prediction.what_if.remedies]
    assert codes[:2] == ["mixed-precision", "gradient-checkpointing"]
    assert [trial.what_ifs for trial in there.launched if trial.what_ifs] == [
        ("autocast",),
        ("autocast", "checkpointing"),
    ]
    assert all(trial.capacity_bytes is None for trial in there.launched if trial.what_ifs)
    peaks = [
        prediction.peak.device_bytes,
        *(remedy.device_bytes for remedy in prediction.what_if.remedies),
    ]
    assert peaks == sorted(peaks, reverse=True)
    assert [remedy.source for remedy in prediction.what_if.remedies[:2]] == [Source.PREDICTED] * 2


def test_micro_batches_are_traced_where_no_model_gives_their_sizes():
    there = Ragged(dataset=None)
    prediction = run(there)
    last = prediction.what_if.remedies[-1]
    size = there.launched[-1].settings["batch_size"]
    assert last.code == f"accumulation-{-(-100 // size)}" and last.verdict == "fits"
    assert (
        size <= prediction.largest_batch_size < 100
        and f"a trial at batch size {size}" in last.basis
    )
    alone = run(Ragged(dataset=None), ("my-train", "--batch-size", str(size)))
    assert last.device_bytes == alone.peak.device_bytes


def test_micro_batches_are_halved_no_further_where_something_else_sets_the_peak(monkeypatch):
    there = Ragged(dataset=None)
    monkeypatch.setattr(Situation, "fits", False)
    monkeypatch.setattr(Memory, "rank", property(lambda self: (0, GIB)))
    run(there)
    limitless = [t.settings["batch_size"] for t in there.launched if t.capacity_bytes is None]
    micro_batches = [size for size in limitless if size < 100]
    assert len(micro_batches) == 2 and micro_batches[-1] > 4


def test_where_the_script_fails_in_micro_batches_none_are_recommended():
    there = Ragged(
        dataset=None, outcome_of=lambda trial, size: Outcome.CRASHED if size == 20 else None
    )
    prediction = run(there)
    assert there.launched[-3].settings["batch_size"] == 20, "and two trials of other changes"
    codes = [remedy.code for remedy in prediction.what_if.remedies]
    assert not any(code.startswith("accumulation") for code in codes)
    why = {other.code: other.why for other in prediction.what_if.others}["accumulation-5"]
    assert why == "the command fails with it: crashed"


@pytest.mark.parametrize(
    ("by", "code"), [(Interrupted, 130), (KeyboardInterrupt, 130), (Terminated, 143)]
)
def test_an_answer_is_shown_although_the_trials_of_changes_were_cut_short(by, code):
    def outcome_of(trial, size):
        if "checkpointing" in trial.what_ifs:
            raise by
        return None

    argv = ("my-train", "--batch-size", "1")
    there = world(fixed=3 * GIB, outcome_of=outcome_of)
    record = work(there, predict, argv, gpu_memory="3.55GiB")
    whole = run(world(fixed=3 * GIB), argv, memory="3.55GiB")
    assert record.prediction.peak == whole.peak and record.closed.exit_code == code
    assert [remedy.code for remedy in record.prediction.what_if.remedies] == ["mixed-precision"]
    assert [w.code for w in record.prediction.warnings if "not every change" in w.problem] == [
        "partial"
    ]


@pytest.mark.parametrize(("asked", "is_tried"), [(None, False), (True, True)])
def test_after_a_long_search_changes_take_trials_only_if_asked_for(monkeypatch, asked, is_tried):
    monkeypatch.setattr(what_if, "_LONG_S", 0.0)
    there = world(fixed=3 * GIB)
    answer = run(there, ("my-train", "--batch-size", "1"), "3.55GiB", what_if=asked).what_if
    assert any(trial.what_ifs for trial in there.launched) is is_tried
    assert any("--what-if tries it" in other.why for other in answer.others) is not is_tried


def test_what_fits_is_not_tried_further_unless_you_ask_and_nothing_where_you_forbid_it():
    there = world()
    assert run(there, memory="40GiB").what_if is run(there, what_if=False).what_if is None
    assert not any(trial.what_ifs for trial in there.launched)
    asked = run(world(), memory="40GiB", what_if=True).what_if
    assert asked is not None and [remedy.code for remedy in asked.remedies] == [
        "mixed-precision",
        "gradient-checkpointing",
    ]
    assert all(remedy.verdict == "fits" for remedy in asked.remedies)


def test_asked_for_the_largest_batch_size_that_fits_then_is_found_and_does_fit():
    there = world()
    prediction = run(there, what_if=True, memory="15GiB")
    remedies = {remedy.code: remedy for remedy in prediction.what_if.remedies}
    both = remedies["gradient-checkpointing"]
    assert (
        prediction.largest_batch_size
        < remedies["mixed-precision"].largest_batch_size
        < both.largest_batch_size
    )
    at = there.fixed + 0.5 * 0.25 * there.activations(both.largest_batch_size)
    assert at < prediction.budget.bytes < 2 * at, "the interval keeps a margin"
    limited = run(world(dataset=110), what_if=True, memory="15GiB").what_if.remedies
    assert all(
        remedy.largest_batch_size is None or remedy.largest_batch_size <= 110 for remedy in limited
    )


class Switches(World):
    """A script that switches expandable segments on."""

    def rows(self, size):
        return [Settings("expandable_segments:True"), *super().rows(size)]


@pytest.mark.parametrize(
    ("there", "code", "why"),
    [
        (World(helps={"autocast": 1.5}), "mixed-precision", "the predicted peak is higher"),
        (World(), "gradient-checkpointing", "the predicted peak is no lower"),
        (Switches(), "expandable-segments", "the command uses them already"),
        (
            World(
                outcome_of=lambda trial, size: (
                    Outcome.CRASHED if "autocast" in trial.what_ifs else None
                )
            ),
            "mixed-precision",
            "the command fails with it: crashed",
        ),
    ],
)
def test_a_change_that_does_not_help_says_why_and_is_not_kept(there, code, why):
    there = replace(there, linear=100 * MIB, launched=[])
    what_if = run(there, what_if=True, memory="40GiB").what_if
    switched = [trial.what_ifs for trial in there.launched if trial.what_ifs]
    assert switched == [("autocast",), ("checkpointing",)], "neither stays for the next"
    assert {other.code: other.why for other in what_if.others}[code] == why
    assert code not in [remedy.code for remedy in what_if.remedies]


class Evaluating(World):
    """An evaluation takes 100 MiB for each sample of its batch."""

    def launch(self, trial, folder, record_folder, *more):
        self.eval_bytes = 100 * MIB * int(trial.settings.get("eval_batch_size", 1))
        return super().launch(trial, folder, record_folder, *more)


EVALUATES = (*COMMAND[:2], "20", "--eval-batch-size", "{eval_batch_size}")


@pytest.mark.parametrize(("size", "parts"), [(60, 2), (120, 4), (240, 8)])
def test_an_evaluation_batch_is_as_small_as_makes_it_fit_and_no_costlier_change_is_made(
    size, parts
):
    there = Evaluating(linear=MIB)
    prediction = run(there, EVALUATES, settings={"eval_batch_size": size})
    (remedy,) = prediction.what_if.remedies
    assert (remedy.code, remedy.verdict, remedy.source) == ("eval-batch", "fits", Source.PREDICTED)
    assert there.launched[-1].settings["eval_batch_size"] == size // parts
    (remedy,) = run(
        World(linear=MIB, eval_bytes=100 * MIB * size), ("my-train", "--batch-size", "20")
    ).what_if.remedies
    assert (
        remedy.code == "eval-batch"
        and remedy.verdict == "fits"
        and f"1/{parts} of this" in remedy.how
    )


def test_a_command_as_it_stands_has_what_ifs_too():
    there = world(fixed=6 * GIB)
    prediction = run(there, ("my-train", "--epochs", "3"))
    assert prediction.batch_size is None and prediction.verdict == "does_not_fit"
    assert {trial.what_ifs for trial in there.launched} >= {(), ("autocast",)}


class Timed(World):
    """A quarter of a second a sample, and an update by Adam over lists that takes a second on the
    card below.
    """

    def rows(self, size):
        *before, phase, first, last = super().rows(size)
        state, gradient = Malloc(2, 4 * GIB, "aten.zeros_like"), Malloc(60, 2 * GIB, "aten.mm")
        tagged = [
            state,
            Tag(2, "optimizer_state", "h", "Net", 4),
            gradient,
            Tag(60, "gradient", "h", "Net", 4),
            Free(60),
        ]
        second = int(0.8 * 448e9)  # bytes that an RTX 3070 moves in it
        kernels = [Kernel("aten.mul", MEMORY, 0, size * second // 4)]
        kernels += [Kernel("aten._foreach_add_", MEMORY, 0, second // 8, engine=BY_OPTIMIZER)] * 8
        return [*before, *tagged, phase, first, last, *kernels]


def test_after_each_change_stands_the_time_of_its_own_update():
    prediction = run(
        Timed(fixed=GIB),
        ("my-train", "--batch-size", "4"),
        memory=None,
        gpu="rtx3070",
        budget="3GiB",
    )
    assert prediction.speed.step_s.value == pytest.approx(1 + 4 / 4, rel=0.01)
    step_s = {remedy.code: remedy.step_s.value for remedy in prediction.what_if.remedies}
    moved = 3 * 2 * GIB + 2 * GIB * (1 + 4 / 256)  # gradients in 4 bytes an element, states in one
    assert step_s["optimizer-8bit"] == pytest.approx(4 / 4 + moved / (0.8 * 448e9), rel=0.01)


def test_micro_batches_make_one_update_a_step():
    prediction = run(Timed(fixed=GIB, linear=100 * MIB), gpu="rtx3070", memory=None)
    (remedy,) = (
        remedy for remedy in prediction.what_if.remedies if remedy.code.startswith("accumulation")
    )
    parts = int(remedy.code.split("-")[1])
    each = -(-100 // parts)
    sums = (parts - 1) * 3 * 2 * GIB / (0.8 * 448e9)
    assert remedy.step_s.value == pytest.approx(1 + parts * each / 4 + sums, rel=0.01)


class Graphed(Timed):
    """The same step, replayed as a CUDA graph."""

    def rows(self, size):
        return [
            row._replace(engine=BY_GRAPH) if isinstance(row, Kernel) else row
            for row in super().rows(size)
        ]


def test_of_an_update_within_a_graph_nobody_knows_what_another_would_take():
    prediction = run(
        Graphed(fixed=GIB),
        ("my-train", "--batch-size", "4"),
        memory=None,
        gpu="rtx3070",
        budget="3GiB",
    )
    assert prediction.speed is not None
    assert {remedy.code: remedy.step_s for remedy in prediction.what_if.remedies}[
        "optimizer-8bit"
    ] is None


class Totalled(Timed):
    """As many batches as come to 256 samples make a step."""

    def rows(self, size):
        rows = super().rows(size)
        batches = [
            remedy
            for row in rows
            if isinstance(row, Kernel) and not row.engine
            for remedy in [row] * (256 // size - 1)
        ]
        count = [
            row
            for at in range(256 // size)
            for row in (Malloc(500 + at, MIB, "aten.mm"), Free(500 + at))
        ]
        first = next(at for at, row in enumerate(rows) if isinstance(row, Kernel))
        return [*rows[:first], *count, *batches, *rows[first:]]

    def batches(self, size):
        return 256 // size


def test_a_command_of_a_fixed_total_keeps_its_time_through_changes_that_are_no_micro_batches():
    prediction = run(
        Totalled(fixed=GIB),
        ("my-train", "--batch-size", "64"),
        memory=None,
        gpu="rtx3070",
        budget="3GiB",
    )
    as_it_is = prediction.speed.step_s.value
    step_s = {remedy.code: remedy.step_s for remedy in prediction.what_if.remedies}
    assert as_it_is > 256 / 4
    assert (
        step_s["optimizer-8bit"].value == pytest.approx(as_it_is, rel=0.05)
        and step_s["optimizer-8bit"].value < as_it_is
    )


@pytest.mark.parametrize(
    ("note", "how"),
    [
        (
            "own model.set_grad_checkpointing()",
            "model.set_grad_checkpointing(); each forward pass is done twice then",
        ),
        (
            "3 blocks",
            "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) for each of the 3 "
            "blocks",
        ),
    ],
)
def test_what_to_write_is_what_was_switched(monkeypatch, note, how):
    monkeypatch.setattr(
        "tests.brimful.verbs.world._notes",
        lambda trial: [Uses("what_if: " + note)] if "checkpointing" in trial.what_ifs else [],
    )
    prediction = run(world(), what_if=True, memory="40GiB")
    assert next(
        remedy for remedy in prediction.what_if.remedies if remedy.code == "gradient-checkpointing"
    ).how.startswith(how)


# --- uneven batches ---


@pytest.fixture
def short_epochs(monkeypatch):
    monkeypatch.setattr(uneven, "MOST_STEPS", 60)


@pytest.mark.usefixtures("short_epochs")
def test_where_uneven_batches_do_not_fit_what_keeps_memory_whole_has_its_own_figure(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:4000")
    prediction = run(Uneven(), ("my-train", "--batch-size", "80"), "16GiB", budget="4GiB")
    over_an_epoch = prediction.peak.device_interval_bytes[1]
    (rounded,) = prediction.what_if.instead
    assert prediction.verdict != "fits"
    assert prediction.what_if.remedies[0].code == "expandable-segments"
    assert rounded.code == "rounded-sizes" and rounded.device_bytes < over_an_epoch
    assert rounded.how.startswith(
        "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:4000,roundup_power2_divisions:"
    )


@pytest.mark.usefixtures("short_epochs")
def test_what_would_keep_memory_whole_is_not_offered_where_batches_are_alike_or_it_is_whole(
    monkeypatch,
):
    assert run(world()).what_if.instead == ()
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert run(Uneven(), ("my-train", "--batch-size", "200")).what_if.instead == ()


@pytest.mark.usefixtures("short_epochs")
def test_what_helps_is_judged_without_a_batch_of_the_largest_samples_where_none_is_drawn():
    class Concatenated(Uneven):
        def drawn(self):
            lengths = super().drawn()
            return [min(40, length) for length in lengths] if self.trial.as_drawn else lengths

    prediction = run(Concatenated(), ("my-train", "--batch-size", "200"), "40GiB", budget="6GiB")
    first = prediction.what_if.remedies[0]
    assert first.code == "expandable-segments"
    assert first.device_bytes < prediction.largest_batches_peak.allocated_bytes


@pytest.mark.usefixtures("short_epochs")
def test_tensors_too_small_to_fragment_memory_do_not_say_that_larger_batches_are_alike():
    there = Uneven(fixed=3276 * MIB, linear=4096)
    prediction = run(there, ("my-train", "--batch-size", "200"), what_if=False)
    assert prediction.largest_batch_size == 1
    drawn = [trial.settings["batch_size"] for trial in there.launched if trial.as_drawn]
    assert drawn == [1, 200] and prediction.largest_batches_peak is not None


# --- where the memory goes ---

CARD = card(4 * GIB)


def explained_at(scripts, sizes, model, batch_size, device_bytes):
    """What `explain` gives where `scripts` were traced, a card each, at `sizes`."""

    trials = SimpleNamespace(
        results=dict.fromkeys(sizes),
        traces=lambda size: tuple(
            CardTrace(rank, 0, script.trace(size)) for rank, script in enumerate(scripts)
        ),
        drawn={},
        effective=lambda size: size,
    )
    view = SimpleNamespace(
        here=lambda program: program, card=CARD, trials=trials, uneven=Epochs(trials)
    )
    peak, conclusion = SimpleNamespace(device_bytes=device_bytes), SimpleNamespace(size_model=model)
    return explain(view, MemoryAnswer(batch_size, "fits", peak, {}, conclusion=conclusion))


def model_of(scripts):
    return fit_size_model(
        {size: joined([program_of(remedy.trace(size)) for remedy in scripts]) for size in (5, 12)}
    )


def device_peak(script, size):
    return CARD.device_bytes(CARD.replay(script.trace(size), None).peak)


@pytest.mark.parametrize("seed", range(5))
def test_extrapolated_sizes_give_the_breakdown_at_a_size_that_was_not_traced(seed):
    script = network(seed)
    prediction = explained_at([script], [5, 12], model_of([script]), 77, device_peak(script, 77))
    assert prediction is not None and prediction.model is not None
    assert sum(prediction.breakdowns.whole.parts.values()) == device_peak(script, 77)


def test_without_a_model_it_is_made_from_the_trace_of_that_size():
    script = network(3)
    peak = device_peak(script, 77)
    prediction = explained_at([script], [77], None, 77, peak)
    assert prediction is not None and prediction.model is None
    assert explained_at([script], [5], None, 77, peak) is None
    assert explained_at([script], [5, 12], model_of([script]), 77, peak + 1) is None, (
        "no trace gives that peak"
    )


@pytest.mark.parametrize("seeds", [(1, 2), (2, 1), (4, 3)])
def test_of_several_cards_it_is_the_fullest(seeds):
    scripts = [network(seed) for seed in seeds]
    fullest = max(device_peak(script, 77) for script in scripts)
    for model, sizes in ((model_of(scripts), [5, 12]), (None, [77])):
        prediction = explained_at(scripts, sizes, model, 77, fullest)
        assert prediction is not None and sum(prediction.breakdowns.whole.parts.values()) == fullest


def test_an_evaluation_of_one_sample_a_batch_is_not_offered_a_smaller_one():
    facts = SimpleNamespace(eval_samples=1, eval_batch_size=None)
    now: Any = SimpleNamespace(memory=SimpleNamespace(phase="eval"), facts=facts)
    assert not list(changes._smaller_evaluation(now))
