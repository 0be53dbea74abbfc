"""Streams, events, CUDA graphs and memory pools. Each stream has a pool of its own in the
allocator.

All work is done at once, so nothing waits; but where the host would wait for a stream, the ledger
notes it, since blocks that another stream used return to their pools by then
(`StreamWork.synchronized`)."""

from __future__ import annotations

import itertools
import threading
import warnings
import weakref
from contextlib import contextmanager
from typing import Any, Callable, Iterator, Optional, Tuple

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.errors import Unsupported
from brimful_inside.imaginary.state.streams import Captured, PoolId

_CUDA_TYPE = 1  # c10::DeviceType::CUDA


def class_of(gpu: ImaginaryGpu, kind: type, name: str) -> Any:
    """`kind` as torch.cuda's class `name` for the cards of `gpu`, which its instances find as
    `_gpu`."""
    return type(kind)(name, (kind,), {"_gpu": gpu, "__module__": "torch.cuda"})


def _place(stream: Any) -> Tuple[int, int]:
    return stream.device_index, stream.stream_id


class _Event(torch.Event):
    """A moment of a stream, at a time by the card's clock."""

    _gpu: ImaginaryGpu
    _handles = itertools.count(1)
    cuda_event = 0  # the handle, which an event has once it is recorded

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(cls, torch.device("cpu"))

    def __init__(self, enable_timing: bool = False, *args: Any, **kwargs: Any) -> None:
        self._times = enable_timing
        self._index, self._at_s = 0, 0.0
        self._moment = (0, 0)  # the stream, and how many kernels its card had launched
        self._captured: Any = None  # the capture of a CUDA graph that it was recorded in
        self._asked = True  # since it was recorded, whether the card has come so far

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self._index)

    def record(self, stream: Any = None) -> None:
        gpu = self._gpu
        gpu.touch()
        self._index, number = gpu.current_stream() if stream is None else _place(stream)
        self._moment = (number, gpu.ledgers[self._index].work.launches)
        self.cuda_event = self.cuda_event or next(self._handles)
        self._captured = gpu.captures.by_stream.get((self._index, number))
        self._at_s = gpu.clocks[self._index].now_s()
        self._asked = False

    def wait(self, stream: Any = None) -> None:
        waiting = self._gpu.current_stream() if stream is None else _place(stream)
        self._gpu.captures.join(waiting, self._captured)
        if waiting[0] == self._index:
            self._gpu.ledgers[self._index].work.joined(waiting[1], *self._moment)

    def query(self) -> bool:
        """The host is ahead of the card, so not the first time, unless the host has waited for it:
        code that bounds how far it is ahead (DeepSpeed's ZeRO-3) asks so. What is said to be done
        is done."""
        ledger = self._gpu.ledgers[self._index]
        done = self._asked or ledger.work.has_reached(*self._moment)
        self._asked = True
        if done:
            ledger.work.synchronized(*self._moment)
        return done

    def synchronize(self) -> None:
        self._gpu.captures.check_waiting((self._index, self._moment[0]))
        self._gpu.ledgers[self._index].work.synchronized(*self._moment)

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds, predicted (simulator/roofline.py); 0.0 for a card whose rates are not
        known."""
        if not (self._times and end_event._times):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self.cuda_event and end_event.cuda_event):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._at_s - self._at_s) * 1e3

    def ipc_handle(self) -> bytes:
        return b""

    def __repr__(self) -> str:
        return "<torch.cuda.Event %s>" % (
            hex(self.cuda_event) if self.cuda_event else "uninitialized"
        )


class _Stream(torch.Stream):
    """A stream of the imaginary card."""

    _gpu: ImaginaryGpu

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        number, index = kwargs.get("stream_id"), kwargs.get("device_index")
        if device is not None:
            cls._gpu.touch()
        number = cls._gpu.streams.new() if number is None else number
        index = cls._gpu.index_of(device) if index is None else index
        return super().__new__(cls, stream_id=number, device_index=index, device_type=_CUDA_TYPE)

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.priority = priority

    @property
    def cuda_stream(self) -> int:
        return self.stream_id

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def wait_stream(self, stream: Any) -> None:
        captures, ledger = self._gpu.captures, self._gpu.ledgers[self.device_index]
        captures.join(_place(self), captures.by_stream.get(_place(stream)))
        if stream.device_index == self.device_index:
            ledger.work.joined(self.stream_id, stream.stream_id, ledger.work.launches)

    def record_event(self, event: Any = None) -> Any:
        event = torch.cuda.Event() if event is None else event
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return _place(self) in self._gpu.captures.by_stream

    def synchronize(self) -> None:
        self._gpu.captures.check_waiting(_place(self))
        self._gpu.ledgers[self.device_index].work.synchronized(self.stream_id)
        self._gpu.clocks[self.device_index].synchronized()

    def __enter__(self) -> Any:
        streams, index = self._gpu.streams, self.device_index
        self.__dict__.setdefault("_outer", []).append((streams.card, streams.of(index)))
        streams.select(self.stream_id, index)
        streams.card = index
        return self

    def __exit__(self, *error: Any) -> None:
        card, stream_id = self.__dict__["_outer"].pop()
        self._gpu.streams.select(stream_id, self.device_index)
        self._gpu.streams.card = card

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, torch.Stream) and _place(other) == _place(self)

    def __hash__(self) -> int:
        return hash(_place(self))

    def __repr__(self) -> str:
        return "<torch.cuda.Stream device=%s cuda_stream=0x%x>" % (self.device, self.stream_id)


class _AnyDevice(type):
    """torch.Stream(device) and torch.Event(device): the card's unless another device is named."""

    real: Any
    of_card: Any

    def __call__(cls, device: Any = None, *args: Any, **kwargs: Any) -> Any:
        if "stream_id" in kwargs and kwargs.get("device_type") != _CUDA_TYPE:
            return cls.real(*args, **kwargs)
        if (
            device is not None
            and not isinstance(device, int)
            and torch.device(device).type != "cuda"
        ):
            return cls.real(device, *args, **kwargs)
        return (
            cls.of_card(*args, **kwargs) if device is None else cls.of_card(device, *args, **kwargs)
        )

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.real)


def patch_streams(gpu: ImaginaryGpu) -> None:
    streams = gpu.streams
    Event, Stream = class_of(gpu, _Event, "Event"), class_of(gpu, _Stream, "Stream")

    def current(device: Any = None) -> Any:
        gpu.touch()
        index = gpu.index_of(device)
        return Stream(stream_id=streams.of(index), device_index=index)

    def select(stream_id: int = 0, device_index: int = 0, device_type: int = _CUDA_TYPE) -> None:
        streams.card = device_index
        streams.select(stream_id, device_index)

    for owner in (torch.cuda, torch.cuda.streams):
        gpu.patches.set_all(owner, Stream=Stream, Event=Event)
        gpu.patches.set_existing(
            owner,
            "ExternalStream",
            lambda pointer, device=None, **kwargs: Stream(gpu.index_of(device), stream_id=pointer),
        )
    gpu.patches.set_all(
        torch._C,
        _cuda_setStream=select,
        _cuda_getCurrentStream=lambda device: (streams.of(device), device, _CUDA_TYPE),
        _cuda_getDefaultStream=lambda device: (0, device, _CUDA_TYPE),
        _cuda_getStreamFromExternal=lambda pointer, device: (pointer, device, _CUDA_TYPE),
        _cuda_getCurrentRawStream=streams.of,
        _accelerator_getStream=current,
        _accelerator_setStream=lambda stream: select(stream.stream_id, stream.device_index),
    )
    gpu.patches.set_all(
        torch,
        Stream=_AnyDevice("Stream", (), {"real": torch.Stream, "of_card": Stream}),
        Event=_AnyDevice(
            "Event",
            (),
            {"real": torch.Event, "of_card": lambda device=None, **options: Event(**options)},
        ),
    )


# --- CUDA graphs and memory pools ---
# Nothing is recorded: a capture runs as any code does, but takes its memory from a private pool
# that stays while the graph lives. A replay takes no memory. Facts:
# aten/src/ATen/cuda/CUDAGraph.cpp, ATen/cuda/MemPool.cpp, torch/cuda/graphs.py.


class _CUDAGraph:
    """A CUDA graph: the pool of its memory, and the rows of the clock that a replay runs."""

    _gpu: ImaginaryGpu

    def __init__(self, keep_graph: bool = False) -> None:
        self._captured: Optional[Captured] = None
        self._end: Optional[Callable[[], Any]] = None
        self._pool: PoolId = (0, 0)
        self._mark, self._launches, self._kernels = 0, 0, []

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
        self._launches = gpu.ledger.work.launches
        captured.ledger.divert(
            captured.pool,
            lambda asking: captures.by_stream.get((stream[0], asking)) is captured,
            captures=True,
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
        launched = self._gpu.ledger.work.launches > self._launches
        if not (self._kernels if self._gpu.clock.on else launched):
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be "
                "captured on wrong device or stream.",
                stacklevel=2,
            )

    def instantiate(self) -> None:
        self._check("instantiate")

    def replay(self) -> None:
        self._check("replay")
        self._gpu.ledger.work.launches += 1
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
        place = self._ledger.index, self.id
        return [
            segment
            for segment in torch.cuda.memory_snapshot()
            if (segment["device"], segment["segment_pool_id"]) == place
        ]


def patch_graphs(gpu: ImaginaryGpu) -> None:
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
        gpu.patches.set_all(
            owner,
            CUDAGraph=Graph,
            graph=graph,
            graph_pool_handle=captures.new_handle,
            is_current_stream_capturing=capturing,
        )
    for owner in (cuda.graphs, torch._C):
        gpu.patches.set(owner, "_cuda_isCurrentStreamCapturing", capturing)
    for owner in (cuda, cuda.memory):
        gpu.patches.set_existing(owner, "MemPool", MemPool)
        gpu.patches.set_existing(owner, "use_mem_pool", use_mem_pool)
