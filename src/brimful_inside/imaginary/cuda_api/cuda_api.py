"""torch.cuda and torch.accelerator as a script sees them, with the imaginary card behind. Sizes in
bytes.

Most of torch.cuda is Python on top of functions of `torch._C`, which a CPU build lacks and a CUDA
build cannot use without a driver. Those are replaced here, and torch's own Python (checks,
messages, summaries) runs as it is."""

from __future__ import annotations

import math
import os
import types
from typing import Any, Callable, Dict, Sequence, Tuple

import torch
import torch.cuda
from torch._utils import _LazySeedTracker  # pyright: ignore[reportPrivateImportUsage]

from brimful_inside.imaginary.cuda_api.snapshots import snapshot_functions
from brimful_inside.imaginary.cuda_api.streams import patch_graphs, patch_streams
from brimful_inside.imaginary.cuda_api.types import patch_types
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.errors import Unsupported
from brimful_inside.imaginary.state.ledger import Block
from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.allocator_settings import spelled
from brimful_inside.simulator.roofline import SLEEP
from brimful_inside.simulator.workspaces import torch_release


class _CudaDeviceProperties(types.SimpleNamespace):
    """What torch.cuda.get_device_properties answers."""

    def __init__(self, gpu: ImaginaryGpu):
        card, machine = gpu.card, gpu.machine
        major, minor = card.capability
        super().__init__(
            name=card.name,
            gcnArchName=card.name,
            uuid="00000000-0000-0000-0000-000000000000",
            major=AskedNumber(machine, 0) if machine.alike else major,
            minor=AskedNumber(machine, 1) if machine.alike else minor,
            total_memory=card.total_bytes,
            multi_processor_count=card.multiprocessors,
            max_threads_per_multi_processor=2048
            if (major, minor) not in ((8, 6), (8, 9), (12, 0))
            else 1536,
            max_threads_per_block=1024,
            regs_per_multiprocessor=65536,
            shared_memory_per_block=48 << 10,
            shared_memory_per_block_optin={7: 96, 8: 99 if minor else 163}.get(major, 227) << 10,
            L2_cache_size=40 << 20,
            warp_size=32,
            **dict.fromkeys(("is_integrated", "is_multi_gpu_board"), 0),
            **dict.fromkeys(("pci_bus_id", "pci_device_id", "pci_domain_id"), 0),
        )

    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return (
            "_CudaDeviceProperties(name='%s', major=%d, minor=%d, total_memory=%dMB, "
            "multi_processor_count=%d)"
            % (
                self.name,
                self.major,
                self.minor,
                self.total_memory >> 20,
                self.multi_processor_count,
            )
        )


class _Cudart(types.ModuleType):
    """torch.cuda.cudart(): the few functions of the runtime that scripts call."""

    class cudaError:
        success = 0

        def __new__(cls, code: int) -> Any:
            return code

    def __init__(self, gpu: ImaginaryGpu):
        super().__init__("torch._C._cudart")
        self.cudaMemGetInfo = gpu.memory_info

    def cudaGetErrorString(self, code: int) -> str:
        return "no error" if code == 0 else "error %d" % code

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("cuda"):
            # cudaProfilerStart, cudaProfilerStop, cudaHostRegister, ...: success
            return lambda *args: 0
        raise AttributeError(name)


class _NoMarks:
    """NVTX without a profiler."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *args, **kwargs: 0


def patch_cuda(gpu: ImaginaryGpu) -> None:
    """torch.cuda, torch.accelerator and torch.backends answer for the imaginary card."""
    gpu.patches.set_all(
        torch._C, **_device_functions(gpu), **_constants(gpu), **_memory_functions(gpu)
    )
    gpu.patches.set_all(torch._C, **_settings_functions(gpu), **_raw_memory_functions(gpu))
    gpu.patches.set_all(torch._C, **snapshot_functions(gpu))
    _patch_python(gpu, torch.cuda)
    patch_types(gpu)
    patch_streams(gpu)
    patch_graphs(gpu)
    _patch_builds(gpu)


def _patch_python(gpu: ImaginaryGpu, cuda: Any) -> None:
    """What torch.cuda decides in Python."""
    gpu.initialize = cuda._lazy_init
    for module in (cuda.memory, cuda.random, cuda.streams, cuda.nccl, cuda.graphs):
        gpu.patches.set_existing(module, "_lazy_init", gpu.touch)

    def get_device_properties(device: Any) -> _CudaDeviceProperties:
        gpu.index_of(device)  # raises where there is no such card
        return _CudaDeviceProperties(gpu)

    def get_device_capability(device: Any = None) -> Any:
        properties = cuda.get_device_properties(device)
        return (
            AskedCapability(gpu.machine)
            if gpu.machine.alike
            else (properties.major, properties.minor)
        )

    gpu.patches.set_all(
        cuda,
        _cudart=_Cudart(gpu),
        _lazy_init=gpu.touch,
        # set at the first use; what waits for it are seeds, and no checks of what PyTorch was
        # built for
        _initialized=cuda._initialized,
        _queued_calls=[],
        _lazy_seed_tracker=_LazySeedTracker(),
        _cached_device_count=None,
        _is_in_bad_fork=lambda: gpu.in_bad_fork,
        _exchange_device=torch._C._cuda_exchangeDevice,  # pyright: ignore
        _maybe_exchange_device=torch._C._cuda_maybeExchangeDevice,  # pyright: ignore
        _device_count_nvml=lambda: gpu.count,
        _get_device_properties=get_device_properties,
        get_device_capability=get_device_capability,
    )
    _patch_nvml(gpu, cuda)
    gpu.patches.set(cuda.nvtx, "_nvtx", _NoMarks())
    gpu.patches.set_all(
        torch.autograd.profiler.emit_nvtx,
        __enter__=lambda self: self,
        __exit__=lambda self, *error: None,
    )


def _patch_nvml(gpu: ImaginaryGpu, cuda: Any) -> None:
    """What NVML answers, of an idle card. It knows of no current card: that one is asked of CUDA,
    which initializes it, and no other."""

    def used(index: int) -> int:
        return gpu.card.context_bytes + gpu.ledgers[index].allocator.reserved if gpu.touched else 0

    def processes(index: int) -> str:
        if not gpu.touched:
            return "GPU:%d\nno processes are running" % index
        mib = used(index) / (1 << 20)
        return "GPU:%d\nprocess %10d uses %12.3f MB GPU memory" % (index, os.getpid(), mib)

    def of_card(answer: Callable[[int], Any]) -> Callable[..., Any]:
        return lambda device=None: answer(cuda._get_device_index(device, optional=True))

    for name in ("utilization", "temperature", "power_draw", "clock_rate", "memory_usage"):
        gpu.patches.set_existing(cuda, name, of_card(lambda index: 0))
    gpu.patches.set_existing(cuda, "device_memory_used", of_card(used))
    for owner in (cuda, cuda.memory):
        gpu.patches.set(owner, "list_gpu_processes", of_card(processes))


def _device_functions(gpu: ImaginaryGpu) -> Dict[str, Callable]:
    """Functions of torch._C by name: which card, and waiting for it. torch.accelerator has the same
    ones under other names."""

    def set_device(device: int) -> None:
        gpu.streams.card = gpu.index_of(device)
        gpu.touch()

    def get_device() -> int:
        gpu.touch()
        return gpu.streams.card

    def exchange(device: int) -> int:
        if device < 0:
            return -1
        gpu.touch()
        index, before = gpu.index_of(device), gpu.streams.card
        gpu.streams.card = index
        return before

    def count() -> int:
        gpu.counted = True
        return gpu.count

    def synchronize(device: Any = None) -> None:
        gpu.captures.check_waiting()
        index = gpu.index_of(device)
        gpu.ledgers[index].work.synchronized()
        gpu.clocks[index].synchronized()

    def sleep(cycles: int) -> None:
        gpu.touch()
        gpu.ledger.work.launches += 1
        gpu.clock.add("torch.cuda._sleep", SLEEP, int(cycles), 0)

    names: Dict[Callable, Sequence[str]] = {
        sleep: ("_cuda_sleep",),
        set_device: (
            "_cuda_setDevice",
            "_accelerator_setDeviceIndex",
            "_accelerator_hooks_set_current_device",
        ),
        get_device: (
            "_cuda_getDevice",
            "_accelerator_getDeviceIndex",
            "_accelerator_hooks_get_current_device",
        ),
        exchange: (
            "_cuda_exchangeDevice",
            "_accelerator_exchangeDevice",
            "_accelerator_hooks_exchange_device",
            "_cuda_maybeExchangeDevice",
            "_accelerator_maybeExchangeDevice",
            "_accelerator_hooks_maybe_exchange_device",
        ),
        synchronize: ("_cuda_synchronize", "_accelerator_synchronizeDevice"),
        count: ("_cuda_getDeviceCount",),
        gpu.initialized: ("_cuda_init",),
    }
    return {name: function for function, aliases in names.items() for name in aliases}


def _constants(gpu: ImaginaryGpu) -> Dict[str, Callable]:
    """Functions of torch._C by name that answer the same at each call."""
    answers: Dict[str, Any] = {
        "_accelerator_hooks_device_count": gpu.count,
        "_accelerator_deviceCount": gpu.count,  # its name in 2.6
        "_accelerator_getDeviceCapability": {"supported_dtypes": set(_DTYPES)},
        "_cuda_ipc_collect": None,
        **dict.fromkeys(("_cuda_set_sync_debug_mode", "_cuda_set_cudnn_benchmark_limit"), None),
        **dict.fromkeys(("_accelerator_getAccelerator", "_get_accelerator"), torch.device("cuda")),
        **dict.fromkeys(("_cuda_getCurrentBlasHandle", "_cuda_getCurrentSolverHandle"), 1),
        "_cuda_canDeviceAccessPeer": False,
        "_cuda_getCompiledVersion": 12080,
        "_cuda_get_sync_debug_mode": 0,
        "_cuda_get_cudnn_benchmark_limit": 10,
    }
    return {
        **{name: _answering(answer) for name, answer in answers.items()},
        "_cuda_isInBadFork": lambda: gpu.in_bad_fork,
        "_cuda_getArchFlags": lambda: "sm_%d%d" % tuple(gpu.card.capability),
        "_cuda_clearCublasWorkspaces": lambda: gpu.workspaces.clear(),
    }


_DTYPES = [dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)]


def _answering(answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer


# --- memory ---

_RELEASE = torch_release(torch.__version__)

_NOTHING = (  # functions of torch._C that do nothing here
    "_cuda_resetPeakHostMemoryStats",
    "_cuda_resetAccumulatedHostMemoryStats",
    "_accelerator_emptyHostCache",
    "_host_emptyCache",
)


def _memory_functions(gpu: ImaginaryGpu) -> Dict[str, Callable]:
    """Functions of torch._C by name, from the allocators' counts."""

    def allocator(device: int) -> CachingAllocator:
        return gpu.ledgers[gpu.index_of(device)].allocator

    def made(device: int) -> CachingAllocator:
        """The allocator that PyTorch makes for each card when CUDA is initialized, and before that
        for a history."""
        ledger = gpu.ledgers[gpu.index_of(device)]
        if not gpu.touched and ledger.history is None:
            raise RuntimeError("Invalid device argument %d: did you call init?" % device)
        return ledger.allocator

    def reset_accumulated(device: int) -> None:
        made(device)

    def attach_observer(observer: Callable[[int, int, int, int], Any]) -> None:
        for ledger in gpu.ledgers:
            ledger.observers.append(observer)

    def empty_cache(*args: Any) -> None:
        for ledger in gpu.ledgers:
            ledger.empty_cache()

    names: Dict[Callable, Sequence[str]] = {
        lambda device: _nested(allocator(device).memory_stats()): (
            "_cuda_memoryStats",
            "_accelerator_getDeviceStats",
        ),
        lambda device: made(device).reset_peaks(): (
            "_cuda_resetPeakMemoryStats",
            "_accelerator_resetPeakStats",
        ),
        reset_accumulated: (
            "_cuda_resetAccumulatedMemoryStats",
            "_accelerator_resetAccumulatedStats",
        ),
        empty_cache: ("_cuda_emptyCache", "_accelerator_emptyCache"),
        _answering(None): _NOTHING,
        attach_observer: ("_cuda_attach_out_of_memory_observer",),
        lambda: {}: ("_cuda_hostMemoryStats",),
        lambda: gpu.touched: ("_accelerator_isAllocatorInitialized",),
        gpu.memory_info: ("_accelerator_getMemoryInfo",),
    }
    return {name: function for function, aliases in names.items() for name in aliases}


def _settings_functions(gpu: ImaginaryGpu) -> Dict[str, Callable]:
    """Functions of torch._C by name, that ask for the allocator's settings or change them."""

    def set_fraction(fraction: float, device: int) -> None:
        """torch.cuda.set_per_process_memory_fraction: in the trace as a setting, so that a replay
        obeys it too. Since 2.10 the whole card is no limit; before, it was one beyond the card's
        room, and let garbage be collected."""
        fraction = min(fraction, 1.0 if _RELEASE >= 210 else math.nextafter(1.0, 0.0))
        ledger = gpu.ledgers[gpu.index_of(device)]
        ledger.change_settings(
            spelled(ledger.allocator.settings._replace(memory_fraction=float(fraction)))
        )

    def fraction(device: int) -> float:
        allowed = gpu.ledgers[gpu.index_of(device)].allocator.memory.allowed_bytes
        return 1.0 if allowed is None else allowed / gpu.card.total_bytes

    def change_settings(settings: str) -> None:
        """torch.cuda.memory._set_allocator_settings. PyTorch reads the memory fraction only when it
        makes a card's allocator, so one named later than that changes nothing."""
        gpu.read_settings()
        for ledger in gpu.ledgers:
            kept = ledger.allocator.settings.memory_fraction
            again = ",per_process_memory_fraction:%r" % (1.0 if kept is None else kept)
            is_late = gpu.touched and "per_process_memory_fraction" in settings
            ledger.change_settings(settings + again if is_late else settings)

    def enable(value: bool) -> None:
        if not value:
            raise Unsupported(
                "torch.cuda.caching_allocator_enable(False)", "its cache is what is modelled"
            )

    setters = (
        "_cuda_cudaCachingAllocator_set_allocator_settings",
        "_accelerator_setAllocatorSettings",
    )
    return {
        **dict.fromkeys(setters, change_settings),
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": fraction,
        "_cuda_getAllocatorBackend": _answering("native"),
        "_cuda_cudaCachingAllocator_enable": enable,
        "_cuda_cudaCachingAllocator_is_enabled": _answering(True),
    }


def _raw_memory_functions(gpu: ImaginaryGpu) -> Dict[str, Callable]:
    """Functions of torch._C by name: memory by its address, without a tensor."""
    held: Dict[Tuple[int, int], Block] = {}  # by card and address

    def alloc(nbytes: int, stream: int) -> int:
        index = gpu.streams.card
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, index)):
            block = gpu.ledgers[index].reserve(nbytes, "caching_allocator_alloc")
        held[index, block[1]] = block
        return block[1]

    def delete(address: int) -> None:
        """Cards have the same addresses here, so the current one's goes first."""
        indices = sorted(range(gpu.count), key=lambda index: index != gpu.streams.card)
        index = next((index for index in indices if (index, address) in held), None)
        if index is not None:
            gpu.ledgers[index].release(*held.pop((index, address)))
        elif address:
            raise RuntimeError("invalid device pointer: 0x%x" % address)

    def refuse(*args: Any) -> None:
        raise Unsupported(
            "torch._C._cuda_getCheckpointState",
            "the state of a private pool cannot be kept and set back",
        )

    return {
        "_cuda_cudaCachingAllocator_raw_alloc": alloc,
        "_cuda_cudaCachingAllocator_raw_delete": delete,
        **dict.fromkeys(("_cuda_getCheckpointState", "_cuda_setCheckpointPoolState"), refuse),
    }


def _nested(flat: Dict[str, int]) -> Dict[str, Any]:
    """{"a.b": 1} as {"a": {"b": 1}}, which is how PyTorch keeps its statistics."""
    tree: Dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return tree


def _patch_builds(gpu: ImaginaryGpu) -> None:
    """torch.backends: the card's libraries are there, as in a CUDA build of PyTorch."""
    gpu.patches.set(torch.backends.cuda, "is_built", lambda: True)
    gpu.patches.set_all(
        torch.backends.cudnn,
        is_available=lambda: True,
        version=lambda: 91002,
        is_acceptable=lambda tensor: tensor.is_cuda,
    )
    if torch.version.cuda is None:
        gpu.patches.set(torch.version, "cuda", "12.8")


# --- the compute capability that a script gets, where a trial speaks for other cards as well ---
# (`Card.others`): what the script decides by it is a choice, which may be another one there. To
# write it down is none.


class AskedNumber(int):
    """The major or the minor number."""

    def __new__(cls, machine: Any, place: int) -> Any:
        number: Any = int.__new__(cls, machine.capability[place])
        number._machine, number._plain = machine, lambda capability: capability[place]
        return number

    def __reduce__(self) -> Tuple:
        return int, (int.__add__(self, 0),)


class AskedCapability(tuple):
    """(major, minor)."""

    def __new__(cls, machine: Any) -> Any:
        both: Any = tuple.__new__(cls, (AskedNumber(machine, 0), AskedNumber(machine, 1)))
        both._machine, both._plain = machine, lambda capability: capability
        return both

    def __reduce__(self) -> Tuple:
        return tuple, ([int.__add__(number, 0) for number in self],)


def _deciding(name: str) -> Callable:
    def decide(asked: Any, *others: Any) -> Any:
        plain = [
            int.__add__(other, 0) if isinstance(other, AskedNumber) else other for other in others
        ]
        return asked._machine.choose(
            lambda capability: getattr(asked._plain(capability), name)(*plain)
        )

    return decide


_BOTH = ("eq", "ne", "lt", "le", "gt", "ge", "hash")
for _name in _BOTH:
    setattr(AskedCapability, "__%s__" % _name, _deciding("__%s__" % _name))
for _name in (*_BOTH, "add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "mod", "bool"):
    setattr(AskedNumber, "__%s__" % _name, _deciding("__%s__" % _name))
