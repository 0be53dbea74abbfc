"""cuDNN's workspaces as arithmetic."""

from __future__ import annotations

from brimful_inside.laws.cudnn_workspaces import FEW_CHANNELS, PARTIAL_SUMS, ROWS, partial_sums_bytes
from brimful_inside.laws.workspaces import bytes_of


def test_a_convolution_works_in_copies_of_what_is_converted():
    inputs, outputs, weights = 32 * 64 * 56 * 56, 32 * 128 * 28 * 28, 128 * 64 * 9
    assert bytes_of("cudnn_forward", [4, inputs, weights]) == 4 * (inputs + weights)
    copies = 4 * (inputs + outputs + weights)
    assert bytes_of("cudnn_backward_data", [4, inputs, outputs, weights]) == copies
    assert bytes_of("cudnn_backward_filter", [4, inputs, outputs, weights]) == copies
    assert bytes_of("cudnn_backward_filter", [4, inputs, outputs, weights, PARTIAL_SUMS]) == copies + PARTIAL_SUMS
    assert bytes_of("cudnn_backward_filter", [2, inputs, outputs, weights]) * 2 == copies


def test_partial_sums_come_with_many_channels_on_both_sides():
    assert partial_sums_bytes(FEW_CHANNELS, 512) == partial_sums_bytes(512, FEW_CHANNELS) == 0
    assert partial_sums_bytes(FEW_CHANNELS + 1, FEW_CHANNELS + 1) == PARTIAL_SUMS


def test_channels_are_few_or_many_by_those_of_one_group():
    assert partial_sums_bytes(4 * FEW_CHANNELS, 4 * FEW_CHANNELS, groups=4) == 0
    assert partial_sums_bytes(4 * (FEW_CHANNELS + 1), 4 * (FEW_CHANNELS + 1), groups=4) == PARTIAL_SUMS


def test_at_a_stride_few_channels_that_do_not_fill_a_row_have_partial_sums_too():
    assert partial_sums_bytes(ROWS + 8, 64, stride=2) == PARTIAL_SUMS
    assert partial_sums_bytes(ROWS + 8, 64, stride=1) == partial_sums_bytes(2 * ROWS, 64, stride=2) == 0
    assert partial_sums_bytes(2 * (ROWS + 8), 64, groups=2, stride=2) == 0
