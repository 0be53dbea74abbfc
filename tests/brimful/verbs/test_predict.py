"""`predict` in worlds where the truth is known."""

import re
import shlex
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from brimful import predict, tune
from brimful.decide.memory.bracket import least_step
from brimful.errors import (
    CommandFailed,
    DoesNotFit,
    TrialFailed,
    UsageError,
)
from brimful.show.headline import headline, of_prediction
from brimful.show.section import Figure
from brimful.show.sections import sections
from brimful.show.text import limited_text
from brimful.units import format_duration
from brimful.values import Failure, Outcome, Source
from brimful.watcher import Watcher
from brimful_inside.simulator.roofline import Kernel
from brimful_inside.simulator.trace import Free, Malloc
from brimful_inside.wire import LoadingSpeed
from tests.brimful.verbs.world import (
    GIB,
    MIB,
    WORLDS,
    Uneven,
    World,
    failing_above,
    reporting,
    work,
)

SLOW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def predicted(world, batch_size="{batch_size}", *limits, gpu_memory="4GiB"):
    return work(
        world, predict, ("my-train", "--batch-size", batch_size), *limits, gpu_memory=gpu_memory
    ).prediction


def codes(prediction):
    return {warning.code for warning in prediction.warnings}


def test_an_error_that_the_search_meets_at_several_sizes_is_noted_once():
    record = work(failing_above(100, dataset=4000), predict, gpu_memory="4GiB")
    assert sum(answer.outcome is Outcome.CRASHED for answer in record.trials) > 1
    noted = [answer for answer in record.notes if answer.code == "script-error"]
    assert len(noted) == 1 and noted[0].problem.count("at batch_size") == 1


def test_an_error_whose_words_begin_another_is_noted_as_well():
    def failed(result):
        if result.outcome is not Outcome.CRASHED:
            return result
        message = "too many rows" if len(met) % 2 else "too many rows and columns"
        met.append(message)
        return replace(
            result, failure=Failure("crashed", "ValueError", message, "", "", "train", 0, False)
        )

    met = []
    record = work(reporting(failed, failing_above(100, dataset=4000)), predict, gpu_memory="4GiB")
    noted = [answer.problem for answer in record.notes if answer.code == "script-error"]
    assert len(met) > 2 and len(noted) == 2
    assert "rows and columns" in noted[0] and "and columns" not in noted[1]


@SLOW
@given(WORLDS, st.integers(1, 5000))
def test_a_verdict_and_the_largest_batch_size_obey_one_rule_of_fitting(world, asked):
    prediction = predicted(world, str(asked))
    assert prediction.batch_size == asked, "what was asked is what is answered"
    _, high = prediction.peak.device_interval_bytes
    assert prediction.verdict == "fits" or high > prediction.budget.bytes
    effective = asked if world.dataset is None else min(asked, world.dataset)
    largest = prediction.largest_batch_size
    if prediction.verdict == "fits":
        assert largest is not None and largest >= effective
    if largest is not None:
        assert world.dataset is None or largest <= world.dataset
        for again in (predicted(world, str(largest)), predicted(world, "{batch_size}")):
            assert again.verdict == "fits"
            open_between = "not looked at" in repr((prediction, again))
            near = abs(again.largest_batch_size - largest) <= least_step(largest)
            assert near or open_between, "one question, one answer, or what is not known is said"
    if world.dataset is not None and asked > world.dataset:
        assert "batch-exceeds-dataset" in codes(prediction)


@dataclass
class Bent(World):
    """Beyond `kink_at` there are further operations, and the script rounds the batch up to
    multiples of `rounds_to`.
    """

    rounds_to: int = 1

    def rows(self, size):
        return super().rows(-(-size // self.rounds_to) * self.rounds_to)


BENT = st.builds(
    Bent,
    fixed=st.integers(1 * MIB, 700 * MIB),
    linear=st.sampled_from([64 * 1024, MIB, 7 * MIB, 31 * MIB]),
    quadratic=st.sampled_from([0, 4096, 200_000]),
    kink_at=st.integers(1, 600),
    kink_bytes=st.sampled_from([64 * 1024, MIB, 20 * MIB]),
    rounds_to=st.sampled_from([1, 1, 2, 3, 8]),
    dataset=st.just(None),
)


@settings(SLOW, max_examples=3)
@example(
    Bent(700 * MIB, 65536, 0, 1, 65536, dataset=None, rounds_to=8), "50%", 1
)  # all sizes that may be tried first do
@example(
    Bent(MIB, MIB, 4096, 21, 20 * MIB, dataset=None, rounds_to=8), "100%", 167
)  # 160, 165, 170: eights or fives
@given(BENT, st.sampled_from(["100%", "97%", "90%", "50%"]), st.integers(1, 5000))
def test_where_memory_bends_the_largest_size_is_the_same_however_it_was_asked(
    world, budget, anywhere
):
    def asked(size):
        words = ("my-train", "--batch-size", str(size))
        return work(replace(world, launched=[]), predict, words, budget=budget, gpu_memory="4GiB")

    try:
        left_open = asked("{batch_size}").prediction
    except DoesNotFit:
        assert asked(1).prediction.verdict != "fits"
        return
    largest = left_open.largest_batch_size
    sizes = {max(1, largest - 1), largest + 1, largest + 2, anywhere}
    answers = {size: asked(size).prediction for size in sizes}
    if any(
        "not looked at" in warning.problem
        for answer in (left_open, *answers.values())
        for warning in answer.warnings
    ):
        return  # then the answers may differ, and say why
    named = [answer.largest_batch_size for answer in answers.values()]
    assert max(named) < min(named) + 2 * least_step(min(named))
    for size, answer in answers.items():
        fits = size <= answer.largest_batch_size
        assert (answer.verdict == "fits") == fits or "a-larger-one-fits" in codes(answer)


@dataclass
class Lucky(World):
    """Above 200 samples the script holds 2 GiB more, but not at 350."""

    def rows(self, size):
        rows = super().rows(size)
        return (
            [*rows[:2], Malloc(5, 2 * GIB, "aten.cat"), *rows[2:]]
            if size > 200 and size != 350
            else rows
        )


def test_where_a_larger_size_fits_again_the_answer_to_it_says_that_smaller_ones_do_not():
    world = Lucky(linear=8 * MIB, dataset=None)
    left_open, within, beyond = (predicted(world, size) for size in ("{batch_size}", "250", "350"))
    assert left_open.largest_batch_size == within.largest_batch_size <= 200
    assert within.verdict == "does_not_fit"
    assert (beyond.verdict, beyond.largest_batch_size) == ("fits", 350)
    (said,) = (w.problem for w in beyond.warnings if w.code == "a-smaller-one-does-not-fit")
    assert re.fullmatch(r"batch size 350 fits, and (20|2\d\d|3[0-4])\d? does not", said)
    assert "a-smaller-one-does-not-fit" not in codes(left_open) | codes(within)


def timed(world):
    """The same world, whose first trial that is asked to times its loader."""

    def changed(result):
        speeds = {"1": LoadingSpeed(500, 480, 520, 0.0), "2": LoadingSpeed(900, 880, 920, 0.0)}
        loaders = [replace(result.reports[0].loaders[0], workers=2, speeds=speeds)]
        return (
            replace(result, reports=(replace(result.reports[0], loaders=loaders),))
            if result.trial.time_loader
            else result
        )

    return reporting(changed, world)


def test_one_trial_times_the_loader_in_batches_of_the_size_in_question():
    world = timed(World(dataset=640))
    prediction = work(
        world, predict, ("my-train", "--batch-size", "64"), gpu="a100-40gb", samples=6_400
    ).prediction
    assert [trial.time_loader for trial in world.launched][:2] == [64, None]
    assert (prediction.loading.one_worker.value, prediction.loading.all_workers.value) == (500, 900)
    left_open = timed(World(dataset=640))
    assert work(left_open, predict, gpu_memory="4GiB").prediction.loading.card is None
    assert left_open.launched[0].time_loader == 256


def test_the_table_of_sizes_takes_no_further_trial_and_agrees_with_the_answer():
    world = timed(World(linear=10 * MIB, dataset=6_400))
    prediction = work(
        world, predict, ("my-train", "--batch-size", "64"), gpu="a100-40gb"
    ).prediction
    rows = {row.batch_size: row for row in prediction.sizes}
    traced = {trial.settings["batch_size"] for trial in world.launched}
    assert len(world.launched) == 3 and {64, prediction.largest_batch_size} <= rows.keys()
    assert {size for size, row in rows.items() if row.traced} == traced & rows.keys() < rows.keys()
    row = rows[64]
    assert row.fits and row.peak_bytes.value == prediction.peak.device_bytes
    assert row.allocated_bytes == prediction.peak.allocated_bytes
    assert (row.effective_batch.value, row.updates_per_epoch.value) == (64, 100)
    assert max(size for size, row in rows.items() if row.fits) == prediction.largest_batch_size
    for row in prediction.sizes:
        assert row.peak_bytes.source is Source.PREDICTED
        alone = predicted(world, str(row.batch_size), gpu_memory="39.4GiB")
        assert alone.peak.allocated_bytes == row.allocated_bytes, "as a trial at it says"


@dataclass
class Clocked(World):
    """Its steps run kernels, so that their time is predicted."""

    def rows(self, size):
        kernels = [Kernel("aten.relu.default", "memory", 0, 10_000_000 * size)] * 20
        return [*super().rows(size), *kernels]


def test_the_times_of_the_table_are_those_of_the_speed_and_of_the_epoch():
    world = timed(Clocked(linear=10 * MIB, dataset=6_400))
    argv = ("my-train", "--batch-size", "64")
    prediction = work(world, predict, argv, gpu="a100-40gb", samples=64_000).prediction
    (row,) = (row for row in prediction.sizes if row.batch_size == 64)
    assert row.samples_per_s == prediction.speed.samples_per_s
    assert row.step_s == prediction.speed.step_s and row.epoch_s == prediction.epoch.train_s
    assert row.updates_per_epoch.value == prediction.epoch.steps == 1_000
    assert row.epoch_s.value == 64_000 / 900, "the two workers are slower than the card"


def test_the_sizes_of_the_table_can_be_named():
    world = World(linear=10 * MIB, dataset=None)
    argv = ("my-train", "--batch-size", "64")
    named = work(world, predict, argv, gpu="a100-40gb", sizes=[96, 3, 32]).prediction.sizes
    assert [row.batch_size for row in named] == [3, 32, 96] and len(world.launched) == 3
    assert named[0].fits is named[0].peak_bytes is None, "below all that was traced"
    with pytest.raises(UsageError, match="--sizes"):
        work(world, predict, argv, gpu="a100-40gb,l4", sizes=[96])


def test_the_recommended_size_is_in_the_table_and_in_the_next_command():
    prediction = work(Clocked(linear=100 * MIB, dataset=None), predict, gpu="a100-40gb").prediction
    size = prediction.next_command.batch_size
    (row,) = (row for row in prediction.sizes if row.batch_size == size)
    assert size != prediction.batch_size and row.fits
    assert f"--batch-size {size}" in prediction.next_command.line


@pytest.mark.parametrize(
    ("named", "code", "problem", "words", "other"),
    [
        (
            "l4:2",
            "idle-cards",
            "the command uses one of the two cards",
            "torchrun --nproc-per-node 2 … uses both, if ",
            "l4",
        ),
        (
            "a100",
            "which-card",
            "a100 is taken to be a100-40gb (NVIDIA A100-SXM4-40GB)",
            "a100-40gb-pcie",
            "a100-40gb",
        ),
    ],
)
def test_cards_that_the_command_does_not_use_are_named_and_of_a_name_of_several_the_one_taken(
    named, code, problem, words, other
):
    of_both, of_other = (
        [note for note in (*record.notes, *record.prediction.warnings) if note.code == code]
        for record in (
            work(World(dataset=None), predict, ("my-train", "--batch-size", "64"), gpu=gpu)
            for gpu in (named, other)
        )
    )
    (note,) = of_both
    assert note.problem == problem and words in f"{note.explanation}\n{note.suggestion}"
    assert of_other == []


@SLOW
@given(WORLDS, st.one_of(st.none(), st.integers(1, 500)))
def test_an_open_batch_size_is_answered_with_the_largest_that_obeys_every_limit(world, most):
    try:
        prediction = predicted(world, "{batch_size}", most)
    except DoesNotFit:
        assert world.peak(1) + 600 * MIB > 0.8 * 4 * GIB, "one sample would have fitted"
        return
    assert (prediction.verdict, prediction.batch_size) == ("fits", prediction.largest_batch_size)
    limits = [limit for limit in (most, world.dataset) if limit is not None]
    assert all(prediction.largest_batch_size <= limit for limit in limits)
    assert prediction.limited_by in ("budget", "dataset", "max_batch_size")


def test_a_size_fits_that_goes_on_with_its_cached_memory_given_back_and_the_times_are_named():
    """Training's memory is cached when the evaluation asks for somewhat more: together they are
    more than the card has.
    """
    world = World(linear=10 * MIB, eval_bytes=1950 * MIB)
    prediction = predicted(world, "190")
    assert prediction.verdict == "fits" and prediction.retries_per_step == 0.5
    (warning,) = [warning for warning in prediction.warnings if warning.code == "gives-cache-back"]
    assert "0.5 times a step" in warning.problem
    longer = prediction.giving_back_s
    assert longer.source is Source.ASSUMED and 0 < longer.low < longer.value < longer.high < 0.1
    assert (
        f"takes some {format_duration(longer.value)} (" in warning.explanation
        and "assumed" in warning.explanation
    )
    assert not predicted(world, "20").retries_per_step


@pytest.mark.parametrize(
    ("world", "ignores"),
    [(World(ignores=True), True), (World(cap=9), False)],
    ids=["ignores", "caps"],
)
def test_a_script_that_ignores_the_batch_size_gives_a_warning_and_a_hidden_cap_does_not(
    world, ignores
):
    assert ("ignores-batch-size" in codes(predicted(world, "64"))) is ignores


@pytest.mark.parametrize("asked", ["64", "{batch_size}"])
@pytest.mark.parametrize("cap", [2, 16])
def test_sizes_that_are_ignored_end_the_search_and_none_is_called_the_largest(asked, cap):
    world = World(cap=2) if cap == 2 else World(ignores=True)
    prediction = predicted(world, asked)
    assert (
        prediction.ignores_batch_size
        and prediction.largest_batch_size is None
        and not prediction.nothing_fits
    )
    assert len(world.launched) <= 3
    sentence = of_prediction(prediction).sentence
    assert "largest" not in sentence and re.match(
        f"The script ignores the batch size.*trains on batches of {cap}.*; that fits", sentence
    )


@pytest.mark.parametrize(
    ("world", "why"),
    [
        (World(cap=9), "the script's loader makes batches of 9 at most"),
        (World(dataset=40), "the data set has 40 samples"),
    ],
)
def test_a_cap_or_the_data_set_below_the_size_asked_is_what_the_headline_says(world, why):
    assert of_prediction(predicted(world, "64")).sentence.startswith(
        f"Batch size 64 is not in force: {why}; that fits"
    )


def test_where_the_loader_makes_no_larger_batches_its_own_are_the_largest():
    prediction = predicted(World(cap=9), "{batch_size}")
    assert prediction.batch_size == prediction.largest_batch_size == 9
    assert prediction.limited_by == "loader"


@pytest.mark.parametrize(("asked", "warned"), [("64", True), ("{batch_size}", True), ("8", False)])
def test_a_hidden_cap_is_a_warning_to_those_who_ask_beyond_it(asked, warned):
    prediction = predicted(World(cap=9), asked)
    caps = [warning for warning in prediction.warnings if warning.code == "hidden-cap"]
    assert bool(caps) is warned
    assert not caps or "gives batches of 9" in caps[0].problem


def test_a_command_without_a_place_for_the_batch_size_is_predicted_as_it_stands():
    world = World()
    prediction = work(world, predict, ("my-train", "--epochs", "3"), gpu_memory="4GiB").prediction
    assert (prediction.verdict, prediction.batch_size, prediction.largest_batch_size) == (
        "fits",
        None,
        None,
    )
    assert "no-batch-size" in codes(prediction) and len(world.launched) == 1


@pytest.mark.parametrize(
    ("world", "size", "memory"),
    [
        (failing_above(40, linear=20 * MIB, kink_at=10, kink_bytes=MIB), "2000", "4GiB"),
        (failing_above(300, linear=64 * 1024), "320", "8GiB"),  # not promised by its memory
    ],
)
def test_a_size_that_crashes_when_it_is_the_one_asked_for_is_an_error_and_no_prediction(
    world, size, memory
):
    with pytest.raises(CommandFailed):
        predicted(world, size, gpu_memory=memory)


@pytest.mark.parametrize("asked", ["24", "{batch_size}"])
@pytest.mark.parametrize(
    ("outcome", "error", "words", "tried"),
    [
        (Outcome.OUT_OF_HOST_MEMORY, DoesNotFit, "ran out of host memory", [5]),
        (Outcome.TIMED_OUT, TrialFailed, "time limit", [5]),
        (Outcome.CRASHED, CommandFailed, None, [5, 8, 24]),
    ],
)
def test_what_another_size_may_not_mend_is_raised_and_a_crash_is_tried_in_a_group_and_as_asked(
    outcome, error, words, tried, asked
):
    world = World(outcome_of=lambda trial, size: outcome)
    with pytest.raises(error, match=words):
        predicted(world, asked)
    sizes = [size for size in tried if size != 24 or asked == "24"]
    assert [trial.settings["batch_size"] for trial in world.launched] == sizes


def test_where_no_size_fits_the_error_names_the_command_that_shows_what_would_make_it_fit():
    with pytest.raises(DoesNotFit, match="no batch size fits") as error:
        work(World(fixed=6 * GIB), predict, gpu_memory="4GiB")
    words = shlex.split(error.value.suggestion.partition("\n-- ")[2])
    asked = work(World(fixed=6 * GIB), predict, words, gpu_memory="4GiB").prediction
    assert asked.verdict == "does_not_fit" and asked.what_if is not None


@pytest.mark.parametrize(
    ("room", "problem"),
    [
        ("6.5GiB", r"no batch size is sure to fit: at batch size 1 it needs 6\.\S+ GiB \(.* to 6"),
        ("4GiB", "no batch size fits: at batch size 1 it runs out of memory"),
    ],
)
def test_where_no_size_is_sure_to_fit_it_says_what_the_smallest_may_need(room, problem):
    with pytest.raises(DoesNotFit, match=problem):
        work(World(fixed=6 * GIB), predict, gpu_memory=room)


@pytest.mark.parametrize(
    ("unit", "asked"), [(2, "12"), (4, "4"), (4, "{batch_size}"), (8, "24"), (12, "24")]
)
def test_a_script_that_takes_groups_alone_is_searched_among_their_multiples_whatever_was_asked(
    unit, asked
):
    world = World(
        outcome_of=lambda trial, size: Outcome.CRASHED if size % unit else None, linear=20 * MIB
    )
    record = work(world, predict, ("my-train", "--batch-size", asked), gpu_memory="4GiB")
    prediction = record.prediction
    largest = prediction.largest_batch_size
    assert prediction.exact and largest % unit == 0
    assert len(
        [size for trial in world.launched if (size := int(trial.settings["batch_size"])) % unit]
    ) <= (2 if unit <= 8 else 3)
    for size, fits in ((largest, True), (largest + unit, False)):
        assert (predicted(World(linear=20 * MIB), str(size)).verdict == "fits") is fits
    assert "multiples" in {note.code for note in record.notes}


def test_the_first_trial_may_take_all_of_the_time_that_the_user_allows():
    world = World()
    work(world, predict, gpu_memory="4GiB", time_limit_s=1800.0)
    first, *others = [trial.time_limit_s for trial in world.launched]
    assert first > 1700 and set(others) == {600}


def test_where_no_group_trains_the_error_is_the_one_at_the_size_that_was_asked():
    def failed(result):
        size = result.trial.settings["batch_size"]
        failure = Failure("crashed", "ValueError", f"{size} rows", "", "", "train", 0, False)
        return replace(result, failure=failure)

    world = reporting(failed, World(outcome_of=lambda trial, size: Outcome.CRASHED))
    with pytest.raises(CommandFailed, match="24 rows"):
        predicted(world, "24")


def test_without_a_loader_the_largest_batch_is_the_one_that_the_input_stopped_to_grow_at():
    world = reporting(world=World(cap=300, dataset=None, linear=64 * 1024), loaders=[])
    prediction = predicted(world, "64")
    assert (prediction.largest_batch_size, prediction.limited_by) == (300, "loader")
    assert "the script, which makes no larger batches" in of_prediction(prediction).sentence


@pytest.mark.parametrize("last", [40, 300])
def test_a_script_that_fails_above_some_size_is_what_limits_the_answer_in_its_verdict_and_rows(
    last,
):
    world = failing_above(last, linear=64 * 1024)
    prediction = predicted(world, gpu_memory="8GiB")
    assert (
        prediction.verdict == "fits"
        and 0.9 * last <= prediction.batch_size == prediction.largest_batch_size <= last
    )
    ceiling = min(
        size for trial in world.launched if (size := int(trial.settings["batch_size"])) > last
    )
    assert prediction.limited_by.startswith(
        f"the script itself, which fails at batch size {ceiling:,}: "
    )
    assert (
        "It is the largest that ran, limited by the script itself, which fails at batch size "
        f"{ceiling:,}"
    ) in of_prediction(prediction).sentence
    assert "the script itself" in limited_text(prediction.limited_by)


def test_where_a_stream_has_no_whole_batch_its_data_limit_the_answer_and_not_the_script():
    def dropped(result):
        if int(result.trial.settings["batch_size"]) <= 98:
            return result
        report = result.reports[0]
        loader = replace(report.loaders[0], role="eval", batches_seen=0, drop_last=True, batches=[])
        return replace(
            result, outcome=Outcome.NO_STEP, reports=(replace(report, steps=0, loaders=[loader]),)
        )

    prediction = predicted(
        reporting(dropped, World(linear=64 * 1024, dataset=None)), gpu_memory="8GiB"
    )
    assert 94 <= prediction.batch_size <= 98
    assert re.fullmatch(
        r"the data set, which gives no batch at batch size \d+", prediction.limited_by
    )
    with pytest.raises(TrialFailed, match="gave no batch") as caught:
        predicted(
            reporting(
                lambda result: dropped(
                    replace(result, trial=replace(result.trial, settings={"batch_size": 99}))
                )
            )
        )
    assert "drop_last" in caught.value.explanation


@pytest.mark.parametrize(
    ("drops", "explanation"), [(True, "nothing trains"), (False, "would train with batches of 100")]
)
def test_a_batch_above_the_data_set_is_a_warning_with_what_the_loader_gives_then(
    drops, explanation
):
    def dropping(result):
        loaders = [replace(loader, drop_last=drops) for loader in result.reports[0].loaders]
        return replace(result, reports=(replace(result.reports[0], loaders=loaders),))

    prediction = predicted(reporting(dropping, World(dataset=100)), "101")
    assert explanation in next(
        warning.explanation
        for warning in prediction.warnings
        if warning.code == "batch-exceeds-dataset"
    )


@pytest.mark.parametrize(
    ("verb", "where"),
    [
        (predict, {"gpu_memory": "40GiB"}),
        (tune, {"device": "cpu"}),
    ],
)
def test_the_memory_chart_has_no_size_that_the_loader_never_made(verb, where):
    record = work(World(dataset=320), verb, ("my-train", "--batch-size", "400"), **where)
    assert max(point.batch_size for point in (*record.memory.probes, *record.memory.curve)) == 320
    rows = {row.batch_size: row for row in (record.plan or record.prediction).sizes}
    assert rows[400].effective_batch.value == 320
    (figure,) = [part for part in sections(record) if part.title == "Memory"]
    assert isinstance(figure, Figure) and not re.search("400 asked|size 400", figure.draw(450))


def test_a_size_that_does_not_fit_below_one_that_does_is_explained():
    class OfTwoKinks(World):
        """From 30 to 39 samples a large temporary is made, and from 90 on another small one: no
        model holds for all.
        """

        def rows(self, size):
            rows = super().rows(size)
            nbytes = 90 * MIB * size if 30 <= size < 40 else 512 if size >= 90 else 0
            return [
                *rows[:2],
                *([Malloc(50, nbytes, "aten.cat"), Free(50)] if nbytes else []),
                *rows[2:],
            ]

    prediction = work(
        OfTwoKinks(linear=10 * MIB),
        predict,
        ("my-train", "--batch-size", "39"),
        100,
        budget="90%",
        gpu_memory="4GiB",
    ).prediction
    assert (prediction.verdict, prediction.largest_batch_size) == ("does_not_fit", 100)
    assert "a-larger-one-fits" in codes(prediction)
    prediction = predicted(World(linear=10 * MIB), "390")
    assert prediction.verdict == "does_not_fit" and prediction.largest_batch_size < 390
    assert "a-larger-one-fits" not in codes(prediction)


def test_all_of_an_imaginary_card_is_the_budget_since_what_is_uncertain_is_in_the_interval():
    prediction = predicted(World())
    assert prediction.budget.bytes == prediction.budget.free_bytes == 4 * GIB
    assert (
        0.9 * 4 * GIB < prediction.peak.device_interval_bytes[1] <= 4 * GIB
        or prediction.retries_per_step
    )


def growing(growth, size="64"):
    """(The prediction where this grows, its warnings of that)."""
    prediction = predicted(reporting(growth=growth), size)
    return prediction, [w for w in prediction.warnings if w.code == "memory-grows"]


@pytest.mark.parametrize(("length", "fits"), [(20, True), (125, False)])
def test_what_an_evaluation_keeps_by_its_end_is_in_its_peak_and_decides_what_fits(length, fits):
    bare = predicted(World(), "64")
    prediction, (_,) = growing({"eval": 75 * MIB, "eval_seen": 2, "eval_length": length})
    more = prediction.phases["eval"].device_bytes - bare.phases["eval"].device_bytes
    assert more == (length - 2) * 75 * MIB and (prediction.verdict == "fits") is fits
    assert (prediction.largest_batch_size is None) is (prediction.next_command is None) is not fits


@pytest.mark.parametrize(("length", "fits"), [(20, True), (125, False)])
def test_the_verdict_comes_first_unless_what_piles_up_can_change_it(length, fits):
    growth = {"eval": 75 * MIB, "eval_seen": 2, "eval_length": length}
    command = ("my-train", "--batch-size", "64")
    record = work(reporting(growth=growth), predict, command, gpu_memory="4GiB")
    first = "Each evaluation batch leaves 75.0 MiB more on the card" if fits else "Batch size 64 "
    assert headline(record).sentence.startswith(first)


def test_steps_that_leave_memory_fill_the_card_within_the_epoch_or_later_and_numbers_do_not():
    prediction, (warning,) = growing({"train": 34 * MIB})
    assert prediction.verdict == "does_not_fit" and "full at step" in warning.problem
    prediction, (warning,) = growing({"train": MIB})
    assert prediction.verdict == "fits" and "(epoch " in warning.problem
    _, (warning,) = growing({"train": MIB}, "2000")
    assert " (at a batch size of " in warning.problem, "one that was traced"
    assert not growing({"train": 512, "eval": 512, "eval_seen": 2, "eval_length": 125})[1]
    assert not growing({})[1]


def test_cycles_that_python_collects_raise_the_peak_and_the_high_end_of_its_interval():
    bare = predicted(World(), "64").peak
    growth = {"cycles": 40 * MIB, "cycles_made": 0, "cycles_alive": 5}
    prediction, warnings = growing(growth)
    low, high = prediction.peak.device_interval_bytes
    assert not warnings and "memory-in-cycles" in [w.code for w in prediction.warnings]
    assert prediction.peak.device_bytes == bare.device_bytes + 4 * 40 * MIB
    assert (low, high - 4 * 40 * MIB) == bare.device_interval_bytes
    prediction, warnings = growing({**growth, "cycles_alive": 100_000})
    assert warnings and prediction.verdict == "does_not_fit"


def test_a_batch_above_the_data_set_that_the_script_itself_asks_for_is_said_first():
    """By a preset, say: the command has no batch size, and the loader's is the data set's."""

    record = work(
        reporting(world=World(dataset=991, own=991), batch_asked=8192),
        predict,
        ("my-train",),
        gpu_memory="40GiB",
    )
    assert headline(record).sentence.startswith(
        "Batch size 8,192 is not in force: the data set has 991 samples; that "
    )
    assert (record.prediction.batch_size, record.prediction.in_force) == (8192, 991)


@pytest.mark.parametrize(("torch", "is_old"), [("2.5.1+cu124", True), ("2.6.0+cpu", False)])
def test_a_torch_that_is_older_than_what_is_modelled_is_named_where_it_answers(torch, is_old):
    prediction = predicted(reporting(torch_version=torch), "64")
    assert ("old-torch" in codes(prediction)) is is_old
    assert any(torch in warning.problem for warning in prediction.warnings) is is_old


def test_the_largest_size_has_the_memory_of_its_epoch_where_no_trace_of_the_largest_samples_is():
    class OfTwoLengths(Uneven):
        """A batch that is drawn is longer than one of the largest samples, and no model gives its
        sizes."""

        def drawn(self):
            lengths = super().drawn()
            return [3 * n // 2 for n in lengths] if self.trial and self.trial.as_drawn else lengths

        def rows(self, size):
            more = size * 7919 % 1009 * 19_999
            return [
                row._replace(nbytes=row.nbytes + more) if isinstance(row, Malloc) else row
                for row in super().rows(size)
            ]

    there = OfTwoLengths(linear=16 * 1024)
    asked = "my-train", "--batch-size", "800"
    prediction = work(there, predict, asked, gpu_memory="4GiB").prediction
    largest = prediction.largest_batch_size
    assert largest not in [t.settings["batch_size"] for t in there.launched if not t.as_drawn]
    (row,) = [row for row in prediction.sizes if row.batch_size == largest]
    assert row.fits and row.traced and not row.is_least
    assert 3 * GIB < row.peak_bytes.value <= 4 * GIB and row.allocated_bytes > 2 * GIB


def test_the_size_that_was_asked_for_is_answered_before_the_largest_is_known(monkeypatch):
    said, world = [], World()
    tell = lambda _, answer: said.append((answer, len(world.launched)))  # noqa: E731
    monkeypatch.setattr(Watcher, "predicted_so_far", tell)
    whole = work(world, predict, ("my-train", "--batch-size", "100"), gpu_memory="4GiB").prediction
    ((so_far, trials),) = said
    assert (so_far.verdict, so_far.peak) == (whole.verdict, whole.peak)
    assert so_far.largest_batch_size is None and whole.largest_batch_size
    assert trials == 2 < len(world.launched)
    work(World(), predict, gpu_memory="4GiB")
    assert len(said) == 1, "nobody asked for a size"


def test_where_code_is_compiled_the_first_line_says_that_it_is_not_modelled():
    budget = 3 * GIB
    plain, compiled = (
        work(reporting(approximations=names), predict, gpu_memory="4GiB", budget=str(budget))
        for names in ({}, {"torch.compile": 1})
    )
    assert headline(compiled).verdict.startswith("Compiled code is not modelled; ")
    largest = [record.prediction.largest_batch_size for record in (plain, compiled)]
    assert 0.9 * largest[0] < largest[1] < largest[0], "it may take a twentieth more"
