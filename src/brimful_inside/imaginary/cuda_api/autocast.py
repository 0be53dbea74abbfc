"""torch.autocast("cuda") for tensors of the card. The meta device has no autocast key, so the casts
are done above autograd, function by function, by CUDA's lists (aten/src/ATen/autocast_mode.h and
.cpp). PyTorch's own thread-local switches are used."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import torch
from torch._library.custom_ops import OPDEFS

from brimful_inside.imaginary.state.device import Handler, ImaginaryGpu, call_plainly
from brimful_inside.imaginary.state.lock import one_at_a_time
from brimful_inside.imaginary.state.tensors import C, Tensor, autocast_on, is_meta, tensors_in

LOWER_PRECISION = [
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
    "prelu",
    "addmm",
    "addmv",
    "addr",
    "matmul",
    "einsum",
    "mm",
    "mv",
    "linalg_vecdot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "chain_matmul",
    "linalg_multi_dot",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention",
    "_convolution",
    "cudnn_convolution",
    "cudnn_convolution_transpose",
    "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell",
]
FP32 = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "frobenius_norm",
    "nuclear_norm",
    "cosine_similarity",
    "poisson_nll_loss",
    "cosine_embedding_loss",
    "nll_loss",
    "nll_loss2d",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss",
    "soft_margin_loss",
    "triplet_margin_loss",
    "multi_margin_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "norm",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
    "linalg_matrix_sqrth",  # from 2.15 on
]
FP32_BY_DTYPE = [
    "prod",
    "softmax",
    "log_softmax",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "sum",
]
PROMOTE = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
]
BANNED = ["binary_cross_entropy"]
# Cast by operators/recurrent.py, which knows its weights; in the builds for CUDA alone.
ELSEWHERE = ["_cudnn_rnn"]
# Names in Python of operations that call one of the lists.
ALIASES = {"arccos": "acos", "arcsin": "asin", "nll_loss_nd": "nll_loss"}
# torchvision computes them in float32 and answers in the dtype of their first argument
# (torchvision/csrc/ops/autocast/).
TORCHVISION = ["roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d", "nms"]


class Casts:
    """The casts of weights that are kept until the outermost autocast context ends. One for all
    threads, as in PyTorch."""

    def __init__(self) -> None:
        self._kept: Dict[int, Tuple[Tensor, Tensor]] = {}

    @one_at_a_time
    def clear(self) -> None:
        self._kept.clear()

    @one_at_a_time
    def cast(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """`tensor` as `dtype`: a leaf that needs gradients is cast once (cached_cast)."""
        if not _eligible(tensor) or tensor.dtype == dtype:
            return tensor
        keeps = (
            dtype == torch.get_autocast_dtype("cuda")
            and tensor.dtype == torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
            and torch.is_autocast_cache_enabled()
        )
        if not keeps:
            return tensor.to(dtype)
        kept = self._kept.get(id(tensor))
        if kept is None:
            kept = (tensor, tensor.to(dtype))
            self._kept[id(tensor)] = kept
        return kept[1]

    def cast_all(self, value: Any, dtype: torch.dtype) -> Any:
        """Every tensor in `value` (a tensor, a list, a dict of arguments) as `dtype`."""
        if isinstance(value, Tensor):
            return self.cast(value, dtype)
        if isinstance(value, (list, tuple)):
            return (tuple if isinstance(value, tuple) else list)(
                self.cast_all(item, dtype) for item in value
            )
        if isinstance(value, dict):
            return {key: self.cast_all(item, dtype) for key, item in value.items()}
        return value


def _eligible(tensor: Tensor) -> bool:
    return is_meta(tensor) and tensor.is_floating_point() and tensor.dtype != torch.float64


def _cast_to(dtype_of: Callable[[Tuple, Dict[str, Any]], torch.dtype], inner: Handler) -> Handler:
    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        if not autocast_on():
            return inner(gpu, func, args, kwargs)
        dtype = dtype_of(args, kwargs)
        args, kwargs = gpu.casts.cast_all(args, dtype), gpu.casts.cast_all(kwargs, dtype)
        with _autocast_excluded():
            return inner(gpu, func, args, kwargs)

    return handler


class _autocast_excluded:
    """What a wrapper calls runs without autocast (ExcludeDispatchKeyGuard)."""

    def __enter__(self) -> None:
        torch.set_autocast_enabled("cuda", False)

    def __exit__(self, *error: Any) -> None:
        torch.set_autocast_enabled("cuda", True)


def _widest(args: Tuple, kwargs: Dict[str, Any]) -> torch.dtype:
    """The widest dtype among the arguments; promote_type."""
    if any(_eligible(t) and t.dtype == torch.float32 for t in tensors_in(args, kwargs)):
        return torch.float32
    return torch.get_autocast_dtype("cuda")


def _by_dtype(inner: Handler) -> Handler:
    """The operation answers in float32, and reads its input as it is (fp32_set_opt_dtype)."""

    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        if (
            not autocast_on()
            or not args
            or not isinstance(args[0], Tensor)
            or not _eligible(args[0])
        ):
            return inner(gpu, func, args, kwargs)
        given = kwargs.get("dtype") is not None or any(isinstance(arg, torch.dtype) for arg in args)
        if not given and args[0].dtype != torch.float32:
            if len(args) == 3 and args[2] is None:
                args = args[:2]
            kwargs = {**kwargs, "dtype": torch.float32}
        with _autocast_excluded():
            return inner(gpu, func, args, kwargs)

    return handler


def _banned(inner: Handler) -> Handler:
    def handler(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        if autocast_on() and args and isinstance(args[0], Tensor) and is_meta(args[0]):
            raise RuntimeError(
                "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to "
                "autocast.\n"
                "Many models use a sigmoid layer right before the binary cross entropy layer.\n"
                "In this case, combine the two layers using "
                "torch.nn.functional.binary_cross_entropy_with_logits\n"
                "or torch.nn.BCEWithLogitsLoss.  binary_cross_entropy_with_logits and "
                "BCEWithLogits are\n"
                "safe to autocast."
            )
        return inner(gpu, func, args, kwargs)

    return handler


def _callables(name: str) -> List[Any]:
    """What of Python stands for the ATen function `name`."""
    owners = (torch, Tensor, C._nn, C._linalg, C._VariableFunctions)
    functions = [getattr(owner, name) for owner in owners if hasattr(owner, name)]
    return [func for func in functions if not hasattr(func, "__code__")]


def autocast_operations() -> Set[str]:
    return {
        name.split("::")[1].split(".")[0]
        for name in C._dispatch_get_all_op_names()
        if name.startswith("aten::")
        and C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA")
    }


def handlers_under_autocast(table: Dict[Any, Handler]) -> Dict[Any, Handler]:
    """`table` with autocast's casts in front of the functions that the installed release casts.

    The lists say how; which operations are cast differs between releases."""
    wrappers: List[Tuple[List[str], Callable[[Handler], Handler]]] = [
        (
            LOWER_PRECISION,
            lambda inner: _cast_to(lambda args, kwargs: torch.get_autocast_dtype("cuda"), inner),
        ),
        (FP32, lambda inner: _cast_to(lambda args, kwargs: torch.float32, inner)),
        (FP32_BY_DTYPE, _by_dtype),
        (PROMOTE, lambda inner: _cast_to(_widest, inner)),
        (BANNED, _banned),
    ]
    installed = autocast_operations()
    result = dict(table)
    for names, wrap in wrappers:
        aliases = [alias for alias, name in ALIASES.items() if name in names]
        for name in [*names, *aliases]:
            if ALIASES.get(name, name) in installed:
                for func in _callables(name):
                    result[func] = wrap(table.get(func, call_plainly))
    return result


def of_library(func: Any) -> Optional[Handler]:
    """The autocast rule that a library registered with its operation for CUDA; None where it has
    none."""
    packet = getattr(func, "overloadpacket", func)
    if packet._qualified_op_name in ["torchvision::" + name for name in TORCHVISION]:
        return _float32_and_back
    definition = OPDEFS.get(packet._qualified_op_name)
    # by torch.library.register_autocast
    # A dictionary, or in older releases (to 2.11 at least) an attribute for each device.
    dtypes: Dict[str, Any] = getattr(definition, "_autocast_dtype", {})
    dtype = dtypes.get("cuda", getattr(definition, "_autocast_cuda_dtype", None))
    return None if dtype is None else _cast_to(lambda args, kwargs: dtype, call_plainly)


def _float32_and_back(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    result = _cast_to(lambda args, kwargs: torch.float32, call_plainly)(gpu, func, args, kwargs)
    if not autocast_on() or not is_meta(args[0]):
        return result
    if isinstance(result, tuple):
        return tuple(part.to(args[0].dtype) for part in result)
    return result.to(args[0].dtype) if result.is_floating_point() else result  # nms answers indices


def patch_cache(gpu: ImaginaryGpu) -> None:
    """torch.autocast clears the kept casts when its outermost context ends."""
    clear = torch.clear_autocast_cache

    @gpu.patches.function(torch)
    def clear_autocast_cache() -> None:
        clear()
        gpu.casts.clear()
