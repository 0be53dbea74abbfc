"""Convolutions: cuDNN's workspaces, and what its search for a plan does to cached memory."""

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from brimful_inside.simulator.trace import EmptyCache, Free, Malloc
from brimful_inside.simulator.workspaces import FEW_CHANNELS, PARTIAL_SUMS
from tests.brimful_inside.imaginary.conftest import card, entered, peak_of, rows


@pytest.fixture(autouse=True)
def benchmark(monkeypatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)


def train(
    layer: nn.Module,
    dtype: torch.dtype = torch.float32,
    layout: torch.memory_format = torch.contiguous_format,
    shape: tuple = (16, 32, 32),
) -> None:
    card = torch.randn(4, *shape, device="cuda", dtype=dtype).to(memory_format=layout)
    layer.to("cuda", dtype)(card.requires_grad_()).sum().backward()


def workspaces(gpu, trace_file) -> dict[str, int]:
    """Bytes by kind of workspace, of convolutions alone."""
    return {
        row.workspace: row.nbytes
        for row in traced(gpu, trace_file, Malloc)
        if row.workspace and row.workspace.startswith("cudnn")
    }


def traced(gpu, trace_file, kind: type) -> list:
    gpu.cards.flush()
    return [row for row in rows(trace_file).rows if isinstance(row, kind)]


def emptied(gpu, trace_file) -> int:
    """How often the cache was freed so far."""
    return len(traced(gpu, trace_file, EmptyCache))


@pytest.mark.parametrize("transposed", [False, True])
def test_workspaces_hold_what_is_converted(gpu, trace_file, transposed):
    """A transposed convolution is the gradient of another one."""
    plain = nn.Conv2d(16, 32, 3, padding=1, bias=False)
    train(nn.ConvTranspose2d(16, 8, 3, bias=False) if transposed else plain)
    inputs, outputs, weights = 4 * (4 * 16 * 32 * 32), 4 * (4 * 32 * 32 * 32), 4 * (32 * 16 * 9)
    if transposed:
        outputs, weights = 4 * (4 * 8 * 34 * 34), 4 * (16 * 8 * 9)
    assert workspaces(gpu, trace_file) == {
        "cudnn_forward": (outputs if transposed else inputs) + weights,
        "cudnn_backward_data": inputs + outputs + weights,
        "cudnn_backward_filter": inputs + outputs + weights,
    }


@pytest.mark.parametrize(
    ("layer", "more"),
    [
        (lambda: nn.Sequential(nn.Conv2d(16, 16, 1), nn.Conv2d(16, FEW_CHANNELS + 1, 3)), 0),
        (
            lambda: nn.Sequential(nn.Conv2d(16, 64, 1), nn.Conv2d(64, FEW_CHANNELS + 1, 3)),
            PARTIAL_SUMS,
        ),
        (lambda: nn.Sequential(nn.Conv2d(16, 24, 1), nn.Conv2d(24, 48, 3)), 0),
        # where channels do not divide a block
        (lambda: nn.Sequential(nn.Conv2d(16, 24, 1), nn.Conv2d(24, 48, 3, stride=2)), PARTIAL_SUMS),
        (lambda: nn.Conv2d(16, 32, 3, groups=4), 3 * 4 * (32 * 4 * 9)),
        (
            lambda: nn.Sequential(nn.Conv2d(16, 1024, 1), nn.Conv2d(1024, 1024, 3, groups=16)),
            3 * 4 * (1024 * 64 * 9) + PARTIAL_SUMS,
        ),
        (
            lambda: nn.Sequential(nn.Conv2d(16, 1024, 1), nn.Conv2d(1024, 1024, 3, groups=4)),
            PARTIAL_SUMS,
        ),
    ],
    ids=[
        "few channels",
        "many channels",
        "no stride",
        "a stride",
        "as if there were no groups",
        "groups that share a block",
        "groups as wide as a block",
    ],
)
def test_partial_sums_and_groups_make_the_weights_workspace_the_larger_one(
    gpu, trace_file, layer, more
):
    train(layer())
    sizes = workspaces(gpu, trace_file)
    assert sizes["cudnn_backward_filter"] == sizes["cudnn_backward_data"] + more


@pytest.mark.parametrize(
    ("side", "dtype", "converts"),
    [
        (7, torch.float32, True),
        (14, torch.float32, False),
        (14, torch.float16, True),
        (16, torch.float16, False),
    ],
)
def test_kernels_of_one_element_are_converted_where_rows_of_a_map_are_not_aligned(
    gpu, trace_file, side, dtype, converts
):
    train(nn.Conv2d(64, 48, 1, bias=False), dtype, shape=(64, side, side))
    inputs, outputs, weights = (
        dtype.itemsize * n for n in (4 * 64 * side**2, 4 * 48 * side**2, 48 * 64)
    )
    expected = {
        "cudnn_forward": inputs + weights,
        "cudnn_backward_data": inputs + outputs + weights,
        "cudnn_backward_filter": inputs + outputs + weights + PARTIAL_SUMS,
    }
    assert workspaces(gpu, trace_file) == (expected if converts else {})


def test_each_new_convolution_gives_the_cache_back_once_for_each_of_its_operations(gpu, trace_file):
    layer = nn.Conv2d(16, 32, 3)
    cached = torch.empty(64 << 20, device="cuda", dtype=torch.uint8).nbytes
    assert torch.cuda.memory_reserved() >= cached
    train(layer)
    assert emptied(gpu, trace_file) == 3 and torch.cuda.memory_reserved() < cached
    for other, searched in ((layer, 3), (nn.Conv2d(16, 32, 3), 3), (nn.Conv2d(16, 32, 3, 2), 6)):
        train(other)  # the second has the same shapes
        assert emptied(gpu, trace_file) == searched


def test_a_group_for_each_channel_is_pytorchs_own_kernel_unless_cudnn_is_better(gpu, trace_file):
    for layout, searched in ((torch.contiguous_format, 0), (torch.channels_last, 3)):
        train(nn.Conv2d(16, 16, 3, groups=16), torch.float32, layout)
        assert emptied(gpu, trace_file) == searched


def test_a_workspace_without_room_is_left_out_and_the_training_goes_on(enter):
    """Own arithmetic: the input, its gradient and the output's are 64 MiB each; two of them are
    converted, with the weights."""
    peaks = []
    for capacity in (320 << 20, None):
        enter(capacity_bytes=capacity)
        tensor = torch.zeros(1, 64, 512, 512, device="cuda", requires_grad=True)
        layer = nn.Conv2d(64, 64, 3, padding=1, bias=False).cuda()
        layer(tensor).mean().backward()
        peaks.append(torch.cuda.max_memory_allocated() >> 20)
    assert 192 <= peaks[0] < 320 <= peaks[1]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from([1, 4, 64, 256]), st.sampled_from([16, 64, 512]), st.integers(1, 3))
def test_no_workspace_is_larger_than_the_card(groups, width, kernel):
    trace_file, memory = io.StringIO(), card()
    with entered(memory, None, trace_file) as gpu:
        tensor = torch.zeros(1, groups * width, 14, 14, device="cuda")
        weight = torch.zeros(groups * width, width, kernel, kernel, device="cuda")
        weight.requires_grad_()
        nn.functional.conv2d(tensor, weight, groups=groups).sum().backward()
        sizes = workspaces(gpu, trace_file).values()
        assert all(size <= memory.total_bytes - memory.context_bytes for size in sizes)


def test_a_workspace_is_freed_before_the_next_one_is_taken(gpu, trace_file):
    train(nn.Conv2d(16, 32, 3, padding=1, bias=False))
    played = traced(gpu, trace_file, (Malloc, Free))
    places = [
        at
        for at, row in enumerate(played)
        if isinstance(row, Malloc) and (row.workspace or "").startswith("cudnn")
    ]
    assert len(places) == 3 and all(played[at + 1] == Free(played[at].id) for at in places)


def test_without_benchmark_as_much_is_assumed_and_counted(gpu, trace_file):
    train(nn.Conv2d(16, 32, 3), torch.half)
    assert workspaces(gpu, trace_file) and not gpu.approximations
    train(nn.Conv2d(16, 32, 3))
    measured = workspaces(gpu, trace_file)
    assert measured and gpu.approximations.pop("cudnn.benchmark in float32") == 3
    torch.backends.cudnn.benchmark = False
    train(nn.Conv2d(16, 32, 3))
    assert workspaces(gpu, trace_file) == measured and emptied(gpu, trace_file) == 6, (
        "the cache stays"
    )
    assert gpu.approximations == {"cudnn workspace without benchmark": 3}


def test_in_float32_the_gradients_of_large_depthwise_kernels_in_channels_last_take_theirs(
    gpu, trace_file
):
    for size, kinds in ((3, set()), (7, {"cudnn_backward_data", "cudnn_backward_filter"})):
        train(nn.Conv2d(16, 16, size, groups=16), torch.float32, torch.channels_last)
        assert set(workspaces(gpu, trace_file)) == kinds


@pytest.mark.parametrize("owner", ["allow_tf32", "enabled"])
def test_there_is_none_without_cudnn_or_in_float32_without_tensor_cores(
    gpu, trace_file, monkeypatch, owner
):
    monkeypatch.setattr(torch.backends.cudnn, owner, False)
    train(nn.Conv2d(16, 32, 3))
    assert workspaces(gpu, trace_file) == {}
    train(nn.Conv2d(16, 32, 3), torch.half)
    assert (workspaces(gpu, trace_file) != {}) is (owner == "allow_tf32")


def test_the_gradient_of_a_bias_is_the_sum_that_a_script_could_take_itself(gpu, trace_file):
    """PyTorch takes it after cuDNN's two gradients: channels last holds a buffer as wide as a
    linear layer's bias does."""

    def sums() -> list[int]:
        return [
            row.nbytes for row in traced(gpu, trace_file, Malloc) if row.workspace == "reduction"
        ]

    images = torch.randn(64, 32, 28, 28, device="cuda").to(memory_format=torch.channels_last)
    for bias in (False, True):
        layer = nn.Conv2d(32, 128, 3, padding=1, bias=bias).to("cuda")
        out = layer(images)
        grad = torch.ones_like(out)
        before = sums()
        out.backward(grad)
        added = sums()[len(before) :]
        grad.sum((0, 2, 3))
        by_hand = sums()[-1]
        assert added == ([by_hand] if bias else []) and by_hand > 1 << 20
        del out, grad
        layer.zero_grad(set_to_none=True)
    assert torch.cuda.memory_allocated() <= sum(
        t.nbytes + 512 for t in (images, *layer.parameters())
    )  # no buffer is left
    taken = traced(gpu, trace_file, Malloc)
    (at,) = [
        n
        for n, row in enumerate(taken)
        if row.workspace == "reduction" and "convolution_backward" in taken[n - 1].op
    ]
    assert taken[at - 1].nbytes == 4 * 128  # the bias's gradient, into which the sum goes


@pytest.mark.parametrize(
    ("layer", "shape", "dtype", "layout"),
    [
        (lambda: nn.Conv2d(16, 32, 1), (16, 32, 32), torch.float32, torch.contiguous_format),
        (
            lambda: nn.Conv2d(16, 16, 3, groups=16),
            (16, 32, 32),
            torch.float32,
            torch.contiguous_format,
        ),
        (
            lambda: nn.Conv2d(16, 32, 4, stride=4),
            (16, 32, 32),
            torch.float32,
            torch.contiguous_format,
        ),
        (
            lambda: nn.Conv2d(64, 64, 1, groups=2),
            (64, 7, 7),
            torch.float32,
            torch.contiguous_format,
        ),
        (lambda: nn.ConvTranspose2d(64, 64, 1), (64, 7, 7), torch.float32, torch.contiguous_format),
        (lambda: nn.Conv2d(64, 48, 1), (64, 1, 1), torch.float32, torch.contiguous_format),
        (lambda: nn.Conv2d(16, 32, 3), (16, 32, 32), torch.half, torch.channels_last),
    ],
    ids=[
        "one element",
        "depthwise",
        "patches",
        "groups of one element",
        "transposed",
        "one place",
        "channels last",
    ],
)
def test_what_needs_no_conversion_takes_no_workspace(gpu, trace_file, layer, shape, dtype, layout):
    train(layer(), dtype, layout, shape)
    assert workspaces(gpu, trace_file) == {}


def test_channels_last_stays_so_and_a_mixture_is_copied(gpu):
    convolution = nn.Conv2d(16, 32, 3).to("cuda", memory_format=torch.channels_last)
    last = torch.randn(2, 16, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    assert convolution(last).is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        plain = torch.randn(2, 16, 64, 64, device="cuda")
        assert (
            peak_of(lambda: convolution(plain)) - peak_of(lambda: convolution(last))
            == plain.numel() * 4
        )


def test_wrong_channels_are_refused_in_pytorchs_words(gpu):
    with pytest.raises(
        RuntimeError,
        match=r"expected input\[1, 5, 8, 8\] to have 3 channels, but got 5 channels instead",
    ):
        nn.Conv2d(3, 4, 3).cuda()(torch.randn(1, 5, 8, 8, device="cuda"))
