"""What if the script did something otherwise: switched from outside, in a trial on the imaginary
card alone.

autocast       the forward passes, and what follows up to the backward pass (the loss), run under
               torch.autocast
checkpointing  blocks that repeat are run under torch.utils.checkpoint in training
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

import torch
import torch.utils.checkpoint
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_map

from brimful_inside.imaginary.attribution.modules import ModuleCalls
from brimful_inside.imaginary.state.patches import Patches

WHAT_IFS = ("autocast", "checkpointing")

Module = torch.nn.Module
Call = Callable[..., Any]
Uses = Callable[[str], None]  # writes what is used into the trace


def patch_what_if(
    name: str, dtype: Callable[[], torch.dtype], calls: ModuleCalls, uses: Uses, patches: Patches
) -> None:
    """Switches `name` on, one of WHAT_IFS; `dtype`: that of autocast on the card."""
    if name == "autocast":
        Autocast(calls, dtype, patches)
    else:
        Checkpointing(calls, uses)


def lower_precision(capability: Any) -> torch.dtype:
    """bfloat16 where the card computes in it (capability 8.0 and later), else float16."""
    return torch.bfloat16 if tuple(capability) >= (8, 0) else torch.float16


class Autocast:
    """As a script would write it: model and loss under autocast, the backward pass outside. Not
    where it is on already."""

    def __init__(self, calls: ModuleCalls, dtype: Callable[[], torch.dtype], patches: Patches):
        self._calls = calls
        self._dtype = dtype
        self._open = threading.local()
        calls.on_outermost.append(self._outermost)
        calls.on_backward.append(lambda begins: self._close() if begins else None)
        calls.put_around(self._around)
        patches.undo_by(
            register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: self._close()).remove
        )
        self._end_inside_others(patches)
        patches.undo_by(self._close)

    def _outermost(self, module: Module, begins: bool) -> None:
        if begins and torch.is_grad_enabled() and not torch.is_autocast_enabled("cuda"):
            self._open.context = torch.autocast("cuda", dtype=self._dtype())
            self._open.context.__enter__()
            self._open.depth = _autocast_depth()

    def _close(self) -> None:
        context = getattr(self._open, "context", None)
        if context is not None:
            self._open.context = None
            context.__exit__(None, None, None)

    def _end_inside_others(self, patches: Patches) -> None:
        """Where the script leaves a context that ours was opened in (`autocast(enabled=args.amp)`),
        ours ends before it."""
        leave = torch.amp.autocast_mode.autocast.__exit__

        @patches.function(torch.amp.autocast_mode.autocast)
        def __exit__(context: Any, *error: Any) -> Any:
            if (
                getattr(self._open, "context", None) is not None
                and _autocast_depth() == self._open.depth
            ):
                self._close()
            return leave(context, *error)

    def _around(self, module: Module, call: Call, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        """Where no backward pass follows, the outermost call alone is wrapped; its results come in
        float32, as Accelerate's."""
        if (
            len(self._calls.thread.stack) > 1
            or torch.is_grad_enabled()
            or torch.is_autocast_enabled("cuda")
        ):
            return call(module, *args, **kwargs)
        with torch.autocast("cuda", dtype=self._dtype()):
            return tree_map(self._in_float32, call(module, *args, **kwargs))

    def _in_float32(self, value: Any) -> Any:
        return (
            value.float()
            if isinstance(value, torch.Tensor) and value.dtype == self._dtype()
            else value
        )


def _autocast_depth() -> int:
    """How many contexts of autocast are open in this thread."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


class Checkpointing:
    """A model's own gradient checkpointing where it has one (Hugging Face's, timm's), else its
    blocks that repeat."""

    def __init__(self, calls: ModuleCalls, uses: Uses):
        self._calls = calls
        self._uses = uses
        self._seen: Set[int] = set()
        self._blocks: Dict[int, Module] = {}
        self._inside = threading.local()
        calls.on_outermost.append(self._outermost)
        calls.put_around(self._around)

    def _outermost(self, module: Module, begins: bool) -> None:
        trains = module.training and torch.is_grad_enabled() and not self._calls.thread.backward
        if not begins or not trains or id(module) in self._seen:
            return
        self._seen.add(id(module))
        call = _own_switch(module)
        if call:
            self._uses("what_if: own %s" % call)
            return
        for path, children in blocks_that_repeat(module):
            self._blocks.update((id(child), child) for child in children)
            self._uses("what_if: %d blocks of %s" % (len(children), path or type(module).__name__))

    def _around(self, module: Module, call: Call, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        inside = self._inside.__dict__.setdefault("blocks", set())
        is_block = self._blocks.get(id(module)) is module and id(module) not in inside
        if not is_block or not module.training or not torch.is_grad_enabled():
            return call(module, *args, **kwargs)

        def run(*args: Any, **kwargs: Any) -> Any:
            # called anew, so that the pass that is done again has its place as well
            inside.add(id(module))
            try:
                return module(*args, **kwargs)
            finally:
                inside.discard(id(module))

        return torch.utils.checkpoint.checkpoint(run, *args, use_reentrant=False, **kwargs)


def _own_switch(root: Module) -> str:
    """Switches a model's own gradient checkpointing on: the call that a script would write; ""
    where there is none."""
    for module in root.modules():
        part: Any = module
        if getattr(part, "supports_gradient_checkpointing", False) and hasattr(
            part, "gradient_checkpointing_enable"
        ):
            part.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
            return "model.gradient_checkpointing_enable()"
        if hasattr(type(part), "set_grad_checkpointing"):
            try:
                part.set_grad_checkpointing(True)
            except AssertionError:  # timm's way to say that this model has none
                continue
            return "model.set_grad_checkpointing()"
    return ""


def blocks_that_repeat(root: Module) -> Iterator[Tuple[str, List[Module]]]:
    """Lists of modules with two or more of one class that have parts of their own, the innermost:
    their paths and those."""
    lists: List[Tuple[str, List[Module]]] = []
    for path, module in root.named_modules():
        if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
            parts = [
                child for child in module.children() if next(child.children(), None) is not None
            ]
            counts = Counter(type(child) for child in parts)
            blocks = [
                child
                for child in parts
                if counts[type(child)] > 1 and next(child.parameters(), None) is not None
            ]
            if blocks:
                lists.append((path, blocks))
    for path, blocks in lists:
        prefix = path + "." if path else ""
        if not any(other != path and other.startswith(prefix) for other, _ in lists):
            yield path, blocks
