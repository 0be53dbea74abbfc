"""Memory that CUDA's kernels take while they run, beside the tensors that come out: the meta
kernels have none of it.

`TEMPORARIES` maps the name of an operation to a function of the card and the call that gives what
is held from the operation's start to its end; dispatch/dispatch_mode.py joins those of all files.
The files named are PyTorch's, under aten/src/ATen/native."""

from __future__ import annotations

from math import gcd
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import torch

from brimful_inside.imaginary.state.tensors import Tensor
from brimful_inside.simulator.workspaces import resident_threads, torch_release
from brimful_inside.wire import Card


class Machine(NamedTuple):
    """What a kernel's temporaries depend on beside its arguments."""

    capability: Tuple[int, int]
    multiprocessors: int
    release: int  # of PyTorch: 2.13 is 213
    # capabilities of other cards on which all has been done in the same way so far
    alike: Set[Tuple[int, int]]

    @classmethod
    def of(cls, card: Card) -> Machine:
        capability = (card.capability[0], card.capability[1])
        others: Any = set(map(tuple, card.others))
        return cls(capability, card.multiprocessors, torch_release(torch.__version__), others)

    def choose(self, rule: Callable[[Tuple[int, int]], Any]) -> Any:
        """What `rule` gives for the card's capability. Cards for which it gives something else are
        no longer alike."""
        choice = rule(self.capability)
        if self.alike:
            self.alike.difference_update([other for other in self.alike if rule(other) != choice])
        return choice

    @property
    def threads(self) -> int:
        """Resident threads of a multiprocessor."""
        return resident_threads(*self.capability)


class Formula(NamedTuple):
    """A temporary whose bytes simulator/workspaces.py computes; it is in the trace even where they
    are 0."""

    name: str
    args: Tuple[int, ...]


class Transient(NamedTuple):
    """Temporaries that are there together, and gone before the results are made."""

    items: Sequence[Union[int, Formula]]


Held = Union[int, Formula, Transient]
Kernel = Callable[[Machine, Sequence[Any], Dict[str, Any]], Sequence[Held]]


def copies(*tensors: Any) -> List[Held]:
    """``tensor.contiguous()``: once more, those that are laid out in another way. What is no tensor
    is passed over."""
    return [
        each.nbytes for each in tensors if isinstance(each, Tensor) and not each.is_contiguous()
    ]


def _contiguous(*places: int) -> Kernel:
    """Kernels that begin with ``.contiguous()`` of these arguments."""
    return lambda machine, args, kwargs: copies(*[args[at] for at in places])


def _dense(*places: int) -> Kernel:
    """The same, channels last being as good as channels first (suggest_memory_format)."""
    return lambda machine, args, kwargs: [
        args[at].nbytes for at in places if not (args[at].is_contiguous() or is_last(args[at]))
    ]


LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_last(tensor: Tensor) -> bool:
    """Whether `tensor` is channels last and not contiguous as well (suggest_memory_format)."""
    layout = LAST.get(tensor.dim(), torch.contiguous_format)
    return not tensor.is_contiguous() and tensor.is_contiguous(memory_format=layout)


def _softmax_backward(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """cuda/SoftMax.cu, softmax_backward_cuda_out: gradient times output, as a tensor of its own,
    laid out as the gradient is; then that and the output are made contiguous."""
    grad, output = args[:2]
    product = torch.broadcast_shapes(grad.shape, output.shape).numel() * grad.element_size()
    held: List[Held] = [product] if grad.is_contiguous() else [product, product]
    return held if output.is_contiguous() else [*held, output.nbytes]


def _foreach_norm(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """cuda/ForeachReduceOp.cu: partial results in float32, and the norms of all tensors as one."""
    tensors = args[0]
    if not tensors:
        return []
    largest = max(tensor.numel() for tensor in tensors)
    return [Formula("foreach_norm", (max(4, tensors[0].element_size()), len(tensors), largest))]


# --- losses ---


def _broadcast_bytes(first: Tensor, second: Tensor) -> int:
    return torch.broadcast_shapes(first.shape, second.shape).numel() * first.element_size()


def _unreduced(at: int) -> Kernel:
    """The loss of each element is written out before it is summed (Loss.cpp: mse_loss_out,
    smooth_l1_loss_out, ...)."""

    def kernel(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
        reduction = args[at] if len(args) > at else kwargs.get("reduction", 1)
        return [_broadcast_bytes(args[0], args[1])] if reduction else []

    return kernel


def _bce_with_logits(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """log_sigmoid of the input, the factors of pos_weight, the loss of each element (Loss.cpp)."""
    size = _broadcast_bytes(args[0], args[1])
    pos_weight = args[3] if len(args) > 3 else kwargs.get("pos_weight")
    reduction = args[4] if len(args) > 4 else kwargs.get("reduction", 1)
    held: List[Held] = [args[0].nbytes]
    return held + [size] * ((pos_weight is not None) + bool(reduction))


# --- normalization ---


def _norm_backward(weights: int, mask: int) -> Kernel:
    """Of layer and RMS norm: weight (and bias) begin at argument `weights`; argument `mask` says
    whose gradient is wanted."""

    def kernel(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
        wanted = [
            arg
            for arg, is_wanted in zip(args[weights:mask], args[mask][1:])
            if is_wanted and arg is not None
        ]
        return copies(args[0], args[1]) + _layer_norm_partials(machine, args[1], args[2], wanted)

    return kernel


def _layer_norm_partials(
    machine: Machine, tensor: Tensor, shape: Sequence[int], weights: Sequence[Tensor]
) -> List[Held]:
    """Partial sums of the gradient of each of `weights`, where there are many rows
    (cuda/layer_norm_kernel.cu)."""
    columns = torch.Size(shape).numel()
    rows = tensor.numel() // columns if columns else 0
    return [
        Formula(
            "layer_norm_partial",
            (weight.element_size(), rows, columns, machine.multiprocessors, machine.release),
        )
        for weight in weights
    ]


def _group_norm(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """A factor and a summand in float32 for each sample and channel (group_norm_kernel.cu,
    GroupNormKernelImplInternal)."""
    tensor, weight, bias, batch, channels, pixels = args[:6]
    held = _copied(tensor)
    if pixels == 1 or (weight is None and bias is None):
        return held
    return held + [batch * channels * max(4, tensor.element_size())] * 2


def _group_norm_backward(
    machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]
) -> List[Held]:
    """Two sums for each sample and channel, two factors for each group, one for each channel
    (group_norm_kernel.cu)."""
    grad, tensor, weight = args[0], args[1], args[4]
    batch, channels, pixels, groups = args[5:9]
    mask = args[9]
    each = max(4, tensor.element_size())
    held = copies(grad) + _copied(tensor)
    if pixels > 1:
        held += [batch * channels * each] * 2
    if mask[0]:
        held += [batch * groups * each] * 2
        if pixels > 1 and weight is not None:
            held.append(batch * channels * each)
    return held


def _copied(tensor: Tensor) -> List[Held]:
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return [] if last else copies(tensor)


def _batch_norm_backward(
    machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]
) -> List[Held]:
    """The gradient in the layout of the input (cudnn/BatchNorm.cpp); an expanded one, of a sum, is
    copied."""
    grad, tensor = args[:2]
    layout = (
        torch.channels_last
        if tensor.dim() == 4 and not tensor.is_contiguous()
        else torch.contiguous_format
    )
    if layout is torch.channels_last and not tensor.is_contiguous(memory_format=layout):
        return []
    return [] if grad.is_contiguous(memory_format=layout) else [grad.nbytes]


# --- lookups, sorts and what is found by sorting ---


def _embedding_backward(
    machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]
) -> List[Held]:
    """Beyond 3072 indices they are sorted, and equal ones summed in parts (cuda/Embedding.cu,
    EmbeddingBackwardKernel.cu)."""
    grad, indices, weights, _, scale_by_freq = args[:5]
    return copies(grad, indices) + _summed_by_index(
        grad.shape[-1], grad, indices, weights, bool(scale_by_freq)
    )


def _embedding_bag_backward(weights: int) -> Kernel:
    """The same for bags, however few the indices (cuda/EmbeddingBag.cu); of the greatest elements
    nothing is sorted.

    weights: the place of the number of weights among the arguments; the mode is two places on."""

    def kernel(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
        return (
            []  # of the greatest
            if args[weights + 2] == 2
            else _summed_by_index(args[0].shape[-1], args[0], args[1], args[weights], always=True)
        )

    return kernel


def _summed_by_index(
    features: int, grad: Tensor, indices: Tensor, weights: int, always: bool
) -> List[Held]:
    index, count, always_ = indices.element_size(), indices.numel(), int(always)
    each = Formula("embedding_sort", (index, count, always_))
    # cub's other buffers for keys and values
    twice = Formula("embedding_sort", (2 * index, count, always_))
    segment = Formula("embedding_segment", (index, count, weights, always_))
    width = max(4, grad.element_size()) * features
    parts = [
        Formula("embedding_partial", (per_part, count, weights, always_))
        for per_part in (index, width)
    ]
    return [each, each, Transient([each, twice]), each, segment, segment, *parts]


def _embedding_renorm(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """The indices sorted, and each of them once (cuda/Embedding.cu, embedding_renorm_cuda_)."""
    size = args[1].nbytes
    return [size, size, Transient([size, 2 * size])]


def _index_put(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """Accumulating writes are sorted by place (cuda/Indexing.cu, index_put_with_sort_kernel)."""
    accumulate = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    if not accumulate:
        return []
    shapes = [index.shape for index in args[1] if index is not None]
    count = torch.broadcast_shapes(*shapes).numel() if shapes else 0
    return [*copies(args[2]), count * 8, count * 8, count * 8, Transient([count * 8, count * 16])]


def _sort(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """The places of the unsorted, cub's other buffers, and more where few rows are sorted by one
    sort (cuda/SortStable.cu)."""
    tensor = args[0]
    dim = _dimension(args, kwargs)
    length = tensor.shape[dim] if tensor.dim() else 1
    slices = tensor.numel() // length if length else 0
    held: List[Held] = []
    # rearranged, and the results as well (cuda/Sort.cpp)
    if tensor.dim() > 1 and tensor.stride(dim) != 1:
        held += [
            _sorting(width, slices, length)
            for width in (tensor.element_size(), tensor.element_size(), 8)
        ]
    few = [_sorting(width, slices, length, both=0) for width in (8, tensor.element_size())]
    return [
        *held,
        _sorting(8, slices, length),
        *few,
        _sorting(8 + tensor.element_size(), slices, length),
    ]


def _sorting(width: int, slices: int, length: int, both: int = 1) -> Formula:
    return Formula("sort", (width, slices, length, both))


def _dimension(args: Sequence[Any], kwargs: Dict[str, Any]) -> int:
    """The dimension of sort(self, dim, descending) and of sort(self, *, stable, dim,
    descending)."""
    dim = kwargs.get("dim", -1)
    for arg in args[1:]:
        if isinstance(arg, int) and not isinstance(arg, bool):
            dim = arg
    return dim


def _topk(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    tensor = args[0]
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    length = tensor.shape[dim] if tensor.dim() else 1
    return [*copies(tensor), Formula("topk", (tensor.numel() // length if length else 0, length))]


def _unique(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> List[Held]:
    """The elements sorted, with their places where the script asks for them (cuda/Unique.cu,
    UniqueCub.cu)."""
    tensor = args[0]
    size, places = tensor.nbytes, tensor.numel() * 8
    return [size, places, Transient([size + places])]


# --- reductions: the staging buffer of those that many thread blocks share (cuda/Reduce.cuh) ---

Dimensions = List[Tuple[int, int]]  # (length, stride), innermost first


def reduction(
    machine: Machine, tensor: Tensor, dims: Optional[Sequence[int]], element: int
) -> List[Formula]:
    """The buffer for a reduction of `tensor` over `dims` (None or none: all of them); `element`:
    bytes of what is summed up."""
    count = tensor.dim()
    wanted = {dim % count for dim in dims} if dims and count else set(range(count))
    shape, stride = tensor.shape, tensor.stride()
    inputs = 1
    for dim in wanted:
        inputs *= shape[dim]
    outputs = tensor.numel() // inputs if inputs else 0
    summed = _joined([(shape[d], stride[d]) for d in wanted if shape[d] != 1])
    kept = _joined(
        [(shape[d], stride[d]) for d in range(count) if d not in wanted and shape[d] != 1]
    )
    fastest = not kept or (bool(summed) and summed[0][1] < kept[0][1])
    inner = summed if fastest else kept
    in_vectors = inner and inner[0][1] == 1 and not (fastest and len(summed) > 1)
    # A stride as it is, and not what vectors it allows: that is no formula of the batch size.
    aligned = 4 if in_vectors else 1
    if in_vectors and not fastest:
        aligned = gcd(*(step for _, step in [*summed, *kept[1:]])) or 4
    run = kept[0][0] if kept else 1
    of_tensor = tensor.element_size(), inputs, outputs, run, int(fastest), aligned
    return [Formula("reduction", (element, *of_tensor, machine.multiprocessors, machine.threads))]


def _joined(dimensions: Dimensions) -> Dimensions:
    """Dimensions that lie side by side as one, innermost first
    (TensorIteratorBase::coalesce_dimensions)."""
    joined: Dimensions = []
    for length, stride in sorted(dimensions, key=lambda dimension: dimension[1]):
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = (joined[-1][0] * length, joined[-1][1])
        else:
            joined.append((length, stride))
    return joined


def accumulator(tensor: Tensor) -> int:
    """at::acc_type on CUDA: float32 for half types, 8 bytes for whole numbers."""
    return max(4, tensor.element_size()) if tensor.is_floating_point() or tensor.is_complex() else 8


def _over(at: int, element: Callable[[Tensor], int]) -> Kernel:
    """A reduction whose dimension is argument number `at`; `element`: bytes of what is summed
    up."""

    def kernel(machine: Machine, args: Sequence[Any], kwargs: Dict[str, Any]) -> Sequence[Held]:
        dims = args[at] if len(args) > at else kwargs.get("dim")
        if isinstance(dims, bool):
            dims = None
        elif isinstance(dims, int):
            dims = [dims]
        dtype = kwargs.get("dtype")
        size = (
            element(args[0])
            if dtype is None
            else max(4, torch.empty((), dtype=dtype, device="cpu").element_size())
        )
        return reduction(machine, args[0], dims, size)

    return kernel


_sum = _over(1, accumulator)
_norm = _over(2, accumulator)
_itself = _over(1, Tensor.element_size)
# a value and its index, padded to 8 bytes (pair of value and int64)
_with_place = _over(1, lambda tensor: 16)
# mean, squares, two counts (WelfordData)
_welford = _over(1, lambda tensor: 32 if tensor.element_size() == 8 else 16)
_truth = _over(1, lambda tensor: 1)


TEMPORARIES: Dict[str, Kernel] = {
    **dict.fromkeys(
        ("_softmax", "_log_softmax", "cumsum", "cumprod", "logcumsumexp", "mode"), _contiguous(0)
    ),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), _contiguous(0)),
    **dict.fromkeys(("_log_softmax_backward_data", "_cdist_forward"), _contiguous(0, 1)),
    # Copies of what is laid out in another way, an expanded weight included (cuda/NLLLoss.cu,
    # cuda/NLLLoss2d.cu).
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _contiguous(0, 1, 2)),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _contiguous(2, 3)),
    **dict.fromkeys(
        ("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d"),
        _dense(0),
    ),
    **dict.fromkeys(
        ("upsample_nearest2d", "upsample_bilinear2d", "_upsample_bicubic2d_aa", "pixel_shuffle"),
        _dense(0),
    ),
    **dict.fromkeys(
        ("reflection_pad2d", "im2col", "col2im", "upsample_nearest2d_backward"), _dense(0)
    ),
    **dict.fromkeys(("max_pool2d_with_indices_backward", "avg_pool2d_backward"), _dense(0, 1)),
    "_adaptive_avg_pool2d_backward": _dense(0, 1),
    "_softmax_backward_data": _softmax_backward,
    "_foreach_norm": _foreach_norm,
    **dict.fromkeys(
        ("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"), _unreduced(2)
    ),
    "binary_cross_entropy_with_logits": _bce_with_logits,
    "native_layer_norm_backward": _norm_backward(5, 7),
    "_fused_rms_norm_backward": _norm_backward(4, 5),
    "native_group_norm": _group_norm,
    "native_group_norm_backward": _group_norm_backward,
    "native_batch_norm_backward": _batch_norm_backward,
    "embedding_dense_backward": _embedding_backward,
    "embedding_renorm_": _embedding_renorm,
    "_embedding_bag_backward": _embedding_bag_backward(6),
    "_embedding_bag_dense_backward": _embedding_bag_backward(5),
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), _index_put),
    **dict.fromkeys(("sort", "argsort"), _sort),
    "topk": _topk,
    # Without replacement an exponential variate for each weight (Distributions.cpp); with it sums
    # along the row.
    "multinomial": lambda machine, args, kwargs: [args[0].nbytes],
    **dict.fromkeys(("_unique", "_unique2"), _unique),
    **dict.fromkeys(("sum", "mean", "nansum", "prod"), _sum),
    **dict.fromkeys(("linalg_vector_norm", "norm"), _norm),
    **dict.fromkeys(("amax", "amin"), _itself),
    **dict.fromkeys(("max", "min", "argmax", "argmin"), _with_place),
    **dict.fromkeys(("var", "std", "var_mean", "std_mean"), _welford),
    **dict.fromkeys(("any", "all"), _truth),
}
