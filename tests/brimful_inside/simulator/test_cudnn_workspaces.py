from __future__ import annotations

import pytest

from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.cudnn_workspaces import (
    FEW_CHANNELS,
    MIB,
    PARTIAL_SUMS,
    partial_sums_bytes,
)


@pytest.mark.parametrize("copies", [10 * MIB, 10 * MIB + 512, 12 * MIB - 512, 100 * MIB + 3 * 512])
@pytest.mark.parametrize(("more", "segments"), [(0, 1), (PARTIAL_SUMS, 2)])
def test_partial_sums_are_as_much_as_keeps_two_workspaces_from_sharing_a_segment(
    copies, more, segments
):
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(copies))
    allocator.free(allocator.malloc(copies + more))
    assert allocator.memory.num_allocs == segments


MANY, FEW = FEW_CHANNELS + 1, FEW_CHANNELS


@pytest.mark.parametrize(
    ("channels", "output", "groups", "stride", "comes"),
    [
        *((groups * FEW, 512, groups, 1, False) for groups in (1, 4)),
        *((512, groups * FEW, groups, 1, False) for groups in (1, 4)),
        *((groups * MANY, groups * MANY, groups, 1, True) for groups in (1, 4)),
        *((channels, 64, 1, 2, True) for channels in (12, 24, 28)),
        *((channels, 64, 1, 1, False) for channels in (12, 24, 28)),
        *((2 * channels, 64, 2, 2, False) for channels in (12, 24, 28)),
        *((fills, FEW, 1, 2, False) for fills in (8, 16, 32, 48)),
    ],
)
def test_partial_sums_come_with_many_channels_and_at_a_stride_with_those_that_divide_no_block(
    channels, output, groups, stride, comes
):
    assert partial_sums_bytes(channels, output, groups, stride) == (PARTIAL_SUMS if comes else 0)
