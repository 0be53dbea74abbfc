"""The context: what a card holds outside PyTorch's allocator."""

from __future__ import annotations

import pytest

from brimful.measure.gpus import all_gpus, find_gpu, with_cudnn

MIB = 1 << 20


def test_cudnn_adds_to_the_context_what_it_added_on_the_measured_card():
    context = find_gpu("a100-40gb").context_bytes
    more = with_cudnn(context)
    assert context.value == 1429 * MIB and 1600 * MIB < more.value < 1900 * MIB
    assert more.source is context.source and "cuDNN" in (more.note or "")


@pytest.mark.parametrize("gpu", all_gpus(), ids=lambda gpu: gpu.key)
def test_a_context_with_cudnn_lies_within_its_own_interval(gpu):
    more = with_cudnn(gpu.context_bytes)
    assert gpu.context_bytes.value < more.value
    assert (more.low or 0) <= more.value <= (more.high or 0)
