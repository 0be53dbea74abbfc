"""The backward passes of the attention back-ends, and the softmax of the plain one."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from brimful_inside.imaginary.operators.temporaries.held import (
    Held,
    Kernel,
    Law,
    Machine,
    Passing,
    Tensor,
    bytes_of_tensor,
)

__all__ = ["KERNELS"]


def _copied_by_row(*tensors: Tensor) -> List[Held]:
    """Gradient and output are wanted as (batch, length, heads, size); transposed as the layers give them they are."""
    return [bytes_of_tensor(tensor) for tensor in tensors if not tensor.transpose(1, 2).is_contiguous()]


def _row_sums(batch: int, heads: int, length: int) -> int:
    return batch * heads * length * 4


def _flash_backward(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """flash_api.cpp, mha_bwd: the gradient of the query is summed in float32; row sums of the softmax's gradient.

    args: grad_out, query, key, value, out, ...; shapes (batch, heads, length, head size). What cuDNN's takes is not published:
    the same is assumed.
    """
    query, key = args[1], args[2]
    batch, heads, length, size = query.shape
    rounded = -(-length // 128) * 128
    width = -(-size // 32) * 32 if size <= 192 else 256
    held = _copied_by_row(args[0], args[4])
    held += [_row_sums(batch, heads, rounded), batch * rounded * heads * width * 4]
    if key.shape[1] != heads:  # grouped queries: the gradients of key and value for every head
        held += [batch * key.shape[2] * heads * size * key.element_size()] * 2
    return held


def _efficient(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """kernel_forward.h: heads larger than 128 are summed in float32 beside the output, where that is a half type."""
    query, value = args[0], args[2]
    if query.element_size() == 4 or value.shape[3] <= 128:
        return []
    return [query.shape[:3].numel() * value.shape[3] * 4]


def _efficient_backward(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """transformers/cuda/attention_backward.cu: row sums, in float32 by way of a product, and the kernel's workspace."""
    query, key, value = args[1:4]
    batch, heads, queries, size = query.shape
    value_size = value.shape[3]
    held = _copied_by_row(args[0])
    if key.shape[1] != heads:  # grouped queries: the gradients of key and value for every head, before they are summed
        held += [batch * key.shape[2] * heads * width * key.element_size() for width in (size, value_size)]
    half = query.element_size() == 2
    if not half:  # (grad * out).sum(-1), then laid out by head; half types do it in the kernel
        held.append(Passing([batch * heads * queries * value_size * 4, _row_sums(batch, heads, queries)]))
    held.append(_row_sums(batch, heads, queries))
    if machine.capability >= (7, 0) or half:
        block = _block(machine, half, max(size, value_size))
        in_registers = int(half and max(size, value_size) <= block[2])
        if not half:
            in_registers = 1  # the results are float32 themselves: nothing to sum beside them
        held.append(
            Law("efficient_workspace", (batch, heads, queries, key.shape[2], size, value_size, *block[:2], in_registers))
        )
    return held


def _block(machine: Machine, half: bool, size: int) -> Sequence[int]:
    """Rows and columns of the kernel's block, and the head size up to which it keeps results in registers (cutlassB.h)."""
    if not half or size <= 64:
        return 64, 64, 64
    wide = machine.capability in ((7, 0), (7, 2), (8, 0), (8, 7)) or machine.capability[0] in (9, 10, 11)
    if not wide and size <= 96 and machine.capability in ((8, 6), (8, 9)):
        return 128, 64, 96
    if not wide:  # less shared memory on a multiprocessor
        return 64, 64, 64
    if size <= 128:
        return (128, 128, 128) if machine.capability[0] >= 8 else (128, 64, 128)
    return 128, 64, 128


def _safe_softmax(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """attention.cpp, _safe_softmax: the plain softmax, where its input is -inf, and whole rows of that."""
    tensor = args[0]
    return [bytes_of_tensor(tensor), tensor.numel(), tensor.numel() // max(1, tensor.shape[-1])]


def _in_projection(tensor: Tensor, width: int, heads: int, masked: bool) -> List[Held]:
    """transformers/cuda/attention.cu, native_multi_head_attention_cuda: queries, keys and values as one and as three."""
    batch, length = tensor.shape[:2]
    sizes = [3 * batch * length * width * tensor.element_size()] * 2
    return [Passing([*sizes, *([batch * heads * length * length * tensor.element_size()] if masked else [])])]


def _native_attention(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    mask = args[9] if len(args) > 9 else kwargs.get("mask")
    return _in_projection(args[0], args[3], args[4], mask is not None)


def _encoder_layer(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """transformers/transformer.cpp, transformer_encoder_layer_forward: attention, then the wide layer. In evaluation alone."""
    tensor, width, heads, wide = args[0], args[1], args[2], args[14]
    mask = args[18] if len(args) > 18 else kwargs.get("mask")
    held = _in_projection(tensor, width, heads, mask is not None)
    return [*held, bytes_of_tensor(tensor), tensor.shape[:-1].numel() * wide.shape[0] * tensor.element_size()]


KERNELS: Dict[str, Kernel] = {
    "_scaled_dot_product_flash_attention_backward": _flash_backward,
    "_scaled_dot_product_cudnn_attention_backward": _flash_backward,
    "_scaled_dot_product_efficient_attention": _efficient,
    "_scaled_dot_product_efficient_attention_backward": _efficient_backward,
    "_safe_softmax": _safe_softmax,
    "_native_multi_head_attention": _native_attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
}
