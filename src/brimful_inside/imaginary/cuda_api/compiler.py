"""What compilers would make: torch.compile gives back what it was given and torch._dynamo is not
imported, flex_attention is a single kernel, Triton's launches do nothing. Compiled code takes less
memory as a rule: the prediction is an upper bound."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import types
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu

_DYNAMO = "torch._dynamo"
COMPILED, COMPILED_GRAPHS = "torch.compile", "torch.compile with CUDA graphs"
_WITH_GRAPHS = "reduce-overhead", "max-autotune"  # modes
# what torch.nn.attention.flex_attention hands to torch.compile
_WRAPPER = "_flex_attention_hop_wrapper"
# Where the classes live whose `run` launches (triton/runtime/jit.py, autotuner.py); a heuristic's
# run calls one of these.
TRITON_LAUNCHERS = {"triton.runtime.jit": "JITFunction", "triton.runtime.autotuner": "Autotuner"}


def leave_uncompiled(gpu: ImaginaryGpu) -> None:
    """torch.compile is the identity, and counts as an approximation."""

    @gpu.patches.function(torch)
    def compile(model: Any = None, **options: Any) -> Any:
        if getattr(model, "__name__", None) == _WRAPPER:
            return flex_kernel(model)
        if model is None:
            return functools.partial(compile, **options)
        name = _named(options)
        if isinstance(model, types.FunctionType):
            return _counted(gpu, model, name)
        gpu.approximate(name)
        return model

    gpu.patches.set(
        torch.nn.Module,
        "compile",
        lambda self, *args, **options: gpu.approximate(_named(options)),
    )
    if _DYNAMO not in sys.modules:
        sys.modules[_DYNAMO] = _Dynamo(gpu)
        gpu.patches.undo_by(_bring_dynamo_back)
        finder = _Submodules()
        sys.meta_path.insert(0, finder)
        gpu.patches.undo_by(lambda: sys.meta_path.remove(finder))
    else:
        gpu.patches.set(sys.modules[_DYNAMO], "reset", _Dynamo.reset)


def _named(options: Dict[str, Any]) -> str:
    """What is not modelled: CUDA graphs have memory of their own (torch/_inductor/__init__.py,
    list_mode_options)."""
    graphs = (options.get("options") or {}).get("triton.cudagraphs")
    return COMPILED_GRAPHS if graphs or options.get("mode") in _WITH_GRAPHS else COMPILED


def _counted(gpu: ImaginaryGpu, function: Callable, name: str) -> Callable:
    """A function that is compiled when it is first called: libraries decorate many that a script
    never calls."""
    names = [name]

    @functools.wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        while names:
            gpu.approximate(names.pop())
        return function(*args, **kwargs)

    return counted


class _Dynamo(types.ModuleType):
    """torch._dynamo as optimizers and guards of torch use it: where nothing is compiled, nothing is
    to be done.

    Importing the real one takes a second or two, which the first optimizer step would cost. Its
    settings, which torch.utils.checkpoint reads and scripts write, are a module of their own.
    Anything else that is asked of it brings the real one, with these settings."""

    def __init__(self, gpu: ImaginaryGpu):
        super().__init__(_DYNAMO)
        self.__path__: List[str] = []  # its submodules are for _Submodules to find
        self.__spec__ = ModuleSpec(_DYNAMO, None, is_package=True)
        self._gpu = gpu

    @staticmethod
    def disable(fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        return (lambda inner: inner) if fn is None else fn

    @staticmethod
    def graph_break(*args: Any, **options: Any) -> None:
        return None

    @staticmethod
    def is_compiling() -> bool:
        return False

    @staticmethod
    def reset() -> None:
        """The real one clears graphs as well, with names of torch._C that a build without CUDA
        lacks."""

    def __getattr__(self, name: str) -> Any:
        if name in ("__file__", "__wrapped__"):
            raise AttributeError(name)
        if name == "config" and sys.modules.get(_DYNAMO) is self:
            return _config_alone()
        return getattr(self.bring(), name)

    def bring(self) -> Any:
        """The real one, in this one's place."""
        if sys.modules.get(_DYNAMO) is self:
            del sys.modules[_DYNAMO]
            self._gpu.patches.set(importlib.import_module(_DYNAMO), "reset", self.reset)
        return importlib.import_module(_DYNAMO)


class _Submodules(MetaPathFinder):
    """``import torch._dynamo.exc`` while the stand-in is there: the real package brings it, and it
    is not loaded twice."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        package = sys.modules.get(_DYNAMO)
        if not name.startswith(_DYNAMO + ".") or not isinstance(package, _Dynamo):
            return None
        if name == _DYNAMO + ".config":
            return _as_it_is(_config_alone())
        real = package.bring()
        return (
            _as_it_is(sys.modules[name])
            if name in sys.modules
            else PathFinder.find_spec(name, real.__path__)
        )


def _as_it_is(module: Any) -> ModuleSpec:
    """Of a module that is loaded. The import system would load it again by the module's own, where
    that is another."""
    spec = ModuleSpec(module.__name__, _Loaded(module))
    # torch._dynamo.config refuses to set an attribute that is no setting
    vars(module)["__spec__"] = spec
    return spec


class _Loaded(Loader):
    """Gives a module as it is, with its own spec again."""

    def __init__(self, module: Any):
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._module

    def exec_module(self, module: Any) -> None:
        vars(module)["__spec__"] = self._spec


def _config_alone() -> Any:
    """torch._dynamo.config without the package around it. The package, once it comes, takes the one
    that is there."""
    name = _DYNAMO + ".config"
    if name not in sys.modules:
        place = os.path.join(os.path.dirname(torch.__file__), "_dynamo", "config.py")
        spec = importlib.util.spec_from_file_location(name, place)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _bring_dynamo_back() -> None:
    """The real torch._dynamo is what the next import brings."""
    if isinstance(sys.modules.get(_DYNAMO), _Dynamo):
        del sys.modules[_DYNAMO]


# --- kernels ---


class _FlexKernel(torch.autograd.Function):
    """flex_attention keeps output and log-sum-exp, and no scores or masks
    (torch/_higher_order_ops/flex_attention.py, torch/_inductor/kernel/flex). Its backward pass
    takes the row sums of the output's gradient, in float32."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        out = query.new_empty((*query.shape[:-1], value.shape[-1]))
        sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.mark_non_differentiable(sums)
        return out, sums

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        query, key, value, _, sums = ctx.saved_tensors
        delta = torch.empty_like(sums)
        made = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        del delta
        return made


def flex_kernel(wrapper: Callable[..., Any]) -> Callable[..., Tuple[torch.Tensor, ...]]:
    """Stands for the compiled `wrapper`: output and log-sum-exp, and the largest scores where its
    PyTorch has them."""
    with_largest = hasattr(sys.modules["torch.nn.attention.flex_attention"], "AuxRequest")

    def kernel(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *options: Any
    ) -> Tuple[torch.Tensor, ...]:
        out, sums = _FlexKernel.apply(query, key, value)
        return (out, sums, torch.empty_like(sums)) if with_largest else (out, sums)

    return kernel


def pass_over(gpu: ImaginaryGpu, module: Any) -> None:
    """Launches from `module`, one of TRITON_LAUNCHERS, do nothing while the imaginary GPU is there,
    and are counted.

    What a kernel writes to was allocated by torch before. Triton's own scratch space, which few
    kernels take, and the time are not counted."""
    launcher = getattr(module, TRITON_LAUNCHERS[module.__name__], None)
    if launcher is None or not gpu.is_open:
        return

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        gpu.touch()
        gpu.approximate("Triton kernel")

    gpu.patches.set(launcher, "run", run)
