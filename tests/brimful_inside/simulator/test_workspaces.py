import pytest

from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.workspaces import (
    FEW_CHANNELS,
    MIB,
    PARTIAL_SUMS,
    bytes_of,
    cublas_bytes,
    cublaslt_bytes,
    partial_sums_bytes,
    torch_release,
)

AMPERE = 8_519_680  # 2 × 4096 KiB + 8 × 16 KiB


A100 = (108, 2048)  # multiprocessors, and threads of each
EFFICIENT = 16 + 64 * 64 * 4  # bytes of a block of efficient attention
# By formula and its numbers; the files are PyTorch's, under aten/src/ATen/native.
BYTES = {
    # Hopper and newer Blackwell get 32 MiB, Ampere two large buffers and eight small ones.
    ("cublas", 9, 0, 206): 32 * MIB,
    ("cublas", 8, 0, 213): AMPERE,
    ("cublas", 10, 0, 211): AMPERE,
    ("cublas", 10, 0, 212): 32 * MIB,
    ("cublas", 12, 0, 213): 32 * MIB,
    ("cublaslt", 8, 0, 210): MIB,
    ("cublaslt", 8, 0, 213): 0,
    # The gradient of a bias of 3072 numbers over 8192 rows, in half precision: blocks of 32 x 4
    # threads read vectors of 4; each thread has 8192 / 4 = 2048 rows; 24 blocks cover the columns,
    # so that ceil(108 * 16 / 24) = 72 share each; 72 lies between 2048 / 256 and 2048 / 16. Every
    # thread has room for its vector: 4 * 3072 * 72 * 32 * 4 bytes (cuda/Reduce.cuh).
    ("reduction", 4, 2, 8192, 3072, 3072, 0, 3072, *A100): 4 * 3072 * 72 * 32 * 4,
    # 768 columns: 6 blocks, 288 wanted, 2048 / 16 = 128 at most.
    ("reduction", 4, 2, 8192, 768, 768, 0, 768, *A100): 4 * 768 * 128 * 32 * 4,
    # Few rows: one block a column does.
    ("reduction", 4, 2, 64, 768, 768, 0, 768, *A100): 0,
    # Everything to one number: 512 threads read vectors of 4; 2^24 / 512 = 32768 a thread; 108 * 4
    # = 432 blocks wanted.
    ("reduction", 4, 4, 1 << 24, 1, 1, 1, 4, *A100): 4 * 432,
    # cuda/layer_norm_kernel.cu: many rows, 32 a block and at most 32768 blocks in all; wide rows
    # keep the card busy without; older releases have none.
    ("layer_norm_partial", 4, 65536, 768, 108, 213): 0,
    ("layer_norm_partial", 4, 65537, 768, 108, 213): min(32768 // 24, 2049) * 768 * 4,
    ("layer_norm_partial", 2, 70000, 64, 108, 213): min(32768 // 2, 2188) * 64 * 2,
    ("layer_norm_partial", 4, 70000, 108 * 16, 108, 213): 0,
    ("layer_norm_partial", 4, 70000, 768, 108, 206): 0,
    # cuda/Embedding.cu, cuda/EmbeddingBackwardKernel.cu: in parts of ten rows beyond 3072 indices.
    ("embedding_sort", 8, 3072, 0): 0,
    ("embedding_sort", 8, 3072, 1): 8 * 3072,
    ("embedding_sort", 8, 3073, 0): 8 * 3073,
    ("embedding_segment", 8, 8192, 50257, 0): 8 * 8192,
    ("embedding_segment", 8, 8192, 100, 0): 8 * 100,
    ("embedding_partial", 4 * 768, 8192, 50257, 0): 4 * 768 * (819 + 8192),
    # cuda/Sort.h and cuda/SortStable.cu: rows of up to 4096 elements are sorted in their place.
    ("sort", 8, 3, 4096, 1): 0,
    ("sort", 8, 3, 4097, 1): 8 * 3 * 4097,
    ("sort", 8, 1, 5000, 0): 0,
    ("sort", 8, 127, 5000, 0): 8 * 127 * 5000,
    ("sort", 8, 128, 5000, 0): 0,
    # cuda/TensorTopK.cu, should_use_multiblock: long rows are searched by several blocks.
    ("topk", 20, 19999): 0,
    ("topk", 20, 20000): 20 * 20 * 512,
    ("topk", 4001, 400): 4001 * 512,
    ("topk", 4000, 799): 0,
    # transformers/cuda/mem_eff_attention/kernel_backward.h, workspace_size.
    ("efficient_workspace", 2, 8, 100, 100, 64, 64, 64, 64, 1): 2 * 8 * 2 * EFFICIENT,
    # Heads of 128 in blocks of 64 x 64 that do not keep their results: 200 / (2 x 8) = 12 parts,
    # but 100 keys are 2.
    ("efficient_workspace", 2, 8, 100, 100, 128, 128, 64, 64, 0): 2
    * 8
    * (4 * EFFICIENT + 2 * 64 * (128 + 128) * 4),
    # Copies of what is converted. Bytes, input, output and weight; then partial sums.
    ("cudnn_forward", 4, 700, 50): 4 * (700 + 50),
    ("cudnn_backward_data", 4, 700, 300, 50): 4 * (700 + 300 + 50),
    ("cudnn_backward_filter", 4, 700, 300, 50): 4 * (700 + 300 + 50),
    ("cudnn_backward_filter", 2, 700, 300, 50, 99): 2 * (700 + 300 + 50) + 99,
    # cuda/ForeachReduceOp.cu: a partial result for each chunk of the largest tensor.
    ("foreach_norm", 4, 10, 65537): 4 * 10 * 2,
}


@pytest.mark.parametrize("formula", BYTES, ids=str)
def test_a_workspace_is_as_large_as_its_source_has_it(formula):
    name, *numbers = formula
    assert bytes_of(name, numbers) == BYTES[formula]


@pytest.mark.parametrize(
    ("function", "release", "variables", "nbytes"),
    [
        (cublas_bytes, 213, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, 32 * MIB),
        (cublas_bytes, 213, {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}, 128 << 10),
        (cublas_bytes, 213, {"CUBLAS_WORKSPACE_CONFIG": "much"}, AMPERE),
        (cublas_bytes, 213, {}, AMPERE),
        (cublaslt_bytes, 210, {}, MIB),
        (cublaslt_bytes, 213, {}, 0),
        (cublaslt_bytes, 213, {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0"}, MIB),
        (cublaslt_bytes, 210, {"CUBLASLT_WORKSPACE_SIZE": "4096"}, 4 * MIB),
    ],
)
def test_the_environment_decides_where_it_can_be_read(function, release, variables, nbytes):
    assert function((8, 0), release, variables) == nbytes


def test_a_version_is_read_as_a_release():
    assert [torch_release(text) for text in ("2.13.0+cpu", "2.6.0a0+git123")] == [213, 206]
    with pytest.raises(ValueError, match="nightly"):
        torch_release("nightly")


def test_an_unknown_workspace_is_named():
    with pytest.raises(KeyError, match="cudnn_magic"):
        bytes_of("cudnn_magic", ())


def test_a_reduction_too_large_for_32_bits_is_done_in_parts():
    whole = bytes_of("reduction", (4, 4, 1 << 20, 1024, 1024, 0, 1024, *A100))
    half = bytes_of("reduction", (4, 4, 1 << 18, 1024, 1024, 0, 1024, *A100))
    assert whole == half > 0, "4 GiB are read as four parts of 1 GiB"


# --- cuDNN's ---


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
