"""Calls that repeat: from the fourth alike on, a forward pass of an evaluation, or a micro-batch of
an accumulated gradient, costs a look-up.

Calls of a model are alike when they get tensors of the same shapes and the same other arguments at
the same line of the script, start from as many live storages, run the same kernels and read no
known value that was there before; without gradients also ten whose numbers differ (a diffusion
model's time). Then the next one gives tensors like the last one's, the clock gets the same kernels,
and nothing else runs. What it would have taken and given back is not in the trace: the calls before
it took and gave back the same. An optimizer step or another phase ends a stretch, and counting
starts anew; so does whatever differs. With gradients a call goes with the backward pass that
follows, which may only add to gradients that are there.
"""

from __future__ import annotations

import math
import threading
import weakref
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
from torch.utils import _pytree

from brimful_inside.imaginary.attribution.modules import ModuleCalls
from brimful_inside.imaginary.state.clock import Row
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.imaginary.state.tensors import (
    META,
    C,
    TensorBase,
    entry_of,
    is_meta,
    tensors_in,
)
from brimful_inside.left_out import alike_enough
from brimful_inside.wire import LeftOut

Tensor = torch.Tensor
Parameter = Callable[[], Optional[Tensor]]  # a weak reference: none is kept alive
FEW = 16  # elements of a host tensor whose values are compared
_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_grad_of = TensorBase.grad.__get__
_modules: Any = torch.nn.modules.module


class Shown(NamedTuple):
    """What ran: the card's kernels, operations and allocations, and the upper bounds that stood in
    for shapes, by name.
    """

    kernels: List[Row]
    launches: int
    allocations: int
    approximations: Dict[str, int]


class Made(NamedTuple):
    """A tensor that a call returned."""

    shape: Tuple[int, ...]
    stride: Tuple[int, ...]
    offset: int
    dtype: torch.dtype
    nbytes: int  # of its storage
    needs_grad: bool

    def again(self) -> Tensor:
        made = torch.empty(self.nbytes // self.dtype.itemsize, dtype=self.dtype, device=META)
        # no view: of several outputs autograd lets no view be changed in place
        return made.as_strided_(self.shape, self.stride, self.offset)


class Call(NamedTuple):
    """A call that may repeat. `outputs`: tensors as `Made`, and all else as it was."""

    alive: int  # storages, when it began
    forward: Shown
    backward: Optional[Shown]
    outputs: List[Any]
    structure: Any
    numbers: Any  # among the arguments
    alike: int  # calls like this one, one after another, with it
    same: int  # of them, one after another, with the same numbers


class Repeats:
    """Answers calls of outermost modules for `attribution.modules.ModuleCalls`, in the thread that
    made it.
    """

    def __init__(self, gpu: ImaginaryGpu, calls: ModuleCalls, line: Callable[[], Any]) -> None:
        self._gpu = gpu
        self._calls = calls
        self._line = line
        self._thread = threading.get_ident()
        self._stretch = 0
        self._past: Dict[Any, Call] = {}
        # a forward pass with gradients whose backward pass is to come: _MicroBatch or _Again
        self._open: Any = None
        self._trained: Dict[int, Tuple[Any, Sequence[Parameter]]] = {}  # by the module's id
        self.left_out: Dict[str, LeftOut] = {}  # by `what`, as it was the latest time

    def patch(self, patches: Patches) -> None:
        self._calls.repeats, self._gpu.cards.stretch_ends = self, self.forget
        patches.undo_by(self.forget)

    def forget(self) -> None:
        """A step or a phase ends: what was seen so far says nothing of what follows."""
        self._stretch += 1
        self._past.clear()
        self._trained.clear()
        self._open = self._gpu.watch = None

    def call(
        self, module: torch.nn.Module, run: Callable[..., Any], args: Tuple, kwargs: Dict[str, Any]
    ) -> Any:
        """What `module` gives, by `run(module, *args, **kwargs)` where it has to."""
        if threading.get_ident() != self._thread or self._calls.thread.backward:
            return run(module, *args, **kwargs)
        trained = self._parameters(module) if torch.is_grad_enabled() else ()
        signature, numbers = _signature((args, kwargs)) if self._is_plain(module) else (None, None)
        if torch.is_grad_enabled() and not trained:
            return run(module, *args, **kwargs)  # a loss: its backward pass runs anyway
        if signature is None or self._open is not None:
            return self._run_apart(run, module, args, kwargs)
        had = _without_gradient(trained)
        key = (
            id(module),
            module.training,
            torch.is_inference_mode_enabled(),
            self._line(),
            signature,
            had,
        )
        past = self._past.get(key)
        if (
            past is not None
            and past.alive == len(self._gpu.storages)
            and alike_enough(past.same, past.alike, past.numbers == numbers, bool(trained))
        ):
            stretch = self._stretch
            for hook in tuple(_modules._global_forward_pre_hooks.values()):
                hook(module, args)  # the probe's, which may see that another phase begins
            if stretch == self._stretch:
                return self._again(past, type(module).__name__)
        if trained:
            self._open = _MicroBatch(self, key, trained, had)
        return self._first(key, numbers, self._open, lambda: run(module, *args, **kwargs))

    def _run_apart(
        self, run: Callable[..., Any], module: Any, args: Tuple, kwargs: Dict[str, Any]
    ) -> Any:
        """A call that does not repeat. With gradients, neither does another one of the same
        backward pass.
        """
        if torch.is_grad_enabled():
            if self._open is None:
                self._open = _MicroBatch(self, None, (), ())
            self._open.spoil()
        return run(module, *args, **kwargs)

    def _first(
        self, key: Any, numbers: Any, micro_batch: Optional[_MicroBatch], run: Callable[[], Any]
    ) -> Any:
        """Runs a call, and keeps what it showed."""
        watched, stretch = _Watched(self._gpu), self._stretch
        out = run()
        if stretch == self._stretch:
            shown, made = watched.shown(), self._outputs(out, watched)
            call = (
                None
                if shown is None or made is None
                else Call(watched.alive, shown, None, *made, numbers, 1, 1)
            )
            if micro_batch is not None:
                micro_batch.forward_ends(call, watched.first, _storages(out))
            else:
                self.keep(key, call)
        return out

    def keep(self, key: Any, call: Optional[Call]) -> None:
        """A call was this one; None: one that cannot be done again."""
        before = self._past.pop(key, None)
        if call is not None and before is not None and before[:3] == call[:3]:
            same = before.same + 1 if before.numbers == call.numbers else 1
            call = call._replace(alike=before.alike + 1, same=same)
        if call is not None:
            self._past[key] = call

    def _is_plain(self, module: Any) -> bool:
        """Whether a call does nothing that others wait for or count."""
        hooks = (
            *_modules._global_forward_pre_hooks.values(),
            *_modules._global_forward_hooks.values(),
        )
        return not (
            self._gpu.count > 1
            or self._gpu.captures.by_stream
            or C._functorch.peek_interpreter_stack() is not None
            or (torch.distributed.is_available() and torch.distributed.is_initialized())
            or module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
            or not all(hook.__module__.startswith("brimful_inside.") for hook in hooks)
        )

    def _parameters(self, module: torch.nn.Module) -> Sequence[Parameter]:
        """Those of the module that get gradients."""
        known = self._trained.get(id(module))
        if known is None or known[0]() is not module:
            trained = [
                weakref.ref(parameter)
                for parameter in module.parameters()
                if parameter.requires_grad
            ]
            known = self._trained[id(module)] = (weakref.ref(module), trained)
        return known[1]

    def _outputs(self, out: Any, watched: _Watched) -> Optional[Tuple[List[Any], Any]]:
        """What the call returned, to be made again; None where it is more than new tensors and
        plain values.
        """
        leaves, structure = _pytree.tree_flatten(out)
        outputs: List[Any] = []
        storages: Set[int] = set()
        with torch._C.DisableTorchFunction():
            for leaf in leaves:
                if isinstance(leaf, _PLAIN):
                    outputs.append(leaf)
                    continue
                plain = type(leaf) is Tensor and is_meta(leaf)
                entry = entry_of(self._gpu.storages, leaf) if plain else None
                if (
                    entry is None
                    or entry.id <= watched.first
                    or entry.key in storages
                    or entry.values is not None
                    or entry.most is not None
                    or entry.at_most
                    or entry.known_true
                ):
                    return None
                storages.add(entry.key)
                layout = tuple(leaf.shape), leaf.stride(), int(leaf.storage_offset())
                outputs.append(Made(*layout, leaf.dtype, entry.nbytes, leaf.requires_grad))
        return outputs, structure

    def _again(self, past: Call, name: str) -> Any:
        """A call like `past` of a module of that class, which runs nothing."""
        gpu = self._gpu
        self._note(past, name)
        _play(gpu, past.forward)
        if past.backward is None:
            outputs = [each.again() if isinstance(each, Made) else each for each in past.outputs]
        else:
            self._open = again = _Again(gpu, past.outputs, past.backward)
            token = torch.empty((), device="cpu", requires_grad=True)
            made = iter(_Repeated.apply(token, again))  # type: ignore[arg-type]
            outputs = [next(made) if isinstance(each, Made) else each for each in past.outputs]
        return _pytree.tree_unflatten(outputs, past.structure)

    def _note(self, past: Call, name: str) -> None:
        kernels, what = len(past.forward.kernels), "forward passes of %s" % name
        if past.backward is not None:
            kernels, what = kernels + len(past.backward.kernels), "micro-batches of %s" % name
        before = self.left_out.get(what, LeftOut(what, 0, 0)).left_out or 0
        self.left_out[what] = LeftOut(what, past.alike, before + 1, kernels)

    def backward(self, begins: bool, plain: bool) -> None:
        """An outermost backward pass begins or ends. `plain`: all gradients, once, to where the
        parameters keep them.
        """
        if self._open is not None and threading.get_ident() == self._thread:
            if begins:
                self._open.backward_begins(plain)
            else:
                opened, self._open = self._open, None
                opened.backward_ends()


class _Watched:
    """What runs between two moments."""

    def __init__(self, gpu: ImaginaryGpu) -> None:
        self._gpu = gpu
        self._mark, self._launches = gpu.clock.mark(), gpu.ledger.work.launches
        self._read_before, gpu.known.oldest_read = gpu.known.oldest_read, math.inf
        self._approximations = dict(gpu.approximations)
        self.first, self.alive = gpu.ledger.allocations, len(gpu.storages)

    def shown(self) -> Optional[Shown]:
        """None where a known value was read that was there before: it may have been another's."""
        gpu, read = self._gpu, self._gpu.known.oldest_read
        gpu.known.oldest_read = min(read, self._read_before)
        if read <= self.first:
            return None
        counted = {
            name: n - self._approximations.get(name, 0) for name, n in gpu.approximations.items()
        }
        return Shown(
            gpu.clock.since(self._mark),
            gpu.ledger.work.launches - self._launches,
            gpu.ledger.allocations - self.first,
            counted,
        )


class _MicroBatch:
    """A forward pass with gradients, and the backward pass that follows."""

    def __init__(
        self, repeats: Repeats, key: Any, trained: Sequence[Parameter], had: Tuple[bool, ...]
    ) -> None:
        self._repeats = repeats
        self._gpu = repeats._gpu
        self._key = key
        self._trained = trained
        self._had = had
        self._call: Optional[Call] = None
        self._spoiled = any(_is_watched(parameter()) for parameter in trained)
        self._seen: Optional[_Watched] = None
        self._inside: Tuple[int, int] = (0, 0)
        self._outputs: Set[int] = set()

    def forward_ends(self, call: Optional[Call], first: int, outputs: Set[int]) -> None:
        if self._spoiled:
            return
        self._call = call
        self._inside, self._outputs = (first, self._gpu.ledger.allocations), outputs
        if call is not None:
            self._gpu.watch = self._look

    def _look(self, args: Tuple, kwargs: Dict[str, Any]) -> None:
        """An operation runs before the backward pass: does it use what the module made and did not
        return?
        """
        first, last = self._inside
        for tensor in tensors_in(args, kwargs):
            entry = entry_of(self._gpu.storages, tensor)
            if entry is not None and first < entry.id <= last and entry.key not in self._outputs:
                self.spoil()
                return

    def spoil(self) -> None:
        """This one cannot be done again."""
        self._spoiled, self._call, self._gpu.watch = True, None, None

    def backward_begins(self, plain: bool) -> None:
        self._gpu.watch = None
        if plain and self._call is not None:
            self._seen = _Watched(self._gpu)

    def backward_ends(self) -> None:
        shown = self._seen.shown() if self._seen is not None else None
        same = shown is not None and self._had == _without_gradient(self._trained)
        self._repeats.keep(
            self._key,
            self._call._replace(backward=shown) if self._call is not None and same else None,
        )


class _Again:
    """A micro-batch that runs nothing."""

    def __init__(self, gpu: ImaginaryGpu, outputs: List[Any], shown: Shown) -> None:
        self._gpu = gpu
        self._shown = shown
        self._mark: Optional[int] = None
        self.outputs = [each for each in outputs if isinstance(each, Made)]

    def backward_begins(self, plain: bool) -> None:
        self._mark = self._gpu.clock.mark()

    def module_begins(self) -> None:
        """What the script computed of the outputs has gone backward, kernel by kernel. The rest was
        of the module.
        """
        if self._mark is not None:
            done, self._mark = len(self._gpu.clock.since(self._mark)), None
            _play(self._gpu, self._shown._replace(kernels=self._shown.kernels[done:]))

    def backward_ends(self) -> None:
        pass

    def spoil(self) -> None:
        pass


class _Repeated(torch.autograd.Function):
    """New tensors in place of a module's outputs; what is asked of their gradients ends here."""

    @staticmethod
    def forward(ctx: Any, token: Tensor, again: _Again) -> Tuple[Tensor, ...]:
        ctx.again = again
        ctx.set_materialize_grads(False)
        made = [each.again() for each in again.outputs]
        ctx.mark_non_differentiable(
            *[tensor for tensor, each in zip(made, again.outputs) if not each.needs_grad]
        )
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Tuple[None, None]:
        ctx.again.module_begins()
        return None, None


def _without_gradient(trained: Sequence[Parameter]) -> Tuple[bool, ...]:
    """Of each parameter whether it has none."""
    return tuple(
        [
            parameter is None or _grad_of(parameter) is None
            for parameter in [each() for each in trained]
        ]
    )


def _is_watched(parameter: Any) -> bool:
    """Whether somebody waits for its gradient."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def _play(gpu: ImaginaryGpu, shown: Shown) -> None:
    gpu.ledger.work.launches += shown.launches
    gpu.clock.again(shown.kernels)
    for name, count in shown.approximations.items():
        gpu.approximations[name] += count


def _storages(out: Any) -> Set[int]:
    return {
        leaf.untyped_storage()._cdata
        for leaf in _pytree.tree_leaves(out)
        if type(leaf) is Tensor and leaf.layout == torch.strided
    }


def _signature(value: Any) -> Tuple[Any, Any]:
    """What decides how a call runs, and the numbers among it by themselves; None where that does
    not show.
    """
    numbers: List[Any] = []
    with torch._C.DisableTorchFunction():
        try:
            signature = _of(value, numbers)
            hash(signature)
        except (_Unknown, TypeError):
            return None, None
    return signature, numbers


class _Unknown(Exception):
    """An argument of a kind whose effect is not known."""


def _of(value: Any, numbers: List[Any]) -> Any:
    kind = type(value)
    if kind is Tensor:
        if value.requires_grad or value.layout != torch.strided:
            raise _Unknown  # gradients go on beyond the module
        if not is_meta(value):
            if value.numel() > FEW:
                raise _Unknown
            numbers.append(repr(value.tolist()))
        return tuple(value.shape), value.stride(), value.dtype, is_meta(value)
    if kind in (list, tuple):
        return (kind, *[_of(item, numbers) for item in value])
    if isinstance(value, dict):
        return (kind, *[(name, _of(item, numbers)) for name, item in value.items()])
    if kind in (int, float):
        numbers.append(repr(value))
        return kind
    if kind in _PLAIN:
        return value
    raise _Unknown
