"""Scaled dot product attention by the back-end that the card would pick, and the temporaries of
each back-end.

The rules are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp; each back-end saves
other tensors for the backward pass, which is where the difference in memory lies."""

from __future__ import annotations

import math
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F

from brimful_inside.imaginary.operators.temporaries import (
    Formula,
    Held,
    Kernel,
    Machine,
    Transient,
)
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import META, C, Tensor, aten, is_meta
from brimful_inside.simulator.workspaces import efficient_block, torch_release

HALVES = (torch.float16, torch.bfloat16)
MATH, FLASH, EFFICIENT, CUDNN = 0, 1, 2, 3  # torch.nn.attention.SDPBackend
# The efficient kernel takes groups of heads, and all kernels one head of key and value without
# enable_gqa (pull request 191085 of PyTorch): there in 2.15, not in 2.13.
SINGLE_HEAD_SINCE = 215
RELEASE = torch_release(torch.__version__)


class Call(NamedTuple):
    """The arguments of torch.nn.functional.scaled_dot_product_attention."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Optional[Tensor] = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: Optional[float] = None
    enable_gqa: bool = False

    @property
    def needs_grad(self) -> bool:
        return torch.is_grad_enabled() and any(t.requires_grad for t in self[:3])


def choose(call: Call, capability: Tuple[int, int]) -> int:
    """The back-end for `call` on a card of `capability` (select_sdp_backend). Raises RuntimeError
    where none is allowed."""
    for backend in _priority(capability):
        if backend in _FITS and _FITS[backend](call, capability):
            return backend
    raise RuntimeError("No available kernel. Aborting execution.")


def _priority(capability: Tuple[int, int]) -> List[int]:
    """cuDNN comes first on Hopper and Blackwell since PyTorch 2.10
    (check_prefer_cudnn_attention)."""
    order = (
        [int(backend) for backend in torch._C._get_sdp_priority_order()]
        if hasattr(torch._C, "_get_sdp_priority_order")
        else []
    )
    default = [FLASH, EFFICIENT, MATH, CUDNN]
    if order and order[: len(default)] != default:
        return order
    prefers_cudnn = (
        capability[0] in (9, 10)
        and RELEASE >= 210
        and os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1"
    )
    return [CUDNN, FLASH, EFFICIENT, MATH] if prefers_cudnn else default


def _dense(call: Call, takes_groups: bool = True) -> bool:
    """Four dimensions each, the same batch, heads that go together, nothing empty.

    takes_groups: whether one head of key and value may serve several of the query
    (check_batch_size_and_num_heads_dense)."""
    query, key, value = call[:3]
    if (
        not query.dim() == key.dim() == value.dim() == 4
        or not query.shape[0] == key.shape[0] == value.shape[0]
        or 0 in (query.shape[2], key.shape[2], value.shape[2])
    ):
        return False
    heads = query.shape[1], key.shape[1], value.shape[1]
    if takes_groups and heads[1] == heads[2] == 1 and RELEASE >= SINGLE_HEAD_SINCE:
        return True
    if call.enable_gqa and takes_groups:
        return heads[0] % heads[1] == 0 and heads[0] % heads[2] == 0
    return heads[0] == heads[1] == heads[2]


def _last_dim_is_dense(call: Call, ignore_singleton: bool) -> bool:
    tensors = [*call[:3], *(() if call.attn_mask is None else (call.attn_mask,))]
    return all(t.stride(-1) == 1 or (ignore_singleton and t.shape[-1] == 1) for t in tensors)


def _low_precision(call: Call, capability: Tuple[int, int]) -> bool:
    dtypes = HALVES if capability[0] >= 8 else (torch.float16,)
    return call.query.dtype == call.key.dtype == call.value.dtype and call.query.dtype in dtypes


def _flash_fits(call: Call, capability: Tuple[int, int]) -> bool:
    size = call.query.shape[-1]
    small_cache = (8, 6) <= capability <= (8, 9) or capability[0] == 12
    too_wide = call.needs_grad and small_cache and size > 192
    return (
        torch._C._get_flash_sdp_enabled()
        and capability >= (8, 0)
        and call.attn_mask is None
        and _low_precision(call, capability)
        and _dense(call)
        and _last_dim_is_dense(call, ignore_singleton=True)
        and size == call.key.shape[-1] == call.value.shape[-1] <= 256
        and not (call.is_causal and call.query.shape[-2] != call.key.shape[-2])
        and not (too_wide and (call.dropout_p > 0 or size <= 224))
    )


def _alignment(call: Call, capability: Tuple[int, int]) -> int:
    """minimum_gemm_alignment: elements."""
    half = call.query.dtype in HALVES
    tensor_cores = capability[0] >= 8 or (capability[0] == 7 and half)
    alignment = 4 if capability[0] >= 8 else 1
    return max(alignment, 128 // (16 if half else 32)) if tensor_cores else alignment


def _efficient_fits(call: Call, capability: Tuple[int, int]) -> bool:
    dtypes = (torch.float16, torch.float32, *([torch.bfloat16] if capability[0] >= 8 else []))
    alignment = _alignment(call, capability)
    size = call.query.shape[-1]
    return (
        torch._C._get_mem_efficient_sdp_enabled()
        and capability >= (5, 0)
        and _dense(call, RELEASE >= SINGLE_HEAD_SINCE)
        and _last_dim_is_dense(call, ignore_singleton=False)
        and call.query.dtype in dtypes
        and call.query.dtype == call.key.dtype == call.value.dtype
        and size == call.key.shape[-1]
        and size % alignment == call.value.shape[-1] % alignment == 0
        and size > 0
    )


def _mask_is_constant(call: Call) -> bool:
    """No gradient is wanted of a mask, and it is repeated along whole dimensions at most
    (check_attn_mask_shape)."""
    mask, query = call.attn_mask, call.query
    if mask is None:
        return True
    whole = (*query.shape[:3], call.key.shape[2])
    return (
        not mask.requires_grad
        and mask.dim() in (2, 4)
        and all(size in (1, most) for size, most in zip(mask.shape[::-1], whole[::-1]))
    )


def _cudnn_fits(call: Call, capability: Tuple[int, int]) -> bool:
    return (
        torch._C._get_cudnn_sdp_enabled()
        and capability >= (8, 0)
        and not torch.are_deterministic_algorithms_enabled()
        and _low_precision(call, capability)
        and _dense(call)
        and _mask_is_constant(call)
        and _last_dim_is_dense(call, ignore_singleton=True)
        and call.dropout_p * 16 == math.floor(call.dropout_p * 16)
        and call.key.shape[2] != 1
        and not (call.dropout_p and call.query.shape[2] == 1)
        and all(t.shape[-1] <= 128 and t.shape[-1] % 8 == 0 for t in (call.query, call.value))
    )


_FITS: Dict[int, Callable[[Call, Tuple[int, int]], bool]] = {
    CUDNN: _cudnn_fits,
    FLASH: _flash_fits,
    EFFICIENT: _efficient_fits,
    MATH: lambda call, capability: torch._C._get_math_sdp_enabled(),
}


# --- what each back-end keeps ---


def _attention(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    call = Call(*args, **kwargs)
    if not is_meta(call.query):
        return func(*args, **kwargs)
    query, key, value = call[:3]
    if not query.dtype == key.dtype == value.dtype:
        raise RuntimeError(
            "Expected query, key, and value to have the same dtype, but got query.dtype: %s "
            "key.dtype: %s and value.dtype: %s "
            "instead." % (query.dtype, key.dtype, value.dtype)
        )
    if call.attn_mask is not None and call.is_causal:
        raise RuntimeError(
            "_scaled_dot_product_attention: Explicit attn_mask should not be set when "
            "is_causal=True"
        )
    backend = choose(call, gpu.machine.capability)
    gpu.machine.choose(lambda capability: _kept_as(call, capability))
    return _RUN[backend](call)


def _kept_as(call: Call, capability: Tuple[int, int]) -> Optional[int]:
    """The back-end that keeps and takes the same memory as the one of a card: cuDNN's is assumed to
    be as flash attention (`_flash_backward`). None where none is allowed."""
    try:
        backend = choose(call, capability)
    except RuntimeError:
        return None
    return FLASH if backend == CUDNN else backend


def _float_mask(call: Call) -> Optional[Tensor]:
    """A boolean mask becomes one that is added (convert_boolean_attn_mask)."""
    mask = call.attn_mask
    if mask is None or mask.dtype != torch.bool:
        return mask
    if not is_meta(mask):
        mask = mask.to(META)
    return torch.where(
        mask, 0.0, torch.scalar_tensor(float("-inf"), dtype=call.query.dtype, device=META)
    )


def _padded(tensor: Tensor, multiple: int) -> Tensor:
    rest = -tensor.shape[-1] % multiple
    return F.pad(tensor, (0, rest)) if rest else tensor


def _scale(call: Call) -> float:
    return call.scale if call.scale is not None else 1.0 / math.sqrt(call.query.shape[-1])


def _flash(call: Call) -> Tensor:
    size = call.query.shape[-1]
    query, key, value = (_padded(t, 8) for t in call[:3])
    out = aten._scaled_dot_product_flash_attention(
        query, key, value, call.dropout_p, call.is_causal, False, scale=_scale(call)
    )[0]
    return out[..., :size] if query.shape[-1] != size else out


def _efficient(call: Call) -> Tensor:
    query, key, value = call[:3]
    mask = _float_mask(call)
    if mask is not None:
        if mask.shape[-1] % 8 or any(stride % 8 for stride in mask.stride()[:-1]):
            mask = _padded(mask, 8)[..., : mask.shape[-1]]
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, call.needs_grad, call.dropout_p, call.is_causal, scale=call.scale
    )[0]


def _cudnn(call: Call) -> Tensor:
    query, key, value = call[:3]
    return aten._scaled_dot_product_cudnn_attention(
        query,
        key,
        value,
        _float_mask(call),
        call.needs_grad,
        call.dropout_p,
        call.is_causal,
        False,
        scale=call.scale,
    )[0]


def _math(call: Call) -> Tensor:
    """_scaled_dot_product_attention_math: in float32 for half types, unless the script allowed
    otherwise."""
    query, key, value = call[:3]
    dtype, mask = query.dtype, _float_mask(call)
    allowed = getattr(torch._C, "_get_math_sdp_allow_fp16_bf16_reduction", lambda: True)()
    if dtype in HALVES and not allowed:
        query, key, value = query.float(), key.float(), value.float()
    if call.enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    factor = math.sqrt(_scale(call))
    query = query * factor
    if call.is_causal:
        causal = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=META).tril()
        mask = torch.where(
            causal, 0.0, torch.scalar_tensor(float("-inf"), dtype=query.dtype, device=META)
        )
        del causal
    weights = torch.matmul(query, key.transpose(-2, -1) * factor)
    if mask is not None:
        weights.add_(mask.to(weights.dtype))
    weights = torch._safe_softmax(weights, -1)
    if call.dropout_p > 0:
        weights = torch.native_dropout(weights, call.dropout_p, True)[0]
    return torch.matmul(weights, value).to(dtype)


_RUN: Dict[int, Callable[[Call], Tensor]] = {
    MATH: _math,
    FLASH: _flash,
    EFFICIENT: _efficient,
    CUDNN: _cudnn,
}


def handlers() -> Dict[Any, Callable]:
    return {C._nn.scaled_dot_product_attention: _attention}


# --- what each back-end takes while it runs ---


def _copied_by_row(*tensors: Tensor) -> List[Held]:
    """Gradient and output are wanted as (batch, length, heads, size); transposed as the layers give
    them they are."""
    return [tensor.nbytes for tensor in tensors if not tensor.transpose(1, 2).is_contiguous()]


def _flash_backward(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """flash_api.cpp, mha_bwd: the gradient of the query is summed in float32; row sums of the
    softmax's gradient.

    args: grad_out, query, key, value, out, ...; shapes (batch, heads, length, head size). What
    cuDNN's takes is not published: the same is assumed."""
    query, key = args[1].transpose(1, 2), args[2].transpose(1, 2)
    return _copied_by_row(args[0], args[4]) + _flash_sums(
        query, key, query.shape[0], query.shape[1]
    )


def _flash_library_backward(
    machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]
) -> List[Held]:
    """The same as flash-attn is called: (batch, length, heads, head size), or with the cumulated
    lengths as argument 6 (all lengths together, heads, head size), each of which gets 128 rows more
    (mha_varlen_bwd)."""
    query, key, lengths = args[1], args[2], args[6]
    if lengths is None:
        return _flash_sums(query, key, query.shape[0], query.shape[1])
    return _flash_sums(query, key, 1, query.shape[0] + 128 * (lengths.numel() - 1))


def _flash_sums(query: Tensor, key: Tensor, batch: int, length: int) -> List[Held]:
    heads, size = query.shape[-2:]
    rows = batch * heads * -(-length // 128) * 128
    width = -(-size // 32) * 32 if size <= 192 else 256
    held: List[Held] = [rows * 4, rows * width * 4]
    if key.shape[-2] != heads:  # grouped queries: the gradients of key and value for every head
        held += [key.shape[:-2].numel() * heads * size * key.element_size()] * 2
    return held


def _efficient_forward(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """kernel_forward.h: heads larger than 128 are summed in float32 beside the output, where that
    is a half type."""
    query, value = args[0], args[2]
    if query.element_size() == 4 or value.shape[3] <= 128:
        return []
    return [query.shape[:3].numel() * value.shape[3] * 4]


def _efficient_backward(
    machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]
) -> List[Held]:
    """transformers/cuda/attention_backward.cu: row sums, in float32 by way of a product, and the
    kernel's workspace."""
    query, key, value = args[1:4]
    batch, heads, queries, size = query.shape
    value_size, row_sums = value.shape[3], batch * heads * queries * 4
    held = _copied_by_row(args[0])
    # grouped queries: the gradients of key and value for every head, before they are summed
    if key.shape[1] != heads:
        held += [
            batch * key.shape[2] * heads * width * key.element_size()
            for width in (size, value_size)
        ]
    half = query.element_size() == 2
    if not half:  # (grad * out).sum(-1), then laid out by head; half types do it in the kernel
        held.append(Transient([row_sums * value_size, row_sums]))
    held.append(row_sums)
    if half or machine.choose(lambda capability: capability >= (7, 0)):
        block = efficient_block(machine.capability, half, max(size, value_size))
        # Of single precision the results are float32 themselves: nothing to sum beside them.
        in_registers = int(not half or max(size, value_size) <= block[2])
        held.append(
            Formula(
                "efficient_workspace",
                (batch, heads, queries, key.shape[2], size, value_size, *block[:2], in_registers),
            )
        )
    return held


def _safe_softmax(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """attention.cpp, _safe_softmax: the plain softmax, where its input is -inf, and whole rows of
    that."""
    tensor = args[0]
    return [tensor.nbytes, tensor.numel(), tensor.numel() // max(1, tensor.shape[-1])]


TEMPORARIES: Dict[str, Kernel] = {
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_cudnn_attention_backward": _flash_backward,
    "_flash_attention_backward": _flash_library_backward,
    "_scaled_dot_product_efficient_attention": _efficient_forward,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_safe_softmax": _safe_softmax,
}
