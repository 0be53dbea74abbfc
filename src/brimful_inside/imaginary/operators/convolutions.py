"""Convolutions and their gradients: shapes, copies of operands, and when cuDNN takes a workspace
(how large: simulator/workspaces.py). Layouts: aten/src/ATen/native/ConvUtils.h
(cudnn_conv_suggest_memory_format), Convolution.cpp.

All measured runs had ``torch.backends.cudnn.benchmark`` on. Without it cuDNN's heuristics choose
the plan: that they convert the same tensors is assumed, as tensor cores want them so either way,
and each use is counted."""

from __future__ import annotations

import math
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch

from brimful_inside.imaginary.operators.temporaries import (
    LAST,
    Held,
    Kernel,
    Machine,
    accumulator,
    is_last,
    reduction,
)
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import META, Tensor, aten
from brimful_inside.simulator.workspaces import bytes_of, partial_sums_bytes

FORWARD, BACKWARD_DATA, BACKWARD_FILTER = (
    "cudnn_forward",
    "cudnn_backward_data",
    "cudnn_backward_filter",
)
UNMEASURED = "cudnn workspace without benchmark"
TRIED = "cudnn.benchmark in float32"
# bytes: the largest load of a thread (CUDA C++ Programming Guide, vector types)
LOADED_AT_ONCE = 16
LARGEST_DEPTHWISE = 5  # assumed: between the 3 x 3 and the 7 x 7 that were measured
# channels; the largest tile of cuBLAS and CUTLASS. On an A100 networks of groups of 4 to 64
# channels take as much as with dense gradients (docs/developers/log.md); wider groups share none.
WIDEST_BLOCK = 256
_HALVES = (torch.float16, torch.bfloat16)


def layout_of(tensor: Tensor, weight: Tensor) -> torch.memory_format:
    """The layout in which cuDNN computes a convolution."""
    if tensor.dtype == torch.float64 or not torch.backends.cudnn.enabled:
        return torch.contiguous_format
    return LAST[tensor.dim()] if is_last(tensor) or is_last(weight) else torch.contiguous_format


def _copies(count: int) -> Kernel:
    """The first `count` arguments, the last of them input and weight, once more where the algorithm
    wants another layout."""

    def kernel(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
        tensors = args[:count]
        if tensors[-2].dim() <= 2:
            return []
        layout = layout_of(*tensors[-2:])
        return [
            tensor.nbytes for tensor in tensors if not tensor.is_contiguous(memory_format=layout)
        ]

    return kernel


TEMPORARIES: Dict[str, Kernel] = {"convolution": _copies(2), "convolution_backward": _copies(3)}


def _channels(weight: Tensor, transposed: bool, groups: int) -> int:
    """Of the input."""
    return weight.shape[0] if transposed else weight.shape[1] * groups


def output_shape(args: Tuple) -> Optional[List[int]]:
    """The shape of a convolution's output; None where PyTorch itself has to say what is wrong."""
    tensor, weight, _, stride, padding, dilation, transposed, output_padding, groups = args[:9]
    count = tensor.dim() - 2
    if (
        count < 1
        or weight.dim() != tensor.dim()
        or tensor.shape[1] != _channels(weight, transposed, groups)
    ):
        return None
    per = [
        list(values) * (count if len(values) == 1 else 1)
        for values in (stride, padding, dilation, output_padding)
    ]
    shape = [tensor.shape[0], weight.shape[1] * groups if transposed else weight.shape[0]]
    for size, kernel, step, pad, spread, extra in zip(tensor.shape[2:], weight.shape[2:], *per):
        if transposed:
            shape.append((size - 1) * step - 2 * pad + spread * (kernel - 1) + extra + 1)
        else:
            shape.append((size + 2 * pad - spread * (kernel - 1) - 1) // step + 1)
    return shape if all(size > 0 for size in shape[2:]) else None


class Convolution(NamedTuple):
    """A convolution or one of its gradients. `output` is the shape of what the convolution
    gives."""

    operation: str
    tensor: Tensor
    weight: Tensor
    output: Sequence[int]
    layout: torch.memory_format
    stride: Tuple[int, ...]
    padding: Tuple[int, ...]
    dilation: Tuple[int, ...]
    transposed: bool
    groups: int

    @classmethod
    def of(
        cls,
        operation: str,
        tensor: Tensor,
        weight: Tensor,
        output: Sequence[int],
        given: Sequence[Any],
    ) -> Convolution:
        """`given`: stride, padding, dilation, transposed, the output's padding, groups."""
        return cls(
            operation,
            tensor,
            weight,
            output,
            layout_of(tensor, weight),
            stride=tuple(given[0]),
            padding=tuple(given[1]),
            dilation=tuple(given[2]),
            transposed=bool(given[3]),
            groups=int(given[5]),
        )


def _convolution(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    shape = output_shape(args)
    tensor, weight, bias = args[:3]
    groups, wanted = args[8], _channels(weight, args[6], args[8])
    if tensor.shape[1] != wanted:
        raise RuntimeError(
            "Given groups=%d, weight of size %s, expected input%s to have %d channels, but got "
            "%d channels instead"
            % (groups, list(weight.shape), list(tensor.shape), wanted, tensor.shape[1])
        )
    if (
        shape is None
        or tensor.dtype != weight.dtype
        or (bias is not None and bias.dtype != tensor.dtype)
    ):
        return func(*args, **kwargs)
    convolution = Convolution.of(FORWARD, tensor, weight, shape, args[3:9])
    return _made(gpu, func, convolution, shape, tensor.dtype)


def _made(
    gpu: ImaginaryGpu, func: Any, convolution: Convolution, shape: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """What a convolution gives, which is there before its workspace."""
    made = torch.empty(shape, dtype=dtype, device=META, memory_format=convolution.layout)
    gpu.ledger.add(made.untyped_storage(), str(func))
    gpu.plans.run(convolution)
    return made


def _convolution_backward(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]
) -> Tuple[Optional[Tensor], ...]:
    grad, tensor, weight, _, _, _, _, transposed, _, groups, mask = args[:11]
    outs: List[Optional[Tensor]] = [None, None, None]
    for place, (like, operation) in enumerate(((tensor, BACKWARD_DATA), (weight, BACKWARD_FILTER))):
        if mask[place]:
            convolution = Convolution.of(operation, tensor, weight, grad.shape, args[4:10])
            outs[place] = _made(gpu, func, convolution, like.shape, like.dtype)
    if mask[2]:
        channels = weight.shape[1] * groups if transposed else weight.shape[0]
        made = outs[2] = torch.empty(channels, dtype=grad.dtype, device=META)
        gpu.ledger.add(made.untyped_storage(), str(func))
        # the sum of the output's gradient over all but the channels, after cuDNN's two gradients
        dims = [dim for dim in range(grad.dim()) if dim != 1]
        for name, numbers in reduction(gpu.machine, grad, dims, accumulator(grad)):
            gpu.ledger.release(*gpu.ledger.reserve_workspace(name, numbers, name))
    return outs[0], outs[1], outs[2]


def handlers() -> Dict[Any, Callable]:
    return {
        aten.convolution.default: _convolution,
        aten.convolution_backward.default: _convolution_backward,
    }


class Plans:
    """The plans that cuDNN has found, by thread and card: PyTorch keeps them for each thread apart.

    With ``benchmark`` PyTorch tries plans the first time it runs a convolution, and gives all
    cached memory back before it runs the best one (aten/src/ATen/native/cudnn/Conv_v8.cpp,
    run_single_conv). What the tried plans take is not known: those of float32 took 2.2 GiB of an
    H200 that was empty, beside a training of 0.4 (bench/results/measured-h200-2026-11.json), but
    none takes more than is free."""

    def __init__(self, gpu: ImaginaryGpu):
        self.gpu = gpu
        self._found: Set[Tuple[Any, ...]] = set()

    def run(self, convolution: Convolution) -> None:
        """The search for a plan the first time, then the workspace, allocated and freed."""
        cudnn = torch.backends.cudnn
        if not cudnn.enabled or _is_pytorchs_own(convolution):
            return
        if cudnn.benchmark:
            self._search(convolution)
        is_first = convolution.layout == torch.contiguous_format
        if (_converts if is_first else _converts_channels_last)(self.gpu, convolution):
            if not cudnn.benchmark:
                self.gpu.approximate(UNMEASURED)
            formula, args = _workspace(convolution)
            ledger = self.gpu.ledger
            # of one that no room could hold cuDNN knows before it runs
            if bytes_of(formula, args) <= ledger.card.total_bytes - ledger.card.context_bytes:
                ledger.release(*ledger.reserve_workspace(formula, args, formula))

    def _search(self, convolution: Convolution) -> None:
        thread = 0 if torch._C._current_graph_task_id() != -1 else threading.get_ident()
        operation, tensor, weight, _, *rest = convolution
        shapes = tuple(tensor.shape), tuple(weight.shape), tensor.dtype
        key = (thread, self.gpu.ledger.index, operation, *shapes, *rest)
        if key not in self._found:
            self._found.add(key)
            self.gpu.ledger.empty_cache()
            if tensor.dtype == torch.float32:
                self.gpu.approximate(TRIED)


def _workspace(convolution: Convolution) -> Tuple[str, List[int]]:
    """The name of the formula (simulator/workspaces.py) and its arguments."""
    operation, tensor, weight, output, layout, stride, _, _, transposed, groups = convolution
    args = [tensor.element_size(), tensor.numel(), math.prod(output), weight.numel()]
    if operation == BACKWARD_FILTER:
        # groups and strides were measured with channels first alone
        if layout != torch.contiguous_format or transposed:
            args.append(partial_sums_bytes(tensor.shape[1], output[1]))
        else:
            # as blocks of a tensor core's product go across groups narrower than they are
            width = max(tensor.shape[1], output[1]) // groups
            args[-1] *= min(groups, max(1, WIDEST_BLOCK // width))
            args.append(partial_sums_bytes(tensor.shape[1], output[1], groups, max(stride)))
        return BACKWARD_FILTER, args
    # a transposed convolution's forward is the gradient of another one's input
    if transposed == (operation == FORWARD):
        return BACKWARD_DATA, args
    del args[1 if transposed else 2]
    return FORWARD, args


def _is_pytorchs_own(convolution: Convolution) -> bool:
    """Whether PyTorch has a kernel of its own for it: a group for each channel (Convolution.cpp,
    use_cudnn_depthwise)."""
    _, tensor, weight, _, layout, stride, _, dilation, transposed, groups = convolution
    by_channel = groups > 1 and tensor.shape[1] == groups and not weight.shape[0] % groups
    plain = tensor.dim() == 4 and len(set(stride)) == 1 and set(dilation) == {1} and groups >= 32
    return (
        by_channel
        and not transposed
        and layout == torch.contiguous_format
        and not (tensor.dtype in _HALVES and plain)
    )


def _converts(gpu: ImaginaryGpu, convolution: Convolution) -> bool:
    """Whether channels first go to tensor cores, with conversions on the way. Measured rows show:
    not for those that never overlap (they cut patches), not for images of up to four channels, not
    for one channel a group, for kernels of one element only where rows of a map are not aligned;
    volumes were not measured."""
    tensor, transposed, groups = convolution.tensor, convolution.transposed, convolution.groups
    if tensor.shape[1] <= 4 or (not transposed and groups > 1 and tensor.shape[1] == groups):
        return False
    half = tensor.dtype in _HALVES and gpu.machine.choose(lambda capability: capability >= (7, 0))
    return (_overlaps(convolution) or _is_unaligned(convolution)) and (
        half or _as_tf32(gpu, tensor)
    )


def _converts_channels_last(gpu: ImaginaryGpu, convolution: Convolution) -> bool:
    """Gradients in float32 take as much in channels last: measured on networks with depthwise
    convolutions of 7 x 7 in that layout, for which cuDNN seems to have no kernels of its own, and
    not on one of 3 x 3. Half types have them."""
    operation, tensor, weight = convolution[:3]
    depthwise = convolution.groups > 1 and tensor.shape[1] == convolution.groups
    if depthwise and max(weight.shape[2:]) <= LARGEST_DEPTHWISE:
        return False
    return operation != FORWARD and _overlaps(convolution) and _as_tf32(gpu, tensor)


def _is_unaligned(convolution: Convolution) -> bool:
    """A kernel of one element whose product cannot read or write channels first as they stand.

    Each channel is a row of a matrix, as long as the map has places; tensor cores load and store 16
    bytes at a time, at which each row has to begin: of 14 x 14 in float32 it does, of 7 x 7 not.
    With a single place both layouts are the same."""
    _, tensor, weight, output, _, _, _, _, transposed, groups = convolution
    places = math.prod(output[2:])
    plain = not transposed and groups == 1 and tensor.dim() <= 4 and set(weight.shape[2:]) == {1}
    return plain and places > 1 and places * tensor.element_size() % LOADED_AT_ONCE != 0


def _overlaps(convolution: Convolution) -> bool:
    """A kernel in at most two dimensions that reads an element more than once."""
    kernel = tuple(convolution.weight.shape[2:])
    cuts = (
        not convolution.transposed and kernel == convolution.stride and not any(convolution.padding)
    )
    return convolution.tensor.dim() <= 4 and set(kernel) != {1} and not cuts


def _as_tf32(gpu: ImaginaryGpu, tensor: Tensor) -> bool:
    return gpu.classes.of(tensor.dtype, convolution=True) == "tf32"
