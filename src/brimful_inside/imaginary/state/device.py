"""The imaginary GPU of a process: what all handlers share. It knows none of them; `install` puts
them here."""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter
from contextlib import contextmanager
from typing import (
    Any,
    Callable,
    ContextManager,
    Dict,
    Iterable,
    Iterator,
    Optional,
    Tuple,
)

import torch

from brimful_inside.imaginary.state.cards import Cards, OpenTrace
from brimful_inside.imaginary.state.clock import Clock
from brimful_inside.imaginary.state.errors import cuda_error
from brimful_inside.imaginary.state.garbage import Garbage
from brimful_inside.imaginary.state.known_values import Known
from brimful_inside.imaginary.state.ledger import Ledger
from brimful_inside.imaginary.state.lock import one_at_a_time
from brimful_inside.imaginary.state.patches import Patches, replaced
from brimful_inside.imaginary.state.streams import Captures, CurrentStreams
from brimful_inside.imaginary.state.tensors import (
    CUDA,
    FROM_DATA,
    META,
    Pinned,
    Tensor,
    is_meta,
    plain_parts,
    tensors_in,
)
from brimful_inside.imaginary.state.upper_bounds import Bounds, Lengths
from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.allocator_settings import AllocatorSettings, settings_in, spelled
from brimful_inside.simulator.roofline import PEER
from brimful_inside.simulator.workspaces import torch_release
from brimful_inside.wire import Card

#: (gpu, function or operation, args, kwargs) -> what the card answers
Handler = Callable[["ImaginaryGpu", Any, Tuple, Dict[str, Any]], Any]


def call_plainly(gpu: Any, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    return func(*args, **kwargs)


class DeviceNames:
    """Which card a device means, as a script writes it. A device that the script itself calls
    "meta" is no card."""

    def __init__(self, count: int, streams: CurrentStreams):
        self._count = count
        self._streams = streams
        self._indices: Dict[Any, Optional[int]] = {"cuda": None, torch.device("cuda"): None}
        for index in range(count):
            self._indices.update({"cuda:%d" % index: index, torch.device("cuda", index): index})
        self._known: Dict[Any, Any] = dict.fromkeys(self._indices, META)
        self._known.update({"cpu": "cpu", torch.device("cpu"): torch.device("cpu")})

    def rewritten(self, device: Any) -> Any:
        """`device` with the meta device in place of a card. Raises PyTorch's error for a card that
        is not there."""
        if device is META:
            return META
        try:
            return self._known[device]
        except (KeyError, TypeError):
            return self._other(device)

    def _other(self, device: Any) -> Any:
        if isinstance(device, bool) or not isinstance(device, (int, str, torch.device)):
            return device
        parsed = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if parsed.type != "cuda":
            return device
        if (parsed.index or 0) >= self._count:
            raise cuda_error(
                "invalid device ordinal\nGPU device may be out of range, do you have enough GPUs?"
            )
        return META

    def is_card(self, device: Any) -> bool:
        """Whether `device` is a card; ``"cuda"`` in every spelling."""
        return device is not None and self.rewritten(device) is META

    def index_of(self, device: Any) -> int:
        """The number of the card that `device` names; without a number, the current one's. Raises
        as `rewritten`."""
        if device is None or device is META or self._count == 1:
            self.rewritten("cuda" if device is None else device)
            return self._streams.target
        self.rewritten(device)
        if isinstance(device, int):
            return device
        index = self._indices[device] if device in self._indices else torch.device(device).index
        return self._streams.target if index is None else index


class Here(threading.local):
    """What the call in hand of one thread means for those inside it."""

    user_meta = False  # it makes meta tensors of the script's own
    # a scripted module is moving: C++ holds its tensors as well, so they are replaced
    moves_script = False
    # a copy to another card takes time of the links; not where NCCL's broadcast is made of some
    copies_cross = True


class ImaginaryGpu:
    """`count` cards of one kind (cuda:0, cuda:1, ...), as one process has them.

    PyTorch gives the meta device no number, so the card of a tensor stands in its storage's entry
    in the ledger, which views share. `ledger`, `allocator` and `clock` are those of the card where
    the thread is. `approximations` counts by name how often an upper bound stood in for a shape."""

    # What handlers keep for themselves; `install` sets it.
    machine: Any  # operators.temporaries.Machine
    classes: Any  # operators.flops.Classes
    workspaces: Any  # operators.cublas.Workspaces
    plans: Any  # operators.convolutions.Plans
    casts: Any  # cuda_api.autocast.Casts
    remembered: Any  # operators.meta_kernels.Remembered
    initialize: Callable[[], None]  # PyTorch's own torch.cuda._lazy_init
    # gets the arguments of every operation on the card
    watch: Optional[Callable[[Tuple, Dict[str, Any]], None]] = None
    annotations: Any = None  # attribution.annotations.Annotations, where a trace says who allocates
    # torch functions are seen again: one handler in terms of others
    functions: Callable[[], ContextManager[Any]]
    # runs an ATen operation as if the script had called it, so that its storages are seen
    operate: Callable[..., Any]

    def __init__(
        self,
        card: Card,
        count: int = 1,
        capacity_bytes: Optional[int] = None,
        trace: OpenTrace = None,
        settings: Optional[AllocatorSettings] = None,
    ):
        """As of `Cards`. `settings`: with which a replay of the trace begins; None: the
        environment's."""
        self.card = card
        self.count = count
        self.streams = CurrentStreams(itertools.count())
        self.devices = DeviceNames(count, self.streams)
        self.index_of = self.devices.index_of
        self.captures = Captures()
        self.patches = Patches()
        self.pinned = Pinned()
        self.garbage = Garbage()
        settings = settings_in(os.environ) if settings is None else settings
        self.cards = Cards(card, count, capacity_bytes, settings, trace, self.streams, self.garbage)
        self.storages, self.ledgers = self.cards.storages, self.cards.ledgers
        self.clocks = self.cards.clocks
        self.known, self.bounds = Known(self.storages), Bounds(self.storages)
        self.lengths = Lengths(self.storages)
        self.approximations: Dict[str, int] = Counter()
        # calls of compiled code that did nothing, in the operation that runs (library_kernels.py)
        self.passed_over = 0
        self.split_over = 1  # so many cards share a batch (nn.DataParallel)
        # NCCL groups that were used: by name, how many ranks
        self.communicators: Dict[str, int] = {}
        # of operations, found out once for each (dispatch/dispatch_mode.py)
        self.facts: Dict[Any, Any] = {}
        self.operation_handlers: Dict[Any, Callable] = {}
        self.function_handlers: Dict[Any, Any] = {}
        self.has_user_meta = False  # the script has meta tensors of its own
        self.here = Here()
        self.touched = False  # CUDA is initialized
        self.counted = False  # the driver was asked how many cards there are
        self._settings_read = False
        self.in_bad_fork = False
        self.is_open = True

    def insert(self, card: Card, capacity_bytes: Optional[int]) -> None:
        """The cards become ones like `card`, in a process that begins. Not once they were used."""
        self.card = card
        self.counted = self.in_bad_fork = False
        self.cards.insert(card, capacity_bytes)

    # --- the life of the cards ---

    def leave(self) -> None:
        """torch behaves as before, also where the trace cannot be written. Tensors of the cards
        that are left are meta tensors from now on. Raises OSError for a full disk, once torch is as
        it was."""
        try:
            self.cards.end_trace()
        finally:
            self.is_open = False
            self.patches.restore()
            self.cards.forget()
            self.function_handlers.clear()
            self.garbage.leave()

    def forked(self) -> None:
        """This is a child process, for which PyTorch refuses the cards where the parent has used
        them, or counted them through the driver."""
        self.in_bad_fork = self.is_open and (self.touched or self.counted)
        if self.in_bad_fork and self.touched:  # cards that were only counted have no trace yet
            self.cards.forget()

    @one_at_a_time
    def touch(self) -> None:
        """Something was asked of a card: PyTorch initializes CUDA now, by its own Python, which
        refuses a forked child and makes the calls that waited for this. Its lock comes after
        ours."""
        if not self.touched or self.in_bad_fork:
            self.initialize()

    def initialized(self) -> None:
        self.touched = True
        self.read_settings()
        self.garbage.rest()

    def read_settings(self) -> None:
        """PyTorch reads the allocator's settings from the environment once, at their first use: the
        script may have set, replaced or removed them by then."""
        wanted = settings_in(os.environ, torch_release(torch.__version__))
        if not self._settings_read and self.ledgers[0].allocator.settings != wanted:
            self.cards.change_settings(spelled(wanted))
        self._settings_read = True

    @one_at_a_time
    def approximate(self, name: str) -> None:
        """An upper bound, `name` says which, stands in for what is not known."""
        self.approximations[name] += 1

    def at_most(self, name: str, length: int) -> None:
        """As `approximate`: the operation's result is of this length at most."""
        self.approximate(name)
        self.lengths.result_is(length)

    # --- which card ---

    @property
    def ledger(self) -> Ledger:
        return self.ledgers[self.streams.target]

    @property
    def allocator(self) -> CachingAllocator:
        return self.ledger.allocator

    @property
    def clock(self) -> Clock:
        return self.clocks[self.streams.target]

    def exchanged(
        self,
        op: str,
        nbytes: float,
        cards: Iterable[int],
        kind: str = PEER,
        shape: Tuple[int, ...] = (),
    ) -> None:
        """So many bytes go over the link of each of these cards. `shape`: of the kernel."""
        for index in cards if nbytes else ():
            self.clocks[index].add(op, kind, 0, int(nbytes), 1, shape)

    def index_of_tensor(self, tensor: Tensor) -> Optional[int]:
        """The card that a tensor on the meta device is on; None for the script's own meta
        tensors."""
        for part in plain_parts(tensor):
            entry = self.storages.get(part.untyped_storage()._cdata)
            if entry is not None:
                return entry.ledger.index
        return None

    def device_of(self, tensor: Tensor) -> torch.device:
        """What a tensor of a card reports as its device."""
        if self.count == 1:
            return CUDA
        with torch._C.DisableTorchFunction():
            index = self.index_of_tensor(tensor)
        return CUDA if index is None else torch.device("cuda", index)

    def current_stream(self) -> Tuple[int, int]:
        """The number of this thread's current card, and of its current stream there."""
        return self.streams.card, self.streams.of(self.streams.card)

    def host_waits(self) -> None:
        """The host waits for the current stream: a value is read, or a copy was not asked to go on
        without it."""
        self.captures.check_waiting(self.current_stream())
        self.ledger.work.synchronized(self.streams.current)

    def memory_info(self, device: Any = None) -> Tuple[int, int]:
        """Free and total bytes of a card (None: the current one), as torch.cuda.mem_get_info()
        gives them."""
        self.touch()
        allocator = self.ledgers[self.index_of(device)].allocator
        total = self.card.total_bytes
        return max(0, total - self.card.context_bytes - allocator.reserved), total

    # --- which tensors ---

    def holds(self, tensor: Tensor) -> bool:
        with torch._C.DisableTorchFunction():
            return self.is_imaginary(tensor)

    def is_imaginary(self, tensor: Tensor) -> bool:
        """As `holds`, for callers within a mode, where `is_meta(tensor)` is still PyTorch's own
        answer."""
        if not is_meta(tensor):
            return False
        if not self.has_user_meta:
            return True
        return any(part.untyped_storage()._cdata in self.storages for part in plain_parts(tensor))

    def any_imaginary(self, args: Tuple, kwargs: Dict[str, Any]) -> bool:
        return any(self.is_imaginary(tensor) for tensor in tensors_in(args, kwargs))

    def see(self, made: Any, func: Any) -> Any:
        """`made` with its storage in the ledger, where no mode noticed that storage."""
        for part in plain_parts(made) if isinstance(made, Tensor) and is_meta(made) else ():
            storage = part.untyped_storage()
            entry = self.storages.get(storage._cdata)
            if entry is None or entry() is None:
                self.ledger.add(storage, getattr(func, "__name__", "unknown"))
                if func in FROM_DATA:
                    self.note_input(made)
        return made

    def note_input(self, tensor: Tensor) -> None:
        """The trace, where it has annotations, says that `tensor` was filled from the host."""
        if self.annotations is not None:
            self.annotations.categories.copied(tensor)

    @contextmanager
    def user_meta(self) -> Iterator[None]:
        """What is made in here on the meta device is the user's own, not a card's."""
        self.has_user_meta = True
        with replaced(self.here, "user_meta", True):
            yield
