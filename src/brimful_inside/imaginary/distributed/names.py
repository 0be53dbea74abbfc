"""A function of torch.distributed stands in several modules, each of which imported it by name."""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed.distributed_c10d as c10d

from brimful_inside.imaginary.state.patches import Patches

__all__ = ["replace_everywhere"]


def replace_everywhere(patches: Patches, name: str, value: Any) -> Any:
    """Puts `value` in place of distributed_c10d's `name`, and wherever torch has imported it. The answer is the original."""
    original = getattr(c10d, name, None)
    patches.set(c10d, name, value)
    if original is None:
        return None
    modules = [module for key, module in sys.modules.items() if module is not None and key.startswith("torch.distributed")]
    for module in modules:
        if vars(module).get(name) is original:
            patches.set(module, name, value)
    return original
