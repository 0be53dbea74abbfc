"""Whose error a failed trial's is, and what to do about it."""

from dataclasses import replace

import pytest

from brimful import audit
from brimful.errors import BrimfulError
from brimful.trials.results import _last_line
from brimful.values import Failure, Outcome
from tests.brimful.verbs.world import reporting, work

ON_A_CARD, ON_THE_CPU = {"gpu_memory": "4GiB"}, {"device": "cpu"}


def error(
    where,
    name="RuntimeError",
    message="shapes differ",
    approximations=None,
    outcome=Outcome.CRASHED,
    torch="2.13.0",
    unknown_read=True,
    **more,
) -> BrimfulError:
    """What `audit` raises where its trial failed so."""
    failure = Failure(
        "crashed", name, message, "Traceback", "train.py:7 in main", "train", 0, False, **more
    )
    world = reporting(
        lambda result: replace(result, outcome=outcome, failure=failure, exit_code=1),
        approximations=approximations or {},
        torch_version=torch,
        unknown_read=unknown_read and where is ON_A_CARD,
    )
    with pytest.raises(BrimfulError) as raised:
        work(world, audit, ("my-train", "--batch-size", "64"), **where)
    return raised.value


@pytest.mark.parametrize(
    ("raised_by", "problem", "suggestion"),
    [
        ("script", "the script raised an error", "run the command without brimful first"),
        ("worker", "a worker of the script's DataLoader raised an error", "its own traceback"),
        ("refused", "the command cannot be tried as it is, and ended", "start it as this says"),
        ("sandbox", "a file call failed in the layer that keeps the writes", "a defect of brimful"),
        ("ended", "the script draws further batches from a loader that brimful", "in a for loop"),
        ("brimful", "brimful raised an error of its own", "a defect of brimful"),
        ("shapes", "an operation on the imaginary card raised", "check them at that line"),
        ("card", "the script raised an error", "run the command without brimful first"),
    ],
)
def test_the_error_names_whose_it_is(raised_by, problem, suggestion):
    raised = error(ON_A_CARD, raised_by=raised_by)
    assert raised.problem.startswith(problem) and suggestion in raised.suggestion
    assert "RuntimeError: shapes differ (train.py:7 in main)" in raised.problem


def test_a_script_that_leaves_by_os_exit_is_told_that_it_left_no_time_to_report():
    world = reporting(lambda result: replace(result, outcome=Outcome.NO_STEP), ended="running")
    with pytest.raises(BrimfulError, match=r"ended by os\._exit") as raised:
        work(world, audit, ("my-train", "--batch-size", "64"), **ON_THE_CPU)
    assert "sys.exit" in raised.value.suggestion


def test_a_python_without_torch_is_named_with_the_way_to_name_another():
    raised = error(ON_A_CARD, "ModuleNotFoundError", "No module named 'torch'", raised_by="script")
    assert raised.suggestion.startswith("my-train has no torch: activate the environment")
    assert raised.suggestion.endswith("\n-- /path/to/its/bin/my-train --batch-size 64")


def test_an_error_without_words_is_named_with_its_place():
    assert (
        "at batch_size 64: AssertionError (train.py:7 in main)"
        in error(ON_A_CARD, "AssertionError", "").problem
    )
    assert "SystemExit" not in error(ON_A_CARD, "SystemExit", "").problem


def test_what_the_imaginary_card_cannot_run_is_said_once_with_its_place():
    said = "the imaginary GPU cannot run torch.foo at train.py:7 in main: it is not modelled"
    unsupported = {"outcome": Outcome.UNSUPPORTED, "name": "Unsupported"}
    assert error(ON_A_CARD, message=f"{said}\nmore", **unsupported).problem == said
    other = error(ON_A_CARD, message="fbgemm needs a real card", **unsupported).problem
    assert (
        other == "the imaginary GPU does not have what the script called at train.py:7 in main: "
        "fbgemm needs a real card"
    )


@pytest.mark.parametrize(
    ("torch", "outcome", "where", "older"),
    [
        ("2.5.1+cu124", Outcome.CRASHED, ON_A_CARD, True),
        ("2.4.0", Outcome.UNSUPPORTED, ON_A_CARD, True),
        ("2.6.0", Outcome.CRASHED, ON_A_CARD, False),
        ("2.5.1", Outcome.OUT_OF_DEVICE_MEMORY, ON_A_CARD, False),
        ("2.5.1", Outcome.CRASHED, ON_THE_CPU, False),
    ],
)
def test_where_an_old_torch_fails_on_an_imaginary_card_its_age_is_what_is_said(
    torch, outcome, where, older
):
    problem = error(where, torch=torch, outcome=outcome).problem
    assert older is problem.startswith(f"torch {torch} is older than 2.6, the oldest release")


@pytest.mark.parametrize("raised_by", ["card", "shapes"])
def test_an_operation_of_the_card_is_blamed_where_shapes_were_upper_bounds(raised_by):
    raised = error(ON_A_CARD, raised_by=raised_by, approximations={"nonzero": 3, "unique": 1})
    assert raised.problem.startswith("an operation on the imaginary card raised an error")
    assert "nonzero, unique" in raised.suggestion


VALUES = "are 1 (a loss) or 0 (the sum of a mask) where nobody can know them"
ASKS = "--gpu a100-40gb"


@pytest.mark.parametrize(
    ("where", "name", "message", "read", "words", "points"),
    [
        (ON_A_CARD, "ZeroDivisionError", "division by zero", True, VALUES, True),
        (ON_A_CARD, "ZeroDivisionError", "division by zero", False, VALUES, False),
        (ON_A_CARD, "KeyError", "division by zero", True, VALUES, False),
        (ON_THE_CPU, "ZeroDivisionError", "division by zero", True, VALUES, False),
        (ON_THE_CPU, "AssertionError", "Torch not compiled with CUDA enabled", True, ASKS, True),
        (ON_THE_CPU, "AssertionError", "No supported gpu backend found!", True, ASKS, True),
        (ON_THE_CPU, "AssertionError", "x", True, ASKS, False),
        (ON_A_CARD, "AssertionError", "No supported gpu backend found!", True, ASKS, False),
    ],
)
def test_an_error_points_to_values_that_an_imaginary_card_lacks_or_to_one_where_there_is_no_card(
    where, name, message, read, words, points
):
    raised = error(where, name, message, unknown_read=read)
    assert (words in raised.suggestion) is points


UNDER_TORCHRUN = """
W1126 08:33:04.740000 29196 torch/distributed/run.py:874] Setting OMP_NUM_THREADS to 1
usage: opt.py [-h] [--x X]
opt.py: error: unrecognized arguments: --foo 3
W1126 08:33:10.589000 29196 torch/distributed/elastic/multiprocessing/api.py:1028] Sending SIGTERM
E1126 08:33:10.657000 29196 torch/distributed/elastic/multiprocessing/api.py:1002] failed
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
"""


def test_of_torchruns_output_the_last_words_of_a_rank_are_shown():
    assert _last_line(UNDER_TORCHRUN) == "opt.py: error: unrecognized arguments: --foo 3"
    nothing = UNDER_TORCHRUN.replace("usage: opt.py [-h] [--x X]\n", "")
    nothing = nothing.replace("opt.py: error: unrecognized arguments: --foo 3\n", "")
    assert _last_line(nothing) == "=" * 60, "the ranks said nothing"
