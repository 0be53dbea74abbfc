"""CUDA graphs, as PyTorch 2.6 to 2.15 have them."""

import warnings
from dataclasses import replace

import pytest
import torch

from tests.brimful_inside.imaginary.conftest import card, entered


def capture(work):
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        work()


def test_a_graph_without_a_kernel_is_warned_of(gpu):
    """CUDAGraph.capture_end, PyTorch 2.6 to 2.15: memory alone, and views, are no kernels."""
    held = torch.ones(4, device="cuda")
    with pytest.warns(UserWarning, match="The CUDA Graph is empty. This usually means that"):
        capture(lambda: torch.empty(4, device="cuda"))
    with pytest.warns(UserWarning, match="attempted to be captured on wrong device or stream"):
        capture(lambda: held.view(2, 2))


def test_a_graph_with_a_kernel_is_not_warned_of(gpu):
    """PyTorch 2.6 to 2.15."""
    held = torch.ones(4, device="cuda")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture(lambda: held + 1)


def test_the_warning_needs_no_clock():
    """PyTorch 2.6 to 2.15, on a card whose rates are not known here."""
    with entered(replace(card(), bandwidth_bytes_per_s=None)):
        held = torch.ones(4, device="cuda")
        with pytest.warns(UserWarning, match="The CUDA Graph is empty"):
            capture(lambda: None)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            capture(lambda: held + 1)
