"""Operations that are one kernel on CUDA, and composed of several, or not there at all, on the meta device.

PyTorch takes some apart before anybody below autograd can see them, as the meta device has no kernel for them: those get one
for as long as the imaginary GPU is there. The files named are PyTorch's, under aten/src/ATen/native.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import META, is_meta, like

__all__ = ["WholeKernels", "function_handlers", "operation_handlers"]

Tensor = torch.Tensor
aten = torch.ops.aten


def _contiguous_like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=META)


def _mish_backward(grad: Tensor, tensor: Tensor) -> Tensor:
    return like(grad)


def _rms_norm(tensor: Tensor, shape: Sequence[int], weight: Optional[Tensor], eps: Optional[float]) -> Tuple[Tensor, Tensor]:
    """cuda/layer_norm_kernel.cu, _fused_rms_norm_cuda: one inverse root a row, in float32 for half types."""
    rows = (*tensor.shape[: tensor.dim() - len(shape)], *[1] * len(shape))
    dtype = torch.float32 if tensor.element_size() == 2 else tensor.dtype
    return _contiguous_like(tensor), torch.empty(rows, dtype=dtype, device=META)


def _rms_norm_backward(
    grad: Tensor, tensor: Tensor, shape: Sequence[int], rstd: Tensor, weight: Optional[Tensor], mask: Sequence[bool]
) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    of_weight = _contiguous_like(weight) if mask[1] and weight is not None else None
    return _contiguous_like(tensor) if mask[0] else None, of_weight


# By ATen's name: taken apart in C++ unless the meta device has a kernel for them. Not all are in every release.
_TAKEN_APART: Dict[str, Callable[..., Any]] = {
    "mish_backward": _mish_backward,
    "_fused_rms_norm": _rms_norm,
    "_fused_rms_norm_backward": _rms_norm_backward,
}


class WholeKernels:
    """The meta device's kernels, put in place and taken away again."""

    def __init__(self) -> None:
        self._library: Any = None

    def put_in_place(self) -> None:
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
        missing = [name for name in _TAKEN_APART if hasattr(aten, name) and not has_kernel("aten::" + name, "Meta")]
        if missing:
            # torch.library.Library would refuse: to it, what can be taken apart needs no kernel.
            self._library = torch._C._dispatch_library("IMPL", "aten", "Meta")
            for name in missing:
                self._library.impl(name, "Meta", _TAKEN_APART[name], False)

    def leave(self) -> None:
        if self._library is not None:
            self._library.reset()
            self._library = None


def _of_parts(kernel: Callable[..., Any]) -> Callable:
    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        return kernel(*args, **kwargs)

    return handler


def _log_sigmoid_forward(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Tensor, Tensor]:
    """Activation.cpp: CUDA needs no buffer for the backward pass."""
    return like(args[0]), torch.empty(0, dtype=args[0].dtype, device=META)


def _binary_cross_entropy(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """cuda/Loss.cu: the reduced loss is written into the tensor that had the loss of each element, and keeps its memory."""
    out = func(*args, **kwargs)
    if out.dim() or args[0].dim() == 0:
        return out
    return like(args[0]).resize_(())


def _like_argument(at: int) -> Callable:
    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
        return _contiguous_like(args[at])

    return handler


def _nothing(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> None:
    """What writes into its arguments alone."""


def _fused_lstm_cell(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Tensor, Tensor, Tensor]:
    """cuda/RNN.cu: hidden and cell state, and the gates as the backward pass needs them."""
    gates, _, cell = args[:3]
    return _contiguous_like(cell), _contiguous_like(cell), _contiguous_like(gates)


def _fused_lstm_cell_backward(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]
) -> Tuple[Optional[Tensor], ...]:
    _, _, cell, _, gates, has_bias = args
    return _contiguous_like(gates), _contiguous_like(cell), _summed(gates, gates.shape[1:]) if has_bias else None


def _fused_gru_cell(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Tensor, Tensor]:
    """cuda/RNN.cu: five numbers for each unit are kept (GRU_WORKSPACE_MULTIPLIER)."""
    hidden = args[2]
    return _contiguous_like(hidden), _summed(hidden, (hidden.shape[0], 5 * hidden.shape[1]))


def _fused_gru_cell_backward(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Optional[Tensor], ...]:
    grad, kept, has_bias = args
    gates = (kept.shape[0], kept.shape[1] * 3 // 5)
    biases = [_summed(kept, gates[1:]) if has_bias else None for _ in range(2)]
    return (_summed(kept, gates), _summed(kept, gates), _contiguous_like(grad), *biases)


def _native_attention(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Tensor, Tensor]:
    """transformers/cuda/attention.cu, native_multi_head_attention_cuda: the output, and the weights where they are wanted."""
    query, heads = args[0], args[4]
    given = {**dict(zip(("need_weights", "average_attn_weights"), args[10:12])), **kwargs}
    wanted, averaged = given.get("need_weights", True), given.get("average_attn_weights", True)
    batch, length = query.shape[:2]
    shape = (0,) if not wanted else (batch, length, length) if averaged else (batch, heads, length, length)
    return _contiguous_like(query), _summed(query, shape)


# Of the fast path of nn.TransformerEncoderLayer and nn.MultiheadAttention: 2.6 has no shapes for them.
_FAST_PATH: Dict[str, Callable] = {
    "_transformer_encoder_layer_fwd": _like_argument(0),
    "_native_multi_head_attention": _native_attention,
}


def _summed(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    return torch.empty(tuple(shape), dtype=tensor.dtype, device=META)


def operation_handlers() -> Dict[Any, Callable]:
    table: Dict[Any, Callable] = {
        aten.log_sigmoid_forward.default: _log_sigmoid_forward,
        aten.binary_cross_entropy.default: _binary_cross_entropy,
        aten.multi_margin_loss_backward.default: _like_argument(1),
        aten.multilabel_margin_loss_backward.default: _like_argument(1),
        aten._standard_gamma_grad.default: _like_argument(0),
        aten._dirichlet_grad.default: _like_argument(0),
        aten._masked_softmax.default: _like_argument(0),
        aten._masked_softmax_backward.default: _like_argument(0),
        aten._thnn_fused_lstm_cell.default: _fused_lstm_cell,
        aten._thnn_fused_lstm_cell_backward_impl.default: _fused_lstm_cell_backward,
        aten._thnn_fused_gru_cell.default: _fused_gru_cell,
        aten._thnn_fused_gru_cell_backward.default: _fused_gru_cell_backward,
        aten._cummax_helper.default: _nothing,
        aten._cummin_helper.default: _nothing,
    }
    for name, handler in _FAST_PATH.items():
        if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::" + name, "Meta"):
            table[getattr(aten, name).default] = handler
    for name, kernel in _TAKEN_APART.items():
        if hasattr(aten, name):
            table[getattr(aten, name).default] = _of_parts(kernel)
    return table


def _gates(tensor: Tensor, hidden: Tensor, weights: Sequence[Tensor]) -> List[Tensor]:
    return [torch.nn.functional.linear(tensor, weights[0]), torch.nn.functional.linear(hidden, weights[1])]


def _lstm_cell(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    """RNN.cpp, LSTMCell: two products, and all the rest in one kernel that keeps its gates."""
    tensor, (hidden, cell), *weights = args
    if not is_meta(tensor) or kwargs:
        return func(*args, **kwargs)
    return aten._thnn_fused_lstm_cell(*_gates(tensor, hidden, weights), cell, *weights[2:])[:2]


def _gru_cell(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    tensor, hidden, *weights = args
    if not is_meta(tensor) or kwargs:
        return func(*args, **kwargs)
    return aten._thnn_fused_gru_cell(*_gates(tensor, hidden, weights), hidden, *weights[2:])[0]


def function_handlers() -> Dict[Any, Callable]:
    return {torch.lstm_cell: _lstm_cell, torch.gru_cell: _gru_cell}
