"""CUDA graphs and memory pools: torch.cuda.CUDAGraph, torch.cuda.graph, make_graphed_callables, MemPool, use_mem_pool.

Nothing is recorded: what a script does during a capture is done as always, only that its memory comes from a private pool
which stays while the graph lives. A replay takes no memory. What a card refuses during a capture (to
wait for it, above all) is refused here in its words.

Facts: aten/src/ATen/cuda/CUDAGraph.cpp, ATen/cuda/MemPool.cpp, torch/cuda/graphs.py.
"""

from __future__ import annotations

import gc
import threading
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.errors import Unsupported
from brimful_inside.imaginary.state.ledger import PoolId
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.imaginary.state.streams import Captured

__all__ = ["patch_graphs"]


def _graph_class(gpu: ImaginaryGpu) -> Any:
    captures = gpu.captures

    class CUDAGraph:
        """A CUDA graph: the pool of its memory, and nothing to run."""

        def __init__(self, keep_graph: bool = False) -> None:
            self._captured: Optional[Captured] = None
            self._end: Optional[Callable[[], Any]] = None
            self._pool: PoolId = (0, 0)
            self._mark, self._kernels = 0, []

        def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **options: Any) -> None:
            if capture_error_mode not in ("global", "thread_local", "relaxed"):
                raise RuntimeError(
                    'Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got "%s"' % capture_error_mode
                )
            if self._captured is not None:
                raise RuntimeError(
                    "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
                )
            stream = gpu.current_stream()
            if stream[1] == 0:
                raise RuntimeError(
                    "CUDA graphs must be captured on a non-default stream. "
                    "(However, after capture, it's ok to replay them on the default stream.)"
                )
            gpu.touch()
            self._pool = captures.new_pool() if pool is None else tuple(getattr(pool, "id", pool))
            captured = self._captured = Captured(captures, gpu.ledger, self._pool)
            captures.by_stream[stream] = captured
            captured.ledger.divert(captured.pool, lambda asking: captures.by_stream.get((stream[0], asking)) is captured)
            self._mark = gpu.clock.mark()
            self._end = weakref.finalize(self, captured.destroy)
            self._end.atexit = False

        def capture_end(self) -> None:
            captured = self._captured
            if captured is None or captures.by_stream.get(gpu.current_stream()) is not captured:
                raise RuntimeError("Capture must end on the same stream it began on.")
            captures.end(captured)
            self._kernels = gpu.clock.captured(self._mark)

        def instantiate(self) -> None:
            self._check("instantiate")

        def replay(self) -> None:
            self._check("replay")
            gpu.ledger.launches += 1
            gpu.clock.replayed(self._kernels)

        def reset(self) -> None:
            end, self._end, self._captured = self._end, None, None
            if end is not None:
                end()

        def pool(self) -> PoolId:
            self._check("pool")
            return self._pool

        def enable_debug_mode(self) -> None:
            """A dump has nothing to show here."""

        def debug_dump(self, debug_path: str) -> None:
            """There is no graph to draw."""

        def _check(self, name: str) -> None:
            if self._captured is None or not self._captured.ended:
                raise RuntimeError("Called CUDAGraph::%s without a preceding successful capture." % name)

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or not hasattr(torch._C._CUDAGraph, name):
                raise AttributeError(name)
            raise Unsupported("torch.cuda.CUDAGraph.%s" % name, "there is no graph of the driver behind it")

    CUDAGraph.__qualname__ = "CUDAGraph"
    CUDAGraph.__module__ = "torch.cuda"
    return CUDAGraph


def _graph_context() -> Any:
    class graph:
        """torch.cuda.graph: a capture on a side stream, after the cache was emptied."""

        default_capture_stream: Any = None

        def __init__(
            self, cuda_graph: Any, pool: Any = None, stream: Any = None, capture_error_mode: str = "global", **options: Any
        ):
            if stream is None and graph.default_capture_stream is None:
                graph.default_capture_stream = torch.cuda.Stream()
            self.pool = () if pool is None else (pool,)
            self.capture_stream = stream if stream is not None else graph.default_capture_stream
            self.stream_ctx = torch.cuda.stream(self.capture_stream)
            self.cuda_graph = cuda_graph
            self.capture_error_mode = capture_error_mode

        def __enter__(self) -> None:
            torch.cuda.synchronize()
            gc.collect()
            torch.cuda.empty_cache()
            self.stream_ctx.__enter__()
            self.cuda_graph.capture_begin(*self.pool, capture_error_mode=self.capture_error_mode)

        def __exit__(self, *error: Any) -> None:
            self.cuda_graph.capture_end()
            self.stream_ctx.__exit__(*error)

    graph.__module__ = "torch.cuda"
    graph.__qualname__ = "graph"
    return graph


def _pool_class(gpu: ImaginaryGpu) -> Any:
    captures = gpu.captures

    class MemPool:
        """torch.cuda.MemPool: a private pool that a script names."""

        def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False, **options: Any):
            if allocator is not None or use_on_oom or no_split or options:
                raise Unsupported(
                    "torch.cuda.MemPool", "only a pool of PyTorch's own allocator with its usual rules is modelled"
                )
            gpu.touch()
            self.id = captures.new_handle()
            self._ledger = gpu.ledger  # of the card where it was made (MemPool.cpp)
            captures.retain(self._ledger, self.id)
            weakref.finalize(self, captures.release, self._ledger, self.id, True).atexit = False

        allocator = None

        def use_count(self) -> int:
            return captures.users(self._ledger, self.id)

        def snapshot(self, include_traces: bool = True) -> Any:
            number = self._ledger.pool_number(self.id)
            place = self._ledger.index, (0, number)
            return [one for one in torch.cuda.memory_snapshot() if (one["device"], one["segment_pool_id"]) == place]

    MemPool.__qualname__ = "MemPool"
    MemPool.__module__ = "torch.cuda"
    return MemPool


def _use_mem_pool(gpu: ImaginaryGpu) -> Any:
    @contextmanager
    def use_mem_pool(pool: Any, device: Any = None) -> Iterator[None]:
        ledger, thread = gpu.ledgers[gpu.index_of(device)], threading.get_ident()
        gpu.captures.retain(ledger, pool.id)
        ledger.divert(pool.id, lambda stream: threading.get_ident() == thread)
        try:
            yield
        finally:
            ledger.end_divert(pool.id)
            gpu.captures.release(ledger, pool.id)

    return use_mem_pool


def patch_graphs(gpu: ImaginaryGpu, patches: Patches) -> None:
    """torch.cuda's graphs and pools; make_graphed_callables is PyTorch's own, on top of them."""
    captures, cuda = gpu.captures, torch.cuda
    Graph = _graph_class(gpu)
    graph, MemPool, use_mem_pool = _graph_context(), _pool_class(gpu), _use_mem_pool(gpu)

    def capturing() -> bool:
        return bool(captures.by_stream) and gpu.current_stream() in captures.by_stream

    for owner in (cuda, cuda.graphs):
        patches.set(owner, "CUDAGraph", Graph)
        patches.set(owner, "graph", graph)
        patches.set(owner, "graph_pool_handle", captures.new_handle)
        patches.set(owner, "is_current_stream_capturing", capturing)
    patches.set(cuda.graphs, "_cuda_isCurrentStreamCapturing", capturing)
    patches.set(torch._C, "_cuda_isCurrentStreamCapturing", capturing)
    for owner in (cuda, cuda.memory):
        patches.set_existing(owner, "MemPool", MemPool)
        patches.set_existing(owner, "use_mem_pool", use_mem_pool)
