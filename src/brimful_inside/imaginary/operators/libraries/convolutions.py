"""Convolutions and their gradients in the layout that cuDNN computes in, and in PyTorch's order (Convolution.cpp).

Copies of operands are in operators/temporaries/convolutions.py; what cuDNN takes beside the tensors is in cudnn.py.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from brimful_inside.imaginary.operators.libraries.cudnn import BACKWARD_DATA, BACKWARD_FILTER, FORWARD
from brimful_inside.imaginary.operators.temporaries.convolutions import bias_gradient, layout_of
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import META
from brimful_inside.simulator.workspaces import bytes_of

__all__ = ["handlers"]

Tensor = torch.Tensor
aten = torch.ops.aten


def _per_dimension(values: Sequence[int], count: int) -> List[int]:
    return list(values) * count if len(values) == 1 else list(values)


def output_shape(args: Tuple) -> Optional[List[int]]:
    """The shape of a convolution's output; None where PyTorch itself has to say what is wrong."""
    tensor, weight, _, stride, padding, dilation, transposed, output_padding, groups = args[:9]
    count = tensor.dim() - 2
    if (
        count < 1
        or weight.dim() != tensor.dim()
        or tensor.shape[1] != (weight.shape[0] if transposed else weight.shape[1] * groups)
    ):
        return None
    per = [_per_dimension(values, count) for values in (stride, padding, dilation, output_padding)]
    shape = [tensor.shape[0], weight.shape[1] * groups if transposed else weight.shape[0]]
    for size, kernel, step, pad, spread, extra in zip(tensor.shape[2:], weight.shape[2:], *per):
        if transposed:
            shape.append((size - 1) * step - 2 * pad + spread * (kernel - 1) + extra + 1)
        else:
            shape.append((size + 2 * pad - spread * (kernel - 1) - 1) // step + 1)
    return shape if all(size > 0 for size in shape[2:]) else None


def _convolution(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    shape = output_shape(args)
    tensor, weight, bias = args[:3]
    transposed, groups = args[6], args[8]
    wanted = weight.shape[0] if transposed else weight.shape[1] * groups
    if tensor.shape[1] != wanted:
        raise RuntimeError(
            "Given groups=%d, weight of size %s, expected input%s to have %d channels, but got %d channels instead"
            % (groups, list(weight.shape), list(tensor.shape), wanted, tensor.shape[1])
        )
    if shape is None or tensor.dtype != weight.dtype or (bias is not None and bias.dtype != tensor.dtype):
        return func(*args, **kwargs)
    layout = layout_of(tensor, weight)
    made = torch.empty(shape, dtype=tensor.dtype, device=META, memory_format=layout)
    gpu.ledger.born(made.untyped_storage(), str(func))
    gpu.plans.run(FORWARD, tensor, weight, shape, _rest(args[3:9]), layout)
    return made


def _rest(given: Sequence[Any]) -> Tuple[Any, ...]:
    """Stride, padding, dilation, transposed, groups, to be compared and hashed; `given` has the output's padding too."""
    stride, padding, dilation, transposed, _, groups = given
    return tuple(stride), tuple(padding), tuple(dilation), bool(transposed), int(groups)


def _convolution_backward(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tuple[Optional[Tensor], ...]:
    grad, tensor, weight, _, _, _, _, transposed, _, groups, mask = args[:11]
    layout = layout_of(tensor, weight)
    outs: List[Optional[Tensor]] = [None, None, None]
    for place, (like, operation) in enumerate(((tensor, BACKWARD_DATA), (weight, BACKWARD_FILTER))):
        if mask[place]:
            made = outs[place] = _laid_out(like, layout)
            gpu.ledger.born(made.untyped_storage(), str(func))
            gpu.plans.run(operation, tensor, weight, grad.shape, _rest(args[4:10]), layout)
    if mask[2]:
        channels = weight.shape[1] * groups if transposed else weight.shape[0]
        made = outs[2] = torch.empty(channels, dtype=grad.dtype, device=META)
        gpu.ledger.born(made.untyped_storage(), str(func))
        for name, numbers in bias_gradient(gpu.machine, grad):
            gpu.ledger.release(*gpu.ledger.reserve(bytes_of(name, numbers), name, name, numbers))
    return outs[0], outs[1], outs[2]


def _laid_out(tensor: Tensor, layout: torch.memory_format) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=META, memory_format=layout)


def handlers() -> Dict[Any, Callable]:
    return {aten.convolution.default: _convolution, aten.convolution_backward.default: _convolution_backward}
