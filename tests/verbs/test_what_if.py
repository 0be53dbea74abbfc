"""Where the memory goes, and what would help most, in worlds where the truth is known."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from world import COMMAND, GIB, MIB, World, work

from brimful import predict
from brimful.decide.memory.size_model import fit_size_model
from brimful.values import Outcome, Source
from brimful.verbs.warnings import Answer
from brimful.verbs.what_if import find
from brimful_inside.simulator.program import joined, program_of
from brimful_inside.simulator.trace import CardTrace, Uses
from tests.decide.programs import card, network

ASKED = ("my-train", "--batch-size", "100")


def run(world, argv=ASKED, memory="4GiB", **more):
    return work(world, predict, argv, gpu_memory=memory, **more).prediction


def world(**more):
    return World(linear=100 * MIB, helps={"checkpointing": 0.25, "autocast": 0.5}, **more)


def test_what_does_not_fit_shows_what_would_help_the_largest_saving_first():
    there = world()
    found = run(there)
    assert found.verdict == "does_not_fit" and found.what_if is not None
    by_code = {saving.code: saving for saving in found.what_if.savings}
    saved = [saving.saved_bytes for saving in found.what_if.savings]
    assert saved == sorted(saved, reverse=True) and min(saved) > 0
    for code, left in (("gradient-checkpointing", 0.25), ("mixed-precision", 0.5)):
        saving = by_code[code]
        assert saving.source is Source.PREDICTED
        assert saving.saved_bytes == pytest.approx(there.activations(100) * (1 - left), rel=0.02)
        assert saving.new_peak_bytes == found.peak.device_bytes - saving.saved_bytes
        assert saving.fits == (saving.new_peak_bytes * 1.2 <= found.budget.bytes)
    assert [trial.what_if for trial in there.launched if trial.what_if] == ["autocast", "checkpointing"]
    assert all(trial.capacity_bytes is None for trial in there.launched if trial.what_if)


def test_micro_batches_are_an_estimate_that_keeps_the_effective_batch():
    found = run(world())
    halves, quarters = (next(s for s in found.what_if.savings if s.code == f"accumulation-{n}") for n in (2, 4))
    assert halves.source is quarters.source is Source.ESTIMATE
    assert halves.saved_bytes == pytest.approx(50 * 100 * MIB, rel=0.02)
    assert quarters.saved_bytes == pytest.approx(75 * 100 * MIB, rel=0.02)
    assert "batches of 25, optimizer.step() after every 4" in quarters.how


def test_what_fits_is_not_tried_further_unless_you_ask_and_nothing_where_you_forbid_it():
    there = world()
    assert run(there, memory="40GiB").what_if is None
    assert run(there, what_if=False).what_if is None
    assert not any(trial.what_if for trial in there.launched)
    asked = run(world(), memory="40GiB", what_if=True).what_if
    assert asked is not None and all(saving.fits for saving in asked.savings)


def test_asked_for_the_largest_batch_size_that_would_fit_is_found_and_does_fit():
    there = world()
    found = run(there, what_if=True)
    saving = next(s for s in found.what_if.savings if s.code == "gradient-checkpointing")
    assert found.largest_batch_size < saving.largest_batch_size
    at = there.fixed + 0.25 * there.activations(saving.largest_batch_size)
    assert at < found.budget.bytes < 2 * at, "the interval keeps a margin"
    assert next(s for s in run(world()).what_if.savings if s.code == "gradient-checkpointing").largest_batch_size is None
    limited = run(world(dataset=110), what_if=True).what_if.savings
    assert all(s.largest_batch_size is None or s.largest_batch_size <= 110 for s in limited)


def test_a_change_that_changes_nothing_says_so_and_saves_nothing():
    there = World(linear=100 * MIB, helps={"autocast": 1.5})
    found = run(there, what_if=True)
    assert [trial.what_if for trial in there.launched].count("autocast") == 1, "no largest batch size is searched"
    others = {other.code: other.why for other in found.what_if.others}
    assert others["gradient-checkpointing"] == "a trial ran it, and the peak is no lower"
    assert others["mixed-precision"] == "a trial ran it, and the peak is higher"
    assert {s.code for s in found.what_if.savings} == {"accumulation-2", "accumulation-4"}


def test_a_change_under_which_the_command_fails_says_so():
    found = run(world(outcome_of=lambda trial, size: Outcome.CRASHED if trial.what_if == "autocast" else None))
    others = {other.code: other.why for other in found.what_if.others}
    assert others["mixed-precision"] == "the command fails with it: crashed"
    assert "mixed-precision" not in {s.code for s in found.what_if.savings}


def test_where_evaluation_sets_the_peak_its_batch_is_what_helps():
    class Evaluates(World):
        def rows(self, size):
            rows = super().rows(size)
            return [
                row._replace(nbytes=200 * MIB * size) if getattr(row, "id", 0) == 90 and len(row) > 1 else row for row in rows
            ]

    found = run(Evaluates(linear=10 * MIB))
    assert found.breakdown.phase == "eval"
    saving = next(s for s in found.what_if.savings if s.code == "eval-batch")
    assert saving.source is Source.ESTIMATE and saving.saved_bytes == pytest.approx(100 * 100 * MIB, rel=0.05)
    assert not any(s.code.startswith("accumulation") for s in found.what_if.savings)


def test_an_evaluation_batch_with_a_place_of_its_own_is_run():
    class Evaluates(World):
        def launch(self, trial, folder, record_folder, *more):
            self.eval_bytes = 100 * MIB * int(trial.settings.get("eval_batch_size", 1))
            return super().launch(trial, folder, record_folder, *more)

    command = (*COMMAND[:2], "20", "--eval-batch-size", "{eval_batch_size}")
    there = Evaluates(linear=MIB)
    found = run(there, command, settings={"eval_batch_size": 80})
    saving = next(s for s in found.what_if.savings if s.code == "eval-batch")
    assert saving.source is Source.PREDICTED and saving.saved_bytes == pytest.approx(40 * 100 * MIB, rel=0.02)
    assert there.launched[-1].settings["eval_batch_size"] == 40


def test_a_command_as_it_stands_has_what_ifs_too():
    there = world(fixed=6 * GIB)
    found = run(there, ("my-train", "--epochs", "3"))
    assert found.batch_size is None and found.verdict == "does_not_fit"
    assert {trial.what_if for trial in there.launched} == {None, "autocast", "checkpointing"}


@pytest.mark.parametrize(
    ("note", "how"),
    [
        ("own model.set_grad_checkpointing()", "model.set_grad_checkpointing(); each forward pass is done twice then"),
        ("3 blocks", "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) for each of the 3 blocks"),
    ],
)
def test_what_to_write_is_what_was_switched(monkeypatch, note, how):
    monkeypatch.setattr("world._notes", lambda trial: [Uses("what_if: " + note)] if trial.what_if == "checkpointing" else [])
    saving = next(s for s in run(world()).what_if.savings if s.code == "gradient-checkpointing")
    assert saving.how.startswith(how)


# --- where the memory goes --------------------------------------------------------------------------------------------

CARD = card(4 * GIB)


def find_at(scripts, sizes, model, batch_size, device_bytes):
    """What `find` gives where a Tracer has traced `scripts`, a card each, at `sizes`."""

    def cards(size):
        return tuple(CardTrace(rank, 0, one.trace(size)) for rank, one in enumerate(scripts))

    tracer = SimpleNamespace(card=CARD, results=dict.fromkeys(sizes), cards=cards, effective=lambda size: size)
    peak, conclusion = SimpleNamespace(device_bytes=device_bytes), SimpleNamespace(size_model=model)
    return find(tracer, Answer(batch_size, "fits", peak, {}, conclusion=conclusion))


def model_of(scripts):
    return fit_size_model({size: joined([program_of(one.trace(size)) for one in scripts]) for size in (5, 12)})


def device_peak(script, size):
    return CARD.device_bytes(CARD.replay(script.trace(size), None).peak)


@pytest.mark.parametrize("seed", range(5))
def test_extrapolated_sizes_give_the_breakdown_at_a_size_that_was_not_traced(seed):
    script = network(seed)
    found = find_at([script], [5, 12], model_of([script]), 77, device_peak(script, 77))
    assert found is not None and found.model is not None
    assert sum(found.breakdowns.whole.parts.values()) == device_peak(script, 77)


def test_without_a_model_it_is_made_from_the_trace_of_that_size():
    script = network(3)
    peak = device_peak(script, 77)
    found = find_at([script], [77], None, 77, peak)
    assert found is not None and found.model is None
    assert find_at([script], [5], None, 77, peak) is None
    assert find_at([script], [5, 12], model_of([script]), 77, peak + 1) is None, "no trace gives that peak"


@pytest.mark.parametrize("seeds", [(1, 2), (2, 1), (4, 3)])
def test_of_several_cards_it_is_the_fullest(seeds):
    scripts = [network(seed) for seed in seeds]
    fullest = max(device_peak(script, 77) for script in scripts)
    for model, sizes in ((model_of(scripts), [5, 12]), (None, [77])):
        found = find_at(scripts, sizes, model, 77, fullest)
        assert found is not None and sum(found.breakdowns.whole.parts.values()) == fullest
