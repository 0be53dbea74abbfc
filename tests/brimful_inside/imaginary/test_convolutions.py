"""Convolutions: the workspaces that cuDNN takes for their gradients while it tries out algorithms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from brimful_inside.laws.trace import Malloc, decode


@pytest.fixture(autouse=True)
def benchmark() -> Iterator[None]:
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.benchmark = True
    yield
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = before


def train(layer: nn.Module, dtype: torch.dtype = torch.float32, layout: torch.memory_format = torch.contiguous_format) -> None:
    card = torch.randn(4, 16, 32, 32, device="cuda", dtype=dtype).to(memory_format=layout).requires_grad_()
    layer.to("cuda", dtype)(card).sum().backward()


def workspaces(gpu, trace_file) -> dict[str, int]:
    """Bytes by law, of convolutions alone."""
    gpu.flush()
    rows = decode(trace_file.getvalue().splitlines()).rows
    return {row.law: row.nbytes for row in rows if isinstance(row, Malloc) and row.law and row.law.startswith("cudnn")}


def test_the_gradients_of_a_convolution_take_workspaces_that_follow_its_shapes(gpu, trace_file):
    train(nn.Conv2d(16, 32, 3, padding=1, bias=False))
    one = 4 * (4 * 16 * 32 * 32 + 4 * 32 * 32 * 32 + 32 * 16 * 9)
    assert workspaces(gpu, trace_file) == {"cudnn_backward_data": 2 * one, "cudnn_backward_filter": one}


def test_a_workspace_is_given_back_before_the_next_one_is_taken(gpu, trace_file):
    train(nn.Conv2d(16, 32, 3, padding=1, bias=False))
    gpu.flush()
    lines = trace_file.getvalue().splitlines()
    for at, line in enumerate(lines):
        if '"cudnn_backward' in line:
            number = line.split(",")[1]
            assert lines[at + 1] == f'["free",{number}]'


def test_without_benchmark_none_is_taken(gpu, trace_file):
    torch.backends.cudnn.benchmark = False
    train(nn.Conv2d(16, 32, 3))
    assert workspaces(gpu, trace_file) == {}


@pytest.mark.parametrize("layer", [nn.Conv2d(16, 32, 1), nn.Conv2d(16, 16, 3, groups=16)], ids=["1x1", "depthwise"])
def test_kernels_of_one_element_and_of_one_channel_take_none(gpu, trace_file, layer):
    train(layer)
    assert workspaces(gpu, trace_file) == {}


def test_groups_and_transposed_convolutions_take_theirs(gpu, trace_file):
    train(nn.Conv2d(16, 32, 3, groups=4, bias=False))
    assert set(workspaces(gpu, trace_file)) == {"cudnn_backward_data", "cudnn_backward_filter"}
    train(nn.ConvTranspose2d(16, 8, 3, bias=False))
    one = 4 * (4 * 16 * 32 * 32 + 4 * 8 * 34 * 34 + 16 * 8 * 9)
    assert workspaces(gpu, trace_file)["cudnn_backward_filter"] == one


def test_what_is_channels_last_already_takes_none(gpu, trace_file):
    train(nn.Conv2d(16, 32, 3), torch.half, torch.channels_last)
    assert workspaces(gpu, trace_file) == {}


def test_float32_takes_none_where_it_does_not_go_to_tensor_cores(gpu, trace_file):
    torch.backends.cudnn.allow_tf32 = False
    train(nn.Conv2d(16, 32, 3))
    assert workspaces(gpu, trace_file) == {}
    train(nn.Conv2d(16, 32, 3), torch.half)
    assert workspaces(gpu, trace_file) != {}


def test_an_older_card_has_no_tensor_cores_for_float32(enter):
    gpu = enter(capability=(7, 0))
    peaks = []
    for on in (False, True):
        torch.backends.cudnn.benchmark = on
        gpu.reset_peaks()
        train(nn.Conv2d(16, 32, 3))
        peaks.append(gpu.allocator.peak_allocated)
    assert peaks[0] == peaks[1]
