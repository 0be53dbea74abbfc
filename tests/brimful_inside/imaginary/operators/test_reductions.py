"""A reduction's buffer can be extrapolated also where the batch decides how the input is read."""

from __future__ import annotations

import io

import pytest
import torch

from brimful.decide.memory.size_model import fit_size_model
from brimful_inside import imaginary
from brimful_inside.simulator.program import program_of
from tests.brimful_inside.imaginary.conftest import card, rows


def program_at(batch_size, work):
    file = io.StringIO()
    gpu = imaginary.enter(card(), None, file)
    try:
        work(batch_size)
        gpu.flush()
    finally:
        gpu.leave()
    return program_of(rows(file))


@pytest.mark.parametrize(
    "work",
    [
        lambda batch_size: torch.empty(4096, batch_size, device="cuda").sum(0),
        lambda batch_size: torch.empty(2 * batch_size, 2 * batch_size, device="cuda").mean(0),
        lambda batch_size: torch.empty(batch_size, 1000, device="cuda").sum(0),
        lambda batch_size: torch.empty(batch_size, 64, 30, device="cuda").sum((0, 2)),
    ],
)
def test_sizes_extrapolated_from_three_small_batches_match_at_any(work):
    model = fit_size_model({size: program_at(size, work) for size in (5, 12, 20)})
    assert model is not None
    for size in (64, 1001, 4096):
        assert model.difference_from(program_at(size, work), size) is None
