"""What an allocation is: a parameter or buffer of a module, a gradient, a state of an optimizer, a
copy from the host.

Written once for each allocation, for its whole life, as soon as it is known: parameters and buffers
at the first outermost call of their module, gradients after each backward pass, states after the
first steps of an optimizer."""

from __future__ import annotations

import json
import weakref
from typing import Any, Dict, Iterable, Iterator, List, Tuple

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from brimful_inside.imaginary.attribution.modules import NOWHERE, ModuleCalls, Place
from brimful_inside.imaginary.state.ledger import Ledger
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.imaginary.state.tensors import C, TensorBase, is_meta, plain_parts
from brimful_inside.simulator.trace import (
    BUFFER,
    GRADIENT,
    INPUT,
    OPTIMIZER_STATE,
    PARAMETER,
    Backward,
)

# of an optimizer, after which its states are recorded; later ones are the same allocations
FIRST_STEPS = 2

_grad_of = TensorBase.grad.__get__
Owned = Tuple[Any, str, Place]
Lines = Dict[Ledger, List[str]]


class Categories:
    """Writes categories into the traces. The owner of a tensor is found among the modules that were
    called."""

    def __init__(self, ledgers: List[Ledger], calls: ModuleCalls) -> None:
        self._ledgers = ledgers
        self._calls = calls
        self._written: Dict[Tuple[int, int], str] = {}  # by card and allocation
        self._roots_written = 0
        self._rows: Dict[Place, str] = {}  # its part of a row
        self._modules: List[Tuple[Any, Place]] = []
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
        lines: Lines = {}
        for entry in entries:
            if entry.id:
                self._add_entry(lines, entry, GRADIENT, NOWHERE, 4)
        _flush(lines)

    def _outermost(self, module: torch.nn.Module, begins: bool) -> None:
        if self._calls.roots_seen != self._roots_written:
            self._roots_written = self._calls.roots_seen
            self._modules = []
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
        if self._steps.get(optimizer, 0) < FIRST_STEPS:
            places = self._places()
            self._strange[optimizer] = any(
                id(parameter) not in places for parameter in _parameters(optimizer)
            )
        if self._strange.get(optimizer, False):
            places = self._places()
            strange = [
                parameter for parameter in _parameters(optimizer) if id(parameter) not in places
            ]
            self._write((parameter, PARAMETER, NOWHERE) for parameter in strange)
            self._write((_grad_of(parameter), GRADIENT, NOWHERE) for parameter in strange)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        steps = self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        if steps > FIRST_STEPS:
            return
        self._modules = []  # some may have come since
        self._write(self._owned())
        places = self._places()
        for parameter, state in list(getattr(optimizer, "state", {}).items()):
            place = places.get(id(parameter), NOWHERE)
            self._write((tensor, OPTIMIZER_STATE, place) for tensor in _tensors(state))

    def _places(self) -> Dict[int, Place]:
        """The place of each parameter: of the first module that has it, where several share it."""
        places: Dict[int, Place] = {}
        for tensor, _, place in self._owned():
            places.setdefault(id(tensor), place)
        return places

    def _owned(self) -> Iterator[Owned]:
        for reference, place in self._owners():
            module = reference()
            if module is not None:
                for tensors, category in (
                    (module._parameters, PARAMETER),
                    (module._buffers, BUFFER),
                ):
                    for tensor in tensors.values():
                        if tensor is not None:
                            yield tensor, category, place

    def _owners(self) -> List[Tuple[Any, Place]]:
        """The modules that have parameters or buffers of their own."""
        if not self._modules:
            self._modules = [
                (weakref.ref(module), Place(name, path))
                for root, name in self._calls.living_roots()
                for path, module in root.named_modules()
                if module._parameters or module._buffers
            ]
        return self._modules

    def _write(self, owned: Iterable[Owned]) -> None:
        lines: Lines = {}
        with torch._C.DisableTorchFunction():
            for each in owned:
                self._add(lines, *each)
        _flush(lines)

    def _add(self, lines: Lines, tensor: Any, category: str, place: Place) -> None:
        """The row that gives the category of `tensor`, where it is not written yet."""
        if not isinstance(tensor, torch.Tensor):
            return
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
            tensor = next(plain_parts(tensor), tensor)  # a DTensor's share, which lies on this card
        if not is_meta(tensor):
            return
        if tensor.layout != torch.strided or C._functorch.is_functorch_wrapped_tensor(tensor):
            return
        entry = self._ledgers[0].storages.get(tensor.untyped_storage()._cdata)
        if entry is None or not entry.id:
            return
        self._add_entry(lines, entry, category, place, tensor.element_size())

    def _add_entry(
        self, lines: Lines, entry: Any, category: str, place: Place, element_bytes: int
    ) -> None:
        key = (entry.ledger.index, entry.id)
        before = self._written.get(key)
        if before is not None and (before != INPUT or category == INPUT):
            return
        self._written[key] = category
        of_place = self._rows.get(place)
        if of_place is None:
            of_place = self._rows[place] = json.dumps([place.path, place.model])[1:-1]
        row = '["tag",%d,"%s",%s,%d]\n' % (entry.id, category, of_place, element_bytes)
        lines.setdefault(entry.ledger, []).append(row)


def _flush(lines: Lines) -> None:
    for ledger, rows in lines.items():
        ledger.note_lines("".join(rows))


def _parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _tensors(state: Any) -> Iterator[Any]:
    """The tensors of one parameter's state; some optimizers keep lists of them."""
    for value in state.values() if isinstance(state, dict) else ():
        if isinstance(value, (list, tuple)):
            yield from value
        else:
            yield value
