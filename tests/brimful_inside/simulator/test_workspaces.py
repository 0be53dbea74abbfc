from __future__ import annotations

import pytest

from brimful_inside.simulator.workspaces import (
    bytes_of,
    cublas_bytes,
    cublaslt_bytes,
    torch_release,
)

MIB = 1 << 20
AMPERE = 8_519_680  # 2 × 4096 KiB + 8 × 16 KiB


def test_hopper_and_newer_blackwell_get_32_mib_and_ampere_two_large_and_eight_small_buffers():
    assert bytes_of("cublas", (9, 0, 206)) == 32 * MIB
    assert bytes_of("cublas", (8, 0, 213)) == bytes_of("cublas", (10, 0, 211)) == AMPERE
    assert bytes_of("cublas", (10, 0, 212)) == bytes_of("cublas", (12, 0, 213)) == 32 * MIB


def test_the_environment_decides_where_it_can_be_read():
    assert cublas_bytes((8, 0), 213, {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}) == 32 * MIB
    assert cublas_bytes((8, 0), 213, {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}) == 128 << 10
    assert cublas_bytes((8, 0), 213, {"CUBLAS_WORKSPACE_CONFIG": "much"}) == AMPERE
    assert cublas_bytes((8, 0), 213, {}) == AMPERE


def test_cublaslt_has_a_workspace_of_its_own_where_it_does_not_share():
    assert cublaslt_bytes((8, 0), 210, {}) == bytes_of("cublaslt", (8, 0, 210)) == MIB
    assert cublaslt_bytes((8, 0), 213, {}) == bytes_of("cublaslt", (8, 0, 213)) == 0
    assert cublaslt_bytes((8, 0), 213, {"TORCH_CUBLASLT_UNIFIED_WORKSPACE": "0"}) == MIB
    assert cublaslt_bytes((8, 0), 210, {"CUBLASLT_WORKSPACE_SIZE": "4096"}) == 4 * MIB


def test_a_version_is_read_as_a_release():
    assert torch_release("2.13.0+cpu") == 213
    assert torch_release("2.6.0a0+git123") == 206
    with pytest.raises(ValueError, match="nightly"):
        torch_release("nightly")


def test_an_unknown_workspace_is_named():
    with pytest.raises(KeyError, match="cudnn_magic"):
        bytes_of("cudnn_magic", ())


A100 = (108, 2048)  # multiprocessors, and threads of each
REDUCTIONS = [
    # The gradient of a bias of 3072 numbers over 8192 rows, in half precision: blocks of 32 x 4
    # threads read vectors of 4; each thread has 8192 / 4 = 2048 rows; 24 blocks cover the columns,
    # so that ceil(108 * 16 / 24) = 72 share each; 72 lies between 2048 / 256 and 2048 / 16. Every
    # thread has room for its vector: 4 * 3072 * 72 * 32 * 4 bytes.
    ((4, 2, 8192, 3072, 3072, 0, 3072), 4 * 3072 * 72 * 32 * 4),
    # 768 columns: 6 blocks, 288 wanted, 2048 / 16 = 128 at most.
    ((4, 2, 8192, 768, 768, 0, 768), 4 * 768 * 128 * 32 * 4),
    # Few rows: one block a column does.
    ((4, 2, 64, 768, 768, 0, 768), 0),
    # Everything to one number: 512 threads read vectors of 4; 2^24 / 512 = 32768 a thread; 108 * 4
    # = 432 blocks wanted.
    ((4, 4, 1 << 24, 1, 1, 1, 4), 4 * 432),
]


@pytest.mark.parametrize(("args", "expected"), REDUCTIONS)
def test_a_reduction_that_blocks_share_has_a_place_for_each_of_their_threads(args, expected):
    """cuda/Reduce.cuh, setReduceConfig."""
    assert bytes_of("reduction", (*args, *A100)) == expected


def test_a_reduction_too_large_for_32_bits_is_done_in_parts():
    whole = bytes_of("reduction", (4, 4, 1 << 20, 1024, 1024, 0, 1024, *A100))
    half = bytes_of("reduction", (4, 4, 1 << 18, 1024, 1024, 0, 1024, *A100))
    assert whole == half > 0, "4 GiB are read as four parts of 1 GiB"


def test_a_layer_norms_partial_sums_need_many_rows_few_columns_and_a_release_that_has_them():
    """cuda/layer_norm_kernel.cu: 32 rows a block, at most 32768 blocks in all."""
    assert bytes_of("layer_norm_partial", (4, 65536, 768, 108, 213)) == 0
    assert (
        bytes_of("layer_norm_partial", (4, 65537, 768, 108, 213))
        == min(32768 // 24, 2049) * 768 * 4
    )
    assert (
        bytes_of("layer_norm_partial", (2, 70000, 64, 108, 213)) == min(32768 // 2, 2188) * 64 * 2
    )
    assert bytes_of("layer_norm_partial", (4, 70000, 108 * 16, 108, 213)) == 0, (
        "wide rows keep the card busy"
    )
    assert bytes_of("layer_norm_partial", (4, 70000, 768, 108, 206)) == 0


def test_an_embeddings_gradient_is_summed_in_parts_of_ten_rows_beyond_3072_indices():
    """cuda/Embedding.cu, cuda/EmbeddingBackwardKernel.cu."""
    assert (
        bytes_of("embedding_sort", (8, 3072, 0)) == 0
        and bytes_of("embedding_sort", (8, 3072, 1)) == 8 * 3072
    )
    assert bytes_of("embedding_sort", (8, 3073, 0)) == 8 * 3073
    assert bytes_of("embedding_segment", (8, 8192, 50257, 0)) == 8 * 8192
    assert bytes_of("embedding_segment", (8, 8192, 100, 0)) == 8 * 100
    assert bytes_of("embedding_partial", (4 * 768, 8192, 50257, 0)) == 4 * 768 * (819 + 8192)


def test_rows_are_sorted_in_their_place_up_to_4096_elements():
    """cuda/Sort.h and cuda/SortStable.cu."""
    assert (
        bytes_of("sort", (8, 3, 4096, 1)) == 0 and bytes_of("sort", (8, 3, 4097, 1)) == 8 * 3 * 4097
    )
    assert [bytes_of("sort", (8, rows, 5000, 0)) for rows in (1, 127, 128)] == [
        0,
        8 * 127 * 5000,
        0,
    ]


def test_the_top_k_of_long_rows_is_found_by_several_blocks():
    """cuda/TensorTopK.cu, should_use_multiblock."""
    assert bytes_of("topk", (20, 19999)) == 0 and bytes_of("topk", (20, 20000)) == 20 * 20 * 512
    assert bytes_of("topk", (4001, 400)) == 4001 * 512 and bytes_of("topk", (4000, 799)) == 0


def test_efficient_attention_works_in_blocks():
    """transformers/cuda/mem_eff_attention/kernel_backward.h, workspace_size."""
    nbytes = 16 + 64 * 64 * 4
    assert (
        bytes_of("efficient_workspace", (2, 8, 100, 100, 64, 64, 64, 64, 1)) == 2 * 8 * 2 * nbytes
    )
    # Heads of 128 in blocks of 64 x 64 that do not keep their results: 200 / (2 x 8) = 12 parts,
    # but 100 keys are 2.
    beside = 2 * 64 * (128 + 128) * 4
    assert bytes_of("efficient_workspace", (2, 8, 100, 100, 128, 128, 64, 64, 0)) == 2 * 8 * (
        4 * nbytes + beside
    )


def test_the_norms_of_lists_take_a_partial_result_for_each_chunk_of_the_largest():
    """cuda/ForeachReduceOp.cu."""
    assert bytes_of("foreach_norm", (4, 10, 65537)) == 4 * 10 * 2
