"""How many workers: by measuring, within what the machine has."""

from __future__ import annotations

import os
import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, default_collate

from brimful.errors import BrimfulError
from brimful.train.checking import Effective
from brimful.train.config import DataConfig
from brimful.train.data import workers as workers_module
from brimful.train.data.workers import Machine, Need, Rates, bound, choose, decide_workers, make_here, measure, shared

MIB, GIB = 1 << 20, 1 << 30
ROOMY = Machine(cores=8, free_bytes=64 * GIB, shm_free_bytes=32 * GIB, ranks=1)
SMALL = Need(batch_bytes=1 * MIB, prefetch=2, kept=1, batches=1000)


class Slow(Dataset):
    """Waits as a disk does, so that any number of workers can wait side by side."""

    def __init__(self, seconds=0.0, length=64):
        self.seconds, self.length, self.asked_in = seconds, length, []

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.asked_in.append(os.getpid())
        time.sleep(self.seconds)
        return torch.zeros(16)


def lists():
    return iter([list(range(at, at + 8)) for at in range(0, 64, 8)])


def decided(data=None, machine=ROOMY, kept=1, **config):
    return decide_workers(data or Slow(), lists, default_collate, DataConfig(**config), kept, machine)


@pytest.mark.parametrize(
    ("machine", "most", "why"),
    [
        ({}, 8, "there are 8 cores"),
        ({"ranks": 3}, 2, "there are 8 cores for 3 ranks"),
        ({"free_bytes": 3 * 258 * 2 * MIB + 2 * MIB}, 3, "of memory are free"),
        ({"free_bytes": 3 * 258 * 2 * MIB + 2 * MIB, "ranks": 2}, 1, "of memory are free"),
        ({"shm_free_bytes": 64 * MIB}, 8, "cores"),
        ({"shm_free_bytes": 10 * MIB}, 2, "/dev/shm has 10.0 MiB free for batches of 1.00 MiB"),
        ({"shm_free_bytes": 5 * MIB}, 0, "/dev/shm"),
        ({"shm_free_bytes": 0}, 0, "/dev/shm"),
        ({"shm_free_bytes": None}, 8, "cores"),
    ],
)
def test_the_machine_bounds_the_workers_and_the_tightest_bound_is_named(machine, most, why):
    found, reason = bound(Machine(**{**vars(ROOMY), **machine}), SMALL)
    assert found == most and why in reason


def test_an_epoch_of_few_batches_and_those_that_a_step_keeps_bound_them():
    assert bound(ROOMY, Need(MIB, 2, 1, batches=3)) == (3, "an epoch has 3 batches on a rank")
    assert bound(ROOMY, Need(MIB, 2, 1, batches=1))[0] == 0
    machine = Machine(8, 64 * GIB, 20 * MIB, 1)
    assert [bound(machine, Need(MIB, 2, kept, 1000))[0] for kept in (0, 6)] == [5, 2]


@given(
    st.integers(1, 64), st.integers(0, 64 * GIB), st.integers(0, 8 * GIB), st.integers(1, 8), st.integers(1, GIB),
    st.integers(1, 4), st.integers(0, 16),
)  # fmt: skip
def test_what_is_allowed_has_room(cores, free, shm, ranks, batch, prefetch, kept):
    need = Need(batch, prefetch, kept, 1000)
    most, _ = bound(Machine(cores, free, shm, ranks), need)
    if most:
        assert ranks * (most * prefetch + kept) * batch <= shm and ranks * (most * prefetch + kept) * batch <= free
        assert most * ranks <= cores
    asked, _ = bound(Machine(cores, free, shm, ranks), need, asked=1000)
    assert asked >= most


@pytest.mark.parametrize(
    ("rates", "workers"),
    [
        (Rates(0.010, 0.0005, {1: 0.0105, 2: 0.0053, 4: 0.0052}), 2),
        (Rates(0.010, 0.0005, {1: 0.0105, 2: 0.0053, 4: 0.0028}), 4),
        (Rates(0.010, 0.0005, {1: 0.0105}), 1),  # one makes them no faster, and makes them meanwhile
        (Rates(0.001, 0.0012, {1: 0.0013}), 0),  # to receive one takes as long as to make one
        (Rates(0.0017, 0.0005, {1: 0.0058, 2: 0.0037}), 0),  # the way between processes takes longest
        (Rates(0.010, 0.0005, {}), 0),
    ],
)
def test_the_fewest_are_chosen_that_are_as_fast_and_none_where_they_could_cost_more_than_they_save(rates, workers):
    chosen, why = choose(rates)
    assert chosen == workers and "to make" in why


@given(st.floats(1e-5, 1), st.floats(1e-5, 0.1), st.dictionaries(st.integers(1, 64), st.floats(1e-5, 2), min_size=1))
def test_what_is_chosen_was_tried_and_is_within_the_gain_of_the_best(making_s, receiving_s, between):
    chosen, _ = choose(Rates(making_s, receiving_s, between))
    if chosen:
        assert between[chosen] <= 1.1 * min(between.values()) + 1e-12
        assert not any(count < chosen and s <= 1.1 * min(between.values()) for count, s in between.items())


def test_making_a_batch_is_measured_on_as_many_samples_as_that_needs(monkeypatch):
    class Clock:
        now_s = 0.0

        def perf_counter(self):
            return self.now_s

    clock = Clock()
    monkeypatch.setattr(workers_module, "time", clock)

    def make(indices):
        clock.now_s += 0.06 * len(indices)
        return torch.zeros(len(indices), 16)

    assert make_here(make, list(range(8))) == (2, 2 * 64, pytest.approx(0.12))
    assert make_here(lambda indices: torch.zeros(len(indices)), list(range(8)))[0] == 8


def test_more_workers_are_tried_until_they_bring_no_more(monkeypatch):
    tried = []

    def rate(loader, count):
        tried.append(count)
        return max(0.1 / count, 0.03), 0.001

    monkeypatch.setattr(workers_module, "_rate", rate)
    rates = measure(lambda count: DataLoader(Slow()), 0.1, most=24, scale=2)
    assert tried == [1, 2, 4, 8] and (rates.making_s, rates.receiving_s, rates.between_s[8]) == (0.2, 0.002, 0.06)
    for making_s, most, counts in ((0.1, 3, [1, 2, 3]), (0.0005, 8, [1])):  # received no faster than made: no use in more
        tried.clear()
        measure(lambda count: DataLoader(Slow()), making_s, most)
        assert tried == counts


def test_a_data_set_that_waits_gets_workers(monkeypatch):
    monkeypatch.setattr(workers_module, "_MEASURED_S", 0.1)
    row = decided(Slow(0.05), Machine(2, 8 * GIB, GIB, 1))
    assert row.requested is None and row.effective in (1, 2)
    assert "to make" in row.why and "with 1" in row.why


def test_the_number_that_the_user_set_is_kept_unless_it_has_no_room(monkeypatch):
    monkeypatch.setattr(workers_module, "measure", lambda *args: pytest.fail("nothing needs to be measured"))
    assert decided(workers=12).effective == 12  # more than cores: asked is asked
    assert decided(workers=0).why == "as asked"
    tight = decided(machine=Machine(8, 8 * GIB, 4096, 1), workers=5)
    assert tight.requested == 5 and tight.effective == 1 and "/dev/shm has 4.00 KiB free" in tight.why
    none = decided(machine=Machine(8, 8 * GIB, 512, 1))
    assert none.effective == 0 and "there is room for no worker" in none.why


def test_measuring_opens_no_file_of_the_data_set_and_leaves_the_random_states_alone():
    class Opens(Slow):
        file = None

        def __getitem__(self, index):
            self.file = self.file or object()
            return torch.rand(4)

    data, before = Opens(), torch.get_rng_state()
    decided(data)
    assert data.file is None and torch.equal(torch.get_rng_state(), before)


def on_two_ranks(decide):
    """What `shared` gives or raises on rank 0, and then on rank 1, which gets the first number that was shared."""
    box, outcomes = [], []

    def share(number):
        box.append(number)
        return box[0]

    for rank, work in enumerate((decide, lambda: pytest.fail("rank 0 decides"))):
        try:
            outcomes.append(shared(work, None, rank, share))
        except Exception as error:
            outcomes.append(error)
    return outcomes


def test_rank_0_decides_for_all():
    outcomes = on_two_ranks(lambda: Effective("workers", None, 3, "measured"))
    assert outcomes[0].why == "measured" and outcomes[1].effective == 3 and outcomes[1].why == "as rank 0 decided"


def test_no_rank_waits_for_one_that_could_not_decide():
    def fails():
        raise ValueError("a broken image")

    outcomes = on_two_ranks(fails)
    assert str(outcomes[0]) == "a broken image"
    assert isinstance(outcomes[1], BrimfulError) and "rank 0 could not make a batch" in outcomes[1].problem
