"""Gradient checkpointing of any model: its repeated blocks keep their input alone, and are computed
once more for the backward.

Chen et al. 2016, arXiv 1604.06174. The blocks' class is changed in place (as FSDP2 does it): names
of parameters, keys of state dicts and hooks stay as they are. Under PyTorch's
apply_activation_checkpointing, which wraps each block, batch normalization moves its statistics
twice (seen in torch 2.13).
"""

import functools
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

_DONE = "_computed_again"  # stands in the classes made here
_CONTAINERS = (nn.Sequential, nn.ModuleList)
# assumed: one block alone would be computed twice and save nothing, as its activations are all back
# at once
_FEWEST = 2
_FEWEST_LAYERS = 4  # assumed: a plain Sequential with fewer has no two stretches of two layers


def checkpoint_blocks(model: nn.Module) -> str | None:
    """Changes `model` in place and returns which blocks it found; None where there are none.

    The blocks are the children of the longest Sequential or ModuleList, and all others of their
    class that stand in one. A model whose longest container holds plain layers (a Sequential of
    convolutions) is cut into √n stretches of layers. Only forwards in training mode with gradients
    are concerned. Random numbers are drawn again as they were, and buffers that a block changes
    (running statistics of batch normalization) are changed once.
    """
    blocks = _blocks(model)
    if len(blocks) >= _FEWEST:
        names = ", ".join(
            f"{count} × {kind}"
            for kind, count in Counter(type(block).__name__ for block in blocks).items()
        )
        for block in blocks:
            if not hasattr(block, _DONE):  # by a training before this one, say
                block.__class__ = _checkpointed(type(block), in_stretches=False)
        return f"{names}, each computed again in the backward pass"
    longest = max(
        (m for m in model.modules() if isinstance(m, nn.Sequential)), key=len, default=None
    )
    stretches = _stretches(longest) if longest is not None else []
    if longest is None or len(stretches) < _FEWEST:
        return None
    if not hasattr(longest, _DONE):
        longest.__class__ = _checkpointed(type(longest), in_stretches=True)
    return (
        f"a Sequential of {len(longest)} layers in {len(stretches)} stretches, each computed "
        "again in the backward pass"
    )


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks, none within another."""
    containers = [module for module in model.modules() if isinstance(module, _CONTAINERS)]
    longest = max(containers, key=lambda container: len(_block_children(container)), default=None)
    if longest is None:
        return []
    blocks = dict.fromkeys(_block_children(longest))
    kinds = {type(block) for block in blocks} - {nn.Sequential}  # any Sequential would be one
    for container in containers:
        blocks.update(
            dict.fromkeys(child for child in _block_children(container) if type(child) in kinds)
        )
    within = {id(inner) for block in blocks for inner in block.modules() if inner is not block}
    return [block for block in blocks if id(block) not in within]


def _block_children(container: nn.Module) -> list[nn.Module]:
    """Children made of several layers that can be called and leave their input as it is."""
    return [
        child
        for child in container.children()
        if any(True for _ in child.children())
        and type(child).forward is not nn.Module.forward
        and not _in_place(child)
    ]


def _in_place(module: nn.Module) -> bool:
    """Whether its first layer overwrites its input, which then could not be computed with once
    more.
    """
    first = next(m for m in module.modules() if not any(True for _ in m.children()))
    return bool(getattr(first, "inplace", False))


def _stretches(layers: nn.Sequential) -> list[list[nn.Module]]:
    """√n stretches of layers, none of which begins with a layer that overwrites its input."""
    count = math.isqrt(len(layers))
    if len(layers) < _FEWEST_LAYERS:
        return []
    bounds = {round(number * len(layers) / count) for number in range(count)}
    stretches: list[list[nn.Module]] = []
    due = False
    for number, layer in enumerate(layers):
        due = due or number in bounds
        if not stretches or (due and not _in_place(layer)):
            stretches.append([])
            due = False
        stretches[-1].append(layer)
    return stretches


@functools.cache
def _checkpointed(kind: Any, in_stretches: bool) -> Any:
    """A subclass of `kind` whose forward keeps its input alone, or the inputs of its stretches of
    layers.
    """

    @functools.wraps(kind.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and torch.is_grad_enabled()):
            return kind.forward(self, *args, **kwargs)
        if not in_stretches:
            return _run([self], functools.partial(kind.forward, self, **kwargs), *args)
        (input,) = (*args, *kwargs.values())  # Sequential takes one
        for stretch in _stretches(self):
            input = _run(stretch, functools.partial(_through, stretch), input)
        return input

    return type(
        f"Checkpointed{kind.__name__}",
        (kind,),
        {"forward": forward, "__module__": kind.__module__, _DONE: True},
    )


def _through(layers: list[nn.Module], input: Any) -> Any:
    for layer in layers:
        input = layer(input)
    return input


def _run(modules: list[nn.Module], function: Any, *args: Any) -> Any:
    if (
        torch.compiler.is_compiling()
    ):  # its graphs hold each change of a buffer once, and no context of one's own
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=True)
    holders = [
        m
        for module in modules
        for m in module.modules()
        if any(b is not None for b in m._buffers.values())
    ]
    contexts = functools.partial(_contexts, holders) if holders else noop_context_fn
    return checkpoint(
        function, *args, use_reentrant=False, preserve_rng_state=True, context_fn=contexts
    )


def _contexts(
    holders: list[nn.Module],
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    changed: list[tuple[nn.Module, str]] = []
    return _noting(holders, changed), _Sparing(changed)


@contextmanager
def _noting(holders: list[nn.Module], changed: list[tuple[nn.Module, str]]) -> Iterator[None]:
    """Around the forward: which buffers it changes."""
    slots = [
        (holder, name, buffer)
        for holder in holders
        for name, buffer in holder._buffers.items()
        if buffer is not None
    ]
    before = [buffer._version for _, _, buffer in slots]
    yield
    for (holder, name, buffer), version in zip(slots, before, strict=True):
        # Batch normalization changes its running statistics without raising their version (seen in
        # torch 2.13).
        known = isinstance(holder, nn.modules.batchnorm._NormBase)
        if known or buffer._version != version or holder._buffers[name] is not buffer:
            changed.append((holder, name))


class _Sparing(AbstractContextManager[None]):
    """Around the second computation: what it changes are copies. Entered once for each backward
    that goes through the block, of which a gradient penalty makes two."""

    def __init__(self, changed: list[tuple[nn.Module, str]]) -> None:
        self._changed = changed
        self._kept: list[tuple[nn.Module, str, torch.Tensor | None]] = []

    def __enter__(self) -> None:
        self._kept = [(holder, name, holder._buffers[name]) for holder, name in self._changed]
        for holder, name, buffer in self._kept:
            holder._buffers[name] = None if buffer is None else buffer.clone()

    def __exit__(self, *error: object) -> None:
        for holder, name, buffer in self._kept:
            holder._buffers[name] = buffer
        self._kept = []
