"""What a trace says of each allocation beside its bytes (simulator/trace.py): the module, the line
and the pass that allocates, and what it becomes.

A line is that of the first frame outwards that is neither torch's, nor another library's, nor ours.
What an allocation is (a parameter or buffer of a module, a gradient, a state of an optimizer, a
copy from the host) is written once for its whole life, as soon as it is known: parameters and
buffers at the first outermost call of their module, gradients after each backward pass, states
after the first steps of an optimizer."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
import weakref
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from brimful_inside.imaginary.attribution.modules import NOWHERE, ModuleCalls, Place
from brimful_inside.imaginary.attribution.repeats import Repeats
from brimful_inside.imaginary.attribution.what_if import WHAT_IFS, lower_precision, patch_what_if
from brimful_inside.imaginary.state.clock import Clock
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.errors import OURS, TORCH
from brimful_inside.imaginary.state.ledger import Ledger
from brimful_inside.imaginary.state.lock import one_at_a_time
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.imaginary.state.tensors import (
    C,
    TensorBase,
    entry_of,
    is_meta,
    plain_parts,
    tensors_in,
)
from brimful_inside.simulator.trace import (
    BACKWARD,
    BUFFER,
    FORWARD,
    GRADIENT,
    INPUT,
    OPTIMIZER,
    OPTIMIZER_STATE,
    PARAMETER,
    RECOMPUTATION,
    Backward,
    Site,
    Tag,
    Uses,
)

LONGEST_LINE = 100
# of an optimizer, after which its states are recorded; later ones are the same allocations
FIRST_STEPS = 2

_STANDARD = sysconfig.get_paths()["stdlib"]
_PROGRAMS = os.path.join(sysconfig.get_paths()["scripts"], "")  # entry points of packages
_HIDDEN, _LIBRARY, _USER = 0, 1, 2
_grad_of = TensorBase.grad.__get__
Owned = Tuple[Any, str, Place]  # a tensor or None, its category, and whose it is


class Annotations:
    """What the traces of `gpu` say of allocations: who makes them (`call_sites`), and what they
    become (`categories`)."""

    def __init__(self, gpu: ImaginaryGpu, what_if: Sequence[str] = ()) -> None:
        for name in what_if:
            if name not in WHAT_IFS:
                raise ValueError("no what-if is called %r" % name)
        self._gpu = gpu
        self._what_if = what_if
        self._used: set = set()
        self.calls = ModuleCalls()
        self.call_sites = CallSites(self.calls, gpu.clocks)
        self.categories = Categories(gpu.ledgers, self.calls)
        self.repeats = Repeats(gpu, self.calls, self.call_sites.line)

    def patch(self, patches: Patches) -> None:
        """Modules, the autograd engine and optimizers report to us, until `patches` are undone."""
        self.call_sites.patch(patches)
        self.categories.patch(patches)
        self.repeats.patch(patches)
        for ledger in self._gpu.ledgers:
            ledger.trace.call_sites = self.call_sites
        for name in self._what_if:
            patch_what_if(
                name,
                lambda: self._gpu.machine.choose(lower_precision),
                self.calls,
                self.uses,
                patches,
            )
        if "autocast" not in self._what_if:
            self._watch_autocast(patches)

    @one_at_a_time
    def uses(self, name: str) -> None:
        """The script uses `name`; written once."""
        if name not in self._used:
            self._used.add(name)
            for ledger in self._gpu.ledgers:
                ledger.note(Uses(name))

    def _watch_autocast(self, patches: Patches) -> None:
        autocast = torch.amp.autocast_mode.autocast
        enter = autocast.__enter__

        @patches.function(autocast)
        def __enter__(context: Any) -> Any:
            if context.device == "cuda" and context._enabled:
                self.uses("autocast")
            return enter(context)


class CallSites:
    """The places that allocate. Each card numbers those that it met."""

    def __init__(self, calls: ModuleCalls, clocks: Sequence[Clock] = ()) -> None:
        self.calls = calls
        self._clocks = clocks
        # by the id of a code object: to hash one takes longer than all the rest
        self._kinds: Dict[int, int] = {}
        self._codes: List[Any] = []  # kept, so that no other gets the id of one

    def patch(self, patches: Patches) -> None:
        self.calls.patch(patches)
        begins = register_optimizer_step_pre_hook(
            lambda *_: self._steps_inside(self.calls.thread.in_step + 1)
        )
        # none: an exception may have left a step without this hook
        ends = register_optimizer_step_post_hook(lambda *_: self._steps_inside(0))
        patches.undo_by(begins.remove)
        patches.undo_by(ends.remove)

    def current(self, numbers: Dict[Any, int]) -> Tuple[int, Optional[Site]]:
        """The number of the site that the current thread is at, and the site where it is none of
        `numbers` yet; then it is from now on."""
        place, during = self._doing()
        code, line = self._line(sys._getframe(4))  # those before are of the ledger
        key = (place, during, id(code), line)
        if key in numbers:
            return numbers[key], None
        site = Site(len(numbers), place.path, _text_of(code, line), during, place.model)
        numbers[key] = site.number
        return site.number, site

    def _doing(self) -> Tuple[Place, str]:
        thread = self.calls.thread
        stack = thread.stack
        if thread.backward:
            if len(stack) > thread.base:
                return stack[-1], RECOMPUTATION
            return self.calls.of_backward(), BACKWARD
        if stack:
            return stack[-1], FORWARD
        return NOWHERE, OPTIMIZER if thread.in_step else ""

    def line(self) -> Tuple[int, int]:
        """What stands for the user's line, for one who is called by the function in place of
        Module.__call__."""
        code, line = self._line(sys._getframe(2))
        return id(code), line

    def _line(self, frame: Any) -> Tuple[Any, int]:
        """The user's line: the code and the number in it; else the first one of a library. Within a
        call of a module that the user's own code did not define it is the line that made that call,
        which is looked for once."""
        kinds, lines, call_code = self._kinds, self.calls.thread.lines, self.calls.call_code
        library: Any = None
        height = innermost = len(self.calls.thread.stack)  # of the next call to be met
        while frame is not None:
            code = frame.f_code
            if code is call_code and height:
                if lines and lines[-1][0] == height:
                    return lines[-1][1]
                height -= 1
            kind = kinds.get(id(code))
            if kind is None:
                kind = kinds[id(code)] = _kind_of(code.co_filename)
                self._codes.append(code)
            if kind == _USER:
                place = code, frame.f_lineno
                lines.extend((above + 1, place) for above in range(height, innermost))
                return place
            if kind == _LIBRARY and library is None:
                library = code, frame.f_lineno
            frame = frame.f_back
        return library or (None, 0)

    def _steps_inside(self, count: int) -> None:
        self.calls.thread.in_step = count
        for clock in self._clocks:
            clock.updates = count > 0


def _kind_of(file: str) -> int:
    if file.startswith((OURS, TORCH, "<")):
        return _HIDDEN
    if "site-packages" in file or "dist-packages" in file:
        return _LIBRARY
    return _HIDDEN if file.startswith((_STANDARD, _PROGRAMS)) else _USER


def _text_of(code: Optional[Any], line: int) -> str:
    """ "train.py:57 in main: loss.backward()"."""
    if code is None:
        return ""
    file = code.co_filename
    place = "%s:%d in %s" % (os.path.basename(file), line, code.co_name)
    text = " ".join(linecache.getline(file, line).split())
    if len(text) > LONGEST_LINE:
        text = text[: LONGEST_LINE - 3] + "..."
    return "%s: %s" % (place, text) if text else place


class Categories:
    """Writes categories into the traces. The owner of a tensor is found among the modules that were
    called."""

    def __init__(self, ledgers: List[Ledger], calls: ModuleCalls) -> None:
        self._ledgers = ledgers
        self._calls = calls
        self._written: Dict[Tuple[int, int], str] = {}  # by card and allocation
        self._roots_written = 0
        # whether an optimizer has parameters that no module has
        self._strange: Any = weakref.WeakKeyDictionary()
        self._steps: Any = weakref.WeakKeyDictionary()  # of each optimizer
        calls.on_backward.append(self._backward)
        calls.on_outermost.append(self._outermost)

    def patch(self, patches: Patches) -> None:
        patches.undo_by(register_optimizer_step_pre_hook(self._before).remove)
        patches.undo_by(register_optimizer_step_post_hook(self._after).remove)

    def copied(self, tensor: torch.Tensor) -> None:
        """`tensor` was filled from the host."""
        self._write([(tensor, INPUT, NOWHERE)])

    def buckets(self, entries: Iterable[Any]) -> None:
        """The ledger's `entries` are buckets in which DistributedDataParallel gathers gradients, of
        4 bytes an element."""
        for entry in entries:
            if entry.id:
                self._write_entry(entry, GRADIENT, NOWHERE, 4)

    @one_at_a_time
    def _outermost(self, module: torch.nn.Module, begins: bool) -> None:
        if self._calls.roots_seen != self._roots_written:
            self._roots_written = self._calls.roots_seen
            self._write(self._owned())

    def _backward(self, begins: bool) -> None:
        for ledger in self._ledgers:
            ledger.note(Backward(begins))
        if not begins:
            self._write(
                (_grad_of(t), GRADIENT, place)
                for t, category, place in self._owned()
                if category == PARAMETER
            )

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Parameters of functional models, which no module owns."""
        if self._steps.get(optimizer, 0) < FIRST_STEPS or self._strange.get(optimizer, False):
            places = self._places()
            strange = [
                parameter
                for group in optimizer.param_groups
                for parameter in group["params"]
                if id(parameter) not in places
            ]
            self._strange[optimizer] = bool(strange)
            self._write((parameter, PARAMETER, NOWHERE) for parameter in strange)
            self._write((_grad_of(parameter), GRADIENT, NOWHERE) for parameter in strange)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        steps = self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        if steps > FIRST_STEPS:
            return
        self._write(self._owned())
        places = self._places()
        for parameter, state in list(getattr(optimizer, "state", {}).items()):
            place = places.get(id(parameter), NOWHERE)
            self._write((tensor, OPTIMIZER_STATE, place) for tensor in tensors_in(state))

    def _places(self) -> Dict[int, Place]:
        """The place of each parameter: of the first module that has it, where several share it."""
        places: Dict[int, Place] = {}
        for tensor, _, place in self._owned():
            places.setdefault(id(tensor), place)
        return places

    def _owned(self) -> Iterator[Owned]:
        """What the modules that were called have of their own."""
        for root, name in self._calls.living_roots():
            for path, module in root.named_modules():
                parts = (PARAMETER, module._parameters), (BUFFER, module._buffers)
                for category, tensors in parts:
                    for tensor in tensors.values():
                        if tensor is not None:
                            yield tensor, category, Place(name, path)

    @one_at_a_time
    def _write(self, owned: Iterable[Owned]) -> None:
        with torch._C.DisableTorchFunction():
            for tensor, category, place in owned:
                if isinstance(tensor, torch.Tensor):
                    self._write_tensor(tensor, category, place)

    def _write_tensor(self, tensor: torch.Tensor, category: str, place: Place) -> None:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            tensor = next(plain_parts(tensor), tensor)  # a DTensor's share, which lies on this card
        if not is_meta(tensor) or C._functorch.is_functorch_wrapped_tensor(tensor):
            return
        entry = entry_of(self._ledgers[0].storages, tensor)
        if entry is not None and entry.id:
            self._write_entry(entry, category, place, tensor.element_size())

    @one_at_a_time
    def _write_entry(self, entry: Any, category: str, place: Place, element_bytes: int) -> None:
        """The row that gives the category of what `entry` stands for, where none is written yet."""
        key = (entry.ledger.index, entry.id)
        before = self._written.get(key)
        if before is not None and (before != INPUT or category == INPUT):
            return
        self._written[key] = category
        entry.ledger.note(Tag(entry.id, category, place.path, place.model, element_bytes))
