"""`compare` in worlds whose answer is known."""

from dataclasses import dataclass, replace

import pytest

from brimful.errors import UsageError
from brimful.show.headline import headline
from brimful.trials.session import Options
from brimful.values import Record
from brimful.verbs.compare import Until, compare
from tests.brimful.verbs.world import Learning, World, reporting, work

WORDS = ("my-train --batch-size 16", "my-train --batch-size 64")


def compared(world: World, words: tuple[str, ...] = WORDS, **more) -> Record:
    return work(world, compare, words, device="cpu", until=Until(60.0), **more)


def codes(record: Record) -> set[str]:
    return {quantity.code for quantity in record.comparison.quantities}


def test_without_a_loss_the_speeds_are_compared_and_the_reason_is_a_whole_sentence():
    record = compared(World())
    assert headline(record).sentence == (
        "B is 1.41x faster; learning was not compared: no loss was seen at "
        "each step (backward() starts from no single number, or the samples of a step are not "
        "known)."
    )
    assert codes(record).isdisjoint({"time_to_loss_s", "loss_at_equal_samples"})


@pytest.mark.parametrize(
    ("ended", "runs"),
    [("steps_done", "4 runs of 1 min 00 s"), ("script_ended", "4 runs of the whole training")],
)
def test_runs_that_come_to_their_own_end_are_not_said_to_take_the_time_they_were_given(ended, runs):
    comparison = compared(reporting(ended=ended)).comparison
    assert comparison is not None and comparison.basis == runs


def test_a_batch_whose_steps_teach_no_more_is_not_worth_its_time():
    record = compared(Learning(teaches=0.0))
    assert record.comparison is not None and record.comparison.better == "A"
    assert headline(record).sentence.endswith("x the time. Use A.")


def test_the_same_learning_rate_at_another_batch_size_is_said():
    record = compared(Learning())
    [advice] = [w for w in record.comparison.warnings if w.code == "learning-rate-scaling"]
    assert "Try 0.002 instead of 0.001" in advice.suggestion
    scaled = (WORDS[0] + " --lr 0.001", WORDS[1] + " --lr 0.001")
    assert compared(Learning(), scaled).comparison is not None


@dataclass
class Diverging(Learning):
    """The loss of large batches is no number from the third step on."""

    def launch(self, trial, *rest, **more):
        result = super().launch(trial, *rest, **more)
        if self.batch(trial) < 64:
            return result
        nan = [float("nan")] * 400
        return replace(
            result,
            reports=tuple(replace(r, losses=[*r.losses[:2], *nan[2:]]) for r in result.reports),
        )


def test_a_side_that_diverges_is_named_and_not_taken_for_one_that_learns():
    record = compared(Diverging())
    assert record.comparison is not None and record.comparison.better is None
    assert "learning was not compared: the loss of B is no number at step 3 (it diverges)" in (
        headline(record).sentence
    )
    first, second = record.comparison.sides
    assert first.curve and not second.curve


@pytest.mark.parametrize(
    ("words", "more", "says"),
    [
        (WORDS, {"record": "latest"}, "a record"),
        (WORDS, {"plan": True, "gpu": "l4"}, "--plan"),
        (WORDS, {"gpu": "l4", "until": Until(60.0)}, "--minutes"),
        (WORDS, {"options": Options(steps=3)}, "--steps"),
        (WORDS, {"options": Options(budget="1GiB")}, "--budget"),
        (WORDS, {"options": Options(max_batch_size=8)}, "--max-batch-size"),
    ],
)
def test_an_option_that_would_be_passed_over_is_refused(words, more, says):
    with pytest.raises(UsageError, match=f"^{says}.* would change nothing here"):
        compare(words, **more)
