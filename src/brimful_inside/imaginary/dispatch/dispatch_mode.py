"""Below autograd: every ATen operation passes here, in the forward and in the backward pass.

The meta device stands for the card: it has shapes and dtypes and no data. Each new storage on it is
an allocation on the imaginary card."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from brimful_inside.imaginary.operators import (
    attention,
    convolutions,
    cublas,
    data_dependent,
    fused_kernels,
    meta_kernels,
    recurrent,
    temporaries,
)
from brimful_inside.imaginary.operators.flops import cost_of, is_free, kernels_of
from brimful_inside.imaginary.operators.library_kernels import own_kernel
from brimful_inside.imaginary.operators.temporaries import Held, Kernel, Transient
from brimful_inside.imaginary.state.device import ImaginaryGpu, call_plainly
from brimful_inside.imaginary.state.errors import Unsupported, different_devices
from brimful_inside.imaginary.state.known_values import Following
from brimful_inside.imaginary.state.ledger import Block, Ledger
from brimful_inside.imaginary.state.lock import one_at_a_time
from brimful_inside.imaginary.state.tensors import META, C, Tensor, aten, empty, is_meta, tensors_in

SHAPES = meta_kernels.handlers()  # that tell the shapes of results and nothing else
TEMPORARIES: Dict[str, Kernel] = {
    **temporaries.TEMPORARIES,
    **attention.TEMPORARIES,
    **convolutions.TEMPORARIES,
    **cublas.TEMPORARIES,
    **fused_kernels.TEMPORARIES,
}

# Operations that take tensors of the CPU and of the card together on a real card as well.
MIXING = frozenset(
    "aten::" + name
    for name in (
        "copy_",
        "copy",
        "_to_copy",
        "to",
        "lift",
        "lift_fresh",
        "detach",
        "set_",
        "set_data",
        "equal",
        "is_same_size",
        "index.Tensor",
        "_unsafe_index.Tensor",
        "index_put_",
        "index_put",
        "_index_put_impl_",
        "_unsafe_index_put",
        "_pack_padded_sequence",
        "_pack_padded_sequence_backward",
        "_pad_packed_sequence",
        "_ctc_loss",
        "ctc_loss",
        "_foreach_copy_",
        "_foreach_copy",
        "_copy_from",
        "_resize_output_",
        "resize_",
        "repeat_interleave.Tensor",
        "_fused_adam_",
        "_fused_adamw_",
        "_fused_sgd_",
        "_fused_adagrad_",
        "bincount",
        "tensor_split",
    )
)


class _Facts:
    """What is known of an operation, found out once."""

    __slots__ = (
        "blas",
        "composite",
        "cost",
        "following",
        "free",
        "fresh",
        "handler",
        "in_place",
        "mixes",
        "name",
        "own",
        "remembered",
        "short",
        "temporaries",
    )

    def __init__(self, func: Any, handlers: Dict[Any, Callable]):
        self.name = str(func)  # "aten.mm.default"
        schema = func._schema.name
        self.short = schema.split("::")[-1]
        overload = schema + "." + func._overloadname
        self.mixes = schema in MIXING or overload in MIXING or not schema.startswith("aten::")
        self.handler = handlers.get(func) or data_dependent.HANDLERS_BY_NAME.get(schema)
        # a library's kernel, whose own operations count
        self.own = None if self.handler is not None else own_kernel(func)
        self.handler = self.handler or self.own
        self.following = Following(func)
        self.in_place = self.short.endswith("_") and len(func._schema.returns) <= 1
        # torch.tensor: what it made comes into sight here
        self.fresh = self.short in ("lift_fresh", "lift")
        self.temporaries = TEMPORARIES.get(self.short)
        self.blas = self.short in cublas.USES_CUBLAS
        # starts no kernel; how its cost is found
        self.free, self.cost = (
            is_free(func, self.short),
            cost_of(self.short),
        )
        self.remembered = (
            not self.free
            and self.handler in (None, SHAPES.get(func))
            and meta_kernels.is_remembered(func)
        )
        # Some have a kernel of their own on CUDA and are composed of others elsewhere
        # (silu_backward): a handler is theirs.
        self.composite = self.handler is None and torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        )


_COPIES = ("_to_copy", "copy_", "copy")
_fake_mode: Callable[[Any], Any] = C._get_dispatch_mode
_FAKE = C._TorchDispatchModeKey.FAKE
_HIGHER_ORDER = torch._ops.HigherOrderOperator


@functools.cache
def _has_own_dispatch(kind: type) -> bool:
    """Whether a class does operations by other operations. Fake tensors do not."""
    overrides = kind.__torch_dispatch__ is not C._disabled_torch_dispatch_impl  # type: ignore
    return overrides and not kind.__module__.startswith("torch._subclasses")


class Operations(TorchDispatchMode):
    """Plays storages into the ledger. One instance a thread; all share the gpu's ledger and
    tables."""

    supports_higher_order_operators = True

    def __init__(self, gpu: ImaginaryGpu):
        super().__init__()
        self.gpu = gpu
        self.facts: Dict[Any, _Facts] = gpu.facts
        self.handlers = gpu.operation_handlers

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; the guard against it costs time at each operation and imports
        torch._dynamo."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Tuple = (), kwargs: Optional[Dict[str, Any]] = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, _HIGHER_ORDER):
            return self._higher_order(func, args, kwargs)
        if types and any(map(_has_own_dispatch, types)):
            return NotImplemented  # a DTensor, say: the operations on its parts come here
        if kwargs:
            device = kwargs.get("device")
            # named where no function mode is on: in C++, within a DTensor
            if device is not None and device.type == "cuda":
                self.gpu.touch()
                with self.gpu.streams.on(self.gpu.index_of(device)):
                    return self.__torch_dispatch__(func, types, args, {**kwargs, "device": META})
            # a tensor of the host, also where one of the card gives its shape (empty_like)
            if kwargs.get("pin_memory"):
                return self.gpu.pinned.pin(
                    self.__torch_dispatch__(func, types, args, {**kwargs, "pin_memory": False})
                )
        with torch._C.DisableTorchFunction():
            if _fake_mode(_FAKE) is not None:  # FakeTensorMode works out shapes
                return (
                    args[0]
                    if self.handlers.get(func) is meta_kernels.itself
                    else func(*args, **kwargs)
                )
            facts = self.facts.get(func)
            if facts is None:
                facts = self.facts[func] = _Facts(func, self.handlers)
            if facts.composite:
                # Under inference mode composite operations arrive whole; their parts are what a
                # card would see.
                with self:
                    parts = func.decompose(*args, **kwargs)
                if parts is not NotImplemented:
                    return parts
            if self._on_card(args, kwargs, facts) and self.gpu.is_open:
                return self._run(func, facts, args, kwargs)
            return func(*args, **kwargs)  # a thread may outlive the card

    def _higher_order(self, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        """DTensor fills its share of a random tensor under another offset of the generator; others
        belong to compiled code."""
        if func.name() != "run_dtensor_rng_op":
            raise Unsupported(func.name(), "operators of higher order are not modelled")
        with self:
            return args[2](*args[3:], **kwargs)

    @one_at_a_time
    def _run(self, func: Any, facts: _Facts, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        """Runs the operation on the card where its inputs are."""
        if self.gpu.count == 1:
            return self._run_here(func, facts, args, kwargs)
        streams = self.gpu.streams
        index = self._card(facts, args, kwargs)
        try:
            with streams.on(index):
                return self._run_here(func, facts, args, kwargs)
        finally:
            streams.last = index

    def _card(self, facts: _Facts, args: Tuple, kwargs: Dict[str, Any]) -> int:
        """The card that the operation runs on and whose memory its results take. Raises
        RuntimeError where two meet."""
        streams = self.gpu.streams
        if streams.named is not None and kwargs.get("device") is not None:
            return streams.named
        card: Optional[int] = None
        for tensor in tensors_in(args, kwargs):
            index = self.gpu.index_of_tensor(tensor) if is_meta(tensor) else None
            if index is None or index == card:
                continue
            if facts.mixes or facts.short.startswith(("_foreach", "_fused")):
                return index
            if card is not None:
                raise different_devices(
                    "argument of aten::%s" % facts.short, "cuda:%d" % card, "cuda:%d" % index
                )
            card = index
        choices = card, streams.named, streams.last, streams.card
        return next(index for index in choices if index is not None)

    def _run_here(self, func: Any, facts: _Facts, args: Tuple, kwargs: Dict[str, Any]) -> Any:
        gpu, ledger, clock = self.gpu, self.gpu.ledger, self.gpu.clock
        ledger.work.launches += 1
        if gpu.watch is not None:
            gpu.watch(args, kwargs)
        taken: List[Block] = []
        passed_over = gpu.passed_over
        try:
            self._take(facts, args, kwargs, taken)
            if facts.remembered:
                out = gpu.remembered.run(gpu, func, args, kwargs, facts.handler)
            else:
                out = (facts.handler or call_plainly)(gpu, func, args, kwargs)
            rule, doubtful = facts.following.rule, ()
            if gpu.lengths.any:
                doubtful = gpu.lengths.of(facts.short, rule.shaped_by, args, out)
            for tensor in tensors_in(out):
                _see(tensor, facts.name, ledger, doubtful)
            gpu.known.follow(func, facts.following, args, kwargs, out)
            gpu.bounds.follow(rule.ones, facts.in_place, args, out)
            launched = facts.own is None or gpu.passed_over > passed_over
            if clock.on and not facts.free and launched:
                clock.ran(facts.name, kernels_of(facts.cost, args, kwargs, out, gpu.classes))
                if gpu.count > 1 and gpu.here.copies_cross and facts.short in _COPIES:
                    _note_crossing(gpu, facts.name, args, out)
        except NotImplementedError as error:
            if isinstance(error, Unsupported):
                raise
            # what has no meta kernel and changes a tensor in place takes no memory of its own
            if facts.in_place:
                return args[0] if func._schema.returns else None
            raise Unsupported(facts.name, str(error).splitlines()[0].split(". ")[0]) from error
        finally:
            gpu.passed_over = passed_over
            ledger.release_all(taken)
        if facts.handler is _to_copy and not is_meta(args[0]):
            gpu.note_input(out)
        return out

    def _take(self, facts: _Facts, args: Tuple, kwargs: Dict[str, Any], taken: List[Block]) -> None:
        """The memory that the operation holds while it runs is added to `taken`."""
        if facts.blas:
            self.gpu.workspaces.for_product(facts.short, args, taken)
        if facts.temporaries is not None:
            name, at_most = facts.short + " (temporary)", self.gpu.lengths.are_among(args)
            for held in facts.temporaries(self.gpu.machine, args, kwargs):
                self._hold(held, name, taken, at_most)

    def _hold(self, held: Held, name: str, taken: List[Block], at_most: bool) -> None:
        ledger = self.gpu.ledger
        if isinstance(held, int):
            if held:
                taken.append(ledger.reserve(held, name, at_most=at_most))
        elif isinstance(held, Transient):
            passing: List[Block] = []
            try:
                for item in held.items:
                    self._hold(item, name, passing, at_most)
            finally:
                ledger.release_all(passing)
        else:
            taken.append(ledger.reserve_workspace(held.name, held.args, name, at_most))

    def _on_card(self, args: Tuple, kwargs: Dict[str, Any], facts: _Facts) -> bool:
        """Whether the operation is the card's. Raises RuntimeError where tensors of both sides
        meet."""
        host = card = False
        for tensor in tensors_in(args):
            if is_meta(tensor):
                card = True
            elif tensor.dim():
                host = True
        if card or any(is_meta(tensor) for tensor in tensors_in(kwargs)):
            if self.gpu.here.user_meta:  # zeros_like of a tensor of the card, on "meta"
                return False
            if self.gpu.has_user_meta and not self.gpu.any_imaginary(args, kwargs):
                return facts.fresh
            if host and not facts.mixes:
                first = next(tensor for tensor in tensors_in(args, kwargs) if is_meta(tensor))
                raise different_devices(
                    "argument of aten::%s" % facts.short, str(self.gpu.device_of(first))
                )
            return True
        device = kwargs.get("device")
        return device is not None and device.type == "meta" and not self.gpu.here.user_meta


def _see(tensor: Tensor, op: str, ledger: Ledger, doubtful: Sequence[int]) -> None:
    """`doubtful`: lengths of dimensions that are upper bounds."""
    if not is_meta(tensor):
        return
    if tensor.layout != torch.strided:
        raise Unsupported(op, "sparse tensors are not modelled")
    storage = tensor.untyped_storage()
    entry = ledger.storages.get(storage._cdata)
    if entry is None or entry() is None:
        at_most = next((length for length in doubtful if length in tensor.shape), 0)
        ledger.add(storage, op, at_most)
    elif entry.nbytes != storage.nbytes():
        ledger.resized(entry, storage.nbytes(), op)


def _note_crossing(gpu: ImaginaryGpu, name: str, args: Sequence[Any], out: Any) -> None:
    """A copy from one card to another takes time of both links."""
    source = args[1] if len(args) > 1 and isinstance(args[1], Tensor) else args[0]
    target = args[0] if source is not args[0] else out
    ends = [gpu.index_of_tensor(tensor) if is_meta(tensor) else None for tensor in (source, target)]
    if None not in ends and ends[0] != ends[1]:
        gpu.exchanged(
            name, target.numel() * source.element_size(), [end for end in ends if end is not None]
        )


def _to_copy(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    device = kwargs.get("device")
    if (
        not kwargs.get("non_blocking")
        and device is not None
        and (device.type == "meta") is not is_meta(args[0])
    ):
        gpu.host_waits()
    if device is not None and device.type != "meta" and is_meta(args[0]):
        return gpu.known.read(args[0], kwargs.get("dtype"))
    if not is_meta(args[0]):
        return func(*args, **{**kwargs, "non_blocking": False})
    return func(*args, **kwargs)


def _copy_(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    blocking = not (args[2] if args[2:] else kwargs.get("non_blocking"))
    if blocking and is_meta(args[0]) is not is_meta(args[1]):
        gpu.host_waits()
    if not is_meta(args[0]):
        if is_meta(args[1]):
            values = gpu.known.values(args[1])
            return args[0].zero_() if values is None else args[0].copy_(values)
        return func(*args, **kwargs)
    # the copy from the host takes no memory on the card unless the dtype changes there
    if not is_meta(args[1]):
        torch.broadcast_shapes(args[0].shape, args[1].shape)
        gpu.note_input(args[0])
        return args[0]
    return func(*args, **kwargs)


def _scalar(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> Any:
    gpu.host_waits()
    return gpu.known.value_of(args[0])


def _equal(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> bool:
    if args[0].shape != args[1].shape:
        return False
    # a check of PyTorch's C++ (istft): as bool() reads it
    if args[0].dtype == torch.bool and not args[0].dim():
        return gpu.known.value_of(args[0]) == gpu.known.value_of(args[1])
    first, second = (gpu.known.values(arg) if is_meta(arg) else arg for arg in args[:2])
    return first is None or second is None or torch.equal(first, second)


def _ctc_loss(
    gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]
) -> Tuple[Tensor, Tensor]:
    """cuda/LossCTC.cu: the loss of each sample and its alphas, (samples, time, 2 x longest target +
    1)."""
    log_probs, targets = args[:2]
    batch = log_probs.shape[1] if log_probs.dim() == 3 else 1
    longest = targets.shape[-1] if targets.dim() == 2 else targets.numel()
    alphas = log_probs.new_empty((batch, log_probs.shape[0], 2 * longest + 1))
    return log_probs.new_empty(batch), alphas


def _foreach_copy_(gpu: ImaginaryGpu, func: Any, args: Tuple, kwargs: Dict[str, Any]) -> None:
    for target, source in zip(args[0], args[1]):
        _copy_(gpu, aten.copy_.default, (target, source), {})


def handlers() -> Dict[Any, Callable]:
    """By ATen's operation: what stands in for its meta kernel, of two for one operation the later;
    and those below, which read data or in which the host takes part."""
    return {
        **SHAPES,
        **convolutions.handlers(),
        **data_dependent.operation_handlers(),
        **fused_kernels.operation_handlers(),
        **recurrent.operation_handlers(),
        aten._to_copy.default: _to_copy,
        aten.copy_.default: _copy_,
        aten._local_scalar_dense.default: _scalar,
        aten.equal.default: _equal,
        aten._foreach_copy_.default: _foreach_copy_,
        **dict.fromkeys((aten._ctc_loss.default, aten._ctc_loss.Tensor), _ctc_loss),
        **dict.fromkeys(
            (aten._ctc_loss_backward.default, aten._ctc_loss_backward.Tensor),
            lambda gpu, func, args, kwargs: empty(args[1].shape, args[1].dtype),
        ),
    }
