"""Workspaces: device memory that libraries and kernels take from PyTorch's allocator, beside the
tensors a script sees.

Each formula computes bytes from whole numbers (shapes, a card's capability, a version), so that a
trace can name it and its numbers, and the bytes can be computed anew at another batch size.
`FORMULAS` is the table.

PyTorch keeps one cuBLAS workspace for each pair of thread and stream: the autograd engine's thread
has one of its own, so a training step holds two. From 2.15 on it is allocated for the operation and
freed after it, unless caching is on.

Temporaries of CUDA's kernels that come, go or change their form at some size are in every trace,
with 0 bytes where the kernel takes none; their numbers are chosen so that each is affine in the
batch size. The files named are PyTorch's (below aten/src/ATen/native where no folder is given),
releases 2.6 to 2.15."""

from __future__ import annotations

import re
from math import gcd
from typing import Callable, Dict, Mapping, Sequence, Tuple

KIB = 1 << 10
MIB = 1 << 20

UNIFIED_SINCE = 212  # PyTorch 2.12: cuBLASLt works in cuBLAS's workspace by default
BLACKWELL_32_MIB_SINCE = 212  # pytorch/pytorch pull request 175344
THOR_32_MIB_SINCE = 214  # pytorch/pytorch pull request 189312
PER_OPERATION_SINCE = 215
LT_KEPT_SINCE = 209  # cuBLASLt's workspace is kept as cuBLAS's is: pull request 156495


def torch_release(version: str) -> int:
    """``"2.13.0+cpu"`` as 213, as the formulas take it. Raises ValueError for what is no
    version."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if match is None:
        raise ValueError("%r is not a version of PyTorch" % version)
    return int(match.group(1)) * 100 + int(match.group(2))


def cublas_default_bytes(major: int, minor: int, release: int) -> int:
    """cuBLAS's workspace without CUBLAS_WORKSPACE_CONFIG, by capability
    (aten/src/ATen/cuda/CublasHandlePool.cpp). 32 MiB on Hopper, later on Blackwell as well; else
    two buffers of 4096 KiB and eight of 16 KiB, as ":4096:2:16:8"."""
    blackwell = major in (10, 12) and release >= BLACKWELL_32_MIB_SINCE
    thor = major == 11 and release >= THOR_32_MIB_SINCE
    if (major == 9 and (minor == 0 or release >= BLACKWELL_32_MIB_SINCE)) or blackwell or thor:
        return 32 * MIB
    return 2 * 4096 * KIB + 8 * 16 * KIB


def cublaslt_default_bytes(major: int, minor: int, release: int) -> int:
    """What cuBLASLt takes beside cuBLAS's workspace, without settings: nothing where the two are
    one, else 1 MiB."""
    return 0 if release >= UNIFIED_SINCE else MIB


def cublas_bytes(capability: Sequence[int], release: int, environment: Mapping[str, str]) -> int:
    """cuBLAS's workspace as the environment has it. CUBLAS_WORKSPACE_CONFIG is pairs
    ``:KIB:COUNT``; what cannot be read leaves the default, as in PyTorch."""
    pairs = re.findall(r":([0-9]+):([0-9]+)", environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if not pairs:
        return cublas_default_bytes(capability[0], capability[1], release)
    return sum(int(size) * KIB * int(count) for size, count in pairs)


def cublaslt_bytes(capability: Sequence[int], release: int, environment: Mapping[str, str]) -> int:
    """What cuBLASLt takes beside cuBLAS's workspace: 0 where they are one. Of the switch, anything
    but "1" and "0" is as not set (c10::utils::check_env)."""
    unified = environment.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE")
    if unified == "1" or (unified != "0" and release >= UNIFIED_SINCE):
        return 0
    size = environment.get("CUBLASLT_WORKSPACE_SIZE", "")
    return int(size) * KIB if size.isdigit() else MIB


def resident_threads(major: int, minor: int) -> int:
    """Of a multiprocessor (CUDA's programming guide, technical specifications per capability)."""
    if (major, minor) == (7, 5):
        return 1024
    return 1536 if (major == 8 and minor) or major == 12 else 2048


# --- convolutions of channels-first tensors ---
#
# cuDNN is closed. What is known: its kernels for tensor cores read and write channels last
# ("nhwc" and "krsc" in their names), and `nchwToNhwcKernel` and `nhwcToNchwKernel` run before and
# after them. So where tensors are channels first, the workspace holds what is converted: forward
# the input and the weight (the kernel itself writes the output channels first); for the gradient
# of the input, the output's gradient and the weight on the way in and the result on the way out;
# for the gradient of the weight, input and output's gradient on the way in, the result on the way
# out, and where the sum over all places is split between multiprocessors, partial sums. How much
# these take is not documented; what matters is that the workspace is then larger than the one
# before it, so that the allocator cannot give it the same segment again: with 2, 4 and 8 MiB the
# figures are the same, so that it is no fitted number. Where channels come in groups the gradient
# of the weight is counted as if they did not, up to the width of a block of a tensor core's
# product, which goes across narrower groups: without that they are far too low. Checked on timm's
# models that GPUMemNet measured on an A100 (arXiv 2602.17817); see docs/developers/log.md for what
# else was tried.

# the allocator's: more than what rounding a segment to 2 MiB leaves over (kRoundLarge)
PARTIAL_SUMS = 2 * MIB
# measured: up to so many in a group, the two gradients of a convolution share a segment
FEW_CHANNELS = 32


def converted_bytes(itemsize: int, *elements: int) -> int:
    """What is converted, `itemsize` bytes each: input and weight forward; with the gradient of the
    output between them for the gradient of the input."""
    return itemsize * sum(elements)


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


#: Where there is no room for one of these, PyTorch goes on to cuDNN's next plan
#: (cudnn/Conv_v8.cpp, try_plans, try_configs). That one is taken to need none.
OF_PLANS = frozenset(("cudnn_forward", "cudnn_backward_data", "cudnn_backward_filter"))

# --- kernels ---

MAX_OFFSET = (1 << 31) - 1  # TensorIteratorBase::can_use_32bit_indexing


def up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def ceil_div(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _last_power_of_2(number: int) -> int:
    return 1 << (max(1, number).bit_length() - 1)


def reduction_bytes(
    element: int,
    itemsize: int,
    inputs: int,
    outputs: int,
    run: int,
    fastest: int,
    aligned: int,
    processors: int,
    threads: int,
) -> int:
    """The staging buffer of a reduction that is split over thread blocks (cuda/Reduce.cuh,
    setReduceConfig). element, itemsize: bytes of the accumulator and of an element of the input;
    inputs: elements that go into one output; run: length of the output's innermost dimension;
    fastest: 1 if the input's innermost dimension is summed; aligned: what all strides of the input
    but the innermost are multiples of (1: it is not read in vectors, which are of 4 elements at
    most); processors, threads: the card's multiprocessors, and resident threads of each. Summing
    the rows of a wide matrix, as for the gradient of a bias, takes tens of MiB: each block has room
    for a value of each of its threads."""
    if inputs <= 0 or outputs <= 0:
        return 0
    # done in halves (with_32bit_indexing)
    while inputs * outputs * itemsize > MAX_OFFSET and (inputs > 1 or outputs > 1):
        inputs, outputs = (
            (ceil_div(inputs, 2), outputs) if inputs >= outputs else (inputs, ceil_div(outputs, 2))
        )
    vector, vectors = 1, gcd(4, aligned)
    dim0, dim1 = (inputs, outputs) if fastest else (outputs, inputs)
    if fastest and vectors > 1 and dim0 >= 128:
        dim0 //= 4
    elif not fastest:
        vector = vectors
        while run % vector:
            vector //= 2
        dim0 //= vector
    most = 512 // vector
    width_most = _last_power_of_2(dim0) if dim0 < most else most
    height_most = _last_power_of_2(dim1) if dim1 < most else most
    width = min(width_most, 32)
    height = min(height_most, most // width)
    width = min(width_most, most // height)
    step_input, step_output = (width, 1) if fastest else (1, width)
    if ceil_div(inputs, step_input) < min(height * 16, 256):
        return 0  # no split over the block's warps, so none over blocks
    per_thread = ceil_div(inputs, step_input * height)
    grid = ceil_div(outputs // vector, step_output)
    target = processors * (threads // (width * height))
    if per_thread < 256 or grid > target:
        return 0
    blocks = max(ceil_div(per_thread, 256), min(ceil_div(target, grid), ceil_div(per_thread, 16)))
    if blocks <= 1:
        return 0
    return element * outputs * blocks * (1 if fastest else width * vector)


def layer_norm_partial_bytes(
    itemsize: int, rows: int, columns: int, multiprocessors: int, release: int
) -> int:
    """Partial sums of the gradient of a layer norm's weight or bias (cuda/layer_norm_kernel.cu).
    Only since 2.7, and only where there are more than 65536 rows, and too few columns to keep the
    card busy."""
    if release < 207 or rows <= 64 * 1024 or columns // 32 >= multiprocessors // 2:
        return 0
    blocks = ceil_div(columns, 32)
    return min(32 * 1024 // blocks, ceil_div(rows, 32)) * columns * itemsize


def dropout_states_bytes(multiprocessors: int) -> int:
    """The generator's states of cuDNN's recurrent networks: 48 bytes each for 1024 threads of each
    multiprocessor. cuDNN does not document how many; assumed."""
    return multiprocessors * 1024 * 48


def embedding_sort_bytes(index: int, indices: int, always: int) -> int:
    """Sorted indices, their places, a range, and cub's other buffers: beyond 3072 indices
    (cuda/Embedding.cu)."""
    return index * indices if indices > 3072 or always else 0


def embedding_segment_bytes(index: int, indices: int, weights: int, always: int) -> int:
    """One number for each segment of equal indices (cuda/EmbeddingBackwardKernel.cu)."""
    return index * min(indices, weights) if indices > 3072 or always else 0


def embedding_partial_bytes(width: int, indices: int, weights: int, always: int) -> int:
    """`width` bytes for each part of a segment, of ten rows each (cuda/EmbeddingBackwardKernel.cu,
    NROWS_PER_THREAD)."""
    return width * (indices // 10 + min(indices, weights)) if indices > 3072 or always else 0


def foreach_norm_bytes(element: int, tensors: int, largest: int) -> int:
    """A partial result for each chunk of 65536 elements, as many for each tensor as the largest
    needs (ForeachReduceOp.cu)."""
    return element * tensors * ceil_div(largest, 65536)


def sort_bytes(width: int, slices: int, length: int, both: int) -> int:
    """`width` bytes for each element where rows are sorted by radix, not in their place
    (cuda/SortStable.cu). Rows of up to 4096 elements are sorted in their place (cuda/Sort.h,
    should_use_small_sort). both 0: only where 2 to 127 rows are sorted by one sort over all of
    them, which takes more (segmented_sort_pairs_by_full_sort)."""
    if length <= 4096 or (not both and not 1 < slices < 128):
        return 0
    return width * slices * length


def topk_bytes(slices: int, length: int) -> int:
    """Counts of the top k that several blocks look for in one row (cuda/TensorTopK.cu,
    should_use_multiblock, mbtopk::launch). 256 counts of 2 bytes for each block; a block takes at
    least 4 elements a thread."""
    bounds = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))
    least = next((shortest for most, shortest in bounds if slices <= most), 400)
    return slices * ceil_div(length, 1024) * 512 if length >= least else 0


def efficient_workspace_bytes(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    size: int,
    value_size: int,
    rows: int,
    columns: int,
    in_registers: int,
) -> int:
    """The workspace of memory-efficient attention's backward pass
    (transformers/cuda/mem_eff_attention/kernel_backward.h). rows and columns: the kernel's block
    (kBlockSizeI, kBlockSizeJ). The gradient of the query in float32, in blocks of rows x columns
    with 16 bytes of bookkeeping; where the gradients of key and value are not kept in registers
    (in_registers 0) those as well, once for each part into which the keys are split."""
    words = ceil_div(queries, rows) * ceil_div(size, columns) * (4 + rows * columns)
    if not in_registers:
        splits = max(1, min(ceil_div(keys, columns), 200 // max(1, batch * heads)))
        words += splits * columns * (up(size, rows) + up(value_size, rows))
    return batch * heads * up(words, 4) * 4


def efficient_block(capability: Sequence[int], half: bool, size: int) -> Tuple[int, int, int]:
    """Rows and columns of the kernel's block, and the head size up to which it keeps results in
    registers (cutlassB.h)."""
    if not half or size <= 64:
        return 64, 64, 64
    capability = (capability[0], capability[1])
    wide = capability in ((7, 0), (7, 2), (8, 0), (8, 7)) or capability[0] in (9, 10, 11)
    if not wide and size <= 96 and capability in ((8, 6), (8, 9)):
        return 128, 64, 96
    if not wide:  # less shared memory on a multiprocessor
        return 64, 64, 64
    if size <= 128:
        return (128, 128, 128) if capability[0] >= 8 else (128, 64, 128)
    return 128, 64, 128


FORMULAS: Dict[str, Callable[..., int]] = {
    "cublas": cublas_default_bytes,  # args: major, minor, release
    "cublaslt": cublaslt_default_bytes,  # args: major, minor, release
    **dict.fromkeys(("cudnn_forward", "cudnn_backward_data"), converted_bytes),
    "cudnn_backward_filter": backward_filter_bytes,
    "reduction": reduction_bytes,
    "layer_norm_partial": layer_norm_partial_bytes,
    "cudnn_dropout_states": dropout_states_bytes,
    "embedding_sort": embedding_sort_bytes,
    "embedding_segment": embedding_segment_bytes,
    "embedding_partial": embedding_partial_bytes,
    "foreach_norm": foreach_norm_bytes,
    "sort": sort_bytes,
    "topk": topk_bytes,
    "efficient_workspace": efficient_workspace_bytes,
}


def bytes_of(name: str, args: Sequence[int]) -> int:
    """The bytes of the workspace `name` for `args`. Raises KeyError for one that is not known."""
    return FORMULAS[name](*args)


def args_on(
    name: str, args: Sequence[int], capability: Sequence[int], multiprocessors: int
) -> Tuple[int, ...]:
    """The args of a workspace on another card."""
    if name in ("cublas", "cublaslt"):
        return (capability[0], capability[1], args[2])
    if name == "reduction":
        return (*args[:-2], multiprocessors, resident_threads(capability[0], capability[1]))
    if name == "layer_norm_partial":
        return (*args[:3], multiprocessors, args[4])
    if name == "efficient_workspace":
        size = max(args[4:6])
        # single precision takes this block whatever its heads' size
        half = size <= 64 or tuple(args[6:]) != (64, 64, 1)
        rows, columns, most = efficient_block(capability, half, size)
        return (*args[:6], rows, columns, int(not half or size <= most))
    return (multiprocessors,) if name == "cudnn_dropout_states" else tuple(args)
