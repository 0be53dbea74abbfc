"""What a flag can do to any model: gradient checkpointing, torch.compile, CUDA graphs, channels
last.

All are done in place: names of parameters and keys of state dicts stay as they are.

Gradient checkpointing (Chen et al. 2016, arXiv 1604.06174): repeated blocks keep their input alone,
and are computed once more for the backward. The blocks' class is changed (as FSDP2 does it), so
that hooks stay as they are too. Under PyTorch's apply_activation_checkpointing, which wraps each
block, batch normalization moves its statistics twice (seen in torch 2.13).
"""

import functools
import inspect
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from brimful.errors import UsageError
from brimful.values import EffectiveSetting
from brimful_train.config import Config

# These two stand in the classes made here.
_DONE = "_computed_again"
_PLAIN = "_before_compiling"
_CONTAINERS = (nn.Sequential, nn.ModuleList)
# assumed: one block alone would be computed twice and save nothing, as its activations are all back
# at once
_FEWEST = 2
_FEWEST_LAYERS = 4  # assumed: a plain Sequential with fewer has no two stretches of two layers
# A model's own way to do it and how its settings are called: transformers' of today, and of before
# 5.
_OWN_WAYS = {
    "activation_checkpointing_enable": "activation_checkpointing_kwargs",
    "gradient_checkpointing_enable": "gradient_checkpointing_kwargs",
}


def apply_model_options(
    model: nn.Module,
    config: Config,
    device: torch.device,
    *,
    shapes_alike: bool = True,
    ranks: int = 1,
) -> list[EffectiveSetting]:
    """Applies the options to `model`, which is on `device` and not yet wrapped, and returns what is
    in force.

    shapes_alike: all batches have the same shape but for their first dimension; False lets
    torch.compile make sizes variable. Raises UsageError for what the device or the machine cannot
    do.
    """
    if config.cuda_graphs and device.type != "cuda":
        raise UsageError(
            f"config.cuda_graphs = True on the device {device}",
            "CUDA graphs are recorded by a CUDA card.",
            "Train without CUDA graphs, or on a card.",
        )
    if config.cuda_graphs and config.parallel == "fsdp2" and ranks > 1:
        raise UsageError(
            "config.cuda_graphs = True and config.parallel = 'fsdp2'",
            "FSDP2's forward calls other ranks and moves its parameters, which a recording "
            "cannot follow.",
            "Choose one of the two.",
        )
    rows: list[EffectiveSetting] = []
    if config.channels_last:
        rows.append(_channels_last(model, sharded=config.parallel == "fsdp2" and ranks > 1))
    if config.cudnn_benchmark:
        rows.append(_benchmark(device, shapes_alike))
    if config.gradient_checkpointing:
        rows.append(_checkpoint(model))
    if config.compile or config.cuda_graphs:
        rows.append(_compile(model, device, shapes_alike, config.cuda_graphs))
    return rows


def _channels_last(model: nn.Module, sharded: bool) -> EffectiveSetting:
    """Weights of convolutions alone, each in the format of its dimensions (`model.to` fails on a
    model that has both).
    """
    if sharded:
        return EffectiveSetting(
            "channels_last", True, False, "FSDP2 shards parameters in PyTorch's own order alone"
        )
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    layers = [
        m
        for m in model.modules()
        if isinstance(m, nn.modules.conv._ConvNd) and m.weight.ndim in formats
    ]
    for layer in layers:
        layer.weight.data = layer.weight.data.contiguous(memory_format=formats[layer.weight.ndim])
    if not layers:
        return EffectiveSetting(
            "channels_last", True, False, "the model has no convolution of two or three dimensions"
        )
    return EffectiveSetting(
        "channels_last",
        True,
        True,
        f"weights of {len(layers)} convolutions, which activations follow",
    )


def _benchmark(device: torch.device, shapes_alike: bool) -> EffectiveSetting:
    """Of the process: `fit` puts it back at its end."""
    if device.type != "cuda":
        why = f"cuDNN computes on CUDA cards, and this is {device.type}"
    elif not shapes_alike:
        why = "sizes vary, and each new shape would be searched anew"
    else:
        torch.backends.cudnn.benchmark = True
        return EffectiveSetting(
            "cudnn_benchmark", True, True, "the fastest kernel of each shape, searched at its first"
        )
    return EffectiveSetting("cudnn_benchmark", True, False, why)


def _checkpoint(model: nn.Module) -> EffectiveSetting:
    refused = ""
    for name, settings in _OWN_WAYS.items():
        enable = getattr(model, name, None)
        if not callable(enable):
            continue
        try:  # with the non-reentrant kind, where the model lets one choose
            enable(
                **{settings: {"use_reentrant": False}}
                if settings in inspect.signature(enable).parameters
                else {}
            )
            return EffectiveSetting(
                "gradient_checkpointing", True, True, f"{type(model).__name__}'s own"
            )
        except (
            ValueError,
            NotImplementedError,
        ) as error:  # transformers' word for a class without support
            refused = f"; its own way refused: {str(error).splitlines()[0]}"
            break
    blocks = checkpoint_blocks(model)
    if blocks is None:
        none = (
            "no repeated blocks: no Sequential or ModuleList with two of several layers, nor a "
            "Sequential of four layers"
        )
        return EffectiveSetting("gradient_checkpointing", True, False, none + refused)
    return EffectiveSetting("gradient_checkpointing", True, True, blocks + refused)


def _compile(
    model: nn.Module, device: torch.device, shapes_alike: bool, graphs: bool
) -> EffectiveSetting:
    _check_compiler(device)
    # what it was before a training before this one
    plain = getattr(type(model), _PLAIN, type(model))
    model.__class__ = _compiled(
        plain, False if shapes_alike else None, "reduce-overhead" if graphs else None
    )
    sizes = (
        "each further batch size is compiled anew"
        if shapes_alike
        else "sizes that vary become variables"
    )
    name, how = ("cuda_graphs", "; replayed as CUDA graphs") if graphs else ("compile", "")
    return EffectiveSetting(name, True, True, f"compiled at the first batch; {sizes}{how}")


def _compiled(kind: type[nn.Module], dynamic: bool | None, mode: str | None) -> type[nn.Module]:
    """A subclass of `kind` whose forward is compiled.

    torch.compile(model) would put a prefix before each key of its state, and model.compile() leaves
    a model that is one of PyTorch's own classes (a Sequential, say) as it is, without a word (seen
    in torch 2.13).
    """

    def run(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return kind.forward(self, *args, **kwargs)

    compiled = torch.compile(run, dynamic=dynamic, mode=mode)

    @functools.wraps(kind.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if mode is not None and self.training and torch.is_grad_enabled():
            # Gradients stand ready, so that a replay's are added to them: autograd would take the
            # graph's own tensors, which the next micro-batch's replay overwrites.
            for parameter in self.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        return compiled(self, *args, **kwargs)

    return type(
        f"Compiled{kind.__name__}",
        (kind,),
        {"forward": forward, "__module__": kind.__module__, _PLAIN: kind},
    )


def _check_compiler(device: torch.device) -> None:
    """Compiles a line. What is missing (a C++ compiler, Python's headers, Triton) is seen here and
    not in the first batch.
    """
    try:
        torch.compile(lambda x: x + 1, dynamic=False)(torch.zeros(2, device=device))
    except (RuntimeError, OSError, ImportError) as error:
        failed = next(
            (line for line in str(error).splitlines() if line.strip()), type(error).__name__
        )
        raise UsageError(
            f"config.compile = True: torch.compile does not work on this machine: {failed}",
            "It needs a C++ compiler and Python's headers on a CPU, and Triton with a C compiler "
            "on a card.",
            "Install what is missing (Debian: apt install g++ python3-dev), or train without "
            "config.compile.",
        ) from None


# --- gradient checkpointing ---


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
    first = next(m for m in module.modules() if not m._modules)
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
