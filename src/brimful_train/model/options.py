"""What a flag can do to any model: gradient checkpointing, torch.compile, CUDA graphs, channels
last.

All are done in place: names of parameters and keys of state dicts stay as they are.
"""

import functools
import inspect
from typing import Any

import torch
from torch import nn

from brimful.errors import UsageError
from brimful.values import EffectiveSetting
from brimful_train.config import Config
from brimful_train.model.gradient_checkpointing import checkpoint_blocks

_PLAIN = "_before_compiling"  # stands in the classes made here
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
    plain = getattr(
        type(model), _PLAIN, type(model)
    )  # what it was before a training before this one
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
            _own_gradients(self)
        return compiled(self, *args, **kwargs)

    return type(
        f"Compiled{kind.__name__}",
        (kind,),
        {"forward": forward, "__module__": kind.__module__, _PLAIN: kind},
    )


def _own_gradients(model: nn.Module) -> None:
    """Gradients stand ready, so that a replay's are added to them: autograd would take the graph's
    own tensors, which the next micro-batch's replay overwrites."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)


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
