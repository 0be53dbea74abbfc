"""LSTM, GRU and plain RNN as cuDNN runs them: one operation, flat weights, and a reserve space for the backward pass."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.backends.cudnn.rnn

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.imaginary.state.tensors import META, autocast_on, is_meta

__all__ = ["flatten_weights_as_on_cuda", "handlers"]

Tensor = torch.Tensor
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
# What a cell keeps for each hidden unit and time step, for its backward pass: the gates, and the cell's and hidden state.
# cuDNN does not document the size of its reserve space; assumed.
KEPT = {"lstm": 6, "gru": 5, "rnn_tanh": 2, "rnn_relu": 2}


class _CudnnRnn(torch.autograd.Function):
    """_cudnn_rnn and _cudnn_rnn_backward (cudnn/RNN.cpp) as far as memory goes."""

    @staticmethod
    def forward(ctx: Any, plan: Dict[str, Any], data: Tensor, hidden: Tensor, cell: Optional[Tensor], *weights: Tensor) -> Any:
        by_time = data.new_empty(data.shape) if plan["batch_first"] else None  # cuDNN wants time first: a copy while it runs
        output = data.new_empty(plan["output_shape"])
        last_hidden = torch.empty_like(hidden)
        last_cell = torch.empty_like(cell) if cell is not None else None
        reserve = torch.empty(plan["reserve_bytes"] if plan["train"] else 0, dtype=torch.uint8, device=META)
        flat = weights if plan["flat"] else [data.new_empty(sum(w.numel() for w in weights))]
        ctx.plan, ctx.count = plan, len(weights)
        plan["ran"](backward=False)
        del by_time
        ctx.save_for_backward(data, hidden, cell, output, reserve, *flat, *weights)
        return (output, last_hidden) if last_cell is None else (output, last_hidden, last_cell)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        saved = ctx.saved_tensors
        data, hidden, cell = saved[:3]
        ctx.plan["ran"](backward=True)
        weights = saved[len(saved) - ctx.count :]
        shapes = (data.shape, ctx.plan["output_shape"]) if ctx.plan["batch_first"] else ()
        by_time = [data.new_empty(shape) for shape in shapes]  # the input and the output's gradient
        grad_data, grad_hidden = torch.empty_like(data), torch.empty_like(hidden)
        grad_cell = torch.empty_like(cell) if cell is not None else None
        flat = data.new_empty(sum(weight.numel() for weight in weights))
        grad_weights, start = [], 0
        for weight in weights:
            grad_weights.append(flat[start : start + weight.numel()].view(weight.shape))
            start += weight.numel()
        del by_time
        return (None, grad_data, grad_hidden, grad_cell, *grad_weights)


def _run(gpu: ImaginaryGpu, kind: str, data: Tensor, hx: Any, weights: List[Tensor], options: Dict[str, Any]) -> Any:
    hidden, cell = hx if kind == "lstm" else (hx, None)
    weights = list(weights)
    flat = len({w.untyped_storage()._cdata for w in weights}) == 1
    if autocast_on():
        lower = torch.get_autocast_dtype("cuda")
        data, hidden = data.to(lower), hidden.to(lower)
        cell = cell.to(lower) if cell is not None else None
        weights, flat = _cast_flat(weights, lower), True
    directions = 2 if options["bidirectional"] else 1
    width = hidden.shape[-1] * directions
    units = (cell if cell is not None else hidden).shape[-1]
    steps = data.shape[:-1].numel()
    reserve = KEPT[kind] * steps * units * directions * options["num_layers"] * data.element_size()
    if options["dropout"] and options["train"]:
        _hold_dropout_states(gpu)
        reserve += steps * width * (options["num_layers"] - 1)
    lengths = options.get("batch_sizes")
    length = len(lengths) if lengths is not None else data.shape[1 if options.get("batch_first") else 0]
    sizes = (data.shape[-1], hidden.shape[-1], GATES[kind] * units)
    ran = partial(_tell, gpu, data.dtype, steps, max(1, length), sizes, options["num_layers"], directions)
    plan = {
        "output_shape": (*data.shape[:-1], width),
        "reserve_bytes": reserve,
        "train": bool(options["train"]),
        "flat": flat,
        "batch_first": lengths is None and bool(options.get("batch_first")),
        "ran": ran,
    }
    gpu.approximate("cudnn rnn reserve space")
    return _CudnnRnn.apply(plan, data, hidden, cell, *weights)


def _tell(
    gpu: ImaginaryGpu,
    dtype: torch.dtype,
    rows: int,
    length: int,
    sizes: Tuple[int, int, int],
    layers: int,
    directions: int,
    backward: bool,
) -> None:
    """To the clock: each layer has one product over all rows (samples x time steps) for what comes in, and one a time step for
    what comes from the step before; backward each has its gradient for data and for weights."""
    width, hidden, gates = sizes
    kind, size = gpu.classes.of(dtype, convolution=True), dtype.itemsize
    a_step = max(1, rows // length)
    for layer in range(layers):
        inner = width if layer == 0 else hidden * directions
        for _ in range(directions):
            moved = size * (rows * (inner + gates) + inner * gates)
            again = size * (rows * (hidden + gates) + hidden * gates)
            gpu.clock.add("cudnn_rnn", kind, 2 * rows * inner * gates, moved, 1, (1, rows, gates, inner))
            gpu.clock.add("cudnn_rnn", kind, 2 * rows * hidden * gates, again, length, (1, a_step, gates, hidden))
            if backward:
                both = inner + hidden
                gpu.clock.add("cudnn_rnn", kind, 2 * rows * both * gates, moved + again, 1, (1, gates, both, rows))


def _hold_dropout_states(gpu: ImaginaryGpu) -> None:
    """The generator's states, made at the first use and kept (RNN.cpp, dropout_state_cache).

    Of 48 bytes each for 1024 threads of each multiprocessor: cuDNN does not document how many; assumed.
    """
    held = gpu.__dict__.setdefault("dropout_states", {})
    index = gpu.ledger.index
    if index not in held:
        held[index] = gpu.ledger.reserve(gpu.card.multiprocessors * 1024 * 48, "cudnn dropout states")


def _cast_flat(weights: List[Tensor], dtype: torch.dtype) -> List[Tensor]:
    """_cudnn_rnn_cast_reflatten: the weights in the lower precision, one after another in one buffer."""
    return list(_Flatten.apply(dtype, *weights))


class _Flatten(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> Any:
        ctx.dtypes = [weight.dtype for weight in weights]
        flat = torch.empty(sum(w.numel() for w in weights), dtype=dtype, device=META)
        views, start = [], 0
        for weight in weights:
            views.append(flat.as_strided(weight.shape, weight.contiguous().stride(), start))
            start += weight.numel()
        return tuple(views)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None, *(grad.to(dtype) for grad, dtype in zip(grads, ctx.dtypes)))


def _handler(kind: str) -> Callable:
    padded = ("data", "hx", "weights", "has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first")
    packed = ("data", "batch_sizes", "hx", "weights", "has_biases", "num_layers", "dropout", "train", "bidirectional")

    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        if not is_meta(args[0]) or not torch.backends.cudnn.enabled:
            return func(*args, **kwargs)
        names = packed if isinstance(args[2], Tensor) or isinstance(args[3], (list, tuple)) else padded
        options: Dict[str, Any] = dict(zip(names, args))
        return _run(gpu, kind, options["data"], options["hx"], options["weights"], options)

    return handler


def _flatten_weight(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Tensor:
    """torch._cudnn_rnn_flatten_weight: the weights become views of one buffer."""
    weights = args[0]
    if not is_meta(weights[0]):
        return func(*args, **kwargs)
    flat = weights[0].new_empty(sum(weight.numel() for weight in weights))
    start = 0
    for weight in weights:
        stride = torch.empty(weight.shape, device=META).stride()
        weight.data = flat.as_strided(weight.shape, stride, start)
        start += weight.numel()
    return flat


def flatten_weights_as_on_cuda(patches: Patches) -> None:
    """nn.RNNBase.flatten_parameters asks whether cuDNN is there, and for its number of the kind of cell."""
    patches.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)
    patches.set(torch.backends.cudnn.rnn, "get_cudnn_mode", lambda mode: 0)


def handlers() -> Dict[Any, Callable]:
    table: Dict[Any, Callable] = {getattr(torch, kind): _handler(kind) for kind in GATES}
    table[torch._cudnn_rnn_flatten_weight] = _flatten_weight
    return table
