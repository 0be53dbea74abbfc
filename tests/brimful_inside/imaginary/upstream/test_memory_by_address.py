"""Memory that a script takes and gives back by its address, as PyTorch 2.6 to 2.15 have it."""

import pytest
import torch

from brimful_inside.imaginary.state.errors import Unsupported
from tests.brimful_inside.imaginary.conftest import played

MIB = 1 << 20


def test_memory_without_a_tensor_counts(gpu, trace_file):
    """torch.cuda.caching_allocator_alloc and caching_allocator_delete, PyTorch 2.6 to 2.15."""
    first = torch.cuda.caching_allocator_alloc(3 * MIB)
    assert torch.cuda.memory_allocated() == 3 * MIB
    second = torch.cuda.caching_allocator_alloc(1000, device=0)
    assert torch.cuda.memory_allocated() == 3 * MIB + 1024 and first != second
    torch.cuda.caching_allocator_delete(first)
    torch.cuda.caching_allocator_delete(second)
    assert torch.cuda.memory_allocated() == 0
    assert played(trace_file).peak.allocated == 3 * MIB + 1024


def test_memory_without_a_tensor_is_of_its_stream(gpu):
    """PyTorch 2.6 to 2.15: freed, it serves the stream that it was taken on and no other one."""
    side = torch.cuda.Stream()
    address = torch.cuda.caching_allocator_alloc(1000, stream=side)
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.caching_allocator_alloc(1000) != address
    assert torch.cuda.caching_allocator_alloc(1000, stream=side.cuda_stream) == address
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_memory_without_a_tensor_is_of_its_card(three, allocated):
    """PyTorch 2.6 to 2.15: it is given back on the card that it was taken on."""
    address = torch.cuda.caching_allocator_alloc(1000, device=2)
    assert allocated() == [0, 0, 1024]
    torch.cuda.caching_allocator_delete(address)
    assert allocated() == [0, 0, 0]


def test_no_bytes_have_no_address_and_an_unknown_address_is_refused(gpu):
    """PyTorch 2.6 to 2.15: "invalid device pointer"."""
    assert torch.cuda.caching_allocator_alloc(0) == 0
    torch.cuda.caching_allocator_delete(0)
    address = torch.cuda.caching_allocator_alloc(1000)
    torch.cuda.caching_allocator_delete(address)
    with pytest.raises(RuntimeError, match=f"invalid device pointer: {address:#x}"):
        torch.cuda.caching_allocator_delete(address)


@pytest.mark.parametrize("name", ["_cuda_getCheckpointState", "_cuda_setCheckpointPoolState"])
def test_the_state_of_a_private_pool_cannot_be_kept(gpu, name):
    """PyTorch 2.6 to 2.15 keep and restore it for graphs of compiled code; here that is refused."""
    with pytest.raises(Unsupported, match="private pool cannot be kept and set back"):
        getattr(torch._C, name)(0, (0, 1))
