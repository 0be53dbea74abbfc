"""LSTM, GRU and plain RNN as cuDNN runs them: one operation, with flat weights and a reserve space
for the backward pass (cudnn/RNN.cpp). Their cells as CUDA's fused kernels."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.backends.cudnn.rnn
import torch.nn.functional as F

from brimful_inside.imaginary.operators.fused_kernels import like_arguments
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.tensors import META, Tensor, aten, autocast_on, empty, is_meta

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
# What a cell keeps for each hidden unit and time step, for its backward pass: the gates, and the
# cell's and hidden state (but for that of the last layer, which is the output). cuDNN documents
# neither the size of its reserve space nor that of its workspace. These reproduce to the byte what
# it took for nine batches of a packed LSTM of two layers in both directions, in float32, and the
# peaks of three batch sizes within 1 % (an H200, cuDNN 9.19, bench/results/measured-h200-*.json);
# for other cells and without packing they are assumed.
KEPT = {"lstm": 6, "gru": 5, "rnn_tanh": 2, "rnn_relu": 2}
# Beside what depends on shapes: as much as cuBLAS takes on Hopper, and to align.
WORKSPACE_BYTES, ALIGN_BYTES = 32 << 20, 256


class _Plan(NamedTuple):
    """A network without its tensors."""

    gpu: ImaginaryGpu
    dtype: torch.dtype
    rows: int  # samples x time steps
    length: int  # time steps
    width: int  # of the input
    hidden: int
    gates: int
    layers: int
    directions: int
    output_shape: Tuple[int, ...]
    reserve_bytes: int
    workspace_bytes: int
    flat: bool  # the weights lie in one buffer
    batch_first: bool

    def count(self, backward: bool) -> None:
        """For the clock: each layer has one product over all rows for its input, and one a time
        step for its hidden state; backward each has its gradient for data and for weights."""
        rows, hidden, gates, clock = self.rows, self.hidden, self.gates, self.gpu.clock
        kind, size = self.gpu.classes.of(self.dtype, convolution=True), self.dtype.itemsize
        a_step = max(1, rows // self.length)
        for layer in range(self.layers):
            inner = self.width if layer == 0 else hidden * self.directions
            moved = size * (rows * (inner + gates) + inner * gates)
            again = size * (rows * (hidden + gates) + hidden * gates)
            both = inner + hidden
            for _ in range(self.directions):
                clock.add(
                    "cudnn_rnn", kind, 2 * rows * inner * gates, moved, 1, (1, rows, gates, inner)
                )
                clock.add(
                    "cudnn_rnn",
                    kind,
                    2 * rows * hidden * gates,
                    again,
                    self.length,
                    (1, a_step, gates, hidden),
                )
                if backward:
                    clock.add(
                        "cudnn_rnn",
                        kind,
                        2 * rows * both * gates,
                        moved + again,
                        1,
                        (1, gates, both, rows),
                    )


class _CudnnRnn(torch.autograd.Function):
    """_cudnn_rnn and _cudnn_rnn_backward as far as memory goes."""

    @staticmethod
    def forward(
        ctx: Any,
        plan: _Plan,
        data: Tensor,
        hidden: Tensor,
        cell: Optional[Tensor],
        *weights: Tensor,
    ) -> Any:
        # cuDNN wants time first: a copy while it runs
        by_time = data.new_empty(data.shape) if plan.batch_first else None
        output = data.new_empty(plan.output_shape)
        last = [torch.empty_like(state) for state in (hidden, cell) if state is not None]
        workspace = _bytes(plan.workspace_bytes)
        reserve = _bytes(plan.reserve_bytes)
        flat = weights if plan.flat else [data.new_empty(sum(w.numel() for w in weights))]
        ctx.plan, ctx.count = plan, len(weights)
        plan.count(backward=False)
        del by_time, workspace
        ctx.save_for_backward(data, hidden, cell, output, reserve, *flat, *weights)
        return (output, *last)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        data, hidden, cell, *saved = ctx.saved_tensors
        ctx.plan.count(backward=True)
        shapes = (data.shape, ctx.plan.output_shape) if ctx.plan.batch_first else ()
        by_time = [data.new_empty(shape) for shape in shapes]  # the input and the output's gradient
        grad_data, grad_hidden = torch.empty_like(data), torch.empty_like(hidden)
        grad_cell = torch.empty_like(cell) if cell is not None else None
        _bytes(ctx.plan.workspace_bytes)
        grad_weights = _in_one_buffer(saved[len(saved) - ctx.count :], data.dtype)
        _bytes(ctx.plan.workspace_bytes)
        del by_time
        return (None, grad_data, grad_hidden, grad_cell, *grad_weights)


def _bytes(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.uint8, device=META)


def _in_one_buffer(weights: Sequence[Tensor], dtype: torch.dtype) -> List[Tensor]:
    """Contiguous tensors like `weights`, one after another."""
    flat = torch.empty(sum(weight.numel() for weight in weights), dtype=dtype, device=META)
    return [
        part.view(weight.shape)
        for part, weight in zip(flat.split([w.numel() for w in weights]), weights)
    ]


def _run(gpu: ImaginaryGpu, kind: str, options: Dict[str, Any]) -> Any:
    data, hx, weights = options["data"], options["hx"], list(options["weights"])
    hidden, cell = hx if kind == "lstm" else (hx, None)
    flat = len({w.untyped_storage()._cdata for w in weights}) == 1
    if autocast_on():
        lower = torch.get_autocast_dtype("cuda")
        data, hidden = data.to(lower), hidden.to(lower)
        cell = cell.to(lower) if cell is not None else None
        weights, flat = list(_Flatten.apply(lower, *weights)), True
    layers, directions = options["num_layers"], 2 if options["bidirectional"] else 1
    width = hidden.shape[-1] * directions
    units = (cell if cell is not None else hidden).shape[-1]
    rows = data.shape[:-1].numel()
    lengths, batch_first = options.get("batch_sizes"), bool(options.get("batch_first"))
    length = max(1, len(lengths) if lengths is not None else data.shape[1 if batch_first else 0])
    size, batch, gates = data.element_size(), hidden.shape[-2], GATES[kind]
    of_layer = units * directions * size
    reserve = rows * (KEPT[kind] * layers * of_layer - width * size)
    matrices = sum(weight.nbytes for weight in weights if weight.dim() > 1)
    workspace = (rows * (gates + 2) + 2 * batch * gates * layers) * of_layer + matrices
    if options["dropout"] and options["train"]:
        _hold_dropout_states(gpu)
        reserve += length * batch * width * (layers - 1) // 4
    sizes = (
        data.shape[-1],
        hidden.shape[-1],
        gates * units,
        layers,
        directions,
        (*data.shape[:-1], width),
    )
    plan = _Plan(
        gpu,
        data.dtype,
        rows,
        length,
        *sizes,
        reserve + ALIGN_BYTES if options["train"] else 0,
        workspace + WORKSPACE_BYTES + ALIGN_BYTES,
        flat,
        batch_first,
    )
    gpu.approximate("cudnn rnn reserve space")
    return _CudnnRnn.apply(plan, data, hidden, cell, *weights)


def _hold_dropout_states(gpu: ImaginaryGpu) -> None:
    """The generator's states, made at the first use and kept (RNN.cpp, dropout_state_cache)."""
    held = gpu.__dict__.setdefault("dropout_states", {})
    index = gpu.ledger.index
    if index not in held:
        held[index] = gpu.ledger.reserve_workspace(
            "cudnn_dropout_states", (gpu.card.multiprocessors,), "cudnn dropout states"
        )


class _Flatten(torch.autograd.Function):
    """_cudnn_rnn_cast_reflatten: the weights in the lower precision, one after another in one
    buffer."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> Any:
        ctx.dtypes = [weight.dtype for weight in weights]
        return tuple(_in_one_buffer(weights, dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (None, *(grad.to(dtype) for grad, dtype in zip(grads, ctx.dtypes)))


def _handler(kind: str) -> Callable:
    switches = ("has_biases", "num_layers", "dropout", "train", "bidirectional")
    padded = ("data", "hx", "weights", *switches, "batch_first")
    packed = ("data", "batch_sizes", "hx", "weights", *switches)

    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        if not is_meta(args[0]) or not torch.backends.cudnn.enabled:
            return func(*args, **kwargs)
        names = (
            packed if isinstance(args[2], Tensor) or isinstance(args[3], (list, tuple)) else padded
        )
        return _run(gpu, kind, dict(zip(names, args)))

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


def flatten_weights_as_on_cuda(gpu: ImaginaryGpu) -> None:
    """nn.RNNBase.flatten_parameters asks whether cuDNN is there, and for its number of the kind of
    cell."""
    gpu.patches.set(torch, "_use_cudnn_rnn_flatten_weight", lambda: True)
    gpu.patches.set(torch.backends.cudnn.rnn, "get_cudnn_mode", lambda mode: 0)


# --- cells ---


def _fused_lstm_cell_backward(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]
) -> Tuple[Any, ...]:
    _, _, cell, _, gates, has_bias = args
    return (
        empty(gates.shape, gates.dtype),
        empty(cell.shape, cell.dtype),
        empty(gates.shape[1:], gates.dtype) if has_bias else None,
    )


def _fused_gru_cell(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]
) -> Tuple[Tensor, Tensor]:
    """cuda/RNN.cu: five numbers for each unit are kept (GRU_WORKSPACE_MULTIPLIER)."""
    hidden = args[2]
    return empty(hidden.shape, hidden.dtype), empty(
        (hidden.shape[0], 5 * hidden.shape[1]), hidden.dtype
    )


def _fused_gru_cell_backward(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]
) -> Tuple[Optional[Tensor], ...]:
    grad, kept, has_bias = args
    gates = (kept.shape[0], kept.shape[1] * 3 // 5)
    biases = [empty(gates[1:], kept.dtype) if has_bias else None for _ in range(2)]
    return (
        empty(gates, kept.dtype),
        empty(gates, kept.dtype),
        empty(grad.shape, grad.dtype),
        *biases,
    )


def _cell(run: Callable[..., Any]) -> Callable:
    """RNN.cpp, LSTMCell and GRUCell: two products, and all the rest in one kernel that keeps its
    gates."""

    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        if not is_meta(args[0]) or kwargs:
            return func(*args, **kwargs)
        tensor, state, *weights = args
        hidden = state if isinstance(state, Tensor) else state[0]
        return run(F.linear(tensor, weights[0]), F.linear(hidden, weights[1]), state, *weights[2:])

    return handler


def operation_handlers() -> Dict[Any, Callable]:
    return {
        # cuda/RNN.cu: hidden and cell state, and the gates as the backward pass needs them
        aten._thnn_fused_lstm_cell.default: like_arguments(2, 2, 0),
        aten._thnn_fused_lstm_cell_backward_impl.default: _fused_lstm_cell_backward,
        aten._thnn_fused_gru_cell.default: _fused_gru_cell,
        aten._thnn_fused_gru_cell_backward.default: _fused_gru_cell_backward,
    }


def function_handlers() -> Dict[Any, Callable]:
    return {
        **{getattr(torch, kind): _handler(kind) for kind in GATES},
        torch._cudnn_rnn_flatten_weight: _flatten_weight,
        torch.lstm_cell: _cell(
            lambda x, h, state, *bias: aten._thnn_fused_lstm_cell(x, h, state[1], *bias)[:2]
        ),
        torch.gru_cell: _cell(lambda *gates: aten._thnn_fused_gru_cell(*gates)[0]),
    }
