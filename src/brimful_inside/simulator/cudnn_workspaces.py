"""How large cuDNN's workspaces are, for convolutions of channels-first tensors. When they are
taken: operators/convolutions.py.

cuDNN is closed. What is known: its kernels for tensor cores read and write channels last ("nhwc"
and "krsc" in their names), and `nchwToNhwcKernel` and `nhwcToNchwKernel` run before and after them.
So where tensors are channels first, the workspace holds what is converted: forward the input and
the weight (the kernel itself writes the output channels first); for the gradient of the input, the
output's gradient and the weight on the way in and the result on the way out; for the gradient of
the weight, input and output's gradient on the way in, the result on the way out, and where the sum
over all places is split between multiprocessors, partial sums. How much these take is not
documented; what matters is that the workspace is then larger than the one before it, so that the
allocator cannot give it the same segment again: with 2, 4 and 8 MiB the figures are the same, so
that it is no fitted number. Where channels come in groups the gradient of the weight is counted as
if they did not: assumed, as blocks of a tensor core's product go across groups. Checked on timm's
models that GPUMemNet measured on an A100 (arXiv 2602.17817); see docs/log.md for what else was
tried."""

from __future__ import annotations

MIB = 1 << 20

# the allocator's: more than what rounding a segment to 2 MiB leaves over (kRoundLarge)
PARTIAL_SUMS = 2 * MIB
# measured: up to so many in a group, the two gradients of a convolution share a segment
FEW_CHANNELS = 32


def forward_bytes(itemsize: int, inputs: int, weights: int) -> int:
    """As the next two: `itemsize` in bytes, all else in elements."""
    return itemsize * (inputs + weights)


def backward_data_bytes(itemsize: int, inputs: int, outputs: int, weights: int) -> int:
    return itemsize * (inputs + outputs + weights)


def backward_filter_bytes(
    itemsize: int, inputs: int, outputs: int, weights: int, partial_sums: int = 0
) -> int:
    """`partial_sums` is in bytes."""
    return itemsize * (inputs + outputs + weights) + partial_sums


def partial_sums_bytes(
    input_channels: int, output_channels: int, groups: int = 1, stride: int = 1
) -> int:
    """Channels are of all groups together; `stride` is the largest of all dimensions. At a stride,
    few input channels share a segment only where they divide `FEW_CHANNELS`. Measured: 8, 16 and 32
    do, 24 does not; assumed: as these fill what a thread block takes at once without a rest."""
    if min(input_channels, output_channels) // groups > FEW_CHANNELS:
        return PARTIAL_SUMS
    uneven = FEW_CHANNELS % min(input_channels, FEW_CHANNELS) != 0
    return PARTIAL_SUMS if groups == 1 and stride > 1 and uneven else 0
