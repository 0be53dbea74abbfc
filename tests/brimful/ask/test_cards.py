"""Several cards of one question, in worlds where the truth is known."""

from dataclasses import replace

import pytest

from brimful import predict
from brimful.decide.memory.bracket import CLOSE
from brimful.errors import CommandFailed, DoesNotFit, UsageError
from brimful.measure.gpus.prices import keep
from brimful.values import Outcome, Source
from brimful_inside.wire import LoadingSpeed
from tests.brimful.ask.test_speed import Clocked
from tests.brimful.verbs.test_solve import Shaped
from tests.brimful.verbs.world import GIB, MIB, Ragged, World, reporting, work

FOUR = "t4,l4,a100-40gb,h100"
ALL_ALIKE = [[7, 5], [8, 0], [8, 9], [9, 0]]


def asked(world, gpu=FOUR, batch_size="{batch_size}", **more):
    return work(
        world, predict, ("my-train", "--batch-size", batch_size), gpu=gpu, **more
    ).prediction


def lines(prediction):
    return {line.gpu.key: line for line in prediction.which}


def test_cards_that_do_the_same_share_their_traces_and_only_the_first_line_is_traced_again():
    world = reporting(alike=ALL_ALIKE)
    prediction = asked(world)
    assert [trial.device.gpu.key for trial in world.launched] == ["h100"] * 3
    assert prediction.which[0].traced
    assert (
        prediction.gpu.key == prediction.which[0].gpu.key
        and prediction.batch_size == prediction.which[0].batch_size
    )


def test_a_card_that_does_otherwise_is_traced_itself():
    world = reporting(alike=[[8, 0], [8, 9], [9, 0]])
    assert len(asked(world).which) == 4
    assert [trial.device.gpu.key for trial in world.launched][:4] == ["h100"] * 3 + ["t4"]
    assert world.launched[0].others == ((7, 5), (8, 0), (8, 9)) and world.launched[3].others == ()


@pytest.mark.parametrize("batch_size", ["{batch_size}", "9000"])
def test_each_line_is_what_the_card_answers_alone(batch_size):
    for key, line in lines(
        asked(
            reporting(alike=ALL_ALIKE, world=World(fixed=3 * GIB, linear=7 * MIB)),
            batch_size=batch_size,
        )
    ).items():
        alone = asked(World(fixed=3 * GIB, linear=7 * MIB), key, batch_size)
        assert (line.verdict, line.batch_size, line.largest) == (
            alone.verdict,
            alone.batch_size,
            alone.largest_batch_size,
        )
        assert line.peak_bytes.value == alone.peak.device_bytes


def test_where_no_model_gives_the_sizes_each_card_is_searched_by_itself_from_all_traces():
    for key, line in lines(asked(reporting(alike=ALL_ALIKE, world=Ragged(dataset=None)))).items():
        alone = asked(Ragged(dataset=None), key, str(line.largest))
        assert alone.verdict == "fits", key


def test_where_memory_grows_otherwise_at_larger_sizes_each_card_is_searched_by_itself():
    """On T4 other things are done, so its search says nothing of the others."""
    kink = {"quadratic": 200_000, "kink_at": 40, "kink_bytes": 20 * MIB}
    without_t4 = ALL_ALIKE[1:]
    for key, line in lines(asked(reporting(alike=without_t4, world=World(**kink)))).items():
        alone = asked(World(**kink), key, str(line.largest))
        assert alone.verdict == "fits", key
    requested = asked(reporting(alike=without_t4, world=World(**kink)), batch_size="100")
    largest = [line.largest for line in requested.which]
    assert largest == [155, None, None, None], "of other cards no larger one was looked at"


def test_no_line_names_a_size_at_which_the_script_is_known_to_fail():
    world = Ragged(
        dataset=None, outcome_of=lambda trial, size: Outcome.CRASHED if size > 205 else None
    )
    prediction = lines(asked(reporting(alike=ALL_ALIKE, world=world)))
    assert max(line.largest for line in prediction.values()) <= 205


def test_sizes_that_the_script_refuses_say_nothing_of_its_multiples():
    def odd(trial, size):
        return Outcome.CRASHED if size % 8 else None

    world = reporting(
        alike=ALL_ALIKE, world=World(fixed=3 * GIB, linear=7 * MIB, dataset=None, outcome_of=odd)
    )
    several = lines(asked(world))
    assert min(world.batch(trial) for trial in world.launched) > 0
    for key, line in several.items():
        alone = asked(World(fixed=3 * GIB, linear=7 * MIB, dataset=None, outcome_of=odd), key)
        assert line.largest == alone.largest_batch_size


def test_the_number_of_cards_multiplies_the_price_and_is_traced_apart():
    world = reporting(alike=[])
    answer, two = sorted(asked(world, "l4:1..2").which, key=lambda line: line.cards)
    assert (answer.cards, two.cards) == (
        1,
        2,
    ) and two.price_per_h.value == 2 * answer.price_per_h.value
    assert {trial.device.cards for trial in world.launched} == {1, 2}
    assert (answer.unused, two.unused) == (0, 1), "the command has one process, on cuda:0"


def clocked(**of_loader):
    """A world with a clock; `of_loader`: fields of its loaders."""

    def changed(result):
        return replace(
            result,
            reports=tuple(
                replace(line, loaders=[replace(loader, **of_loader) for loader in line.loaders])
                for line in result.reports
            ),
        )

    return reporting(changed, Clocked(linear=3 * MIB), alike=[*ALL_ALIKE, [7, 0], [8, 6]])


def test_what_fits_comes_first_by_the_price_of_an_epoch_and_what_has_no_price_after_it_by_speed():
    prediction = asked(clocked(), f"rtx3070,v100-32gb,a30,{FOUR}", batch_size="4000").which
    costs = [line.epoch_price.value for line in prediction if line.epoch_price]
    assert costs == sorted(costs) and len(costs) == 4
    assert [line.gpu.key for line in prediction][4:] == ["a30", "v100-32gb", "rtx3070"]
    assert [line.verdict for line in prediction] == ["fits"] * 6 + ["does_not_fit"], (
        "8 GiB are too few"
    )
    assert (
        prediction[4].price_per_h is None
        and prediction[4].samples_per_s.value >= prediction[5].samples_per_s.value
    )


def test_a_users_own_price_decides_which_card_is_the_cheapest(tmp_path):
    file, home = tmp_path / "mine.toml", tmp_path / "home"
    file.write_text("t4 = 0.001\na100-40gb = 500")
    keep(file, home)
    prediction = asked(clocked(), home=home)
    assert [line.gpu.key for line in prediction.which] == [
        "t4",
        "h100",
        "l4",
        "a100-40gb",
    ] and prediction.gpu.key == "t4"
    assert prediction.which[0].price_per_h.value == 0.001


def test_an_epoch_takes_the_loaders_samples_at_the_predicted_speed_and_costs_its_part_of_an_hour():
    for line in asked(clocked()).which:
        assert line.epoch_s.value == pytest.approx(10_000 / line.samples_per_s.value)
        assert line.epoch_price.value == pytest.approx(
            line.price_per_h.value * line.epoch_s.value / 3600
        )
        assert line.epoch_price.source is line.price_per_h.source is Source.ASSUMED
        assert line.epoch_price.low < line.epoch_price.value < line.epoch_price.high
    given = asked(clocked(), samples=20_000).which
    assert all(
        line.epoch_s.value == pytest.approx(20_000 / line.samples_per_s.value) for line in given
    )


def test_cards_that_are_faster_than_loading_here_are_marked_and_slower_ones_are_not():
    prediction = asked(clocked(speeds={"1": LoadingSpeed(4e5, 4e5, 4e5)}, workers=1)).which
    assert {line.gpu.key: line.slow_loading for line in prediction} == {
        "t4": False,
        "l4": False,
        "a100-40gb": True,
        "h100": True,
    }
    assert all(
        line.epoch_s.value == pytest.approx(10_000 / line.samples_per_s.value)
        for line in prediction
    ), "the card's alone"


def test_ranks_that_are_not_started_have_cards_that_cost_as_much():
    launcher = ("torchrun", "--nproc_per_node", "1", "train.py", "--batch-size", "8")
    prediction = work(
        reporting(alike=ALL_ALIKE), predict, launcher, gpu="t4,l4", ranks=8
    ).prediction
    assert {(line.cards, line.unused) for line in prediction.which} == {(8, 0)}
    line = asked(reporting(alike=ALL_ALIKE), "t4,l4")
    assert lines(prediction)["l4"].price_per_h.value == 8 * lines(line)["l4"].price_per_h.value


def test_where_the_command_fails_on_some_cards_their_lines_say_why():
    world = World(
        outcome_of=lambda trial, size: Outcome.CRASHED if trial.device.gpu.key == "t4" else None
    )
    prediction = asked(reporting(alike=[[8, 0], [8, 9]], world=world))
    assert [line.gpu.key for line in prediction.which if line.verdict is None] == ["t4"]
    assert "the script" in lines(prediction)["t4"].problem and prediction.which[-1].gpu.key == "t4"


def test_a_command_that_fails_on_the_largest_card_has_failed():
    with pytest.raises(CommandFailed):
        asked(World(outcome_of=lambda trial, size: Outcome.CRASHED))


def test_where_no_batch_size_fits_any_card_that_is_an_error_and_a_requested_one_a_table():
    world = World(fixed=200 * GIB)
    with pytest.raises(DoesNotFit):
        asked(world)
    prediction = asked(reporting(alike=ALL_ALIKE, world=World(fixed=200 * GIB)), batch_size="16")
    assert {line.verdict for line in prediction.which} == {
        "does_not_fit"
    } and prediction.verdict == "does_not_fit"


def test_verbs_of_one_card_refuse_several():
    from brimful import audit

    with pytest.raises(UsageError, match="names 4 cards"):
        work(World(), audit, gpu=FOUR)


def solved(world, gpu=FOUR, **more):
    words = ("my-train", "--batch-size", "8", "--max-length", "{max_length}")
    return work(world, predict, words, gpu=gpu, solve="max_length", **more).prediction


@pytest.mark.parametrize(
    "shape", [{"quadratic": 4096}, {"step": 128}, {"layers": True, "linear": 150 * MIB}]
)
def test_of_another_setting_each_line_has_the_largest_value_that_its_card_answers_alone(shape):
    prediction = solved(reporting(alike=ALL_ALIKE, world=Shaped(fixed=3 * GIB, **shape)))
    values = {line.gpu.key: line.largest for line in prediction.which}
    alone = {
        key: solved(Shaped(fixed=3 * GIB, **shape), key).solved.value for key in FOUR.split(",")
    }
    assert values == pytest.approx(alone, rel=CLOSE)
    assert (
        list(values.values()) == sorted(values.values(), reverse=True)
        and prediction.solved.value == prediction.which[0].largest
    )
    assert {line.batch_size for line in prediction.which} == {8}


def test_traces_that_confirm_how_memory_grows_speak_for_all_cards():
    world = reporting(alike=ALL_ALIKE, world=Shaped(quadratic=4096))
    alone = Shaped(quadratic=4096)
    assert len(solved(world).which) == 4 and solved(alone, "h100").solved
    assert [trial.settings for trial in world.launched] == [
        trial.settings for trial in alone.launched
    ]


def test_a_card_that_no_value_fits_has_a_line_that_says_so():
    prediction = solved(reporting(alike=ALL_ALIKE, world=Shaped(fixed=30 * GIB)))
    assert [(line.gpu.key, line.verdict) for line in prediction.which][:2] == [
        ("h100", "fits"),
        ("a100-40gb", "fits"),
    ]
    assert {lines(prediction)[key].verdict for key in ("l4", "t4")} == {"does_not_fit"}
