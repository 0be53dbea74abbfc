"""Streams and events. Each stream has a pool of its own in the allocator.

All work is done at once, so nothing waits; but where the host would wait for a stream, the ledger
notes it, since blocks that another stream used return to their pools by then
(`Ledger.synchronized`)."""

from __future__ import annotations

from typing import Any, Tuple

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.patches import Patches

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
    cuda_event = 1

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(cls, torch.device("cpu"))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._index, self._at_s = 0, 0.0
        self._moment = (0, 0)  # the stream, and how many kernels its card had launched
        self._captured: Any = None  # the capture of a CUDA graph that it was recorded in

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", self._index)

    def record(self, stream: Any = None) -> None:
        gpu = self._gpu
        self._index, number = gpu.current_stream() if stream is None else _place(stream)
        self._moment = (number, gpu.ledgers[self._index].launches)
        self._captured = gpu.captures.by_stream.get((self._index, number))
        self._at_s = gpu.clocks[self._index].now_s()

    def wait(self, stream: Any = None) -> None:
        waiting = self._gpu.current_stream() if stream is None else _place(stream)
        self._gpu.captures.join(waiting, self._captured)

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self._gpu.captures.check_waiting((self._index, self._moment[0]))
        self._gpu.ledgers[self._index].synchronized(*self._moment)

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds, predicted (simulator/roofline.py); 0.0 for a card whose rates are not
        known."""
        return (end_event._at_s - self._at_s) * 1e3

    def ipc_handle(self) -> bytes:
        return b""

    def __repr__(self) -> str:
        return "<torch.cuda.Event 0x1>"


class _Stream(torch.Stream):
    """A stream of the imaginary card."""

    _gpu: ImaginaryGpu

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
        number, index = kwargs.get("stream_id"), kwargs.get("device_index")
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
        captures = self._gpu.captures
        captures.join(_place(self), captures.by_stream.get(_place(stream)))

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
        self._gpu.ledgers[self.device_index].synchronized(self.stream_id)
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


def patch_streams(gpu: ImaginaryGpu, patches: Patches) -> None:
    streams = gpu.streams
    Event, Stream = class_of(gpu, _Event, "Event"), class_of(gpu, _Stream, "Stream")

    def current(device: Any = None) -> Any:
        index = gpu.index_of(device)
        return Stream(stream_id=streams.of(index), device_index=index)

    def select(stream_id: int = 0, device_index: int = 0, device_type: int = _CUDA_TYPE) -> None:
        streams.card = device_index
        streams.select(stream_id, device_index)

    for owner in (torch.cuda, torch.cuda.streams):
        patches.set_all(owner, Stream=Stream, Event=Event)
        patches.set_existing(
            owner,
            "ExternalStream",
            lambda pointer, device=None, **kwargs: Stream(device, stream_id=pointer),
        )
    patches.set_all(
        torch.cuda,
        current_stream=current,
        default_stream=lambda device=None: Stream(device, stream_id=0),
    )
    patches.set_all(
        torch._C,
        _cuda_setStream=select,
        _cuda_getCurrentStream=lambda device: (streams.of(device), device, _CUDA_TYPE),
        _cuda_getCurrentRawStream=streams.of,
        _accelerator_getStream=current,
        _accelerator_setStream=lambda stream: select(stream.stream_id, stream.device_index),
    )
    patches.set_all(
        torch,
        Stream=_AnyDevice("Stream", (), {"real": torch.Stream, "of_card": Stream}),
        Event=_AnyDevice("Event", (), {"real": torch.Event, "of_card": Event}),
    )
