"""Optimizer steps: each update counted once, however its optimizer is wrapped; skipped ones, and
those in CUDA graphs.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

import torch

from brimful_inside.probe.context import call_probe, guarded, patch
from brimful_inside.wire import OptimizerSeen

BY_HAND = "no optimizer"  # the name under which steps without one of torch.optim are reported
# backward passes while the process has no optimizer: each counts as a step from then on
BY_HAND_AFTER = 2
# reported one by one; a script with one optimizer a parameter (backward-fused updates) has hundreds
MAX_OPTIMIZERS = 16


class _Call(NamedTuple):
    """One call of step() that is under way."""

    optimizer: Any
    frame: Any
    record: Optional[Stepped]  # None inside another optimizer's step


class Stepped:
    """One optimizer that stepped, not inside another's step."""

    def __init__(self, optimizer: Any, on_death: Callable[[Any], Any]):
        self.optimizer = weakref.ref(optimizer, on_death)
        self.kind = type(optimizer).__name__
        self.inner: List[str] = []  # class names of those it calls
        self.steps = 0
        self.skipped = 0
        self.parameters = 0
        self.uses_closure = False
        self.relative_steps = False
        self.made_with: Any = None
        self.device: Any = None  # of its first parameter
        self.first_rates: Optional[List[Any]] = None
        self.rates: List[Any] = []
        self.scheduled: List[Dict[str, Any]] = []  # what schedulers wrote into the groups

    @property
    def groups(self) -> List[Any]:
        return getattr(self.optimizer(), "param_groups", [])

    def begin_step(self, optimizer: Any, uses_closure: bool) -> None:
        self.uses_closure = self.uses_closure or uses_closure
        groups = optimizer.param_groups
        self.rates = [_kept(group["lr"]) for group in groups if group.get("lr") is not None]
        if self.first_rates is None:
            self.first_rates = self.rates
            self.made_with = (getattr(optimizer, "defaults", None) or {}).get("lr")
            self.relative_steps = any(group.get("relative_step") is True for group in groups)
            self.scheduled = [{k: g[k] for k in ("initial_lr", "max_lr") if k in g} for g in groups]
            self.device = next((p.device for group in groups for p in group["params"]), None)
            self.parameters = sum(p.numel() for group in groups for p in group["params"])

    def read(self, waits: bool) -> OptimizerSeen:
        """With `waits`, rates that lie on a device are read too, which waits for it."""
        return OptimizerSeen(
            name=self.inner[0] if len(set(self.inner)) == 1 else self.kind,
            steps=self.steps,
            parameters=self.parameters,
            learning_rates=_numbers(self.rates, waits),
            first_learning_rates=_numbers(self.first_rates or [], waits),
            uses_closure=self.uses_closure,
            initial_learning_rates=_numbers(
                [g["initial_lr"] for g in self.scheduled if "initial_lr" in g], waits
            ),
            max_learning_rates=_numbers(
                [g["max_lr"] for g in self.scheduled if "max_lr" in g], waits
            ),
            relative_steps=self.relative_steps,
            made_with=float(self.made_with) if isinstance(self.made_with, (int, float)) else None,
        )


class _Hand:
    """Stands for the script's own lines that change weights."""

    param_groups: Tuple[Any, ...] = ()


# all there are: Python's collector lists none that was set aside (gc.freeze)
_optimizers: Any = weakref.WeakSet()


def patch_optimizers() -> None:
    for name in ("__init__", "__setstate__"):
        patch(torch.optim.Optimizer, name, _note_optimizer)


def _note_optimizer(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    _optimizers.add(optimizer)
    original(optimizer, *args, **kwargs)


def is_to_be_trained(module: Any) -> bool:
    """Whether an optimizer, which need not have stepped yet, holds a parameter of `module`."""
    return _hold((getattr(optimizer, "param_groups", []) for optimizer in _optimizers), module)


def gradients_of_no_optimizer(modules: Iterable[Tuple[Any, str]]) -> Dict[str, int]:
    """Bytes on the card of gradients whose weights no optimizer holds, by the name of their module.
    {} where optimizers hold weights of no module, as copies in another format are."""
    held = {
        id(parameter)
        for optimizer in _optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    found: Dict[str, int] = {}
    owned = {id(p): (p, name) for module, name in modules for p in module.parameters()}
    with torch._C.DisableTorchFunction():
        for number, (parameter, name) in owned.items():
            gradient = parameter.grad
            if number not in held and gradient is not None and gradient.is_meta:
                nbytes = gradient.numel() * gradient.element_size()
                found[name] = found.get(name, 0) + nbytes
    return found if held and held <= owned.keys() else {}


def _hold(groups: Iterable[List[Any]], module: Any) -> bool:
    parameters = {id(p) for p in module.parameters()}
    return any(
        id(p) in parameters for of_one in groups for group in of_one for p in group["params"]
    )


class Steps:
    """Counts steps. `on_begin()` runs before an outermost step, `on_step(number)` after each one of
    the pace-setter, which is the optimizer that stepped first, `on_other_step(record)` after
    those of other optimizers."""

    def __init__(
        self,
        on_begin: Callable[[], None],
        on_step: Callable[[int], None],
        on_skip: Callable[[], None],
        on_other_step: Callable[[Stepped], None],
    ):
        self._on_begin = on_begin
        self._on_step = on_step
        self._on_skip = on_skip
        self._on_other_step = on_other_step
        self.records: List[Stepped] = []
        self._alive: Dict[
            int, Stepped
        ] = {}  # by the optimizer's id, until it dies: the script's memory is not kept alive
        # module -> whether an optimizer holds a parameter of it
        self._trained: Any = weakref.WeakKeyDictionary()
        self._calls = threading.local()
        # steps of the CUDA graph whose capture is under way: none is made
        self.captured: Optional[List[Stepped]] = None
        self.pace: Optional[Stepped] = None
        self.hooks_run = 0
        self._hand: Optional[_Hand] = None
        self._is_by_hand = False  # the step that is under way

    @property
    def count(self) -> int:
        return self.pace.steps if self.pace is not None else 0

    @property
    def attempts(self) -> int:
        """Steps that the script called for: those made, and those that a GradScaler skipped."""
        if self.pace is not None:
            return self.pace.steps + self.pace.skipped
        return max((record.skipped for record in self.records), default=0)

    @property
    def stepping(self) -> bool:
        """A step is under way in this thread (a closure's forward and backward run inside it)."""
        return bool(getattr(self._calls, "stack", None))

    def before(self, optimizer: Any, args: Any, kwargs: Any, frame: Any) -> None:
        """`frame` is that of the call: it distinguishes a call that an exception ended from one
        around this one.
        """
        stack = self._stack()
        if stack and not _is_running(stack[-1].frame):
            del stack[:]  # an exception left that step, and its post-hook never came
        if stack:
            outer, name = stack[0].record, type(optimizer).__name__
            if (
                outer is not None
                and optimizer is not stack[0].optimizer
                and name not in outer.inner
            ):
                outer.inner.append(name)
            stack.append(_Call(optimizer, frame, None))
            return
        record = self._of(optimizer)
        stack.append(_Call(optimizer, frame, record))
        record.begin_step(optimizer, callable(args[1] if len(args) > 1 else kwargs.get("closure")))
        self._on_begin()

    def after(self, optimizer: Any) -> None:
        stack = self._stack()
        self.hooks_run += 1
        while stack:
            call = stack.pop()
            if call.optimizer is optimizer:
                break
        else:
            return
        if stack or call.record is None:
            return
        if self.captured is not None:
            self.captured.append(call.record)
        else:
            self.made(call.record)

    def made(self, record: Stepped, again: bool = False) -> None:
        """A step is complete; `again`: a replay of a CUDA graph made one that was captured."""
        if again:
            self._on_begin()
        record.steps += 1
        self.pace = self.pace or record
        if record is self.pace:
            self._on_step(record.steps)
        else:
            self._on_other_step(record)

    def are_by_hand(self, backward_passes: int, device: Any) -> bool:
        """After a backward pass: whether the script changes its weights without an optimizer of
        torch.optim. PyTorch's word_language_model does.
        """
        if backward_passes == BY_HAND_AFTER and not self.records and not _optimizers:
            self._hand = _Hand()
            record = self._of(self._hand)
            record.kind, record.device = BY_HAND, device
        self._is_by_hand = self._hand is not None
        return self._is_by_hand

    def end_by_hand(self) -> None:
        """The first sign of what comes after a backward pass: by now the weights have changed."""
        if self._is_by_hand:
            self._is_by_hand = False
            self.made(self._of(self._hand), again=True)

    def skipped(self, optimizer: Any) -> None:
        """The script called a GradScaler's step, which made none."""
        self._of(optimizer).skipped += 1
        self._on_skip()

    def read(self, waits: bool = False) -> List[OptimizerSeen]:
        return [record.read(waits) for record in self.records[:MAX_OPTIMIZERS]]

    def trains(self, module: Any) -> bool:
        """Whether an optimizer that stepped holds a parameter of `module`. True while none has
        stepped.
        """
        if not self._alive:
            return True
        known = self._trained.get(module)
        if known is None:
            groups = (record.groups for record in self._alive.values())
            known = self._trained[module] = _hold(groups, module)
        return known

    def _of(self, optimizer: Any) -> Stepped:
        key = id(optimizer)
        record = self._alive.get(key)
        if record is None:
            record = self._alive[key] = Stepped(optimizer, lambda _: self._alive.pop(key, None))
            self.records.append(record)
            self._trained.clear()
        return record

    def _stack(self) -> List[_Call]:
        return self._calls.__dict__.setdefault("stack", [])


def _is_running(frame: Any) -> bool:
    here: Any = sys._getframe(1)
    while here is not None and here is not frame:
        here = here.f_back
    return here is not None


def _numbers(rates: List[Any], waits: bool) -> List[float]:
    return [
        float(rate)
        for rate in rates
        if waits or not hasattr(rate, "device") or rate.device.type == "cpu"
    ]


def _kept(rate: Any) -> Any:
    """A learning rate as it is now: a tensor changes in place later, so it is copied (its value is
    read at the end).
    """
    return rate.detach().clone() if hasattr(rate, "detach") else rate


class CapturedSteps:
    """CUDA graphs: a captured step is made at every replay, and not when it was captured."""

    def __init__(self, steps: Steps, on_capture: Callable[[], None], on_replay: Callable[[], None]):
        self._steps = steps
        self._on_capture = on_capture
        self._on_replay = on_replay
        # graph -> the optimizers whose steps it holds
        self._taken: Any = weakref.WeakKeyDictionary()

    @guarded
    def capture_begin(self, graph: Any) -> None:
        self._steps.captured = []

    @guarded
    def capture_end(self, graph: Any) -> None:
        taken, self._steps.captured = self._steps.captured, None
        if taken:
            self._taken[graph] = taken
            self._on_capture()

    @guarded
    def capture_failed(self, graph: Any) -> None:
        self._steps.captured = None

    @guarded
    def replay(self, graph: Any) -> None:
        taken: List[Stepped] = self._taken.get(graph) or []
        if taken:
            self._on_replay()
            for record in taken:
                self._steps.made(record, again=True)


def patch_graphs() -> None:
    """The methods of torch.cuda.CUDAGraph, PyTorch's own or an imaginary card's."""
    for name in ("capture_begin", "capture_end", "replay"):
        patch(torch.cuda.CUDAGraph, name, functools.partial(_graph_method, name))


def _graph_method(name: str, original: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        result = original(graph, *args, **kwargs)
    except BaseException:
        if name == "capture_end":
            call_probe("captured.capture_failed", graph)
        raise
    call_probe("captured." + name, graph)
    return result
