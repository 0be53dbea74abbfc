"""For processes that tests start: an optimizer imports no torch._dynamo, 1.4 s of the 3 that a
small training on a CPU takes (measured, torch 2.13). Python runs this file at their start.

torch.optim asks it for `disable` and `graph_break` alone, which do nothing where nothing is
compiled, and DistributedDataParallel for one setting. Whatever else is asked brings the real one.
"""

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

DYNAMO = "torch._dynamo"


class Utils:
    """Stands for torch._dynamo.utils."""

    def get_optimize_ddp_mode(self):
        return "ddp_optimizer"

    def __getattr__(self, name):
        return getattr(bring().utils, name)


class Uncompiled(ModuleType):
    """Stands for torch._dynamo."""

    utils = Utils()

    def disable(self, function=None, recursive=True, **options):
        return function or (lambda decorated: decorated)

    def graph_break(self, *words, **options):
        pass

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(bring(), name)


class Finder:
    """Gives the stand-in for the package; at one of its submodules the real package is brought."""

    def find_spec(self, name, path=None, target=None):
        if name == DYNAMO and "brimful_inside.imaginary" not in sys.modules:
            return ModuleSpec(name, self, is_package=True)
        if name.startswith(DYNAMO + ".") and isinstance(sys.modules.get(DYNAMO), Uncompiled):
            real = bring()
            if name in sys.modules:
                return ModuleSpec(name, self)
            return PathFinder.find_spec(name, real.__path__)
        return None

    def create_module(self, spec):
        return Uncompiled(spec.name) if spec.name == DYNAMO else sys.modules[spec.name]

    def exec_module(self, module):
        pass


def bring():
    """The real one, in the stand-in's place."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
    if isinstance(sys.modules.get(DYNAMO), Uncompiled):
        del sys.modules[DYNAMO]
    return importlib.import_module(DYNAMO)


sys.meta_path.insert(0, Finder())
