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


def test_hopper_gets_32_mib_and_ampere_two_large_and_eight_small_buffers():
    assert bytes_of("cublas", (9, 0, 206)) == 32 * MIB
    assert bytes_of("cublas", (8, 0, 213)) == AMPERE


def test_blackwell_gets_32_mib_since_pytorch_2_12():
    assert bytes_of("cublas", (10, 0, 211)) == AMPERE
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


def test_an_unknown_law_is_named():
    with pytest.raises(KeyError, match="cudnn_magic"):
        bytes_of("cudnn_magic", ())
