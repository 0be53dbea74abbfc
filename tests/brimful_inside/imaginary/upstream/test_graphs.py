"""CUDA graphs, as PyTorch 2.6 to 2.15 have them."""

import warnings
from dataclasses import replace

import pytest
import torch

from tests.brimful_inside.imaginary.conftest import card, entered


def capture(work):
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        work()


EMPTY = [
    lambda held: None,
    lambda held: torch.empty_like(held),
    lambda held: held.view(2, 2),
]


@pytest.mark.parametrize(("bandwidth", "works"), [(1555e9, EMPTY), (None, EMPTY[:1])])
def test_a_graph_without_a_kernel_is_warned_of(bandwidth, works):
    """CUDAGraph.capture_end, PyTorch 2.6 to 2.15: memory alone, and views, are no kernels (which
    only the clock of a card tells, whose rates are known)."""
    with entered(replace(card(), bandwidth_bytes_per_s=bandwidth)):
        held = torch.ones(4, device="cuda")
        for work in works:
            with pytest.warns(UserWarning, match=r"The CUDA Graph is empty.* wrong device or str"):
                capture(lambda work=work: work(held))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            capture(lambda: held + 1)
