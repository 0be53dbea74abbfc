"""How many workers: by measuring, within what the machine has."""

import functools
import os
import time

import numpy
import pytest
import torch
from torch.utils.data import Dataset, default_collate

from brimful.decide.loading import WORKER_BYTES, Host
from brimful_train.config import DataConfig
from brimful_train.data import workers as workers_module
from brimful_train.data.workers import (
    decide_loading,
    largest_samples_bytes,
)

MIB, GIB = 1 << 20, 1 << 30
ROOMY = Host(64 * GIB, 8, 32 * GIB)


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


def decided(data=None, host=ROOMY, kept=1, **config):
    return decide_loading(data or Slow(), lists, default_collate, DataConfig(**config), kept, host)


def workers_row(plan):
    (row,) = (row for row in plan.rows if row.name == "workers")
    return row


def test_a_data_set_that_waits_gets_workers_and_their_own_bytes_are_measured(monkeypatch):
    monkeypatch.setattr(workers_module, "_MEASURED_S", 0.1)
    plan = decided(Slow(0.05), Host(8 * GIB, 2, GIB))
    row = workers_row(plan)
    assert row.requested is None and row.effective == plan.workers and plan.workers in (1, 2)
    assert "to make" in row.why and "with 1" in row.why
    assert MIB < plan.host_bytes / plan.workers < WORKER_BYTES, (
        "the assumed bytes are no longer what counts"
    )


def test_what_was_asked_for_is_kept_and_a_warning_says_where_it_has_no_room(monkeypatch):
    monkeypatch.setattr(
        workers_module, "measure", lambda *args: pytest.fail("nothing needs to be measured")
    )
    assert decided(workers=12).workers == 12  # more than cores: asked is asked
    assert workers_row(decided(workers=0)).why == "as asked"
    tight = decided(host=Host(8 * GIB, 8, 4096), workers=5)
    assert tight.workers == 5 and workers_row(tight).requested == 5
    assert (
        "/dev/shm has 4.00 KiB free" in workers_row(tight).why
        and "allows 1 worker" in tight.warnings[0].problem
    )
    none = decided(host=Host(8 * GIB, 8, 512))
    assert (
        none.workers == 0
        and "there is room for no worker" in workers_row(none).why
        and not none.warnings
    )


def test_workers_are_planned_in_the_memory_that_is_free(monkeypatch):
    monkeypatch.setattr(
        workers_module, "_rate", lambda loader, count: (0.1 / count, 0.001, 300 * MIB)
    )
    plan = decided(Slow(0.2), Host(2 * GIB - 200 * MIB, 32, None))
    assert plan.workers == 3 and plan.host_bytes <= 0.6 * (2 * GIB - 200 * MIB)
    assert decided(Slow(0.2), Host(24 * GIB, 32, None)).workers > 3


@pytest.mark.parametrize("sizes", [None, numpy.array([1, 5, 3] + [1] * 61)])
def test_an_evaluations_batch_is_counted_by_its_largest_samples(sizes):
    class Uneven(Slow):
        def __getitem__(self, index):
            return torch.zeros(
                int(self.sizes[index]) if self.sizes is not None else 4, dtype=torch.uint8
            )

    data = Uneven()
    data.sizes = sizes
    pad = torch.nn.utils.rnn.pad_sequence
    padded = functools.partial(pad, batch_first=True)
    assert largest_samples_bytes(data, padded) == (5 if sizes is not None else 4)


def test_measuring_opens_no_file_of_the_data_set_and_leaves_the_random_states_alone():
    class Opens(Slow):
        file = None

        def __getitem__(self, index):
            self.file = self.file or object()
            return torch.rand(4)

    data, before = Opens(), torch.get_rng_state()
    decided(data)
    assert data.file is None and torch.equal(torch.get_rng_state(), before)
