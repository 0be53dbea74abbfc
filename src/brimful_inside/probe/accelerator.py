"""Which accelerator this torch knows, and whether the script has used it."""

from __future__ import annotations

from typing import Any, Optional

import torch


def accelerator_type() -> Optional[str]:
    """ "cuda" (ROCm included), "xpu", "mps", ...: what this torch was built for, present or not;
    None on a CPU build.
    """
    current = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    return current.type if current is not None else None


def is_started() -> bool:
    """Whether the script has used the accelerator: before that there is nothing to measure. Does
    not start it.
    """
    kind = accelerator_type()
    if kind is None:
        return False
    is_initialized: Any = getattr(getattr(torch, kind, None), "is_initialized", None)
    return (
        bool(is_initialized()) if is_initialized is not None else torch.accelerator.is_available()
    )
