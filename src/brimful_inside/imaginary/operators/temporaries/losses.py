"""Loss functions: the loss of each element, before it is summed."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from brimful_inside.imaginary.operators.fast_meta_kernels import broadcast
from brimful_inside.imaginary.operators.temporaries.held import (
    Held,
    Kernel,
    Machine,
    Tensor,
    bytes_of_tensor,
    copies,
)

__all__ = ["KERNELS"]


def _broadcast_bytes(first: Tensor, second: Tensor) -> int:
    return broadcast(first.shape, second.shape).numel() * first.element_size()


def _unreduced(at: int) -> Kernel:
    """The loss of each element is written out before it is summed (Loss.cpp: mse_loss_out, smooth_l1_loss_out, ...)."""

    def kernel(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
        reduction = args[at] if len(args) > at else kwargs.get("reduction", 1)
        return [_broadcast_bytes(args[0], args[1])] if reduction else []

    return kernel


def _bce_with_logits(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """log_sigmoid of the input, the factors of pos_weight, the loss of each element (Loss.cpp)."""
    size = _broadcast_bytes(args[0], args[1])
    pos_weight = args[3] if len(args) > 3 else kwargs.get("pos_weight")
    reduction = args[4] if len(args) > 4 else kwargs.get("reduction", 1)
    held: List[Held] = [bytes_of_tensor(args[0])]
    return held + [size] * ((pos_weight is not None) + bool(reduction))


def _nll(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """Copies of what is laid out in another way, an expanded weight included (cuda/NLLLoss.cu, cuda/NLLLoss2d.cu)."""
    return copies(*[arg for arg in args[:3] if isinstance(arg, Tensor)])


def _nll_backward(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    return copies(*[arg for arg in args[2:4] if isinstance(arg, Tensor)])


KERNELS: Dict[str, Kernel] = {
    "mse_loss": _unreduced(2),
    "smooth_l1_loss": _unreduced(2),
    "huber_loss": _unreduced(2),
    "soft_margin_loss": _unreduced(2),
    "binary_cross_entropy_with_logits": _bce_with_logits,
    "nll_loss_forward": _nll,
    "nll_loss2d_forward": _nll,
    "nll_loss_backward": _nll_backward,
    "nll_loss2d_backward": _nll_backward,
}
