"""torch.istft without its look at the window's values."""

from __future__ import annotations

from typing import Any, Callable, Dict, Tuple

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import is_meta

__all__ = ["handlers"]

Tensor = torch.Tensor
_NAMES = (
    "input",
    "n_fft",
    "hop_length",
    "win_length",
    "window",
    "center",
    "normalized",
    "onesided",
    "length",
    "return_complex",
)


def _istft(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """SpectralOps.cpp, istft: frames, times the window, added where they overlap, divided by the windows' squares."""
    given = {**dict(zip(_NAMES, args)), **kwargs}
    spectrum, n_fft = given["input"], given["n_fft"]
    if not is_meta(spectrum) or given.get("return_complex") or given.get("onesided") is False:
        return func(*args, **kwargs)
    hop = given.get("hop_length") or n_fft // 4
    length, center = given.get("length"), given.get("center", True)
    with gpu.functions():
        batched = spectrum if spectrum.dim() == 3 else spectrum.unsqueeze(0)
        frames = torch.fft.irfft(batched.transpose(1, 2), n=n_fft, dim=-1)
        count, whole = frames.shape[1], n_fft + hop * (frames.shape[1] - 1)
        window = given.get("window")
        window = torch.ones(n_fft, dtype=frames.dtype, device=spectrum.device) if window is None else window
        padding = n_fft - window.shape[0]
        if padding:
            window = torch.nn.functional.pad(window, (padding // 2, padding - padding // 2))
        unfold = torch.ops.aten.unfold_backward.default
        signal = unfold(frames * window.view(1, 1, -1), [frames.shape[0], whole], 1, n_fft, hop)
        weights = unfold(window.square().expand(1, count, n_fft), [1, whole], 1, n_fft, hop)
        start = n_fft // 2 if center else 0
        end = start + length if length is not None else whole - start
        signal = signal[:, start : min(end, whole)] / weights[:, start : min(end, whole)]
        if end > whole:
            signal = torch.nn.functional.pad(signal, (0, end - whole))
        return signal if spectrum.dim() == 3 else signal.squeeze(0)


def handlers() -> Dict[Any, Callable]:
    return {torch.istft: _istft, Tensor.istft: _istft}
