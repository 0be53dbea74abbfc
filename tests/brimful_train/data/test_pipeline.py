"""The pipeline: the samples of each step on the device, again and again, from arrays and from
loaders.
"""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.errors import UsageError
from brimful_train.config import DataConfig
from brimful_train.data.arrays import Arrays
from brimful_train.data.epoch_sampler import EpochSampler, Position
from brimful_train.data.pipeline import DataPipeline
from tests.brimful_train.data.datasets import ALONE, CPU, Noisy, Texts


def sampler(length, micro_batch=4, accumulation=2, **more):
    return EpochSampler(length, seed=0, micro_batch=micro_batch, accumulation=accumulation, **more)


def indices_of(batch):
    return batch[0].tolist()


def arrays(length):
    return Arrays(torch.arange(length), torch.arange(length) * 10)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([arrays, Noisy]),
)
def test_what_is_loaded_is_what_the_sampler_plans(length, micro_batch, accumulation, ranks, make):
    loaded = []
    for rank in range(ranks):
        on_rank = sampler(length, micro_batch, accumulation, ranks=ranks, rank=rank)
        for step in DataPipeline(make(length), on_rank, CPU, ALONE, 0).steps(Position(1)):
            assert step.parts == tuple(len(part) for part in step.indices.micro_batches)
            assert step.samples == step.indices.samples
            for part, samples in enumerate(step.parts):
                batch = step.load(part, 0, samples)
                assert indices_of(batch) == step.indices.micro_batches[part].tolist()
                loaded += indices_of(batch)
    assert sorted(loaded) == list(range(length))


@pytest.mark.parametrize(
    "config", [ALONE, DataConfig(workers=1), DataConfig(workers=1, residence="loader")]
)
@pytest.mark.parametrize("make", [arrays, Noisy])
def test_a_load_can_be_repeated_whole_or_in_pieces_in_any_order_until_the_next_step(config, make):
    for step in DataPipeline(make(20), sampler(20, 4, 3), CPU, config, 0).steps(Position()):
        whole = [step.load(part, 0, n) for part, n in enumerate(step.parts)]
        for part, n in reversed(list(enumerate(step.parts))):
            pieces = [step.load(part, at, min(at + 3, n)) for at in range(0, n, 3)]
            for number in (0, 1):
                assert torch.equal(
                    torch.cat([piece[number] for piece in pieces]), whole[part][number]
                )


def test_workers_batch_size_and_a_resume_change_no_random_number_of_a_sample():
    def drawn(config, micro_batch, start=0):
        pipeline = DataPipeline(Noisy(24), sampler(24, micro_batch, 1), CPU, config, 5)
        batches = [step.load(0, 0, step.parts[0]) for step in pipeline.steps(Position(2, start))]
        return {
            i: v
            for batch in batches
            for i, v in zip(batch[0].tolist(), batch[1].tolist(), strict=True)
        }

    here = drawn(ALONE, 4)
    assert len(here) == 24
    assert drawn(DataConfig(workers=2), 7) == here
    rest = drawn(ALONE, 5, start=13)
    assert len(rest) == 11 and rest.items() <= here.items()


@pytest.mark.parametrize(
    ("make", "config"), [(arrays, ALONE), (Noisy, ALONE), (Noisy, DataConfig(workers=1))]
)
def test_a_step_or_a_pass_that_was_left_in_the_middle_does_not_shift_the_next(make, config):
    pipeline = DataPipeline(make(30), sampler(30, 4, 3), CPU, config, 0)
    next(pipeline.steps(Position())).load(0, 0, 1)
    for epoch in (0, 1):
        steps = []
        for step in pipeline.steps(Position(epoch, 8)):
            assert indices_of(step.load(0, 0, 2)) == step.indices.micro_batches[0][:2].tolist()
            steps.append(step)
        assert steps[0].indices.before == Position(epoch, 8) and steps[
            -1
        ].indices.after == Position(epoch + 1)


def test_batches_by_size_are_collated_by_the_data_set_and_cut_by_samples():
    sized = sampler(8, 4, 1, sizes=Texts.sizes, max_tokens=12)
    sizes, tokens = [], []
    for step in DataPipeline(Texts(), sized, CPU, ALONE, 0).steps(Position()):
        for part, n in enumerate(step.parts):
            sizes.append(tuple(step.load(part, 0, n)["tokens"].shape))
            tokens += [int(step.load(part, at, at + 1)["tokens"][0, 0]) for at in range(n)]
    assert (1, 9) in sizes and all(samples * longest <= 12 for samples, longest in sizes)
    assert sorted(tokens) == list(range(8))


def pipeline_of(length, loader):
    """A pipeline whose loader is ``loader(its own)``: it imitates a trial, which ends a pass early
    or gives other batches.
    """
    pipeline = DataPipeline(arrays(length), sampler(length), CPU, ALONE, 0)
    pipeline._loader = loader(pipeline._loader)
    return pipeline


class Each:
    """A loader whose passes are ``make()``."""

    def __init__(self, make):
        self.make = make

    def __iter__(self):
        return iter(self.make())


@pytest.mark.parametrize(("batches", "steps"), [(0, 0), (1, 1), (2, 1), (3, 2), (100, 4)])
def test_a_loader_that_ends_early_ends_the_epoch_and_the_step_that_was_begun_can_be_made(
    batches, steps
):
    pipeline = pipeline_of(30, lambda drawn: Each(lambda: itertools.islice(drawn, batches)))
    made = [
        [len(step.load(part, 0, n)[0]) for part, n in enumerate(step.parts)]
        for step in pipeline.steps(Position())
    ]
    assert len(made) == steps and all(samples > 0 for parts in made for samples in parts)


def test_a_loader_that_goes_on_beyond_the_epoch_gives_more_steps():
    pipeline = pipeline_of(16, lambda drawn: Each(lambda: itertools.chain(drawn, drawn, drawn)))
    batches = [
        step.load(part, 0, n)
        for step in pipeline.steps(Position())
        for part, n in enumerate(step.parts)
    ]
    assert [len(batch[0]) for batch in batches] == [4] * 12


def first_of(*batches):
    return next(iter(pipeline_of(16, lambda drawn: Each(lambda: batches)).steps(Position())))


@pytest.fixture
def in_a_trial(monkeypatch):
    monkeypatch.setattr("brimful_train.data.pipeline.keeps_writes_out", lambda: True)


@pytest.mark.usefixtures("in_a_trial")
def test_in_a_trial_a_batch_of_another_size_than_planned_is_cut_in_the_same_shares():
    step = first_of(torch.arange(8), torch.arange(8))
    assert [step.load(0, at, 4 - at).tolist() for at in (0, 1)] == [list(range(8)), [2, 3, 4, 5]]


@pytest.mark.parametrize("time_steps", [6, 8, 1])
def test_a_batch_whose_first_dimension_is_not_its_samples_goes_whole_and_is_not_cut_by_it(
    time_steps,
):
    step = first_of((torch.zeros(time_steps, 4, 3), torch.zeros(time_steps, 4, 1)))
    assert step.load(0, 0, 4)[0].shape == (time_steps, 4, 3)
    with pytest.raises(
        UsageError, match=f"has {time_steps} rows, and the batch has 4 samples"
    ) as caught:
        step.load(0, 0, 2)
    assert "slices" in caught.value.suggestion
    assert step.load(0, 0, 4)[0].shape == (time_steps, 4, 3)


def test_a_sample_that_fails_fails_the_training_with_its_own_error():
    with pytest.raises(ValueError, match="a broken image"):
        list(DataPipeline(Noisy(8, fails_at=5), sampler(8), CPU, ALONE, 0).steps(Position()))


def test_residence_and_workers_are_reported_as_asked_and_in_force():
    local = DataConfig(workers=3, residence="device"), ("device", "host"), (3, 0)
    pinned = DataConfig(workers=2, residence="pinned"), ("pinned", "loader"), (2, 2)
    for make, (config, residence, workers) in ((arrays, local), (Noisy, pinned)):
        made = DataPipeline(make(5), sampler(5), CPU, config, 0)
        assert (made.residence.requested, made.residence.effective) == residence
        assert (made.rows[0].requested, made.rows[0].effective) == workers
        if make is arrays:
            assert (
                "the training is on cpu" in made.residence.why and "in arrays" in made.rows[0].why
            )


def test_the_report_shows_that_samples_of_a_data_set_of_batches_are_made_one_by_one():
    class Batched(Noisy):
        def __getitems__(self, indices):
            return [self[index] for index in indices]

    for config, is_seeded in ((ALONE, True), (DataConfig(workers=0, random_samples=False), False)):
        pipeline = DataPipeline(Batched(8), sampler(8), CPU, config, seed=0)
        assert ("__getitems__" in pipeline.rows[0].why) is is_seeded
