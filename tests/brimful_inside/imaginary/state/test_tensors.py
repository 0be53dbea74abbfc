"""Tensors beneath the imaginary GPU."""

import os

import pytest
import torch

from brimful_inside.imaginary.state.tensors import META, zeros_on_host


def _resident() -> int:
    with open("/proc/self/statm") as opened:
        return int(opened.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(
    not os.path.exists("/proc/self/statm"), reason="Linux alone tells what of the memory is in use"
)
def test_zeros_on_the_host_take_memory_only_where_they_are_written():
    zeros = zeros_on_host(torch.empty(128 << 20, dtype=torch.uint8, device=META))
    before = _resident()
    zeros[:: 2 << 20] = 1
    assert int(zeros.count_nonzero()) == 64
    assert _resident() - before < 32 << 20
