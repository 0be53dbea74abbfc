"""The context: what a card holds outside PyTorch's allocator."""

from brimful.decide.memory.cuda_context import context_of
from brimful.measure.gpus import find_gpu

MIB = 1 << 20


def test_cudnn_adds_to_the_context_of_the_measured_card():
    gpu = find_gpu("a100-40gb")
    assert gpu.context_bytes.value == 1429 * MIB
    more = context_of(gpu, uses_cudnn=True)
    assert 1600 * MIB < more.value < 1900 * MIB
    assert "convolution" in (more.note or "")


def test_where_nobody_measured_cudnn_the_interval_of_the_context_has_room_for_it():
    gpu = find_gpu("t4")
    assert context_of(gpu, uses_cudnn=True) == gpu.context_bytes
    added = find_gpu("a100-40gb").cudnn_bytes.value
    assert gpu.context_bytes.high - gpu.context_bytes.value > added
