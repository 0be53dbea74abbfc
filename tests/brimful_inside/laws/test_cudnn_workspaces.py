"""cuDNN's workspaces as arithmetic."""

from __future__ import annotations

from brimful_inside.laws.cudnn_workspaces import FEW_CHANNELS, PARTIAL_SUMS, partial_sums_bytes
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
