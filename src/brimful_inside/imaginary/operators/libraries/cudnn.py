"""What cuDNN takes for a convolution beside its tensors, and what its search for a plan does to the allocator.

With ``torch.backends.cudnn.benchmark`` PyTorch tries plans at the first meeting with a convolution (operation, shapes, layout,
dtype, strides, ...) and gives all cached memory back before it runs the best one (aten/src/ATen/native/cudnn/Conv_v8.cpp,
run_single_conv). So the segments of a first step are given back again and again, and a later step starts with few.
The workspaces are a law (simulator/cudnn_workspaces.py). What the tried plans ask for meanwhile is not known, and not taken.

Without ``benchmark`` cuDNN's heuristics choose the plan. The measured runs all had it on; that the same tensors are converted
without it is assumed, as tensor cores want them so either way, and each use is counted.
"""

from __future__ import annotations

import threading
from typing import Any, List, Sequence, Set, Tuple

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.simulator import workspaces
from brimful_inside.simulator.cudnn_workspaces import partial_sums_bytes

__all__ = ["BACKWARD_DATA", "BACKWARD_FILTER", "FORWARD", "Plans"]

Tensor = torch.Tensor
UNMEASURED = "cudnn workspace without benchmark"
LOADED_AT_ONCE = 16  # bytes: the largest load of a thread (CUDA C++ Programming Guide, vector types)
LARGEST_DEPTHWISE = 5  # assumed: between the 3 x 3 and the 7 x 7 that were seen
FORWARD, BACKWARD_DATA, BACKWARD_FILTER = "cudnn_forward", "cudnn_backward_data", "cudnn_backward_filter"


class Plans:
    """The plans that cuDNN has found, by thread and card: PyTorch keeps them for each thread by itself."""

    def __init__(self, gpu: ImaginaryGpu):
        self.gpu = gpu
        self._found: Set[Tuple[Any, ...]] = set()

    def run(
        self,
        operation: str,
        tensor: Tensor,
        weight: Tensor,
        output: Sequence[int],
        rest: Tuple[Any, ...],
        layout: torch.memory_format,
    ) -> None:
        """A convolution, or one of its gradients: the search at the first meeting, then the workspace that comes and goes.

        `output` is the shape of what the convolution gives, `rest` its stride, padding, dilation, transposed, groups.
        """
        cudnn = torch.backends.cudnn
        if not cudnn.enabled or _is_pytorchs_own(tensor, weight, rest, layout):
            return
        if cudnn.benchmark:
            self._search(operation, tensor, weight, rest, layout)
        if layout == torch.contiguous_format:
            converts = _converts(self.gpu, tensor, weight, output, rest)
        else:
            converts = _converts_channels_last(self.gpu, operation, tensor, weight, rest)
        if converts:
            if not cudnn.benchmark:
                self.gpu.approximate(UNMEASURED)
            self._work(operation, tensor, weight, output, rest, layout)

    def _search(
        self, operation: str, tensor: Tensor, weight: Tensor, rest: Tuple[Any, ...], layout: torch.memory_format
    ) -> None:
        thread = 0 if torch._C._current_graph_task_id() != -1 else threading.get_ident()
        shapes = (tuple(tensor.shape), tuple(weight.shape), tensor.dtype, layout)
        key = (thread, self.gpu.ledger.index, operation, *shapes, *rest)
        if key in self._found:
            return
        self._found.add(key)
        self.gpu.ledger.empty_cache()

    def _work(
        self,
        operation: str,
        tensor: Tensor,
        weight: Tensor,
        output: Sequence[int],
        rest: Tuple[Any, ...],
        layout: torch.memory_format,
    ) -> None:
        stride, _, _, transposed, groups = rest
        args = [tensor.element_size(), *_elements(operation, tensor, weight, output, transposed)]
        if operation == BACKWARD_FILTER:
            if layout != torch.contiguous_format or transposed:  # groups and strides were measured with channels first alone
                args.append(partial_sums_bytes(tensor.shape[1], output[1]))
            else:
                args[-1] *= groups
                args.append(partial_sums_bytes(tensor.shape[1], output[1], groups, max(stride)))
        law = operation
        if transposed and operation != BACKWARD_FILTER:  # its forward is the gradient of another convolution's input
            law = BACKWARD_DATA if operation == FORWARD else FORWARD
        ledger = self.gpu.ledger
        ledger.release(*ledger.reserve(workspaces.bytes_of(law, args), law, law, args))


def _elements(operation: str, tensor: Tensor, weight: Tensor, output: Sequence[int], transposed: bool) -> List[int]:
    """Of input, output and weight, as the laws want them."""
    outputs = 1
    for size in output:
        outputs *= size
    if not transposed and operation == FORWARD:
        return [tensor.numel(), weight.numel()]
    if transposed and operation == BACKWARD_DATA:
        return [outputs, weight.numel()]
    return [tensor.numel(), outputs, weight.numel()]


def _is_pytorchs_own(tensor: Tensor, weight: Tensor, rest: Tuple[Any, ...], layout: torch.memory_format) -> bool:
    """Whether PyTorch has a kernel of its own for it: a group for each channel (Convolution.cpp, use_cudnn_depthwise)."""
    stride, _, dilation, transposed, groups = rest
    if transposed or groups == 1 or tensor.shape[1] != groups or weight.shape[0] % groups:
        return False
    if layout != torch.contiguous_format:
        return False
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    plain = tensor.dim() == 4 and len(set(stride)) == 1 and set(dilation) == {1} and groups >= 32
    return not (half and plain)


def _converts(gpu: ImaginaryGpu, tensor: Tensor, weight: Tensor, output: Sequence[int], rest: Tuple[Any, ...]) -> bool:
    """Whether channels first go to tensor cores, with conversions on the way. Seen on measured rows: not for those that
    never overlap (they cut patches), not for images of up to four channels, not for one channel a group, for kernels of one
    element only where rows of a map are not aligned, and nobody has looked at volumes."""
    transposed, groups = rest[3:]
    if tensor.shape[1] <= 4 or (not transposed and groups > 1 and tensor.shape[1] == groups):
        return False
    half = tensor.dtype in (torch.float16, torch.bfloat16) and tuple(gpu.card.capability) >= (7, 0)
    wanted = _overlaps(tensor, weight, rest) or _is_unaligned(tensor, weight, output, rest)
    return wanted and (half or _as_tf32(gpu, tensor))


def _converts_channels_last(gpu: ImaginaryGpu, operation: str, tensor: Tensor, weight: Tensor, rest: Tuple[Any, ...]) -> bool:
    """Gradients in float32 take as much in channels last: seen on networks with depthwise convolutions of 7 x 7 in that layout,
    for which cuDNN seems to have no kernels of its own, and not on one of 3 x 3. Half types have them."""
    groups = rest[4]
    depthwise = groups > 1 and tensor.shape[1] == groups
    if depthwise and max(weight.shape[2:]) <= LARGEST_DEPTHWISE:
        return False
    return operation != FORWARD and _overlaps(tensor, weight, rest) and _as_tf32(gpu, tensor)


def _is_unaligned(tensor: Tensor, weight: Tensor, output: Sequence[int], rest: Tuple[Any, ...]) -> bool:
    """A kernel of one element whose product cannot read or write channels first as they stand.

    It is a product of matrices with a row for each channel, as long as the map has places. Kernels for tensor cores load and
    store 16 bytes at a time, so that each row has to begin at a multiple of these: a map of 14 x 14 in float32 does, one of
    7 x 7 does not. With a single place both layouts are the same.
    """
    transposed, groups = rest[3:]
    places = 1
    for size in output[2:]:
        places *= size
    plain = not transposed and groups == 1 and tensor.dim() <= 4 and set(weight.shape[2:]) == {1}
    return plain and places > 1 and places * tensor.element_size() % LOADED_AT_ONCE != 0


def _overlaps(tensor: Tensor, weight: Tensor, rest: Tuple[Any, ...]) -> bool:
    """A kernel in at most two dimensions that sees an element more than once."""
    stride, padding, _, transposed, _ = rest
    kernel = tuple(weight.shape[2:])
    cuts = not transposed and kernel == tuple(stride) and not any(padding)
    return tensor.dim() <= 4 and set(kernel) != {1} and not cuts


def _as_tf32(gpu: ImaginaryGpu, tensor: Tensor) -> bool:
    if tensor.dtype != torch.float32 or tuple(gpu.card.capability) < (8, 0):
        return False
    return torch.backends.cudnn.allow_tf32
