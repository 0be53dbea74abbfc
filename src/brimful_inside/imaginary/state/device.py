"""The imaginary GPU as one object: what holds the tables, the books and the card together."""

from __future__ import annotations

import json
import os
from collections import Counter
from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Dict, List, Optional, TextIO, Tuple

import torch

from brimful_inside.imaginary.attribution.annotations import Notes
from brimful_inside.imaginary.cuda_api import devices
from brimful_inside.imaginary.cuda_api.autocast import Casts, handlers_under_autocast, patch_cache
from brimful_inside.imaginary.cuda_api.compiler import bring_dynamo_back, leave_uncompiled
from brimful_inside.imaginary.cuda_api.cuda_api import patch_cuda
from brimful_inside.imaginary.cuda_api.graphs import Captures
from brimful_inside.imaginary.cuda_api.storages import patch_storages
from brimful_inside.imaginary.cuda_api.streams import CurrentStreams
from brimful_inside.imaginary.dispatch import autograd_in_place, dispatch_mode
from brimful_inside.imaginary.dispatch.function_mode import Functions, let_bodies_run
from brimful_inside.imaginary.dispatch.threads import Modes, follow_threads
from brimful_inside.imaginary.distributed import patch_distributed
from brimful_inside.imaginary.operators import (
    composites,
    data_dependent,
    fast_meta_kernels,
    host_reads,
    meta_kernels,
    spectral,
)
from brimful_inside.imaginary.operators.grouping import group_by_card
from brimful_inside.imaginary.operators.libraries import (
    attention,
    convolutions,
    rnn,
    whole_kernels,
)
from brimful_inside.imaginary.operators.libraries.cudnn import Plans
from brimful_inside.imaginary.operators.libraries.workspaces import Workspaces
from brimful_inside.imaginary.operators.nested import refuse_nested_tensors
from brimful_inside.imaginary.operators.sparse import with_sparse_products
from brimful_inside.imaginary.operators.symbols import avoid_sympy_import
from brimful_inside.imaginary.operators.temporaries import Machine
from brimful_inside.imaginary.state.clock import Clock
from brimful_inside.imaginary.state.garbage import Garbage
from brimful_inside.imaginary.state.known_values import Known
from brimful_inside.imaginary.state.ledger import Ledger
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.imaginary.state.pinned import Pinned
from brimful_inside.imaginary.state.size_bounds import Bounds
from brimful_inside.imaginary.state.tensors import is_meta, plain_parts
from brimful_inside.simulator.allocator import CachingAllocator, settings_in
from brimful_inside.simulator.allocator_settings import conf_in
from brimful_inside.simulator.trace import TRACE_VERSION
from brimful_inside.wire import Card

__all__ = ["ImaginaryGpu"]

Tensor = torch.Tensor


class ImaginaryGpu:
    """A card of which one process believes that it is there.

    `allocator` has its books (bytes), `approximations` counts by name how often an upper bound stood in for a shape.
    """

    def __init__(
        self,
        card: Card,
        capacity_bytes: Optional[int] = None,
        trace: Optional[TextIO] = None,
        notes: bool = True,
        what_if: Optional[str] = None,
    ):
        self.card = card
        self.machine = Machine.of(card)
        self.allocator = CachingAllocator(capacity_bytes, settings_in(os.environ), card.total_bytes)
        self.approximations: Dict[str, int] = Counter()
        self.split_over = 1  # so many cards share a batch (nn.DataParallel)
        self.communicators: Dict[str, int] = {}  # NCCL groups that were used: by name, how many ranks
        self.patches = Patches()
        self.pinned = Pinned()
        self.streams = CurrentStreams()
        self.captures = Captures()
        self.bounds = Bounds(self)
        self.ledger = Ledger(self.allocator, card, trace, lambda: self.streams.current)
        self.clock = Clock(card)
        self._trace = trace
        self.known = Known(self)
        self.devices = devices.Devices(self)
        self.has_user_meta = False  # the script has meta tensors of its own
        self.touched = False  # CUDA is initialized
        self.in_bad_fork = False
        self.is_open = True
        self.facts: Dict[Any, Any] = {}
        self.operation_handlers: Dict[Any, Callable] = {
            **fast_meta_kernels.handlers(),
            **meta_kernels.handlers(),
            **convolutions.handlers(),
            **dispatch_mode.handlers(),
            **data_dependent.handlers(),
            **whole_kernels.operation_handlers(),
        }
        self.operation_handlers = autograd_in_place.in_its_place(with_sparse_products(self.operation_handlers))
        rooms = (devices, host_reads, composites, attention, rnn, spectral)
        self.function_handlers: Dict[Any, Callable] = handlers_under_autocast(
            {
                **{func: handler for room in rooms for func, handler in room.handlers().items()},
                **whole_kernels.function_handlers(),
            }
        )
        self.whole_kernels = whole_kernels.WholeKernels()
        self.casts = Casts()
        self.workspaces = Workspaces(self)
        self.plans = Plans(self)
        self.notes = Notes(self, what_if) if trace is not None and notes else None
        if what_if is not None and self.notes is None:
            raise ValueError("a what-if needs a trace with notes")
        self.modes = Modes(lambda: (Functions(self), self._operations()))
        self.garbage = Garbage()
        if trace is not None:
            trace.write(self._header())

    def _header(self) -> str:
        """The first line of a trace."""
        header = {
            "trace_version": TRACE_VERSION,
            "card": self.card.name,
            "capability": list(self.card.capability),
            "torch": torch.__version__,
        }
        return json.dumps(header) + "\n"

    def _operations(self) -> dispatch_mode.Operations:
        return dispatch_mode.Operations(self)

    def enter(self) -> None:
        """Put everything in place, in the current thread and in every thread started later."""
        autograd_in_place.measure_owners()
        self.whole_kernels.put_in_place()
        patch_cuda(self, self.patches)
        if self.notes is not None:
            self.notes.put_in_place(self.patches)
        devices.patch_devices(self, self.patches)
        patch_storages(self, self.patches)
        host_reads.patch_values(self, self.patches)
        patch_cache(self.casts, self.patches)
        rnn.flatten_weights_as_on_cuda(self.patches)
        group_by_card(self, self.patches)
        let_bodies_run(self.patches)
        leave_uncompiled(self, self.patches)
        avoid_sympy_import(self.patches)
        refuse_nested_tensors(self, self.patches)
        follow_threads(self.modes, self.patches)
        patch_distributed(self, self.patches)
        self.garbage.put_in_place(self.patches)
        os.register_at_fork(before=self.flush, after_in_child=self._forked)
        self.modes.enter()

    def leave(self) -> None:
        """torch behaves as before, also where the trace cannot be written. Tensors of the card that are left are meta
        tensors from now on. Raises OSError for a full disk, once torch is as it was."""
        try:
            self.end_trace()
        finally:
            self._put_back()

    def _put_back(self) -> None:
        self.is_open = False
        self.modes.leave()
        self.patches.restore()
        if self.notes is not None:
            self.notes.leave()
        self.whole_kernels.leave()
        bring_dynamo_back()
        self.ledger.forget()
        self.function_handlers.clear()
        self.garbage.leave()

    def phase(self, name: str) -> None:
        """From here on peaks belong to phase `name`."""
        self.garbage.look()
        self.clock.phase(name)
        self.ledger.phase(name)

    def step(self, number: int) -> None:
        """The `number`-th optimizer step is complete."""
        self.garbage.look()
        self.clock.step()
        self.ledger.step(number)

    def on_out_of_memory(self, callback: Callable[[BaseException], None]) -> None:
        """`callback` is told of every torch.OutOfMemoryError before one is raised; the script may catch it and go on.

        It is called where the memory was asked for, with an exception of the same words that never had a traceback.
        """
        self.ledger.on_out_of_memory = callback

    def end_trace(self) -> None:
        """As `flush`, with what ran in the last complete step: nothing more is to come."""
        if self._trace is not None and self.is_open and not self.in_bad_fork:
            self.ledger.write_runs(self.clock.last_step())
        self.flush()

    def flush(self) -> None:
        """All rows are in the trace file."""
        if self.is_open and not self.in_bad_fork:
            self.ledger.flush()

    def reset_peaks(self) -> None:
        for ledger in self.ledgers:
            ledger.allocator.reset_peaks()

    # --- which card (there is one; `several.ImaginaryGpus` has more) -----------------------------------------------------

    count = 1

    @property
    def ledgers(self) -> List[Ledger]:
        """The books of each card."""
        return [self.ledger]

    def index_of(self, device: Any) -> int:
        """The number of the card that `device` names. Raises PyTorch's error for one that is not there."""
        self.devices.rewritten("cuda" if device is None else device)
        return 0

    def ledger_of(self, device: Any) -> Ledger:
        """The books of the card that `device` names (None: the current one)."""
        return self.ledgers[self.index_of(device)]

    def clock_of(self, index: int) -> Clock:
        return self.clock

    def device_of(self, tensor: Tensor) -> torch.device:
        """What a tensor of the card says of its device."""
        return devices.CUDA

    def device_of_storage(self, storage: Any) -> torch.device:
        return devices.CUDA

    def device_of_any(self, args: Tuple, kwargs: Dict[str, Any]) -> torch.device:
        """Of the first tensor of the card among the arguments."""
        return devices.CUDA

    def named(self, device: Any) -> ContextManager[None]:
        """A context in which what is made is made on the card that `device` names."""
        self.index_of(device)
        self.touch()
        return nullcontext()

    def current_card(self) -> int:
        return 0

    def set_current_card(self, index: int) -> None:
        """torch.cuda.set_device, for an index that is there."""

    def memory_info(self, index: Optional[int] = None) -> Tuple[int, int]:
        """Free and total bytes of a card (None: the current one), as torch.cuda.mem_get_info() says them."""
        allocator = self.ledger_of(index).allocator
        total = self.card.total_bytes
        return max(0, total - self.card.context_bytes - allocator.reserved), total

    def touch(self) -> None:
        """Something was asked of the card: CUDA is initialized now. Raises PyTorch's error in a forked child."""
        if self.touched and not self.in_bad_fork:
            return
        if self.in_bad_fork:
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
                "multiprocessing, you must use the 'spawn' start method"
            )
        self.touched = True
        self._read_settings()
        torch.cuda._initialized = True
        self.garbage.rest()

    def _read_settings(self) -> None:
        """PyTorch reads the allocator's settings at its first use: a script may have set them after it imported torch."""
        text = conf_in(os.environ)
        for ledger in self.ledgers:
            if text is not None and ledger.allocator.settings != settings_in(os.environ):
                ledger.change_settings(text)

    def holds(self, tensor: Tensor) -> bool:
        """Whether `tensor` is on the card."""
        with torch._C.DisableTorchFunction():
            return self.is_imaginary(tensor)

    def is_imaginary(self, tensor: Tensor) -> bool:
        """As `holds`, for callers within a mode, where `is_meta(tensor)` still means what it says."""
        if not is_meta(tensor):
            return False
        if not self.has_user_meta:
            return True
        return any(part.untyped_storage()._cdata in self.ledger.storages for part in plain_parts(tensor))

    def see(self, made: Any, func: Any) -> Any:
        """`made` with its storage in the books, should nobody have seen it being born."""
        for part in plain_parts(made) if isinstance(made, Tensor) and is_meta(made) else ():
            storage = part.untyped_storage()
            entry = self.ledger.storages.get(storage._cdata)
            if entry is None or entry() is None:
                self.ledger.born(storage, getattr(func, "__name__", "unknown"))
                if self.notes is not None:
                    self.notes.made(made, func)
        return made

    def any_imaginary(self, args: Tuple, kwargs: Dict[str, Any]) -> bool:
        stack: List[Any] = [*args, *kwargs.values()]
        while stack:
            item = stack.pop()
            if isinstance(item, Tensor):
                if self.is_imaginary(item):
                    return True
            elif isinstance(item, (list, tuple)):
                stack.extend(item)
        return False

    def wants_user_meta(self) -> bool:
        return self.devices.in_user_meta

    def host_waits(self) -> None:
        """The host waits for the current stream: a value is read, or a copy was not told to go on without it."""
        self.captures.check_waiting(self.current_stream())
        self.ledger.synchronized(self.streams.current)

    def current_stream(self) -> Tuple[int, int]:
        """The number of this thread's current card, and of its current stream there."""
        index = self.current_card()
        return index, self.streams.of(index)

    def approximate(self, name: str) -> None:
        self.approximations[name] += 1

    def operate(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run an ATen operation as if the script had called it, so that its storages are seen."""
        with self._operations():
            return func(*args, **kwargs)

    def functions(self) -> Functions:
        """A context in which torch functions are seen again, for handlers that put one function in terms of others."""
        return Functions(self)

    def value_of(self, tensor: Tensor) -> Any:
        """The one element of `tensor` as the host reads it."""
        if self.is_true(tensor):
            return True
        known = self.known.values(tensor)
        if known is not None:
            return known.item()
        return torch.zeros((), dtype=tensor.dtype, device="cpu").item() if tensor.dtype != torch.bool else False

    def read(self, tensor: Tensor, dtype: Optional[torch.dtype] = None) -> Tensor:
        """What the host gets when it reads `tensor`: a new tensor of the numbers that are known, else of zeros."""
        known = self.known.values(tensor)
        return dispatch_mode.zeros_on_host(tensor, dtype) if known is None else known.to(dtype or tensor.dtype, copy=True)

    def mark_true(self, tensor: Tensor) -> Tensor:
        """`tensor` is known to hold nothing but True (of isfinite, say)."""
        entry = self.ledger.storages.get(tensor.untyped_storage()._cdata) if is_meta(tensor) else None
        if entry is not None:
            entry.known_true = True
        return tensor

    def is_true(self, tensor: Tensor) -> bool:
        entry = self.ledger.storages.get(tensor.untyped_storage()._cdata) if is_meta(tensor) else None
        return entry is not None and entry.known_true

    def type_name(self, tensor: Tensor) -> str:
        return torch.empty(0, dtype=tensor.dtype, device="cpu").type().replace("torch.", "torch.cuda.", 1)

    def _forked(self) -> None:
        if not self.is_open:
            return
        self.in_bad_fork = self.touched
        self.ledger.forget()
