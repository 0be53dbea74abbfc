"""Errors of the imaginary GPU: PyTorch's own words where a real card would speak, `Unsupported` where it cannot be run."""

from __future__ import annotations

import os
import sys
from typing import Optional

import torch

import brimful_inside

__all__ = ["Unsupported", "different_devices", "invalid_ordinal", "no_numpy", "not_during_capture", "where_in_user_code"]

_OURS = os.path.dirname(os.path.abspath(str(brimful_inside.__file__)))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))


class Unsupported(NotImplementedError):
    """The script asked for something that the imaginary GPU does not have.

    Its message is one sentence that names the call and the place in the user's code. `call` and `where` hold them apart.
    """

    def __init__(self, call: str, why: str):
        self.call = call
        self.where = where_in_user_code()
        place = " at %s" % self.where if self.where else ""
        super().__init__("the imaginary GPU cannot run %s%s: %s" % (call, place, why))


def where_in_user_code() -> Optional[str]:
    """ "file.py:12 in train": the innermost frame that is neither torch's nor ours nor the standard library's."""
    frame = sys._getframe(1)
    library = os.path.dirname(os.path.abspath(os.__file__))
    outer = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_OURS, _TORCH, "<")):
            place = "%s:%d in %s" % (os.path.basename(file), frame.f_lineno, frame.f_code.co_name)
            if not file.startswith(library) and "site-packages" not in file:
                return place
            outer = outer or place
        frame = frame.f_back
    return outer


def different_devices(name: str, first: str = "cuda:0", second: str = "cpu") -> RuntimeError:
    """What a real card says when tensors of two devices meet in one operation."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, %s and %s! (when checking in %s)"
        % (first, second, name)
    )


def invalid_ordinal() -> RuntimeError:
    """What a real card says when a device is asked for that is not there."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    return kind(
        "CUDA error: invalid device ordinal\n"
        "GPU device may be out of range, do you have enough GPUs?\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )


def not_during_capture() -> RuntimeError:
    """What a real card says when the host would wait for it during a capture (cudaErrorStreamCaptureUnsupported)."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    return kind(
        "CUDA error: operation not permitted when stream is capturing\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )


def no_numpy(device: torch.device) -> TypeError:
    """What Tensor.numpy() says to a tensor on the card."""
    return TypeError(
        "can't convert %s device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first." % device
    )
