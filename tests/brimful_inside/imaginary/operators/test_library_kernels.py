"""Operations of libraries whose CUDA kernel is Python: what that takes is what counts. The compiled
part does nothing."""

import ctypes
import types
from typing import Any

import pytest
import torch

from brimful_inside.imaginary.operators.library_kernels import (
    CompiledPart,
    own_kernel,
    without_building,
    without_compiled_part,
)
from tests.brimful_inside.imaginary.conftest import peak_of

MIB = 1 << 20


@pytest.fixture
def library():
    made = torch.library.Library("brimful_quantizers", "DEF")
    yield made
    made._destroy()


@pytest.fixture
def product(gpu, library):
    """A product with a packed weight, as bitsandbytes has it: shapes say little, the kernel for
    CUDA unpacks the weight."""
    compiled = CompiledPart(gpu)
    library.define("unpack(Tensor packed) -> Tensor")
    library.define("gemm_4bit(Tensor a, Tensor packed, int[] shape) -> Tensor")

    def unpack(packed: torch.Tensor) -> torch.Tensor:
        out = torch.empty(2 * packed.numel(), device=packed.device, dtype=torch.half)
        assert packed.is_cuda and compiled.cunpack(packed.data_ptr(), out.data_ptr()) == 0
        return out

    def gemm_4bit(a: torch.Tensor, packed: torch.Tensor, shape: list[int]) -> torch.Tensor:
        if a.shape[0] == 1:
            compiled.cgemm(a.data_ptr())
            return torch.empty((1, shape[0]), device=a.device, dtype=a.dtype)
        return torch.nn.functional.linear(
            a, torch.ops.brimful_quantizers.unpack(packed).view(shape)
        )

    library.impl("unpack", unpack, "CUDA")
    library.impl("gemm_4bit", gemm_4bit, "CUDA")
    for name in ("unpack", "gemm_4bit"):
        torch.library.register_fake(
            f"brimful_quantizers::{name}", lambda a, *rest: a.new_empty(1), lib=library
        )
    return torch.ops.brimful_quantizers.gemm_4bit


def test_what_a_librarys_own_kernel_takes_is_taken(gpu, product):
    packed = torch.empty(MIB // 2, dtype=torch.uint8, device="cuda")
    a = torch.randn(8, 1024, device="cuda", dtype=torch.half)
    product(a, packed, [1024, 1024])  # cuBLAS's workspace is there from now on
    before = torch.cuda.memory_allocated()
    out = product(a, packed, [1024, 1024])
    assert out.shape == (8, 1024) and torch.cuda.memory_allocated() - before == out.nbytes
    whole_weight = 2 * MIB  # in half precision
    assert peak_of(lambda: product(a, packed, [1024, 1024])) == out.nbytes + whole_weight


def test_its_operations_count_on_the_clock_and_else_its_compiled_part(gpu, product):
    packed = torch.empty(MIB // 2, dtype=torch.uint8, device="cuda")
    ran = []
    for rows in (8, 1):
        a = torch.randn(rows, 1024, device="cuda", dtype=torch.half)
        mark = gpu.clock.mark()
        product(a, packed, [1024, 1024])
        ran.append([(row[0].split(".")[1], row[2]) for row in gpu.clock.since(mark)])
    assert ran[0][0] == ("unpack", 0) and ran[0][-1][1] == 2 * 8 * 1024 * 1024 and len(ran[0]) == 2
    assert ran[1] == [("gemm_4bit", 2 * 1024 * 1024)]


def test_a_kernel_for_all_devices_runs_where_there_is_none_for_cuda(gpu):
    @torch.library.custom_op("brimful_tests::halved", mutates_args=())
    def halved(x: torch.Tensor) -> torch.Tensor:
        return (x.double() / 2).float()

    halved.register_fake(torch.empty_like)
    x = torch.randn(MIB // 4, device="cuda")
    assert halved(x).is_cuda
    assert peak_of(lambda: halved(x)) == 4 * MIB  # x and its half in double precision


class Builders(types.ModuleType):
    class OpBuilder:
        _loaded_ops: dict = {}  # noqa: RUF012


@pytest.fixture
def extensions(gpu):
    module = Builders("deepspeed.ops.op_builder.builder")
    without_building(gpu, module)
    return module.OpBuilder._loaded_ops


def test_the_extensions_of_deepspeeds_optimizers_are_there_and_take_no_memory(gpu, extensions):
    lists = [[torch.zeros(MIB, device="cuda")] for _ in range(4)]
    flag, mark = torch.zeros(1, dtype=torch.int, device="cuda"), gpu.clock.mark()
    adam = extensions["fused_adam"].multi_tensor_adam
    assert peak_of(lambda: adam(65536, flag, lists, 1e-3, 0.9, 0.999, 1e-8, 1, 1, 1, 0.0)) == 0
    ((name, kind, _, nbytes, *_),) = gpu.clock.since(mark)
    assert (name, kind, nbytes) == ("aten._fused_adam_.default", "memory", 7 * 4 * MIB)
    flat = extensions["utils"].flatten([torch.ones(2), torch.ones(3)])
    assert flat.shape == (5,) and "async_io" not in extensions


def test_a_step_of_deepspeeds_optimizers_on_the_host_takes_the_hosts_time(gpu, extensions):
    extension = extensions["cpu_adam"]
    extension.create_adam(0, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, False)
    mark = gpu.clock.mark()
    extension.adam_update(
        0, 1, 1e-3, 0.9, 0.999, 1e-8, 0.0, True, *(torch.zeros(MIB) for _ in range(4))
    )
    assert [row[1:4] for row in gpu.clock.since(mark)] == [("host", 0, 7 * 4 * MIB)]
    assert gpu.approximations == {"an optimizer's step on the host": 1}


def test_memory_that_runs_out_in_a_librarys_kernel_is_out_of_memory(enter, library):
    enter(capacity_bytes=8 * MIB)
    library.define("large(Tensor x) -> Tensor")
    library.impl("large", lambda x: torch.empty(64 * MIB, device=x.device), "CUDA")
    with pytest.raises(torch.OutOfMemoryError):
        torch.ops.brimful_quantizers.large(torch.zeros(1, device="cuda"))


def test_pytorchs_own_operations_are_none_of_a_library():
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives  # noqa: F401

    assert own_kernel(torch.ops.aten.mm.default) is None
    assert own_kernel(torch.ops.fsdp.split_with_sizes_copy.default) is None


def test_compiled_functions_do_nothing_and_take_what_ctypes_functions_take(gpu):
    module: Any = types.ModuleType("bitsandbytes.cextension")
    module.lib = real = object()
    without_compiled_part(gpu, module)
    module.lib.cquantize.argtypes, module.lib.cquantize.restype = [ctypes.c_void_p], None
    assert module.lib.cquantize(ctypes.c_void_p(0)) == 0 == module.lib["cquantize"](None)
    assert module.lib.cquantize.argtypes == [ctypes.c_void_p] and not hasattr(
        module.lib, "__wrapped__"
    )
    gpu.leave()
    assert module.lib is real
    without_compiled_part(gpu, module)
    assert module.lib is real, "after the card has gone"


def test_paged_states_are_memory_of_the_host_that_can_be_written(gpu):
    before = torch.cuda.memory_allocated()
    address = CompiledPart(gpu).cget_managed_ptr(ctypes.c_size_t(4096))
    states = (ctypes.c_float * 1024).from_address(address)
    states[1023] = 2.0
    assert states[1023] == 2.0 and torch.cuda.memory_allocated() == before
    assert gpu.approximations == {"paged optimizer states": 1}


def test_products_in_8_bits_are_refused_on_cards_that_have_none(enter):
    assert CompiledPart(enter(capability=(7, 5))).cigemmlt_32(0) == 0
    with pytest.raises(
        RuntimeError,
        match=r"7\.5 and newer, and the an imaginary card has 7\.0: load the model in 4 bits",
    ):
        CompiledPart(enter(capability=(7, 0))).cigemmlt_32(0)
