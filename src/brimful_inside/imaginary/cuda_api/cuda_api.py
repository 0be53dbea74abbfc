"""torch.cuda and torch.accelerator as a script sees them, with the imaginary card behind.

Most of torch.cuda is Python on top of functions of `torch._C`, which a CPU build lacks and a CUDA build cannot use without a
driver. Those are what is put in place here, so that torch's own Python (checks, messages, summaries) runs as it is.
"""

from __future__ import annotations

import types
from typing import Any, Callable, Dict

import torch
import torch.cuda

from brimful_inside.imaginary.cuda_api.cuda_memory import memory_functions
from brimful_inside.imaginary.cuda_api.cuda_types import patch_types
from brimful_inside.imaginary.cuda_api.graphs import patch_graphs
from brimful_inside.imaginary.cuda_api.streams import patch_streams
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.patches import Patches

__all__ = ["patch_cuda"]


class DeviceProperties:
    """What torch.cuda.get_device_properties answers. Sizes in bytes."""

    def __init__(self, gpu: ImaginaryGpu):
        card = gpu.card
        self.name = card.name
        self.major, self.minor = card.capability[0], card.capability[1]
        self.total_memory = card.total_bytes
        self.multi_processor_count = card.multiprocessors
        self.is_integrated = self.is_multi_gpu_board = 0
        self.warp_size = 32
        self.max_threads_per_multi_processor = 1536 if (self.major, self.minor) in ((8, 6), (8, 9), (12, 0)) else 2048
        self.max_threads_per_block = 1024
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 48 << 10
        self.shared_memory_per_block_optin = {7: 96, 8: 99 if self.minor else 163}.get(self.major, 227) << 10
        self.L2_cache_size = 40 << 20
        self.gcnArchName = card.name
        self.uuid = "00000000-0000-0000-0000-000000000000"
        self.pci_bus_id = self.pci_device_id = self.pci_domain_id = 0

    def __repr__(self) -> str:
        return "_CudaDeviceProperties(name='%s', major=%d, minor=%d, total_memory=%dMB, multi_processor_count=%d)" % (
            self.name,
            self.major,
            self.minor,
            self.total_memory >> 20,
            self.multi_processor_count,
        )


class Cudart(types.ModuleType):
    """torch.cuda.cudart(): the few functions of the runtime that scripts call by themselves."""

    class cudaError:
        success = 0

        def __new__(cls, code: int) -> Any:
            return code

    def __init__(self, gpu: ImaginaryGpu):
        super().__init__("torch._C._cudart")
        self._gpu = gpu

    def cudaMemGetInfo(self, device: int) -> Any:
        return self._gpu.memory_info(device)

    def cudaGetErrorString(self, code: int) -> str:
        return "no error" if code == 0 else "error %d" % code

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("cuda"):
            return lambda *args: 0  # cudaProfilerStart, cudaProfilerStop, cudaHostRegister, ...: success
        raise AttributeError(name)


def patch_cuda(gpu: ImaginaryGpu, patches: Patches) -> None:
    """torch.cuda, torch.accelerator and torch.backends answer for the imaginary card."""
    functions = {**_device_functions(gpu), **memory_functions(gpu)}
    for name, function in functions.items():
        patches.set(torch._C, name, function)
    cuda: Any = torch.cuda
    patches.set(cuda, "_cudart", Cudart(gpu))
    patches.set(cuda, "_lazy_init", gpu.touch)
    for module in (cuda.memory, cuda.random, cuda.streams, cuda.nccl, cuda.graphs):
        patches.set_existing(module, "_lazy_init", gpu.touch)
    patches.set(cuda, "_initialized", cuda._initialized)
    patches.set(cuda, "_is_in_bad_fork", lambda: gpu.in_bad_fork)
    patches.set(cuda, "_lazy_call", lambda callable, **kwargs: callable())
    patches.set_existing(cuda.random, "_lazy_call", lambda callable, **kwargs: callable())
    patches.set(cuda, "_exchange_device", functions["_cuda_exchangeDevice"])
    patches.set(cuda, "_maybe_exchange_device", functions["_cuda_maybeExchangeDevice"])
    patches.set(cuda, "device_count", lambda: gpu.count)
    patches.set(cuda, "is_available", lambda: True)
    patches.set(cuda, "_device_count_nvml", lambda: gpu.count)
    patches.set(cuda, "_get_device_properties", _properties_of(gpu))
    for name in ("utilization", "temperature", "power_draw", "clock_rate", "memory_usage", "device_memory_used"):
        patches.set_existing(cuda, name, _idle(gpu, name))
    patches.set(cuda.nvtx, "_nvtx", _NoMarks())
    patches.set(torch.autograd.profiler.emit_nvtx, "__enter__", lambda self: self)
    patches.set(torch.autograd.profiler.emit_nvtx, "__exit__", lambda self, *error: None)
    patch_types(gpu, patches)
    patch_streams(gpu, patches)
    patch_graphs(gpu, patches)
    _put_builds_in_place(patches)


class _NoMarks:
    """NVTX without a profiler to listen."""

    def rangePushA(self, message: str) -> int:
        return 0

    def rangePop(self) -> int:
        return 0

    def rangeStartA(self, message: str) -> int:
        return 0

    def rangeEnd(self, number: int) -> None:
        return None

    def markA(self, message: str) -> None:
        return None

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *args, **kwargs: 0


def _idle(gpu: ImaginaryGpu, name: str) -> Callable[..., int]:
    if name == "device_memory_used":
        return lambda device=None: gpu.memory_info(device)[1] - gpu.memory_info(device)[0]
    return lambda device=None: 0


def _properties_of(gpu: ImaginaryGpu) -> Callable[[Any], DeviceProperties]:
    properties = DeviceProperties(gpu)

    def of(device: Any) -> DeviceProperties:
        gpu.index_of(device)
        return properties

    return of


def _device_functions(gpu: ImaginaryGpu) -> Dict[str, Callable]:
    def set_device(device: int) -> None:
        gpu.streams.card = gpu.index_of(device)
        gpu.touch()

    def get_device() -> int:
        gpu.touch()
        return gpu.streams.card

    def exchange(device: int) -> int:
        if device < 0:
            return -1
        index, before = gpu.index_of(device), gpu.streams.card
        gpu.streams.card = index
        return before

    def synchronize(device: Any) -> None:
        gpu.captures.check_waiting()
        index = gpu.index_of(device)
        gpu.ledgers[index].synchronized()
        gpu.clocks[index].synchronized()

    card = torch.device("cuda")
    nothing = _nothing
    return {
        "_cuda_getDeviceCount": lambda: gpu.count,
        "_cuda_init": nothing,
        "_cuda_getDevice": get_device,
        "_cuda_setDevice": set_device,
        "_cuda_exchangeDevice": exchange,
        "_cuda_maybeExchangeDevice": exchange,
        "_cuda_synchronize": lambda: synchronize(None),
        "_cuda_isInBadFork": lambda: gpu.in_bad_fork,
        "_cuda_getArchFlags": lambda: "sm_%d%d" % tuple(gpu.card.capability),
        "_cuda_canDeviceAccessPeer": lambda device, peer: False,
        "_cuda_getCompiledVersion": lambda: 12080,
        "_cuda_ipc_collect": nothing,
        "_cuda_sleep": nothing,
        "_cuda_getCurrentBlasHandle": lambda: 1,
        "_cuda_getCurrentSolverHandle": lambda: 1,
        "_cuda_set_sync_debug_mode": nothing,
        "_cuda_get_sync_debug_mode": lambda: 0,
        "_cuda_clearCublasWorkspaces": lambda: gpu.workspaces.clear(),
        "_cuda_set_cudnn_benchmark_limit": nothing,
        "_cuda_get_cudnn_benchmark_limit": lambda: 10,
        "_accelerator_getAccelerator": lambda: card,
        "_get_accelerator": lambda check=None: card,
        "_accelerator_getDeviceIndex": get_device,
        "_accelerator_setDeviceIndex": set_device,
        "_accelerator_exchangeDevice": exchange,
        "_accelerator_maybeExchangeDevice": exchange,
        "_accelerator_synchronizeDevice": synchronize,
        "_accelerator_hooks_device_count": lambda: gpu.count,
        "_accelerator_deviceCount": lambda: gpu.count,  # its name in 2.6
        "_accelerator_hooks_get_current_device": get_device,
        "_accelerator_hooks_set_current_device": set_device,
        "_accelerator_hooks_exchange_device": exchange,
        "_accelerator_hooks_maybe_exchange_device": exchange,
    }


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _put_builds_in_place(patches: Patches) -> None:
    """torch.backends: the card's libraries are there, as in a CUDA build of PyTorch."""
    patches.set(torch.backends.cuda, "is_built", lambda: True)
    patches.set(torch.backends.cudnn, "is_available", lambda: True)
    patches.set(torch.backends.cudnn, "version", lambda: 91002)
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: tensor.is_cuda)
    if torch.version.cuda is None:
        patches.set(torch.version, "cuda", "12.8")
