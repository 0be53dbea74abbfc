"""The accelerator that this torch was built for. Nothing here starts it: the script may still fork."""

from __future__ import annotations

from typing import Any, Optional

import torch


def accelerator_type() -> Optional[str]:
    """ "cuda" (ROCm included), "xpu", "mps", ...; None on a CPU build. Says nothing about whether a device is there."""
    current = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    return current.type if current is not None else None


def is_started() -> bool:
    """Whether the script has used it: before that there is nothing to measure."""
    kind = accelerator_type()
    if kind is None:
        return False
    asks: Any = getattr(getattr(torch, kind, None), "is_initialized", None)
    return bool(asks()) if asks is not None else torch.accelerator.is_available()
