"""CUDA graphs and memory pools: torch.cuda.CUDAGraph, torch.cuda.graph, make_graphed_callables,
MemPool, use_mem_pool.

Nothing is recorded: a capture runs as any code does, but takes its memory from a private pool that
stays while the graph lives. A replay takes no memory. Facts: aten/src/ATen/cuda/CUDAGraph.cpp,
ATen/cuda/MemPool.cpp, torch/cuda/graphs.py."""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional

import torch

from brimful_inside.imaginary.cuda_api.streams import class_of
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.errors import Unsupported
from brimful_inside.imaginary.state.ledger import PoolId
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.imaginary.state.streams import Captured


class _CUDAGraph:
    """A CUDA graph: the pool of its memory, and the rows of the clock that a replay runs."""

    _gpu: ImaginaryGpu

    def __init__(self, keep_graph: bool = False) -> None:
        self._captured: Optional[Captured] = None
        self._end: Optional[Callable[[], Any]] = None
        self._pool: PoolId = (0, 0)
        self._mark, self._kernels = 0, []

    def capture_begin(
        self, pool: Any = None, capture_error_mode: str = "global", **options: Any
    ) -> None:
        if capture_error_mode not in ("global", "thread_local", "relaxed"):
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, "
                'got "%s"' % capture_error_mode
            )
        if self._captured is not None:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, "
                "create a new instance."
            )
        gpu, captures, stream = self._gpu, self._gpu.captures, self._gpu.current_stream()
        if stream[1] == 0:
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. "
                "(However, after capture, it's ok to replay them on the default stream.)"
            )
        gpu.touch()
        self._pool = captures.new_pool() if pool is None else tuple(getattr(pool, "id", pool))
        captured = self._captured = Captured(captures, gpu.ledger, self._pool)
        captures.by_stream[stream] = captured
        captured.ledger.divert(
            captured.pool, lambda asking: captures.by_stream.get((stream[0], asking)) is captured
        )
        self._mark = gpu.clock.mark()
        self._end = weakref.finalize(self, captured.destroy)
        self._end.atexit = False

    def capture_end(self) -> None:
        captured, captures = self._captured, self._gpu.captures
        if captured is None or captures.by_stream.get(self._gpu.current_stream()) is not captured:
            raise RuntimeError("Capture must end on the same stream it began on.")
        captures.end(captured)
        self._kernels = self._gpu.clock.captured(self._mark)

    def instantiate(self) -> None:
        self._check("instantiate")

    def replay(self) -> None:
        self._check("replay")
        self._gpu.ledger.launches += 1
        self._gpu.clock.replayed(self._kernels)

    def reset(self) -> None:
        end, self._end, self._captured = self._end, None, None
        if end is not None:
            end()

    def pool(self) -> PoolId:
        self._check("pool")
        return self._pool

    def enable_debug_mode(self, *args: Any) -> None:
        """There is no graph to draw."""

    debug_dump = enable_debug_mode

    def _check(self, name: str) -> None:
        if self._captured is None or not self._captured.ended:
            raise RuntimeError(
                "Called CUDAGraph::%s without a preceding successful capture." % name
            )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(torch._C._CUDAGraph, name):
            raise AttributeError(name)
        raise Unsupported(
            "torch.cuda.CUDAGraph.%s" % name, "there is no graph of the driver behind it"
        )


class _MemPool:
    """torch.cuda.MemPool: a private pool that a script names."""

    _gpu: ImaginaryGpu
    allocator = None

    def __init__(
        self,
        allocator: Any = None,
        use_on_oom: bool = False,
        no_split: bool = False,
        **options: Any,
    ):
        if allocator is not None or use_on_oom or no_split or options:
            raise Unsupported(
                "torch.cuda.MemPool",
                "only a pool of PyTorch's own allocator with its usual rules is modelled",
            )
        self._gpu.touch()
        # of the card where it was made (MemPool.cpp)
        self._captures, self._ledger = (
            self._gpu.captures,
            self._gpu.ledger,
        )
        self.id = self._captures.new_handle()
        self._captures.retain(self._ledger, self.id)
        weakref.finalize(self, self._captures.release, self._ledger, self.id, True).atexit = False

    def use_count(self) -> int:
        return self._captures.users(self._ledger, self.id)

    def snapshot(self, include_traces: bool = True) -> Any:
        place = self._ledger.index, (0, self._ledger.pool_number(self.id))
        return [
            segment
            for segment in torch.cuda.memory_snapshot()
            if (segment["device"], segment["segment_pool_id"]) == place
        ]


def patch_graphs(gpu: ImaginaryGpu, patches: Patches) -> None:
    """torch.cuda's graphs and pools; torch.cuda.graph and make_graphed_callables are PyTorch's own,
    on top of them."""
    captures, cuda = gpu.captures, torch.cuda
    Graph, MemPool = class_of(gpu, _CUDAGraph, "CUDAGraph"), class_of(gpu, _MemPool, "MemPool")
    graph = class_of(gpu, cuda.graphs.graph, "graph")  # of its own: the class keeps a stream

    def capturing() -> bool:
        return bool(captures.by_stream) and gpu.current_stream() in captures.by_stream

    @contextmanager
    def use_mem_pool(pool: Any, device: Any = None) -> Iterator[None]:
        ledger, thread = gpu.ledgers[gpu.index_of(device)], threading.get_ident()
        captures.retain(ledger, pool.id)
        ledger.divert(pool.id, lambda stream: threading.get_ident() == thread)
        try:
            yield
        finally:
            ledger.end_divert(pool.id)
            captures.release(ledger, pool.id)

    for owner in (cuda, cuda.graphs):
        patches.set_all(
            owner,
            CUDAGraph=Graph,
            graph=graph,
            graph_pool_handle=captures.new_handle,
            is_current_stream_capturing=capturing,
        )
    for owner in (cuda.graphs, torch._C):
        patches.set(owner, "_cuda_isCurrentStreamCapturing", capturing)
    for owner in (cuda, cuda.memory):
        patches.set_existing(owner, "MemPool", MemPool)
        patches.set_existing(owner, "use_mem_pool", use_mem_pool)
