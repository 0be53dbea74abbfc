"""`predict` on an imaginary card with a clock, in worlds where the truth is known."""

from dataclasses import dataclass, replace

import pytest

from brimful import predict
from brimful.show.headline import headline
from brimful.values import Prediction
from brimful_inside.simulator.roofline import DEFAULT, Kernel
from brimful_inside.simulator.trace import Free, Malloc, Row
from brimful_inside.wire import WorstBatch
from tests.brimful.verbs.world import MIB, World, reporting, work


@dataclass
class Clocked(World):
    """Its steps run 200 small kernels, and one that grows with the batch: 1 ms at about 1000
    samples on an A100.
    """

    bytes_per_sample: int = 1_200_000

    def rows(self, size: int) -> list[Row]:
        small = [Kernel("aten.add.Tensor", "memory", 0, 1000)] * 200
        large = Kernel("aten.relu.default", "memory", 0, self.bytes_per_sample * size)
        return [*super().rows(size), *small, large]  # type: ignore[list-item]


def test_batches_of_different_numbers_of_samples_count_with_their_mean():
    """A batch sampler with a limit of tokens: the batch that a trial repeats has 64 short samples,
    a mean one 16.
    """
    worst = WorstBatch(
        4096, 4096, True, "the batch sampler's batches differ", samples=64, mean_samples=16.0
    )
    plain, mean = (
        work(
            reporting(world=Clocked(dataset=4096), worst_batch=note),
            predict,
            ("my-train", "--batch-size", "64"),
            gpu="l4",
        )
        for note in (None, worst)
    )
    speed = mean.prediction.speed
    assert speed.step_s == plain.prediction.speed.step_s, "steps are those that ran"
    assert speed.samples_per_s.value == pytest.approx(
        plain.prediction.speed.samples_per_s.value / 4
    )
    assert (mean.prediction.epoch.steps, mean.prediction.epoch.samples_per_step) == (4096 // 16, 16)
    assert any("a mean batch's samples" in note for note in speed.notes)


def test_the_environments_that_a_script_plays_in_are_named_beside_its_speed():
    plays = reporting(world=Clocked(dataset=300), environments="gymnasium")
    assert work(plays, predict, gpu="l4").prediction.speed.environments == "gymnasium"


def test_predict_answers_speed_knee_and_what_binds():
    predicted = work(
        Clocked(dataset=4096), predict, ("my-train", "--batch-size", "64"), gpu="a100-40gb"
    ).prediction
    speed = predicted.speed
    assert speed is not None and speed.batch_size == 64
    assert speed.curve[-1].batch_size == predicted.largest_batch_size == 4096
    assert speed.bound_by["launches"] > 0.8
    assert speed.step_s.value == pytest.approx(201 * DEFAULT.script_s, rel=0.05)
    assert speed.samples_per_s.value == pytest.approx(64 / speed.step_s.value)
    assert {"add", "relu"} == {kernel.op for kernel in speed.kernels}


def test_a_size_that_does_not_fit_has_a_time_and_no_place_on_the_curve():
    words = ("my-train", "--batch-size", "9000")
    speed = work(Clocked(dataset=None, linear=20 * MIB), predict, words, gpu="a100-40gb").prediction
    assert speed.verdict == "does_not_fit" and speed.speed.batch_size == 9000
    assert speed.speed.curve[-1].batch_size == speed.largest_batch_size < 9000


def test_samples_that_do_not_change_with_the_batch_while_the_work_does_count_as_the_batch_size():
    """The loader is not seen, and what stands for the samples is another dimension."""
    world = reporting(lambda result: replace(result, samples_per_step=35), Clocked(dataset=4096))
    speed = work(
        world, predict, ("my-train", "--batch-size", "64"), gpu="a100-40gb"
    ).prediction.speed
    assert speed.samples_per_s.value == pytest.approx(64 / speed.step_s.value)
    assert any("counted as the batch size" in note for note in speed.notes)
    assert speed.curve[-1].value.value > speed.curve[0].value.value


@pytest.mark.parametrize("asked", ["64", "{batch_size}"])
def test_a_script_that_ignores_the_batch_size_has_the_samples_of_its_own_batch_in_a_step(asked):
    """The cap lies below every size that is traced."""
    speed = work(
        Clocked(cap=2), predict, ("my-train", "--batch-size", asked), gpu="a100-40gb"
    ).prediction
    assert speed.ignores_batch_size and (speed.epoch.samples_per_step, speed.epoch.steps) == (
        2,
        5000,
    )
    assert speed.speed.samples_per_s.value == pytest.approx(2 / speed.speed.step_s.value)


@dataclass
class Summing(Clocked):
    """As many batches as come to 256 samples make a step."""

    def rows(self, size: int) -> list[Row]:
        rows = super().rows(size)
        kernels = [row for row in rows if isinstance(row, Kernel)]
        batches = [
            row
            for number in range(self.batches(size))
            for row in (Malloc(500 + number, 1000 * size, "aten.mm"), Free(500 + number))
        ]
        others = [row for row in rows if not isinstance(row, Kernel)]
        return [*others, *batches, *kernels * self.batches(size)]

    def batches(self, size: int) -> int:
        return 256 // size


def test_batches_summed_to_a_fixed_total_are_counted_and_no_knee_is_made_up():
    asked = ("my-train", "--batch-size", "85")
    speed = work(Summing(linear=60 * MIB), predict, asked, 128, gpu="a100-40gb").prediction.speed
    step = work(
        Clocked(linear=60 * MIB), predict, asked, 128, gpu="a100-40gb"
    ).prediction.speed.step_s.value
    assert speed.step_s.value == pytest.approx(3 * step, rel=0.05)
    assert speed.samples_per_s.value == pytest.approx(3 * 85 / speed.step_s.value)
    assert speed.knee_batch_size is None and any("fixed total" in note for note in speed.notes)


@dataclass
class Accumulating(Clocked):
    """Eight batches make a step, and from 10 samples in a batch two, as many as are left at the end
    of an epoch.
    """

    def batches(self, size: int) -> int:
        return 8 if size < 10 else 2

    def rows(self, size: int) -> list[Row]:
        rows = super().rows(size)
        kernels = [row for row in rows if isinstance(row, Kernel)]
        return [row for row in rows if not isinstance(row, Kernel)] + kernels * self.batches(size)


def test_a_step_that_the_end_of_an_epoch_cuts_short_does_not_stand_for_the_others():
    asked = ("my-train", "--batch-size", "64")
    speed = work(Accumulating(linear=50 * MIB), predict, asked, gpu="a100-40gb").prediction.speed
    step = work(
        Clocked(linear=50 * MIB), predict, asked, gpu="a100-40gb"
    ).prediction.speed.step_s.value
    assert speed.step_s.value == pytest.approx(8 * step, rel=0.05)
    assert speed.samples_per_s.value == pytest.approx(8 * 64 / speed.step_s.value)


@pytest.mark.parametrize("card", [{"gpu": "a100-40gb"}, {"gpu_memory": "40GiB"}])
def test_no_size_is_recommended_at_which_an_epoch_has_fewer_batches_than_a_step(card):
    prediction = work(Clocked(dataset=1000, accumulated=4), predict, **card).prediction
    assert prediction.largest_batch_size == 1000
    assert prediction.next_command.batch_size == 333


def test_a_size_at_which_an_epoch_has_fewer_batches_than_a_step_is_a_warning():
    def predicted(size: int, gpu: str = "a100-40gb") -> tuple[Prediction, str]:
        world, asked = Clocked(dataset=1000, accumulated=4), ("my-train", "--batch-size", str(size))
        record = work(world, predict, asked, gpu=gpu)
        return record.prediction, headline(record).sentence

    prediction, said = predicted(512)
    assert (prediction.epoch.steps, prediction.epoch.most_steps) == (0, 1)
    assert said.startswith("A step takes 4 batches, and an epoch has fewer: the script makes no up")
    assert "take a batch size of 333 or less" in said
    _, of_cards = predicted(512, "a100-40gb,l4")
    assert of_cards.startswith("A step takes 4 batches")
    row = prediction.row_at(512)
    assert (row.updates_per_epoch.value, row.updates_per_epoch.high) == (0, 1)
    assert row.step_s.value == pytest.approx(1000 / row.samples_per_s.value)
    prediction, said = predicted(333)
    assert prediction.epoch.steps == 1 and said.startswith("Batch size 333 fits")


@pytest.mark.parametrize("gpu", ["a100-40gb", "a100-40gb,l4"])
def test_a_batch_larger_than_the_fixed_total_is_a_step_of_its_own(gpu):
    class Whole(Accumulating):
        def batches(self, size: int) -> int:
            return max(1, 256 // size)

    asked = ("my-train", "--batch-size", "400")
    summing, plain = (
        work(world, predict, asked, gpu=gpu, budget="900MiB").prediction
        for world in (Whole(), Clocked())
    )
    assert summing.speed.samples_per_s.value == pytest.approx(plain.speed.samples_per_s.value)
    assert summing.epoch.samples_per_step == 400 and summing.epoch.steps == 25
    rates = ([line.samples_per_s.value for line in answer.which] for answer in (summing, plain))
    assert next(rates) == pytest.approx(next(rates))
    rows = {row.batch_size: row for row in summing.sizes}
    assert all(row.effective_batch.value >= size for size, row in rows.items() if size > 256)
