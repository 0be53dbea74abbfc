"""Waits for modules: calls back right after a module's code has run, before whoever imported it goes on."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from typing import Any, Callable, Dict, List, Optional

from brimful_inside.probe.hub import tell_own_error

Callback = Callable[[Any], None]


class _Loader(importlib.abc.Loader):
    """The real loader, and after it the callbacks. It takes itself out of the module's spec before the module's code runs."""

    def __init__(self, real: Any, waiting: Waiting):
        self._real = real
        self._waiting = waiting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: Any) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = self._real
        module.__loader__ = self._real
        self._real.exec_module(module)
        self._waiting.arrived(module)


class Waiting(importlib.abc.MetaPathFinder):
    """A finder that finds nothing by itself: for awaited names it asks the others and wraps the loader they give."""

    def __init__(self) -> None:
        self._callbacks: Dict[str, List[Callback]] = {}
        self._asking: List[str] = []

    def wait_for(self, name: str, callback: Callback) -> None:
        """`callback(module)` once `name` is imported; at once if it is there already."""
        if name in sys.modules:
            self._call(callback, sys.modules[name])
            return
        self._callbacks.setdefault(name, []).append(callback)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[importlib.machinery.ModuleSpec]:
        if name not in self._callbacks or name in self._asking:
            return None
        self._asking.append(name)
        try:
            for finder in list(sys.meta_path):
                if finder is self or not hasattr(finder, "find_spec"):
                    continue
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                        spec.loader = _Loader(spec.loader, self)
                    return spec
        finally:
            self._asking.remove(name)
        return None

    def arrived(self, module: Any) -> None:
        for callback in self._callbacks.pop(module.__name__, []):
            self._call(callback, module)

    @staticmethod
    def _call(callback: Callback, module: Any) -> None:
        try:
            callback(module)
        except Exception:
            tell_own_error("the arrival of %s" % getattr(module, "__name__", "?"))


waiting = Waiting()
