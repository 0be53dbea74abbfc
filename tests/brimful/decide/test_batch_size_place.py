"""Where a script's own batch size is set, by what two trials showed."""

from dataclasses import replace

import pytest

from brimful.decide import batch_size_place
from brimful.errors import UsageError
from brimful.values import Command, Device, Outcome, Place, Report, Trial, TrialKind, TrialResult
from brimful_inside.wire import BatchSeen, LoaderSeen, OptimizerSeen

SCRIPT = Place("script", "/work/train.py", 6, 13, 128, "batch_size = 128", "data.py:51")
LOADER = Place(
    "loader",
    "/work/data.py",
    51,
    0,
    128,
    "return DataLoader(",
    "data.py:51",
    ["/work/data.py:51", "/work/train.py:9"],
)
TESTS = replace(LOADER, calls=["/work/data.py:51", "/work/train.py:10"])


def loader(
    role: str = "train", size: int = 128, places=(SCRIPT, LOADER), shape=(), batches: int = 4
) -> LoaderSeen:
    return LoaderSeen(
        role,
        size,
        2000,
        None,
        "RandomSampler",
        2000,
        False,
        0,
        False,
        batches,
        batches * size,
        [BatchSeen(size, [[size, *(shape or (3,))]], None)],
        places=list(places),
    )


def result(
    *loaders: LoaderSeen, parameters: int = 10, outcome: Outcome = Outcome.COMPLETED
) -> TrialResult:
    report = Report(
        0,
        1,
        "cpu",
        None,
        "2.13.0",
        "steps_done",
        3,
        1,
        loaders=list(loaders),
        optimizers=[OptimizerSeen("Adam", 3, parameters, [], [])],
    )
    trial = Trial(Command(("train",)), {}, Device("cpu", "cpu"), TrialKind.AUDIT)
    return TrialResult(trial=trial, outcome=outcome, reports=(report,), duration_s=1.0, folder="t1")


def test_the_training_loader_with_most_batches_gives_the_place_the_text_before_the_loader():
    shown = result(loader("eval", batches=9), loader(batches=1, places=[]), loader(batches=4))
    assert [one.kind for one in batch_size_place.places_in(shown)] == ["script", "loader"]
    assert [one.kind for one in batch_size_place.places_in(shown, "loader")] == ["loader"]
    assert batch_size_place.places_in(result(loader("eval"))) == ()


@pytest.mark.parametrize(
    ("evaluation", "not_calls"),
    [(loader("eval", 256, [TESTS]), [TESTS.calls]), (loader("eval", 128, [LOADER]), [])],
)
def test_loaders_that_other_calls_make_keep_their_number(evaluation, not_calls):
    (place,) = batch_size_place.places_in(result(loader(), evaluation), "loader")
    assert place.not_calls == not_calls


@pytest.mark.parametrize(
    ("evaluation", "place"),
    [
        (loader("eval", 256, [replace(SCRIPT, line=7), TESTS]), replace(SCRIPT, line=7)),
        (loader("eval", 128, [SCRIPT, TESTS]), replace(TESTS, not_calls=[LOADER.calls])),
        (loader("eval", 128, [SCRIPT, LOADER]), None),
    ],
    ids=["a number of its own", "a call of its own", "the same number"],
)
def test_the_evaluation_has_a_place_of_its_own_unless_it_takes_the_same_number(evaluation, place):
    assert batch_size_place.eval_place_in(result(loader(), evaluation), SCRIPT) == place


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (result(loader(size=5)), None),
        (result(loader(size=5), parameters=7), "the model follows it as well"),
        (result(loader(size=128)), "the loader is made with 128"),
        (result(loader(size=5, shape=(5,))), "the samples follow it as well"),
        (result(outcome=Outcome.CRASHED), "the script fails with 5 there"),
        (result(outcome=Outcome.OUT_OF_DEVICE_MEMORY), None),
    ],
)
def test_a_number_that_something_else_follows_is_doubted(other, words):
    own = result(
        loader(
            shape=(128,)
            if other.reports[0].loaders and other.reports[0].loaders[0].batches[0].shapes[0][1] == 5
            else ()
        )
    )
    doubt = batch_size_place.doubt(own, other, SCRIPT, 5)
    assert doubt is None if words is None else words in (doubt or "")


@pytest.mark.parametrize(
    ("limit", "is_limited"), [(None, False), (4, True), (1999, True), (2000, False)]
)
def test_a_place_is_limited_by_what_is_smaller_than_the_data_set(limit, is_limited):
    place = replace(SCRIPT, limit=limit, limited_at="train.py:7 (`min(batch, 4)`)")
    limited = batch_size_place.limited_at(result(loader()), place)
    assert limited == (place.limited_at if is_limited else None)


def tried(size: int, place: Place = SCRIPT, outcome: Outcome = Outcome.COMPLETED) -> TrialResult:
    command = Command(("train",), places={"batch_size": place})
    trial = Trial(command, {"batch_size": size}, Device("cpu", "cpu"), TrialKind.AUDIT)
    return replace(result(outcome=outcome), trial=trial)


@pytest.mark.parametrize(
    ("place", "trials", "size", "cap", "is_followed"),
    [
        *((SCRIPT, (tried(512),), size, None, True) for size in (128, 300, 512)),
        *((SCRIPT, (tried(512),), size, None, False) for size in (64, 513)),
        (SCRIPT, (tried(512),), 300, 256, False),
        (SCRIPT, (tried(512),), 256, 256, True),
        (SCRIPT, (), 128, None, False),  # no trial has set it
        (SCRIPT, (tried(512, outcome=Outcome.CRASHED),), 300, None, False),
        (SCRIPT, (tried(512, replace(SCRIPT, line=9)),), 300, None, False),
        (LOADER, (), 9_999, None, True),  # it is the loader's own
    ],
)
def test_a_place_is_known_to_be_followed_as_far_as_trials_showed_it(
    place, trials, size, cap, is_followed
):
    assert batch_size_place.is_followed(place, trials, size, cap) is is_followed


def test_a_number_of_all_ranks_is_no_doubt():
    assert (
        batch_size_place.doubt(result(loader(size=64)), result(loader(size=2)), SCRIPT, 5) is None
    )


@pytest.mark.parametrize(
    ("place", "doubt", "problem", "explanation"),
    [
        (
            replace(SCRIPT, others=["data.py:51", "model.py:12"]),
            (),
            "batch_size: no flag in the command; set where train.py:6 has 128 (`batch_size = 128`)"
            ", with which data.py:51 makes the training DataLoader",
            ("what the script computes from it follows; 128 also stands at model.py:12, and ",),
        ),
        (
            replace(LOADER, limited_at="train.py:7 (`min(batch, 4)`)"),
            (),
            "train.py:7 (`min(batch, 4)`) limits the batch size; brimful sets it past that, at "
            "data.py:51",
            (),
        ),
        (
            LOADER,
            ("the model follows it as well",),
            "batch_size: no flag in the command; set where data.py:51 makes the training "
            "DataLoader with 128",
            ("as the model follows it as well", "does not follow"),
        ),
    ],
)
def test_the_sentence_has_file_and_line_and_what_does_not_follow(
    place, doubt, problem, explanation
):
    said = batch_size_place.found(place, *doubt)
    assert said.problem == problem and all(words in said.explanation for words in explanation)


INPUT = replace(SCRIPT, number=16, text="batch_size = 16", loader="")


def drawn(samples: int, batches: int = 1, outcome: Outcome = Outcome.COMPLETED) -> TrialResult:
    """Of a training without a loader, by its model's input."""
    shown = result(outcome=outcome)
    seen = {
        "samples_per_step": [samples * batches],
        "micro_batches_per_step": [batches],
        "places": [INPUT],
    }
    return replace(shown, reports=(replace(shown.reports[0], **seen),))


def test_without_a_loader_the_place_is_where_the_text_has_the_size_of_the_models_input():
    assert batch_size_place.places_in(drawn(16)) == (INPUT,)
    assert batch_size_place.places_in(drawn(16), "loader") == ()
    said = batch_size_place.found(INPUT)
    assert (
        "set where train.py:6 has 16 (`batch_size = 16`), with which the model's input is made"
        in said.problem
    )
    assert "loader" not in said.suggestion


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (drawn(5), None),
        (drawn(5, batches=3), None),
        (drawn(16), "with 5 there the model's input has 16 samples"),
        (result(), "with 5 there the model's input has no samples"),
        (drawn(5, outcome=Outcome.CRASHED), "the script fails with 5 there"),
    ],
)
def test_without_a_loader_the_models_input_has_to_follow(other, words):
    assert batch_size_place.doubt(drawn(16, batches=2), other, INPUT, 5) == words


@pytest.mark.parametrize(
    ("shown", "wants", "words"),
    [
        (
            result(),
            "auto",
            "no DataLoader whose number could be set, and the model's input does not show how "
            "large a batch is",
        ),
        (
            drawn(16),
            "auto",
            "no DataLoader whose number could be set, and no integer of the script's text",
        ),
        (drawn(16), "loader", "no DataLoader whose number could be set"),
        (result(replace(loader(places=[]), batch_size=None, sampler="Buckets")), "auto", "Buckets"),
        (result(loader(places=[])), "auto", "did not see where"),
    ],
)
def test_why_there_is_no_place_is_said(shown, wants, words):
    said = batch_size_place.why_none(shown, wants)
    assert words in said and (wants == "auto" or said.endswith(words)), "the text was not looked at"


def test_why_a_number_of_the_text_is_not_the_batch_size_is_said_with_its_place():
    doubt = batch_size_place.doubt(drawn(16), drawn(16), INPUT, 5)
    why = "train.py:6 has 16, but with 5 there the model's input has 16 samples"
    assert (
        batch_size_place.why_not_there(INPUT, doubt)
        == f"the training uses no DataLoader, and {why}"
    )


def test_another_choice_is_refused():
    assert batch_size_place.require_choice(None) == "auto"
    with pytest.raises(UsageError, match="guess"):
        batch_size_place.require_choice("guess")
