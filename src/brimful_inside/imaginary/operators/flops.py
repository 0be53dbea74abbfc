"""What an ATen operation costs a card: kernels, arithmetic and bytes, from the shapes of what goes
in and comes out.

An entry of `COSTS` gives the kernels of one operation as (kind, flops, bytes, launches, shape)
each, with the words of `simulator/roofline.py`. What is not named there is one kernel that reads
its tensors and writes its results; `FREE` are those that start none. A multiplication and an
addition are two operations; the files named are PyTorch's, under aten/src/ATen/native."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from brimful_inside.imaginary.operators.convolutions import layout_of
from brimful_inside.imaginary.operators.cublas import is_one_kernel
from brimful_inside.imaginary.operators.temporaries import Machine
from brimful_inside.imaginary.state.clock import Part
from brimful_inside.imaginary.state.tensors import Tensor, is_meta
from brimful_inside.simulator.roofline import MEMORY, TENSOR_CORES

Cost = Callable[[Sequence[Any], Dict[str, Any], Any, "Classes"], List[Part]]
FREE = frozenset(
    [
        "empty",
        "empty_like",
        "empty_strided",
        "empty_permuted",
        "new_empty",
        "new_empty_strided",
        "_unsafe_view",
        "_reshape_alias",
        "lift_fresh",
        "lift",
        "detach_",
        "set_",
        "resize_",
        "resize_as_",
        "record_stream",
        "is_same_size",
        "_efficientzerotensor",
        "rename_",
        "requires_grad_",
        "_has_compatible_shallow_copy_type",
        "is_pinned",
        "sym_size",
        "sym_stride",
        "sym_numel",
        "transpose_",
        "t_",
        "squeeze_",
        "unsqueeze_",
        "as_strided_",
    ]
)


def is_free(func: Any, short: str) -> bool:
    """Whether an operation starts no kernel: views and what only makes room."""
    returns = func._schema.returns
    return short in FREE or (
        bool(returns) and all(each.alias_info and not each.alias_info.is_write for each in returns)
    )


def _nbytes(tensor: Tensor) -> int:
    """Of an expanded tensor the bytes that are there."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


def total(value: Any) -> int:
    """Bytes of all tensors in arguments or results."""
    if isinstance(value, Tensor):
        return _nbytes(value)
    if isinstance(value, (list, tuple)):
        return sum([total(item) for item in value])
    return 0


def plain(args: Sequence[Any], out: Any) -> int:
    """Bytes of an operation that reads what it is given and writes what it gives."""
    return total(out) + total(args)


_FIXED = {torch.float64: "fp64", torch.complex128: "fp64", torch.int8: "int8"}
# What tensor cores compute in, and from which capability on.
_HALVES = {torch.float16: ("fp16", (7, 0)), torch.bfloat16: ("bf16", (8, 0))}


class Classes:
    """The rate class of a dtype on one card, under the settings in force."""

    def __init__(self, machine: Machine, is_pinned: Callable[[Tensor], bool]):
        self.machine = machine
        self.is_pinned = is_pinned

    def of(self, dtype: torch.dtype, convolution: bool = False) -> str:
        """Of a product: single precision goes to tensor cores where the script allows TF32 and the
        card has it."""
        if dtype == torch.float32:
            return self._from("tf32", (8, 0)) if allows_tf32(convolution) else "fp32"
        if dtype in _HALVES:
            return self._from(*_HALVES[dtype])
        return _FIXED.get(dtype) or ("fp8" if "float8" in str(dtype) else "fp32")

    def _from(self, name: str, first: Tuple[int, int]) -> str:
        return name if self.machine.choose(lambda capability: capability >= first) else "fp32"


def allows_tf32(convolution: bool) -> bool:
    """torch.backends.cudnn.allow_tf32 (on by default) and torch.backends.cuda.matmul.allow_tf32
    (off), old words and new."""
    get = torch._C._get_cudnn_allow_tf32 if convolution else torch._C._get_cublas_allow_tf32
    try:
        return bool(get())
    except (
        RuntimeError
    ):  # the script set it with the new words, and PyTorch refuses to answer in the old ones
        backends: Any = torch.backends
        return (
            backends.cudnn.conv if convolution else backends.cuda.matmul
        ).fp32_precision == "tf32"


# The host reads a value, and waits for it.
_READ: Tuple[Part, ...] = (("link", 0, 8, 1, ()), ("sync", 0, 0, 0, ()))

# --- products ---


def _product(kind: str, batch: int, m: int, n: int, k: int, nbytes: int) -> Part:
    return kind, 2 * batch * m * n * k, nbytes, 1, (batch, m, n, k)


def _matmul(first: int) -> Cost:
    """mm, bmm and those that add to something: the factors are arguments `first` and `first` +
    1."""

    def cost(args: Sequence[Any], kwargs: Dict[str, Any], out: Any, classes: Classes) -> List[Part]:
        left, right = args[first], args[first + 1]
        batch = left.shape[0] if left.dim() == 3 else 1
        m, k = (left.shape[-2], left.shape[-1]) if left.dim() > 1 else (1, left.shape[0])
        n = right.shape[-1] if right.dim() > 1 else 1
        return [_product(classes.of(left.dtype), batch, m, n, k, plain(args, out))]

    return cost


def _grouped(args: Sequence[Any], kwargs: Dict[str, Any], out: Any, classes: Classes) -> List[Part]:
    """A product for each group, all of one size: how many rows each has is data. Where each is a
    product of its own, the host waits for their ends."""
    left, right = args[:2]
    sizes = [left.shape[-2], right.shape[-1], left.shape[-1]]
    groups = left.shape[0]
    if len(args) > 2 and args[2] is not None:
        groups = args[2].shape[0]
        shared = {(2, 3): 0, (3, 2): 1, (2, 2): 2}[left.dim(), right.dim()]
        sizes[shared] = -(-sizes[shared] // max(1, groups))
    m, n, k = sizes
    part = _product(classes.of(left.dtype), groups, m, n, k, plain(args, out))
    alone = classes.machine.choose(lambda capability: is_one_kernel(capability, left))
    return [part] if alone else [part, *_READ]


def _packed(args: Sequence[Any], kwargs: Dict[str, Any], out: Any, classes: Classes) -> List[Part]:
    """bitsandbytes' products with a weight of (n, k), which in 4 bits says its shape apart."""
    left, right = args[:2]
    n, k = args[2] if right.dtype != torch.int8 else right.shape
    return [_product(classes.of(left.dtype), 1, left.numel() // k, n, k, plain(args, out))]


def _convolved(
    tensor: Tensor, weight: Tensor, out: Tensor, transposed: bool, groups: int
) -> Tuple[int, int, int, int]:
    """(batch, m, n, k) of the product that a convolution is: of its input, so that a transposed one
    is the gradient's."""
    made = tensor if transposed else out
    places = made.numel() // max(1, made.shape[1])
    # channels of the input by group x elements of the kernel
    rest = weight.numel() // max(1, weight.shape[0])
    return groups, places, made.shape[1] // groups, rest


def _transposed(
    kind: str, groups: int, tensor: Tensor, weight: Tensor, moved: Sequence[Tensor]
) -> List[Part]:
    """Tensor cores want channels last: what lies channels first is read and written once more on
    the way in and out (cuDNN's kernels nchwToNhwc and nhwcToNchw in profiles)."""
    if (
        kind not in TENSOR_CORES
        or groups > 1
        or layout_of(tensor, weight) != torch.contiguous_format
    ):
        return []
    return [("memory", 0, 2 * sum([_nbytes(each) for each in moved]), len(moved), ())]


def _convolution(
    args: Sequence[Any], kwargs: Dict[str, Any], out: Any, classes: Classes
) -> List[Part]:
    tensor, weight, bias = args[:3]
    transposed, groups = bool(args[6]), args[8]
    batch, m, n, k = _convolved(tensor, weight, out, transposed, groups)
    kind = classes.of(tensor.dtype, convolution=True)
    if transposed:  # the gradient of the convolution the other way round: (places, n) by (n, k)
        n, k = k, n
    nbytes = _nbytes(tensor) + _nbytes(weight) + _nbytes(out)
    parts = [
        _product(kind, batch, m, n, k, nbytes),
        *_transposed(kind, groups, tensor, weight, (tensor, out)),
    ]
    if bias is not None:  # added by a kernel of its own (Convolution.cpp, _convolution)
        parts.append(("memory", 0, 2 * _nbytes(out), 1, ()))
    return parts


def _convolution_backward(
    args: Sequence[Any], kwargs: Dict[str, Any], out: Any, classes: Classes
) -> List[Part]:
    grad, tensor, weight = args[:3]
    transposed, groups, mask = bool(args[7]), args[9], args[10]
    batch, m, n, k = _convolved(tensor, weight, grad, transposed, groups)
    kind = classes.of(tensor.dtype, convolution=True)
    nbytes = _nbytes(grad) + _nbytes(tensor) + _nbytes(weight)
    parts: List[Part] = []
    if mask[0]:
        parts.append(
            _product(kind, batch, m, n if transposed else k, k if transposed else n, nbytes)
        )
        parts += _transposed(kind, groups, tensor, weight, (grad, tensor))
    if mask[1]:  # the places are what is summed over
        parts.append(_product(kind, batch, n, k, m, nbytes))
        parts += _transposed(kind, groups, tensor, weight, (grad, tensor))
    if mask[2]:
        parts.append(("memory", 0, _nbytes(grad), 1, ()))
    return parts


def _attention(backward: bool) -> Cost:
    """Fused attention: two products forward and five backward, half of each where it is causal;
    nothing square is written."""

    def cost(args: Sequence[Any], kwargs: Dict[str, Any], out: Any, classes: Classes) -> List[Part]:
        query, key, value = args[1:4] if backward else args[:3]
        if query.dim() != 4:
            return [(classes.of(query.dtype), 0, plain(args, out), 1, ())]
        batch, heads, rows, width = query.shape
        pairs = batch * heads * rows * key.shape[-2]
        # is_causal: of the other switches none is on in training
        if any(arg is True for arg in args):
            pairs //= 2
        flops = (
            2 * pairs * ((3 * width + 2 * value.shape[-1]) if backward else width + value.shape[-1])
        )
        return [(classes.of(query.dtype), flops, plain(args, out), 2 if backward else 1, ())]

    return cost


def _flash_attention(backward: bool) -> Cost:
    """The same as flash-attn is called, heads after tokens; lengths that only data knows count as
    equal."""

    def cost(args: Sequence[Any], kwargs: Dict[str, Any], out: Any, classes: Classes) -> List[Part]:
        query, key, lengths = args[1], args[2], args[6]
        if not backward:
            query, key, lengths = args[0], args[1], args[3]
        heads, width = query.shape[-2:]
        batch = query.shape[0] if lengths is None else max(1, lengths.numel() - 1)
        pairs = query.shape[:-2].numel() * key.shape[:-2].numel() * heads // batch
        if any(arg is True for arg in args):
            pairs //= 2
        return [
            (
                classes.of(query.dtype),
                (10 if backward else 4) * pairs * width,
                plain(args, out),
                1 + backward,
                (),
            )
        ]

    return cost


# --- the fast path of nn.TransformerEncoderLayer and nn.MultiheadAttention ---


def _linear(tensor: Tensor, weight: Tensor, classes: Classes) -> Part:
    """All rows of `tensor`, however wide it is, by a weight of (n, k)."""
    rows, (n, k) = tensor.shape[:-1].numel(), weight.shape
    nbytes = rows * (n + k) * tensor.element_size() + _nbytes(weight)
    return _product(classes.of(tensor.dtype), 1, rows, n, k, nbytes)


def _attended(
    tensor: Tensor, heads: int, into: Tensor, out_of: Tensor, fused: bool, classes: Classes
) -> List[Part]:
    """transformers/cuda/attention.cu, native_multi_head_attention_cuda: `fused`, or with queries,
    keys and values of each head written once more, and the scores."""
    batch, length, width = tensor.shape
    kind, scores = classes.of(tensor.dtype), batch * heads * length * length * tensor.element_size()
    if fused:
        flops = 4 * batch * length * length * width
        between: List[Part] = [(kind, flops, 4 * _nbytes(tensor), 1, ())]
    else:
        of_head, nbytes = width // heads, scores + 2 * _nbytes(tensor)
        between = [
            (MEMORY, 0, 6 * _nbytes(tensor), 1, ()),
            _product(kind, batch * heads, length, length, of_head, nbytes),
            (MEMORY, 0, 2 * scores, 1, ()),
            _product(kind, batch * heads, length, of_head, length, nbytes),
        ]
    return [_linear(tensor, into, classes), *between, _linear(tensor, out_of, classes)]


def _native_attention(
    args: Sequence[Any], kwargs: Dict[str, Any], out: Any, classes: Classes
) -> List[Part]:
    """With the weights averaged over the heads where they are wanted."""
    heads, into, out_of = args[4], args[5], args[7]
    mask = args[9] if len(args) > 9 else kwargs.get("mask")
    weights = out[1]
    fused = mask is None and not weights.numel()
    parts = _attended(args[0], heads, into, out_of, fused, classes)
    if weights.dim() == 3:
        parts.append((MEMORY, 0, (heads + 1) * _nbytes(weights), 1, ()))
    return parts


def _encoder_layer(
    args: Sequence[Any], kwargs: Dict[str, Any], out: Any, classes: Classes
) -> List[Part]:
    """transformers/transformer.cpp, transformer_encoder_layer_forward: attention and the wide
    layer, its activation in the first product; to each what came in is added, and a norm."""
    tensor, heads, into, out_of, wide, narrow = (args[at] for at in (0, 2, 3, 5, 14, 16))
    mask = args[18] if len(args) > 18 else kwargs.get("mask")
    added_and_norm: List[Part] = [(MEMORY, 0, times * _nbytes(tensor), 1, ()) for times in (3, 2)]
    return [
        *_attended(tensor, heads, into, out_of, mask is None, classes),
        *added_and_norm,
        _linear(tensor, wide, classes),
        _linear(tensor, narrow, classes),
        *added_and_norm,
    ]


# --- what reads more, or less, than its arguments ---


def _memory(nbytes: Callable[[Sequence[Any], Any], int], launches: int = 1) -> Cost:
    """Moves `nbytes` of the arguments and the result, and computes nothing to speak of."""
    return lambda args, kwargs, out, classes: [("memory", 0, nbytes(args, out), launches, ())]


def _passes(reads: int, launches: int, *places: int) -> Cost:
    """Reads the arguments at `places` (the first by default) `reads` times, writes its results."""
    return _memory(
        lambda args, out: reads * sum([_nbytes(args[at]) for at in places or (0,)]) + total(out),
        launches,
    )


def _gathers(launches: int = 1) -> Cost:
    """Reads of the first argument as much as it gives: embedding, index, gather."""
    return _memory(lambda args, out: 2 * total(out) + total(args[1:]), launches)


def _sort(args: Sequence[Any], kwargs: Dict[str, Any], out: Any, classes: Classes) -> List[Part]:
    """A radix sort goes over keys and values once for each eight bits (CUB, DeviceRadixSort)."""
    passes = args[0].element_size()
    return [("memory", 0, 2 * passes * total(out), 2 + passes, ())]


def _embedding_backward(
    args: Sequence[Any], kwargs: Dict[str, Any], out: Any, classes: Classes
) -> List[Part]:
    """The gradient of the table is set to zero; the rows of `grad` are summed into it, sorted first
    beyond 3072 of them (cuda/Embedding.cu)."""
    grad, indices = args[:2]
    nbytes = total(out) + 2 * _nbytes(grad) + 8 * _nbytes(indices)
    return [("memory", 0, nbytes, 2 if indices.numel() <= 3072 else 14, ())]


# Assumed: on an H200 the host did not wait for 131 KB, and did for 59 MB
# (bench/results/measured-h200-2026-11.json).
STAGED_BYTES = 1 << 20


def _copies(args: Sequence[Any], kwargs: Dict[str, Any], out: Any, classes: Classes) -> List[Part]:
    """copy_ and _to_copy: from card to card, or over the bus. There the host waits for the card,
    unless it need not and the memory is pinned, or so little goes to the card that it is staged at
    once (CUDA Runtime API, "API synchronization behavior")."""
    source = args[1] if len(args) > 1 and isinstance(args[1], Tensor) else args[0]
    target = args[0] if source is not args[0] else out
    nbytes = _nbytes(source)
    if is_meta(source) and is_meta(target):
        return [("memory", 0, nbytes + _nbytes(target), 1, ())]
    pinned = classes.is_pinned(target if is_meta(source) else source)
    goes_on = kwargs.get("non_blocking") or (len(args) > 2 and args[2] is True)
    staged = nbytes <= STAGED_BYTES and not is_meta(source)
    kernel: Part = ("pinned" if pinned else "link", 0, nbytes, 1, ())
    return [kernel] if goes_on and (pinned or staged) else [kernel, ("sync", 0, 0, 0, ())]


# --- lists of tensors ---

# cuda/MultiTensorApply.cuh: chunks of so many elements; a launch takes so many tensors (by the
# number of lists) and chunks.
CHUNK, CHUNKS_A_LAUNCH = 65536, 320
TENSORS_A_LAUNCH = (110, 64, 48, 36, 30)


def list_launches(sizes: Sequence[int], lists: int) -> int:
    """Kernels that multi_tensor_apply starts for tensors of these sizes (elements) in so many
    lists."""
    chunks = sum([-(-size // CHUNK) for size in sizes])
    tensors = TENSORS_A_LAUNCH[min(max(lists, 1), len(TENSORS_A_LAUNCH)) - 1]
    return max(1, -(-chunks // CHUNKS_A_LAUNCH), -(-len(sizes) // tensors))


def _lists(writes: Optional[int] = None) -> Cost:
    """_foreach_*, _fused_*, _amp_foreach_*: `writes` of the lists are written; None: the first
    where it ends in _, else what comes out. The tensors that stand at one place of the lists are of
    one size."""

    def cost(args: Sequence[Any], kwargs: Dict[str, Any], out: Any, classes: Classes) -> List[Part]:
        lists = [
            arg
            for arg in args
            if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], Tensor)
        ]
        if not lists:
            return []
        first = lists[0]
        sizes = [tensor.numel() for tensor in first]
        full = [of for of in lists if len(of) == len(first) and of[-1].dim() == first[-1].dim()]
        width = sum([of[0].element_size() for of in full])
        if writes is None and isinstance(out, (list, tuple)) and out and isinstance(out[0], Tensor):
            return [
                (
                    "memory",
                    0,
                    sum(sizes) * width + total(out),
                    list_launches(sizes, len(full) + 1),
                    (),
                )
            ]
        width += sum([of[0].element_size() for of in full[: 1 if writes is None else writes]])
        return [("memory", 0, sum(sizes) * width, list_launches(sizes, len(full)), ())]

    return cost


def _fused(writes: int) -> Cost:
    """_fused_adam_(params, grads, ...): the gradients are read, the other lists read and
    written."""

    def cost(args: Sequence[Any], kwargs: Dict[str, Any], out: Any, classes: Classes) -> List[Part]:
        lists = [arg for arg in args[: writes + 1] if isinstance(arg, (list, tuple)) and arg]
        sizes = [tensor.numel() for tensor in lists[0]]
        width = sum([of[0].element_size() for of in lists])
        width += width - lists[1][0].element_size()
        return [("memory", 0, sum(sizes) * width, list_launches(sizes, len(lists)), ())]

    return cost


_LISTS = _lists()
_WRITES = _memory(lambda args, out: total(out))  # reads nothing: fill_, zeros, random numbers
# the places are read and written, what comes to them is read
_SCATTERS = _memory(lambda args, out: 3 * total(args[1:]), 2)
_BLAS = ("mm", "bmm", "mv", "dot", "vdot", "_scaled_mm", "_int_mm", "linear")
_ATTENTION = ["_scaled_dot_product_%s_attention" % name for name in ("flash", "efficient", "cudnn")]
COSTS: Dict[str, Cost] = {
    **dict.fromkeys(_BLAS, _matmul(0)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "addbmm", "_addmm_activation"), _matmul(1)),
    **dict.fromkeys(("gemm_4bit", "gemv_4bit", "int8_linear_matmul"), _packed),
    "_grouped_mm": _grouped,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    **dict.fromkeys(_ATTENTION, _attention(False)),
    **dict.fromkeys([name + "_backward" for name in _ATTENTION], _attention(True)),
    "_flash_attention_forward": _flash_attention(False),
    "_flash_attention_backward": _flash_attention(True),
    "_native_multi_head_attention": _native_attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    # Statistics first, then the normalized output (cuda/Normalization.cuh,
    # cuda/group_norm_kernel.cu).
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "native_group_norm"), _passes(2, 3)
    ),
    **dict.fromkeys(
        ("native_batch_norm_backward", "native_group_norm_backward"), _passes(2, 3, 0, 1)
    ),
    **dict.fromkeys(
        ("native_layer_norm_backward", "_fused_rms_norm_backward"), _passes(2, 3, 0, 1)
    ),
    **dict.fromkeys(
        ("zero_", "fill_", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like"), _WRITES
    ),
    **dict.fromkeys(
        ("new_zeros", "new_ones", "new_full", "arange", "linspace", "eye", "scalar_tensor"), _WRITES
    ),
    **dict.fromkeys(
        (
            "normal_",
            "uniform_",
            "random_",
            "bernoulli_",
            "exponential_",
            "rand",
            "randn",
            "randint",
        ),
        _WRITES,
    ),
    **dict.fromkeys(
        ("rand_like", "randn_like", "randint_like", "log_normal_", "cauchy_", "geometric_"), _WRITES
    ),
    "randperm": _memory(lambda args, out: total(out), 8),
    **dict.fromkeys(
        ("embedding", "index", "_unsafe_index", "gather", "index_select", "take"), _gathers()
    ),
    "masked_select": _gathers(6),
    "nonzero": _passes(2, 5),
    "embedding_dense_backward": _embedding_backward,
    **dict.fromkeys(
        ("index_add_", "index_add", "scatter_add_", "scatter_add", "scatter_", "scatter"), _SCATTERS
    ),
    **dict.fromkeys(
        ("index_put_", "index_put", "_index_put_impl_", "_unsafe_index_put", "index_copy_"),
        _SCATTERS,
    ),
    **dict.fromkeys(("copy_", "_to_copy", "copy"), _copies),
    # A value goes to the host, which waits for it.
    **dict.fromkeys(
        ("_local_scalar_dense", "equal"),
        lambda args, kwargs, out, classes: [*_READ],
    ),
    **dict.fromkeys(
        ("sort", "argsort", "msort", "unique", "_unique2", "unique_consecutive"), _sort
    ),
    # Gradient times output first, as a tensor of its own; then a kernel that reads that and the
    # output (cuda/SoftMax.cu).
    "_softmax_backward_data": _memory(
        lambda args, out: 3 * _nbytes(args[0]) + 2 * _nbytes(args[1]) + total(out), 2
    ),
    "topk": _passes(4, 5),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), _passes(2, 3)),
    "nll_loss2d_backward": _passes(1, 2, 1),
    **dict.fromkeys(("_fused_adam_", "_fused_adamw_"), _fused(3)),
    **dict.fromkeys(("_fused_sgd_", "_fused_adagrad_"), _fused(2)),
    "_foreach_copy_": _LISTS,
    # Partial sums of each chunk, then of each tensor (cuda/ForeachReduceOp.cu).
    "_foreach_norm": lambda args, kwargs, out, classes: [
        ("memory", 0, total(args[0]), list_launches([each.numel() for each in args[0]], 1) + 1, ())
    ],
    "_amp_foreach_non_finite_check_and_unscale_": _lists(1),
}


def cost_of(short: str) -> Optional[Cost]:
    """The entry for an operation; None: it is `plain`."""
    of_lists = short.startswith(("_foreach_", "_fused_", "_amp_foreach_"))
    return COSTS.get(short, _LISTS if of_lists else None)


def kernels_of(
    cost: Optional[Cost], args: Sequence[Any], kwargs: Dict[str, Any], out: Any, classes: Classes
) -> List[Part]:
    """What an operation ran, by its entry `cost` (`cost_of`)."""
    try:
        return (
            [(MEMORY, 0, plain(args, out), 1, ())]
            if cost is None
            else cost(args, kwargs, out, classes)
        )
    except (
        Exception
    ):  # a tensor of an unexpected kind: its launch is counted, and the script goes on
        return [(MEMORY, 0, 0, 1, ())]
