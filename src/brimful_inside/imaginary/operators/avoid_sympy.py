"""PyTorch's shape functions without sympy, which they import to ask whether a size is a symbol.

On an imaginary card each size is a plain number, for which the functions here answer. Anything else
brings the real module.

The import takes 0.35 s of processor time in each trial, as it comes after the fork that trials
share their imports by. Measured on whole predictions (processor seconds of all processes without
this file to those with it, in turn, medians of one to six rounds, two busy cores, torch 2.13): mlp
1.33, contrastive 1.38, resume 1.41, checkpointed_transformer 1.18, vit_ema 1.16, lightning_unet
1.03; 0.97 to 1.00 where a library of the script imports sympy anyway (Transformers, Accelerate),
and dcgan 1.00; the median program 1.09. One import before the fork instead leaves 1.05 to 1.19 of
the former."""

from __future__ import annotations

import builtins
import importlib
import sys
import types
from importlib.machinery import ModuleSpec
from typing import Any, Callable, Dict, Tuple

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu

_PACKAGE, _NAME = "torch.fx.experimental", "symbolic_shapes"
_SHAPES = _PACKAGE + "." + _NAME
_SYMPY = types.SimpleNamespace(Basic=type("Basic", (), {}))  # in which nothing is a symbol


def avoid_sympy_import(gpu: ImaginaryGpu) -> None:
    """Installs stand-ins, unless the real modules are there already."""
    from torch import _prims_common

    check: Callable[..., None] = torch._check_with

    @gpu.patches.function(torch)
    def _check_with(error_type: Any, cond: Any, message: Any) -> None:
        if cond is not True:  # most of what is checked is; the rest in PyTorch's words
            check(error_type, cond, message)

    if "sympy" not in sys.modules and isinstance(
        _prims_common.elementwise_dtypes, types.FunctionType
    ):
        gpu.patches.set(
            _prims_common, "elementwise_dtypes", _without_sympy(_prims_common.elementwise_dtypes)
        )
    if _SHAPES not in sys.modules:
        package = importlib.import_module(_PACKAGE)
        importlib.import_module(_PACKAGE + "._config")  # the real module would have brought it
        sys.modules[_SHAPES] = package.__dict__[_NAME] = _Shapes(_SHAPES)
        gpu.patches.undo_by(_leave)


def _leave() -> None:
    if isinstance(sys.modules.get(_SHAPES), _Shapes):
        del sys.modules[_SHAPES]
        del sys.modules[_PACKAGE].__dict__[_NAME]


def _real() -> Any:
    _leave()
    return importlib.import_module(_SHAPES)


def _itself(value: Any) -> Any:
    return value


def _equal(first: Any, second: Any) -> bool:
    return (
        first == second
        if isinstance(first, int) or isinstance(second, int)
        else list(first) == list(second)
    )


def _no_symbols(shape: Any) -> Any:
    from torch.utils._ordered_set import OrderedSet

    return OrderedSet()


def _is_truth(value: Any) -> bool:
    return type(value) is bool


def _is_number(value: Any) -> bool:
    return type(value) is int


def _is_shape(value: Any) -> bool:
    """Numbers, or a tensor that has no others."""
    if isinstance(value, torch.Tensor):
        return value.layout == torch.strided and not value._has_symbolic_sizes_strides
    return type(value) is int or (
        isinstance(value, (tuple, list)) and all(type(size) is int for size in value)
    )


# By name: what the function answers, and for which arguments.
_ANSWERS: Dict[str, Tuple[Callable[..., Any], Callable[[Any], bool]]] = {
    **dict.fromkeys(
        ("guard_or_false", "guard_or_true", "guard_size_oblivious", "guard_bool"),
        (_itself, _is_truth),
    ),
    **dict.fromkeys(("statically_known_true", "expect_true"), (_itself, _is_truth)),
    "sym_and": (lambda *values: all(values), _is_truth),
    "sym_or": (lambda *values: any(values), _is_truth),
    **dict.fromkeys(("guard_int", "guarding_hint_or_throw"), (_itself, _is_number)),
    **dict.fromkeys(("has_guarding_hint", "has_static_value"), (lambda value: True, _is_number)),
    "is_nested_int": (lambda value: False, _is_number),
    "sym_eq": (_equal, _is_shape),
    **dict.fromkeys(("free_symbols", "free_unbacked_symbols"), (_no_symbols, _is_shape)),
    **dict.fromkeys(
        ("has_free_symbols", "has_free_unbacked_symbols"), (lambda shape: False, _is_shape)
    ),
}


class _Shapes(types.ModuleType):
    """torch.fx.experimental.symbolic_shapes for plain numbers. Whatever is not in the table brings
    the real one."""

    def __init__(self, name: str):
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, None)  # for importlib.util.find_spec

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _ANSWERS:
            return getattr(_real(), name)
        function = self.__dict__[name] = _for_plain(name, *_ANSWERS[name])
        return function


def _for_plain(
    name: str, answer: Callable[..., Any], is_plain: Callable[[Any], bool]
) -> Callable[..., Any]:
    """A module that imports the function by name keeps it for good, so it has to be right for
    symbols too."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if args and not kwargs and all(map(is_plain, args)):
            return answer(*args)
        return getattr(_real(), name)(*args, **kwargs)

    return function


def _without_sympy(function: Any) -> Any:
    """`function`, whose own ``import sympy`` gives a module in which nothing is a symbol, as long
    as there is no other."""

    def importing(name: str, *args: Any, **kwargs: Any) -> Any:
        return (
            _SYMPY
            if name == "sympy" and name not in sys.modules
            else builtins.__import__(name, *args, **kwargs)
        )

    names = {**function.__globals__, "__builtins__": {**vars(builtins), "__import__": importing}}
    copied = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied
