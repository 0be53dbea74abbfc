"""Operations that libraries register with PyTorch, and the compiled part of a library that its
Python calls.

Where a library wrote the CUDA kernel of an operation in Python (torch.library.register_kernel,
torch.library.custom_op), that Python runs: what it allocates is then what this version of the
library allocates. Launches of Triton and calls of the compiled part do nothing."""

from __future__ import annotations

import mmap
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import _utils

from brimful_inside import Refused
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.simulator.roofline import HOST

# PyTorch's own Python kernels have shapes of their own on the meta device, which its distributed
# code is tested with.
_PYTORCHS = (
    "aten",
    "prims",
    "c10d",
    "fsdp",
    "symm_mem",
    "inductor",
    "debugprims",
    "rngprims",
    "profiler",
)
# a kernel for all devices where there is none for CUDA
_KEYS = (
    "CUDA",
    "CompositeExplicitAutograd",
)
EIGHT_BIT_SINCE = (7, 5)  # products of int8 in cuBLASLt, which bitsandbytes' cigemmlt_32 calls


def own_kernel(func: Any) -> Optional[Callable[..., Any]]:
    """A handler that runs the kernel which a library wrote in Python for `func`; None where it
    wrote none."""
    space, _, name = func.name().partition("::")
    if space.startswith("_") or space in _PYTORCHS:
        return None
    key = next(
        (key for key in _KEYS if "%s/%s/%s" % (space, name, key) in torch.library._impls), None
    )
    return (
        None
        if key is None
        else _running(torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)))
    )


def _running(keys: Any) -> Callable[..., Any]:
    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        with torch._C._EnableTorchFunction(), gpu.functions():
            return gpu.operate(func.redispatch, keys, *args, **kwargs)

    return handler


class CompiledPart:
    """Stands for what a library has loaded by ctypes: each function does nothing and answers 0,
    which is no error."""

    compiled_with_cuda = True

    def __init__(self, gpu: ImaginaryGpu):
        self.gpu = gpu
        self.pages: List[mmap.mmap] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("__"):
            raise AttributeError(name)
        function = partial(_FUNCTIONS.get(name, _nothing), self)
        setattr(self, name, function)
        return function

    def __getitem__(self, name: str) -> Callable[..., int]:
        return getattr(self, name)


def _nothing(part: CompiledPart, *args: Any) -> int:
    part.gpu.passed_over += 1
    return 0


def _managed_memory(part: CompiledPart, nbytes: Any) -> int:
    """bitsandbytes' paged states: memory that NVIDIA's driver moves between host and card, and
    PyTorch's allocator does not know. Pages of the host that nobody writes to cost nothing."""
    part.gpu.approximate("paged optimizer states")
    part.pages.append(mmap.mmap(-1, max(1, nbytes.value)))
    return torch.frombuffer(part.pages[-1], dtype=torch.uint8).data_ptr()


def _eight_bit_product(part: CompiledPart, *args: Any) -> int:
    capability = part.gpu.machine.capability
    if part.gpu.machine.choose(lambda capability: capability < EIGHT_BIT_SINCE):
        raise Refused(
            "bitsandbytes multiplies 8-bit weights on cards of compute capability %d.%d and "
            "newer, and the %s has %d.%d: "
            "load the model in 4 bits (load_in_4bit), or choose a newer card"
            % (*EIGHT_BIT_SINCE, part.gpu.card.name, *capability)
        )
    return _nothing(part)


# bitsandbytes' functions that do more than start a kernel (bitsandbytes/functional.py,
# backends/cuda/ops.py).
_FUNCTIONS: Dict[str, Callable[..., int]] = {
    "cget_managed_ptr": _managed_memory,
    "cigemmlt_32": _eight_bit_product,
}


def without_compiled_part(gpu: ImaginaryGpu, module: Any) -> None:
    """`module`, just imported, has its library's compiled part as its attribute `lib`."""
    if gpu.is_open:
        gpu.patches.set(module, "lib", CompiledPart(gpu))


# --- DeepSpeed's extensions, which it compiles when they are first used ---


def _multi_tensor_adam(chunk: int, overflow: Any, lists: Any, *numbers: Any) -> None:
    """FusedAdam (csrc/adam/multi_tensor_adam.cu) runs as PyTorch's kernel, which does the same to
    the same tensors."""
    grads, params, means, squares = lists
    torch._fused_adam_(
        params,
        grads,
        means,
        squares,
        [],
        [overflow] * len(params),
        lr=0.0,
        beta1=0.0,
        beta2=0.0,
        weight_decay=0.0,
        eps=0.0,
        amsgrad=False,
        maximize=False,
    )


_ON_HOST = "an optimizer's step on the host"


def _updates_on_host(part: CompiledPart, *args: Any) -> int:
    """CPUAdam and the like: the tensors of one parameter in the host's memory, the gradient second
    (csrc/adam/cpu_adam_impl.cpp); all else is read and written."""
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    nbytes = 2 * sum(tensor.nbytes for tensor in tensors) - tensors[1].nbytes
    part.gpu.approximate(_ON_HOST)
    part.gpu.clock.add(_ON_HOST, HOST, 0, nbytes)
    return 0


def without_building(gpu: ImaginaryGpu, module: Any) -> None:
    """`module` has the builders of DeepSpeed's extensions (op_builder/builder.py), which ask first
    whether one was loaded before. Those of ZeRO's optimizers change tensors in place."""
    if gpu.is_open:
        part: Any = CompiledPart(gpu)
        part.multi_tensor_adam = _multi_tensor_adam
        for name in ("adam_update", "adagrad_update", "lion_update"):
            setattr(part, name, partial(_updates_on_host, part))
        part.flatten, part.unflatten = (
            _utils._flatten_dense_tensors,
            _utils._unflatten_dense_tensors,
        )
        gpu.patches.set(module.OpBuilder, "_loaded_ops", dict.fromkeys(_EXTENSIONS, part))


_EXTENSIONS = ("utils", "fused_adam", "fused_lion", "cpu_adam", "cpu_adagrad", "cpu_lion")
#: By a module that holds the compiled part of its library, or makes it: what is done about it.
COMPILED_PARTS = {
    "bitsandbytes.cextension": without_compiled_part,
    "deepspeed.ops.op_builder.builder": without_building,
}
