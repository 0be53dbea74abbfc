"""Functions and operations that CUDA runs by other kernels than the CPU or the meta device: fused,
or not there at all.

Functions: where PyTorch decides by the device above autograd. Operations: one kernel on CUDA; those
that PyTorch would take apart before the dispatch mode gets them have a meta kernel here. The files
named are PyTorch's, under aten/src/ATen/native."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from brimful_inside.imaginary.operators.temporaries import (
    Held,
    Kernel,
    Machine,
    Transient,
)
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import (
    META,
    C,
    Tensor,
    aten,
    autocast_on,
    empty,
    is_meta,
    like,
)

# --- functions ---


def _bound(names: Tuple[str, ...], args: Tuple, kwargs: Dict[str, Any]) -> Any:
    values = {**dict(zip(names, args)), **kwargs}
    return tuple(values.get(name) for name in names)


def _dropout(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """Fused on CUDA, with a mask of one byte an element (is_fused_kernel_acceptable in
    Dropout.cpp)."""
    tensor, p, train = _bound(("input", "p", "train"), args, kwargs)
    if is_meta(tensor) and train and 0 < p < 1 and tensor.numel():
        return torch.native_dropout(tensor, p, True)[0]
    return func(*args, **kwargs)


def _softmax(fused: Callable[..., Tensor]) -> Callable:
    """float16 in and float32 out is one kernel on CUDA: no copy in float32 is made of the input
    (SoftMax.cpp)."""

    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
        tensor, dim, dtype = _bound(("input", "dim", "dtype"), args, kwargs)
        if (
            is_meta(tensor)
            and tensor.dtype == torch.float16
            and dtype == torch.float32
            and isinstance(dim, int)
        ):
            return fused(tensor, dim, True)
        return func(*args, **kwargs)

    return handler


def _cross_entropy(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """cross_entropy_loss (LossNLL.cpp) in its parts, since autocast acts on them: log_softmax keeps
    the dtype of its input, and nll_loss wants float32."""
    names = ("self", "target", "weight", "reduction", "ignore_index", "label_smoothing")
    logits, target, weight, reduction, ignore, smoothing = _bound(names, args, kwargs)
    logits = kwargs.get("input", logits)
    if not is_meta(logits) or not autocast_on() or logits.shape == target.shape:
        return func(*args, **kwargs)
    with gpu.functions():
        dim = 0 if logits.dim() == 1 else 1
        logs = torch.log_softmax(logits, dim, dtype=logits.dtype)
        ignore, reduction = (
            -100 if ignore is None else ignore,
            1 if reduction is None else reduction,
        )
        loss = C._nn.nll_loss_nd(logs, target, weight, reduction, ignore)
        if not smoothing:
            return loss
        smooth = _smoothed(logs, target, weight, reduction, ignore, dim)
        return (1 - smoothing) * loss + smooth * (smoothing / logs.shape[dim])


def _smoothed(
    logs: Tensor, target: Tensor, weight: Optional[Tensor], reduction: int, ignore: int, dim: int
) -> Tensor:
    """cross_entropy_loss_label_smoothing: the part for all classes."""
    if weight is not None:
        logs = logs * weight.view([-1 if at == dim else 1 for at in range(logs.dim())])
    smooth = -logs.sum(dim)
    ignored = target == ignore
    smooth.masked_fill_(ignored, 0.0)
    if reduction == 1:
        return smooth.sum() / (~ignored).sum()
    return smooth.sum() if reduction == 2 else smooth


def _linear(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """Linear.cpp: a product to which the bias is added in place, where the input is not flat and
    not contiguous.

    While a dispatch mode is on PyTorch makes another tensor of the sum, as for a subclass
    (isTensorSubclassLike)."""
    tensor, weight, bias = _bound(("input", "weight", "bias"), args, kwargs)
    if (
        bias is None
        or not is_meta(tensor)
        or tensor.dim() == 2
        or tensor.is_contiguous()
        or weight.dim() != 2
    ):
        return func(*args, **kwargs)
    return torch.matmul(tensor, weight.t()).add_(bias)


def _never_left_aligned(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> bool:
    """Whether padding can be left out depends on the mask's values; the upper bound is that it
    cannot."""
    if not is_meta(args[0]):
        return func(*args, **kwargs)
    gpu.approximate("nested tensors in TransformerEncoder")
    return False


def _ctc_loss(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """The lengths are read by the host; those that are on the card count as the longest there can
    be."""
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


def function_handlers() -> Dict[Any, Callable]:
    return {
        torch.dropout: _dropout,
        C._nn.linear: _linear,
        torch.ctc_loss: _ctc_loss,
        torch._nested_tensor_from_mask_left_aligned: _never_left_aligned,
        C._nn.cross_entropy_loss: _cross_entropy,
        **dict.fromkeys((torch.softmax, Tensor.softmax), _softmax(torch._softmax)),
        **dict.fromkeys((torch.log_softmax, Tensor.log_softmax), _softmax(torch._log_softmax)),
    }


# --- operations ---


def _rms_norm(
    tensor: Tensor, shape: Sequence[int], weight: Optional[Tensor], eps: Optional[float]
) -> Tuple[Tensor, Tensor]:
    """cuda/layer_norm_kernel.cu, _fused_rms_norm_cuda: one inverse root a row, in float32 for half
    types."""
    rows = (*tensor.shape[: tensor.dim() - len(shape)], *[1] * len(shape))
    dtype = torch.float32 if tensor.element_size() == 2 else tensor.dtype
    return empty(tensor.shape, tensor.dtype), torch.empty(rows, dtype=dtype, device=META)


def _rms_norm_backward(
    grad: Tensor,
    tensor: Tensor,
    shape: Sequence[int],
    rstd: Tensor,
    weight: Optional[Tensor],
    mask: Sequence[bool],
) -> Tuple[Optional[Tensor], Optional[Tensor]]:
    of_weight = empty(weight.shape, weight.dtype) if mask[1] and weight is not None else None
    return empty(tensor.shape, tensor.dtype) if mask[0] else None, of_weight


# By ATen's name: taken apart in C++ unless the meta device has a kernel for them. Not all are in
# every release.
_TAKEN_APART: Dict[str, Callable[..., Any]] = {
    "mish_backward": lambda grad, tensor: like(grad),
    "_fused_rms_norm": _rms_norm,
    "_fused_rms_norm_backward": _rms_norm_backward,
}


def register_meta_kernels(gpu: ImaginaryGpu) -> None:
    """The meta device has kernels for what would be taken apart, until `gpu.leave()`."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    missing = [
        name
        for name in _TAKEN_APART
        if hasattr(aten, name) and not has_kernel("aten::" + name, "Meta")
    ]
    if missing:
        # torch.library.Library would refuse: to it, what can be taken apart needs no kernel.
        library: Any = torch._C._dispatch_library("IMPL", "aten", "Meta")
        for name in missing:
            library.impl(name, "Meta", _TAKEN_APART[name], False)
        gpu.patches.undo_by(library.reset)


def _log_sigmoid_forward(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]
) -> Tuple[Tensor, Tensor]:
    """Activation.cpp: CUDA needs no buffer for the backward pass."""
    return like(args[0]), torch.empty(0, dtype=args[0].dtype, device=META)


def _binary_cross_entropy(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]
) -> Tensor:
    """cuda/Loss.cu: the reduced loss is written into the tensor that had the loss of each element,
    and keeps its memory."""
    out = func(*args, **kwargs)
    if out.dim() or args[0].dim() == 0:
        return out
    return like(args[0]).resize_(())


def like_arguments(*places: int) -> Callable:
    """A handler of what gives a new contiguous tensor like each of these arguments."""

    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        made = [empty(args[at].shape, args[at].dtype) for at in places]
        return made[0] if len(made) == 1 else tuple(made)

    return handler


def _native_attention(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]
) -> Tuple[Tensor, Tensor]:
    """transformers/cuda/attention.cu, native_multi_head_attention_cuda: the output, and the weights
    where they are wanted."""
    query, heads = args[0], args[4]
    given = {**dict(zip(("need_weights", "average_attn_weights"), args[10:12])), **kwargs}
    wanted, averaged = given.get("need_weights", True), given.get("average_attn_weights", True)
    batch, length = query.shape[:2]
    shape = (
        (0,)
        if not wanted
        else (batch, length, length)
        if averaged
        else (batch, heads, length, length)
    )
    return empty(query.shape, query.dtype), torch.empty(shape, dtype=query.dtype, device=META)


# Of the fast path of nn.TransformerEncoderLayer and nn.MultiheadAttention: 2.6 has no shapes for
# them.
_FAST_PATH: Dict[str, Callable] = {
    "_transformer_encoder_layer_fwd": like_arguments(0),
    "_native_multi_head_attention": _native_attention,
}


def _in_projection(width: int, heads: int, mask: int) -> Kernel:
    """transformers/cuda/attention.cu, native_multi_head_attention_cuda: queries, keys and values as
    one and as three, and the scores where there is a mask. All are places among the arguments."""

    def kernel(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
        tensor, given = args[0], args[mask] if len(args) > mask else kwargs.get("mask")
        rows, size = tensor.shape[:2].numel(), tensor.element_size()
        sizes = [3 * rows * args[width] * size] * 2
        if given is not None:
            sizes.append(rows * tensor.shape[1] * args[heads] * size)
        return [Transient(sizes)]

    return kernel


def _encoder_layer_holds(
    machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]
) -> List[Held]:
    """transformers/transformer.cpp, transformer_encoder_layer_forward: attention, then the wide
    layer. In evaluation alone."""
    tensor, wide = args[0], args[14]
    between = tensor.shape[:-1].numel() * wide.shape[0] * tensor.element_size()
    return [*_in_projection(1, 2, 18)(machine, args, kwargs), tensor.nbytes, between]


TEMPORARIES: Dict[str, Kernel] = {
    "_native_multi_head_attention": _in_projection(3, 4, 9),
    "_transformer_encoder_layer_fwd": _encoder_layer_holds,
}


def operation_handlers() -> Dict[Any, Callable]:
    return {
        aten.log_sigmoid_forward.default: _log_sigmoid_forward,
        aten.binary_cross_entropy.default: _binary_cross_entropy,
        aten.multi_margin_loss_backward.default: like_arguments(1),
        aten.multilabel_margin_loss_backward.default: like_arguments(1),
        aten._standard_gamma_grad.default: like_arguments(0),
        aten._dirichlet_grad.default: like_arguments(0),
        aten._masked_softmax.default: like_arguments(0),
        aten._masked_softmax_backward.default: like_arguments(0),
        # write into their arguments alone
        aten._cummax_helper.default: lambda gpu, func, args, kwargs: None,
        aten._cummin_helper.default: lambda gpu, func, args, kwargs: None,
        **{
            getattr(aten, name).default: handler
            for name, handler in _FAST_PATH.items()
            if not torch._C._dispatch_has_kernel_for_dispatch_key("aten::" + name, "Meta")
        },
        **{
            getattr(aten, name).default: _calling(kernel)
            for name, kernel in _TAKEN_APART.items()
            if hasattr(aten, name)
        },
    }


def _calling(kernel: Callable[..., Any]) -> Callable:
    return lambda gpu, func, args, kwargs: kernel(*args, **kwargs)
