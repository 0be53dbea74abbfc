"""`predict --solve`: the largest value of any setting, in worlds where the truth is known."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st

from brimful import predict
from brimful.decide.memory import uneven
from brimful.decide.memory.bracket import least_step
from brimful.errors import CommandFailed, DoesNotFit, UsageError
from brimful.show.headline import headline, of_prediction
from brimful.show.markdown import render_markdown
from brimful.trials import session
from brimful.values import Outcome, Trial
from brimful_inside.simulator.trace import Free, Malloc, Phase, Row, Step
from tests.brimful.verbs.world import MIB, Uneven, World, work

SLOW = settings(
    max_examples=12,
    deadline=None,
    phases=[HypothesisPhase.explicit, HypothesisPhase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
COMMAND = ("my-train", "--batch-size", "8", "--max-length", "{max_length}")


@dataclass
class Shaped(World):
    """Memory follows `name`, not the batch size: linear and quadratic in it, rounded up to a `step`
    where a kernel pads it, in as many `layers` as it says; the script runs at multiples of `unit`
    from `least` to `most` alone."""

    name: str = "max_length"
    step: int = 1
    layers: bool = False
    unit: int = 1
    least: int = 1
    most: int = 1 << 40
    data: int = 1 << 40  # longer samples than that there are none
    slow: int = 1 << 40  # from there on a trial takes more of this computer than it may,
    ending: Outcome = Outcome.TIMED_OUT  # and ends so
    value: int = 0

    def _imaginary(self, trial: Trial, size: int, folder: Path):
        self.value = int(trial.settings[self.name])
        if self.value % self.unit or not self.least <= self.value <= self.most:
            sample = super()._imaginary(trial, size, folder)
            return self._sample(trial, size, folder, Outcome.CRASHED, None) if sample else sample
        if self.value >= self.slow:
            return self._sample(trial, size, folder, self.ending, None)
        return super()._imaginary(trial, size, folder)

    def rows(self, size: int) -> list[Row]:
        value = min(self.value, self.data)
        padded = -(-value // self.step) * self.step
        made: list[Row] = [Malloc(1, self.fixed, "aten.randn"), Phase("train")]
        for step in range(2):
            if self.layers:
                parts = [
                    Malloc(10 + 2 * layer + step, self.linear, "aten.mm") for layer in range(value)
                ]
            else:
                parts = [
                    Malloc(10 + step, self.linear * padded, "aten.mm"),
                    Malloc(20 + step, self.quadratic * value * value, "aten.mm"),
                ]
            made += [*parts, *(Free(row.id) for row in parts), Step(step + 1)]
        return [*made, Phase("eval"), Malloc(9, MIB, "aten.mm"), Free(9)]


@dataclass
class Aligned(Shaped):
    """An operation more where the value is no multiple of 8, as attention pads its mask: two kinds
    of programs.
    """

    def rows(self, size: int) -> list[Row]:
        made = super().rows(size)
        padding = (
            [Malloc(30, self.fixed // 3 + 4096 * self.value, "aten.constant_pad_nd"), Free(30)]
            if self.value % 8
            else []
        )
        return [*made[:2], *padding, *made[2:]]


def solved(world, name="max_length", command=COMMAND, **more):
    return work(world, predict, command, gpu_memory="4GiB", solve=name, **more)


def verdict_at(world, value):
    """Of the command with a fixed value."""
    try:
        return work(
            world, predict, COMMAND, gpu_memory="4GiB", settings={"max_length": value}
        ).prediction.verdict
    except CommandFailed:
        return "fails"


SHAPES = st.builds(
    Shaped,
    fixed=st.integers(1 * MIB, 700 * MIB),
    linear=st.sampled_from([64 * 1024, MIB, 7 * MIB, 31 * MIB]),
    quadratic=st.sampled_from([0, 512, 4096, 200_000]),
    step=st.sampled_from([1, 1, 8, 32, 128]),
    layers=st.sampled_from([False, False, True]),
    unit=st.sampled_from([1, 1, 8, 32]),
    least=st.sampled_from([1, 1, 40]),
    most=st.sampled_from([1 << 40, 1 << 40, 512, 384]),
)


@SLOW
@example(
    Shaped(
        fixed=90209358,
        linear=31 * MIB,
        quadratic=200_000,
        step=8,
        layers=False,
        unit=1,
        least=1,
        most=512,
    )
)
# a model agrees with some of its traces by chance
@example(Shaped(fixed=1144497, linear=7 * MIB, step=32, least=40))
@given(SHAPES)
def test_the_value_that_is_named_fits_and_where_3_percent_more_does_the_answer_says_so(world):
    if world.layers:
        world.step = 1
        world.linear = max(world.linear, 7 * MIB)
    try:
        prediction = solved(world).prediction
    except (
        DoesNotFit,
        CommandFailed,
    ):  # the second where memory is short and smaller values are none
        assert verdict_at(world, max(world.least, world.unit)) != "fits"
        return
    value, unit = prediction.solved.value, prediction.solved.multiple_of
    assert value == prediction.solved.largest and value % unit == 0
    assert verdict_at(world, value) == prediction.verdict == "fits"
    tried = {trial.settings["max_length"] for trial in world.launched}
    more = value + least_step(value // unit) * unit
    noted = any("not looked at" in note.problem for note in prediction.warnings)
    assert noted or verdict_at(world, more) != "fits", f"{more} is larger"
    assert len(tried) <= 24


@pytest.mark.parametrize("quadratic", [0, 4096])
def test_sizes_that_are_whole_take_no_more_trials_than_batch_sizes_do(quadratic):
    world = Shaped(quadratic=quadratic)
    assert solved(world).prediction.exact and len(world.launched) == (4 if quadratic else 3)
    assert {trial.settings["batch_size"] for trial in world.launched} == {8}


def test_every_sentence_names_the_unknown_and_none_the_batch_size():
    record = solved(Shaped(quadratic=4096))
    prediction, page = record.prediction, render_markdown(record)
    value = prediction.solved.value
    assert headline(record).sentence.startswith(f"max_length {value:,} fits")
    assert "It is the largest that fits" in headline(record).sentence
    assert prediction.next_command.line.split()[-2:] == ["--max-length", str(value)]
    assert prediction.next_command.reason == "solved"
    assert (prediction.batch_size, prediction.largest_batch_size) == (8, None)
    assert "batch size" not in page.lower().replace("the largest batch there can be", ""), page


def test_where_multiples_alone_train_the_answer_is_one_and_says_so():
    record = solved(Shaped(unit=32))
    assert record.prediction.solved.multiple_of == 32 and record.prediction.solved.value % 32 == 0
    assert "the largest multiple of 32 that fits" in headline(record).sentence
    (note,) = [note for note in record.notes if note.code == "multiples"]
    assert "multiples of 32" in note.explanation


def test_a_limit_of_the_script_is_found_to_the_last_value_and_named():
    prediction = solved(Shaped(linear=64 * 1024, most=512)).prediction
    assert prediction.solved.value == 512 and "fails at max_length" in prediction.limited_by


@pytest.mark.parametrize("ending", [Outcome.TIMED_OUT, Outcome.OUT_OF_HOST_MEMORY])
def test_values_that_take_too_much_of_this_computer_are_given_up_after_few_trials(ending):
    world = Shaped(linear=64 * 1024, slow=2000, ending=ending)
    record = solved(world)
    prediction, values = record.prediction, [t.settings["max_length"] for t in world.launched]
    assert 2000 / 4 <= prediction.solved.value < 2000 and prediction.verdict == "fits"
    assert prediction.limited_by.startswith("this computer: a trial at max_length")
    assert "the largest that ran, limited by this computer" in headline(record).sentence
    assert sum(value >= 2000 for value in values) <= 3 and len(values) <= 8
    assert all(trial.time_limit_s <= 30 and trial.host_limit_bytes for trial in world.launched[1:])


@pytest.mark.parametrize(
    ("world", "error", "says"),
    [
        (World(), UsageError, r"max_length changes nothing: .* at 5, 12, 96 and 768"),
        (Shaped(most=0), CommandFailed, "max_length 5"),
    ],
    ids=["a setting that changes nothing", "a script that fails at every value"],
)
def test_where_no_value_can_be_named_the_error_says_what_was_tried(world, error, says):
    with pytest.raises(error, match=says):
        solved(world)


def test_beyond_the_data_any_value_fits_and_none_is_called_the_largest():
    record = solved(Shaped(linear=64 * 1024, data=60))
    assert record.prediction.solved.largest is None and record.prediction.verdict == "fits"
    assert "memory stops growing with max_length" in headline(record).sentence


def test_a_flag_of_that_name_needs_no_braces_and_its_own_number_is_tried_last():
    world = Shaped(unit=12, linear=MIB)
    prediction = solved(
        world, command=("my-train", "--batch-size", "8", "--max-length", "384")
    ).prediction
    assert prediction.solved.value % 12 == 0 and prediction.solved.multiple_of == 12
    assert [trial.settings["max_length"] for trial in world.launched][:5] == [5, 64, 256, 1024, 384]


def test_the_open_batch_size_and_solving_for_it_are_one_question():
    left_open = work(World(), predict, gpu_memory="4GiB").prediction
    prediction = solved(World(), "batch_size", ("my-train", "--batch-size", "64")).prediction
    assert prediction.solved is None
    assert (prediction.batch_size, prediction.largest_batch_size) == (
        left_open.batch_size,
        left_open.largest_batch_size,
    )
    assert of_prediction(prediction).sentence == of_prediction(left_open).sentence


def test_what_if_tries_its_changes_at_the_value_that_was_solved_for():
    world = Shaped(quadratic=4096, helps={"checkpointing": 0.5})
    prediction = solved(world, what_if=True).prediction
    tried = [trial for trial in world.launched if trial.what_ifs]
    assert tried and tried[0].settings == {"batch_size": 8, "max_length": prediction.solved.value}
    (remedy,) = [
        result for result in prediction.what_if.remedies if result.code == "gradient-checkpointing"
    ]
    assert remedy.largest_batch_size > prediction.solved.value


def test_what_the_script_prepared_for_another_length_is_not_handed_on(monkeypatch):
    handed: list[list[object]] = []

    monkeypatch.setattr(
        session.carry_over,
        "carry_over_files",
        lambda earlier, *folders: handed.append([trial.trial.settings for trial in earlier]),
    )
    solved(Shaped())
    assert handed and not any(handed), "every trial has a length of its own"
    handed.clear()
    work(World(), predict, gpu_memory="4GiB")
    assert len(handed[-1]) == len(handed) - 1, "batch sizes share it"


@pytest.mark.parametrize("linear", [64 * 1024, MIB, 3 * MIB])
def test_the_largest_value_has_the_peak_of_its_own_trace_where_another_kind_of_program_proves_it(
    linear,
):
    prediction = solved(Aligned(fixed=100 * MIB, linear=linear)).prediction
    alone = work(
        Aligned(fixed=100 * MIB, linear=linear),
        predict,
        COMMAND,
        gpu_memory="4GiB",
        settings={"max_length": prediction.solved.value},
    )
    assert (
        alone.prediction.verdict == "fits"
        and alone.prediction.peak.device_bytes == prediction.peak.device_bytes
    )


def test_the_value_that_is_named_fits_over_an_epoch_of_uneven_batches(monkeypatch):
    monkeypatch.setattr(uneven, "MOST_STEPS", 60)
    world = Uneven()
    prediction = solved(world).prediction
    value, alone = prediction.solved.value, prediction.largest_batches_peak
    drawn = [trial.settings["max_length"] for trial in world.launched if trial.as_drawn]
    assert value in drawn and prediction.peak.device_bytes > alone.device_bytes
    assert verdict_at(Uneven(), value) == "fits" != verdict_at(Uneven(), int(1.2 * value))
