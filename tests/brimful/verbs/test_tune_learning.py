"""`tune --objective learning`: where the gradient noise scale comes from, and what is named by it,
in worlds where the best size is known.
"""

from types import SimpleNamespace

import pytest

from brimful import tune
from brimful.command import parse
from brimful.errors import UsageError
from brimful.show.headline import headline
from brimful.show.markdown import render_markdown
from brimful.values import Objective, Optima, Record, Source, TrialKind
from brimful.verbs import tune_learning
from brimful_inside.wire import OptimizerSeen
from tests.brimful.verbs.test_predicted_speed import Clocked
from tests.brimful.verbs.world import World, chosen, reporting, work

ASKED = ("my-train", "--batch-size", "256")


def learned(world: World | None = None, argv=ASKED, **more) -> Record:
    answers = {"device": "cpu", "budget": "1GiB", "objective": "learning"} | more
    return work(world or World(), tune, argv, **answers)


def optima(record: Record) -> Optima:
    return record.plan.optima


def kinds(record: Record) -> list[TrialKind]:
    return [result.trial.kind for result in record.trials]


def test_a_given_noise_scale_names_the_size_that_is_soonest_and_both_optima():
    # a step takes (10 + size) ms: the best is the root of 10 times the noise scale
    record = learned(noise_scale=90.0)
    both, plan = optima(record), record.plan
    assert plan.objective is Objective.LEARNING and TrialKind.NOISE not in kinds(record)
    assert 16 <= chosen(record) <= 64 and both.learning.batch_size == chosen(record)
    assert both.throughput.batch_size > 128 and both.users_own.batch_size == 256
    assert both.noise_scale.source is Source.ASSUMED and both.noise_scale.note == "given"
    assert both.learning.time_to_loss == 1.0 < both.users_own.time_to_loss
    assert both.users_own.learning_rate == 1e-3 > both.learning.learning_rate
    assert both.learning.beta2 > both.users_own.beta2 == 0.999
    said = headline(record).sentence
    assert f"Batch size {chosen(record)} is predicted to come soonest to the same loss" in said
    assert "trains fastest" not in said and "Learning was not compared" in said
    assert "× the time of your own settings to that loss, by a gradient noise scale of" in said
    page = render_markdown(record)
    assert "Most samples a second, and soonest to the same loss" in page and "2507.07101" in page


def test_the_search_measures_it_where_steps_have_several_batches():
    record = learned(World(accumulated=4, noise_scale=90.0))
    scale = optima(record).noise_scale
    assert kinds(record).count(TrialKind.NOISE) == 1
    assert kinds(record).index(TrialKind.NOISE) < kinds(record).index(TrialKind.SPEED)
    assert (scale.value, scale.source) == (90.0, Source.MEASURED)
    assert scale.note == "at the start of training"
    assert optima(record).learning.samples_per_step == 4 * chosen(record)


def test_what_is_given_comes_before_what_is_measured_and_that_before_a_record(tmp_path):
    measured = learned(World(accumulated=2, noise_scale=50.0), home=tmp_path)
    again = learned(World(accumulated=2, noise_scale=70.0), home=tmp_path)
    assert optima(again).noise_scale.value == 70.0
    given_one = learned(World(accumulated=2, noise_scale=70.0), home=tmp_path, noise_scale=30.0)
    assert optima(given_one).noise_scale.value == 30.0
    recorded = learned(home=tmp_path)
    assert optima(recorded).noise_scale.value == 70.0, "the newest that measured one"
    assert optima(recorded).noise_scale.note == f"by {again.opened.record_id}"
    assert measured.opened.record_id != again.opened.record_id
    with pytest.raises(UsageError):
        learned(argv=("another-train", "--batch-size", "256"), home=tmp_path)


@pytest.mark.parametrize(
    ("world", "more", "says", "launches"),
    [
        (World(), {}, ("one batch of one process", "--noise-scale N", "brimful run"), True),
        (World(accumulated=2), {}, ("lost in its own noise",), True),
        (
            World(),
            {"gpu": "a100-40gb", "device": "auto", "budget": None},
            ("computes no gradients",),
            False,
        ),
        (World(), {"noise_scale": 0}, ("--noise-scale",), False),
        (World(), {"noise_scale": -3.0}, ("--noise-scale",), False),
    ],
)
def test_where_nobody_knows_it_the_search_ends_before_it_times_anything_and_says_how_to_get_it(
    world, more, says, launches
):
    with pytest.raises(UsageError) as error:
        learned(world, **more)
    assert all(words in " ".join(error.value.sentences()) for words in says)
    assert bool(world.launched) is launches
    assert not [trial for trial in world.launched if trial.kind is TrialKind.SPEED]


def test_whatever_the_objective_both_optima_are_shown_where_the_noise_scale_is_known(tmp_path):
    fast = learned(objective=None, noise_scale=90.0)
    both, said = optima(fast), headline(fast).sentence
    assert fast.plan.objective is Objective.THROUGHPUT
    assert both.throughput.batch_size == chosen(fast) > both.learning.batch_size
    assert "nothing that ran was clearly faster" in said
    assert f"batch size {both.learning.batch_size} comes soonest to the same loss (pred" in said
    assert learned(objective=None).plan.optima is None
    learned(World(accumulated=2, noise_scale=90.0), home=tmp_path)
    assert optima(learned(objective=None, home=tmp_path)).noise_scale.value == 90.0


def test_what_a_training_under_run_measured_is_known_of_it(monkeypatch):
    attempt = SimpleNamespace(noise_scale=55.0)
    record = SimpleNamespace(
        trials=(), run=SimpleNamespace(attempts=(attempt,)), opened=SimpleNamespace(record_id="r-1")
    )

    monkeypatch.setattr(
        tune_learning,
        "made_here",
        lambda home, *verbs: (
            [(record, parse(("my-train", "--batch-size", "8")))] * ("run" in verbs)
        ),
    )
    scale = optima(learned()).noise_scale
    assert (scale.value, scale.source, scale.note) == (55.0, Source.MEASURED, "by r-1")


def test_an_optimizer_for_which_it_does_not_hold_is_named_in_the_first_line_and_the_notes():
    lion = OptimizerSeen("Lion", 8, 10, [1e-3], [1e-3], beta2=0.99)
    record = learned(reporting(optimizers=[lion]), noise_scale=90.0)
    assert "(assumed), which does not hold for Lion" in headline(record).sentence
    assert "Lion is one of these." in render_markdown(record)


def test_on_an_imaginary_card_the_predicted_curve_is_asked():
    card = {"gpu": "a100-40gb", "device": "auto", "budget": None}
    world, argv = Clocked(dataset=None), ("my-train", "--batch-size", "4096")
    small, middle, large = (learned(world, argv, noise_scale=n, **card) for n in (1.0, 5e3, 1e12))
    fast = learned(world, argv, objective="throughput", noise_scale=5e3, **card)
    assert chosen(large) == chosen(fast) > chosen(middle) > chosen(small)
    both = optima(fast)
    assert both.learning.batch_size == chosen(middle) == optima(middle).learning.batch_size
    assert both.throughput.batch_size == chosen(fast) and both.users_own.batch_size == 4096
    assert both.learning.samples_per_s.source is Source.PREDICTED
    assert middle.plan.verified, "the size itself was traced"
    row = next(row for row in middle.plan.settings if row.name == "batch_size")
    assert row.why == "predicted to come soonest to the same loss, by the gradient noise scale"
