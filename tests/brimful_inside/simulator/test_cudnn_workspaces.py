from __future__ import annotations

import pytest

from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.cudnn_workspaces import (
    FEW_CHANNELS,
    MIB,
    PARTIAL_SUMS,
    partial_sums_bytes,
)
from brimful_inside.simulator.workspaces import bytes_of


def test_a_convolution_works_in_copies_of_what_is_converted():
    inputs, outputs, weights = 32 * 64 * 56 * 56, 32 * 128 * 28 * 28, 128 * 64 * 9
    assert bytes_of("cudnn_forward", [4, inputs, weights]) == 4 * (inputs + weights)
    copies = 4 * (inputs + outputs + weights)
    assert bytes_of("cudnn_backward_data", [4, inputs, outputs, weights]) == copies
    assert bytes_of("cudnn_backward_filter", [4, inputs, outputs, weights]) == copies
    assert (
        bytes_of("cudnn_backward_filter", [4, inputs, outputs, weights, PARTIAL_SUMS])
        == copies + PARTIAL_SUMS
    )
    assert bytes_of("cudnn_backward_filter", [2, inputs, outputs, weights]) * 2 == copies


@pytest.mark.parametrize("copies", [10 * MIB, 10 * MIB + 512, 12 * MIB - 512, 100 * MIB + 3 * 512])
@pytest.mark.parametrize(("more", "segments"), [(0, 1), (PARTIAL_SUMS, 2)])
def test_partial_sums_are_as_much_as_keeps_two_workspaces_from_sharing_a_segment(
    copies, more, segments
):
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(copies))
    allocator.free(allocator.malloc(copies + more))
    assert allocator.memory.num_allocs == segments


@pytest.mark.parametrize("groups", [1, 4])
def test_partial_sums_come_with_many_channels_of_one_group_on_both_sides(groups):
    few, more = groups * FEW_CHANNELS, groups * (FEW_CHANNELS + 1)
    assert partial_sums_bytes(few, 512, groups) == partial_sums_bytes(512, few, groups) == 0
    assert partial_sums_bytes(more, more, groups) == PARTIAL_SUMS


@pytest.mark.parametrize("channels", [12, 24, 28])
def test_at_a_stride_few_channels_that_do_not_divide_a_block_have_partial_sums_too(channels):
    assert partial_sums_bytes(channels, 64, stride=2) == PARTIAL_SUMS
    assert partial_sums_bytes(channels, 64, stride=1) == 0
    assert partial_sums_bytes(2 * channels, 64, groups=2, stride=2) == 0
    for fills in (8, 16, 32, 48):
        assert partial_sums_bytes(fills, FEW_CHANNELS, stride=2) == 0
