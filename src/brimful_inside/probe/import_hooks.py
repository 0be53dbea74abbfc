"""Callbacks for imports: called right after a module's code has run, before whoever imported it
continues.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.abc
import importlib.machinery
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional

from brimful_inside.probe.context import note_own_error

Callback = Callable[[Any], None]


@contextlib.contextmanager
def _collector_off(freeze: bool) -> Iterator[None]:
    """No garbage collection meanwhile; nor, with `freeze`, ever after among the objects that are
    there then. Going through a package's objects again and again takes 0.2 of the 1.5 s of ``import
    torch``, and 0.4 of the 1.4 s of ``import torch._dynamo`` (measured, torch 2.13 on a CPU)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if freeze:
            gc.freeze()
        if was_on:
            gc.enable()


class _Loader(importlib.abc.Loader):
    """The real loader, and after it the callbacks. It takes itself out of the module's spec before
    the module's code runs.
    """

    def __init__(self, real: Any, hooks: ImportHooks):
        self._real = real
        self._hooks = hooks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: Any) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._hooks.load(module, self._real)


class ImportHooks(importlib.abc.MetaPathFinder):
    """A finder that finds nothing itself: for the names it knows it asks the others and wraps the
    loader they return.
    """

    def __init__(self) -> None:
        self._callbacks: Dict[str, List[Callback]] = {}
        self._searching: List[str] = []
        self._quietly: Dict[str, bool] = {}  # module -> whether its objects are frozen

    def when_imported(self, name: str, callback: Callback) -> None:
        """`callback(module)` once `name` is imported; at once if it is there already."""
        if name in sys.modules:
            self._call(callback, sys.modules[name])
        else:
            self._callbacks_of(name).append(callback)

    def load_quietly(self, name: str, freeze: bool = False) -> None:
        """The garbage collector is off while `name` is imported, and as before when the callbacks
        run.
        """
        if name not in sys.modules:
            self._quietly[name] = freeze
            self._callbacks_of(name)

    def _callbacks_of(self, name: str) -> List[Callback]:
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)
        return self._callbacks.setdefault(name, [])

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if name not in self._callbacks or name in self._searching:
            return None
        self._searching.append(name)
        try:
            for finder in list(sys.meta_path):
                spec = (
                    finder.find_spec(name, path, target)
                    if finder is not self and hasattr(finder, "find_spec")
                    else None
                )
                if spec is not None:
                    if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader, self)
                    return spec
        finally:
            self._searching.remove(name)
        return None

    def load(self, module: Any, loader: Any) -> None:
        name = module.__name__
        with (
            _collector_off(self._quietly[name])
            if name in self._quietly
            else contextlib.nullcontext()
        ):
            loader.exec_module(module)
        for callback in self._callbacks.pop(module.__name__, []):
            self._call(callback, module)

    @staticmethod
    def _call(callback: Callback, module: Any) -> None:
        try:
            callback(module)
        except Exception:
            note_own_error("the import of %s" % getattr(module, "__name__", "?"))


import_hooks = ImportHooks()
