"""Functions that take another road on CUDA than on the CPU or the meta device, where PyTorch decides by the device."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import C, autocast_on, is_meta

__all__ = ["handlers"]

Tensor = torch.Tensor


def _dropout(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """Fused on CUDA, with a mask of one byte an element (is_fused_kernel_acceptable in Dropout.cpp)."""
    tensor, p, train = _bound(("input", "p", "train"), args, kwargs)
    if is_meta(tensor) and train and 0 < p < 1 and tensor.numel():
        return torch.native_dropout(tensor, p, True)[0]
    return func(*args, **kwargs)


def _bound(names: Tuple[str, ...], args: Tuple, kwargs: Dict[str, Any]) -> Any:
    values = {**dict(zip(names, args)), **kwargs}
    return tuple(values.get(name) for name in names)


def _softmax(fused: Callable[..., Tensor]) -> Callable:
    """float16 in and float32 out is one kernel on CUDA: no copy in float32 is made of the input (SoftMax.cpp)."""

    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
        tensor, dim, dtype = _bound(("input", "dim", "dtype"), args, kwargs)
        if is_meta(tensor) and tensor.dtype == torch.float16 and dtype == torch.float32 and isinstance(dim, int):
            return fused(tensor, dim, True)
        return func(*args, **kwargs)

    return handler


def _cross_entropy(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """cross_entropy_loss (LossNLL.cpp) in its parts, since autocast acts on them: log_softmax keeps the dtype of its input,
    and nll_loss wants float32."""
    names = ("self", "target", "weight", "reduction", "ignore_index", "label_smoothing")
    logits, target, weight, reduction, ignore, smoothing = _bound(names, args, {**kwargs, **_renamed(kwargs)})

    if not is_meta(logits) or not autocast_on() or logits.shape == target.shape:
        return func(*args, **kwargs)
    with gpu.functions():
        dim = 0 if logits.dim() == 1 else 1
        logs = torch.log_softmax(logits, dim, dtype=logits.dtype)
        ignore, reduction = -100 if ignore is None else ignore, 1 if reduction is None else reduction
        loss = C._nn.nll_loss_nd(logs, target, weight, reduction, ignore)
        if not smoothing:
            return loss
        return _smoothed(logs, target, weight, reduction, ignore, smoothing, loss, dim)


def _renamed(kwargs: Dict[str, Any]) -> Dict[str, Any]:
    return {"self": kwargs["input"]} if "input" in kwargs else {}


def _smoothed(
    logs: Tensor,
    target: Tensor,
    weight: Optional[Tensor],
    reduction: int,
    ignore: int,
    smoothing: float,
    loss: Tensor,
    dim: int,
) -> Tensor:
    """cross_entropy_loss_label_smoothing."""
    classes = logs.shape[dim]
    if weight is not None:
        shape = [1] * logs.dim()
        shape[dim] = weight.shape[0]
        smooth = -(logs * weight.view(shape)).sum(dim)
    else:
        smooth = -logs.sum(dim)
    ignored = target == ignore
    smooth.masked_fill_(ignored, 0.0)
    if reduction == 1:
        smooth = smooth.sum() / (~ignored).sum()
    elif reduction == 2:
        smooth = smooth.sum()
    return (1 - smoothing) * loss + smooth * (smoothing / classes)


def _linear(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """Linear.cpp: a product to which the bias is added in its place, where the input is not flat and not contiguous.

    While somebody listens below autograd PyTorch makes another tensor of the sum, as for a subclass (isTensorSubclassLike).
    """
    tensor, weight, bias = _bound(("input", "weight", "bias"), args, kwargs)
    if bias is None or not is_meta(tensor) or tensor.dim() == 2 or tensor.is_contiguous() or weight.dim() != 2:
        return func(*args, **kwargs)
    return torch.matmul(tensor, weight.t()).add_(bias)


def _never_left_aligned(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> bool:
    """Whether padding can be left out depends on the mask's values; the upper bound is that it cannot."""
    if not is_meta(args[0]):
        return func(*args, **kwargs)
    gpu.approximate("nested tensors in TransformerEncoder")
    return False


def _ctc_loss(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """The lengths are read by the host; those that are on the card count as the longest there can be."""
    log_probs, targets = args[:2]
    if not is_meta(log_probs):
        return func(*args, **kwargs)
    batch = log_probs.shape[1] if log_probs.dim() == 3 else 1
    longest = targets.shape[-1] if targets.dim() == 2 else targets.numel() // batch
    lengths = []
    for given, upper in ((args[2], log_probs.shape[0]), (args[3], longest)):
        if isinstance(given, Tensor):
            given = [upper] * batch if is_meta(given) else given.flatten().tolist()
        lengths.append(given)
    return func(log_probs, targets, *lengths, *args[4:], **kwargs)


def handlers() -> Dict[Any, Callable]:
    table: Dict[Any, Callable] = {
        torch.dropout: _dropout,
        C._nn.linear: _linear,
        torch.ctc_loss: _ctc_loss,
        torch._nested_tensor_from_mask_left_aligned: _never_left_aligned,
        C._nn.cross_entropy_loss: _cross_entropy,
    }
    for owner in (torch, Tensor):
        table[owner.softmax] = _softmax(torch._softmax)
        table[owner.log_softmax] = _softmax(torch._log_softmax)
    return table
