"""The memory statistics of torch.cuda and torch.accelerator, from the allocator's counts. All in bytes."""

from __future__ import annotations

from typing import Any, Callable, Dict, List

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.allocator_settings import spelled

__all__ = ["memory_functions"]

_NOTHING = (  # functions of torch._C that do nothing here
    *("_cuda_resetPeakHostMemoryStats", "_cuda_resetAccumulatedHostMemoryStats", "_accelerator_emptyHostCache"),
    *("_cuda_record_memory_history", "_cuda_record_memory_history_legacy", "_cuda_attach_out_of_memory_observer"),
)


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


def memory_functions(gpu: ImaginaryGpu) -> Dict[str, Callable]:
    """Functions of torch._C by name."""

    def allocator(device: int) -> CachingAllocator:
        return gpu.ledgers[gpu.index_of(device)].allocator

    def stats(device: int) -> Dict[str, Any]:
        return _nested(allocator(device).memory_stats())

    def reset_peaks(device: int) -> None:
        allocator(device).reset_peaks()

    def check(device: int) -> None:
        gpu.index_of(device)

    def set_fraction(fraction: float, device: int) -> None:
        """torch.cuda.set_per_process_memory_fraction: in the trace as a setting, so that a replay obeys it too."""
        if fraction > 0:
            ledger = gpu.ledgers[gpu.index_of(device)]
            ledger.change_settings(spelled(ledger.allocator.settings._replace(memory_fraction=float(fraction))))
        else:
            allocator(device).set_memory_fraction(fraction, gpu.card.total_bytes)

    def set_settings(settings: str) -> None:
        """torch.cuda.memory._set_allocator_settings, for all cards."""
        for ledger in gpu.ledgers:
            ledger.change_settings(settings)

    def empty_cache(*args: Any) -> None:
        for ledger in gpu.ledgers:
            ledger.empty_cache()

    def fraction(device: int) -> float:
        allowed = allocator(device).memory.allowed_bytes
        return 1.0 if allowed is None else allowed / gpu.card.total_bytes

    return {
        **dict.fromkeys(("_cuda_memoryStats", "_accelerator_getDeviceStats"), stats),
        **dict.fromkeys(("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats"), reset_peaks),
        **dict.fromkeys(("_cuda_resetAccumulatedMemoryStats", "_accelerator_resetAccumulatedStats"), check),
        **dict.fromkeys(("_cuda_emptyCache", "_accelerator_emptyCache"), empty_cache),
        **dict.fromkeys(
            ("_cuda_cudaCachingAllocator_set_allocator_settings", "_accelerator_setAllocatorSettings"), set_settings
        ),
        **dict.fromkeys(_NOTHING, lambda *args, **kwargs: None),
        "_cuda_setMemoryFraction": set_fraction,
        "_cuda_getMemoryFraction": fraction,
        "_cuda_memorySnapshot": lambda *args: snapshot(gpu),
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_hostMemoryStats": lambda: {},
        "_accelerator_isAllocatorInitialized": lambda: gpu.touched,
        "_accelerator_getMemoryInfo": gpu.memory_info,
    }


def snapshot(gpu: ImaginaryGpu) -> Dict[str, Any]:
    """torch.cuda.memory._snapshot(): the segments and their blocks, without stack traces."""
    segments: List[Dict[str, Any]] = []
    for index, segment in ((ledger.index, segment) for ledger in gpu.ledgers for segment in ledger.allocator.segments()):
        blocks: List[Dict[str, Any]] = []
        active = 0
        for address, size, used in segment.pieces:
            state = "active_allocated" if used else "inactive"
            blocks.append({"address": address, "size": size, "requested_size": size, "state": state, "frames": []})
            active += size if used else 0
        segments.append(
            {
                "device": index,
                "address": segment.address,
                "total_size": segment.size,
                "allocated_size": active,
                "active_size": active,
                "requested_size": active,
                "stream": segment.stream,
                "segment_type": "small" if segment.small else "large",
                "segment_pool_id": (0, segment.pool),
                "is_expandable": segment.expandable,
                "frames": [],
                "blocks": blocks,
            }
        )
    return {
        "segments": segments,
        "device_traces": [[] for _ in gpu.ledgers],
        "allocator_settings": {},
        "external_annotations": [],
    }
