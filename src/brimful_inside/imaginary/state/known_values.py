"""Values that are known although the card has none: those of small tensors that came from the host
(lengths, sizes, counters, positions, flags), and of what is made of known ones alone; and by which
rule (`RULES`) what is known follows each operator.

They decide about shapes and about which way a script takes: with zeros ``x[:, : lengths.max()]``
would be empty. Masks and token numbers that the host sends are not kept, since they differ from
batch to batch. What the card makes of shapes alone (``arange`` and what follows from it) is the
same for each batch, and kept in any shape: Transformers leaves the causal mask out where such
positions show that nothing is packed. Of a larger batch
whose rows are all alike one of them stands for all, so that what is known does not depend on how
many there are. Whole numbers that are picked by
unknown places (``batch[perm]``: the graph of each node that is left) are taken to be spread evenly
over those there are."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch

from brimful_inside.imaginary.state import upper_bounds
from brimful_inside.imaginary.state.lock import one_at_a_time
from brimful_inside.imaginary.state.tensors import (
    Tensor,
    entry_of,
    is_meta,
    tensors_in,
    zeros_on_host,
)

FEW = 16  # elements: of any shape and type
MANY = 1 << 20  # elements: of one dimension and whole numbers; some milliseconds at most
# of more dimensions: the positions of a batch, not the masks of long texts, which each layer may
# make
MANY_OF_SHAPES = 1 << 18
MANY_IN_A_ROW = 1 << 16
SENT = 0  # the age of numbers that came from the host, or that a script wrote down
# Of these a mask is made that the host may select by: what is not 0, and what is before a length.
_SELECTS = tuple("aten.%s." % name for name in ("_to_copy", "le", "lt", "ge", "gt"))
UNWRITTEN = math.inf  # the age of what nobody wrote to since it was made (torch.empty)


class Rule(NamedTuple):
    """What is known after an operation, where that is not what follows from all of its operands."""

    unset: bool = False  # nobody wrote to what it makes
    of_a_shape: bool = False  # its operands' values do not matter
    overwrites: bool = False  # nor those that it writes over
    decided_by: Optional[int] = None  # a value of either operand that decides, whatever the other
    picks: bool = False  # elements of the first operand
    ones: Optional[upper_bounds.OnesRule] = None  # how many elements are not zero
    shaped_by: Optional[int] = None  # so many operands say how its result is shaped


_NEW = Rule(unset=True)
_OF_A_SHAPE = Rule(of_a_shape=True)
_PICKS = Rule(picks=True)
_OVERWRITES = Rule(overwrites=True)
_ALL, _LEAST = partial(upper_bounds.of_operands, True), partial(upper_bounds.of_operands, False)
_AS_THE_FIRST = Rule(shaped_by=1)
_AND = Rule(decided_by=0, ones=_LEAST)
_OR = Rule(decided_by=1, ones=_ALL)
_WRITES_AT_PLACES = (
    *("index_put", "index_add", "index_copy", "index_fill", "scatter", "scatter_add"),
    *("scatter_reduce", "masked_fill", "masked_scatter", "masked_select"),
    "masked_scatter_backward",
)
# by the operator's name; of all others what they make is known where all their operands are
RULES: Dict[str, Rule] = {
    **dict.fromkeys(("empty", "empty_like", "empty_strided", "empty_permuted"), _NEW),
    **dict.fromkeys(("resize_", "set_"), _NEW),
    **dict.fromkeys(("new_empty", "new_empty_strided"), _NEW._replace(shaped_by=0)),
    "zeros": Rule(ones=upper_bounds.none),
    "zeros_like": Rule(of_a_shape=True, ones=upper_bounds.none),
    "new_zeros": Rule(of_a_shape=True, ones=upper_bounds.none, shaped_by=0),
    **dict.fromkeys(("ones_like", "full_like"), _OF_A_SHAPE),
    **dict.fromkeys(("new_ones", "new_full"), _OF_A_SHAPE._replace(shaped_by=0)),
    **dict.fromkeys(("fill_", "copy_"), _OVERWRITES),
    "zero_": Rule(overwrites=True, ones=upper_bounds.none),
    **dict.fromkeys(("bitwise_and", "logical_and"), _AND),
    **dict.fromkeys(("bitwise_or", "logical_or"), _OR),
    **dict.fromkeys(("bitwise_and_", "logical_and_"), Rule(decided_by=0)),
    **dict.fromkeys(("bitwise_or_", "logical_or_"), Rule(decided_by=1)),
    **dict.fromkeys(("index", "index_select", "take"), _PICKS),
    **dict.fromkeys((name + end for name in _WRITES_AT_PLACES for end in ("", "_")), _AS_THE_FIRST),
    "index_put_": Rule(ones=upper_bounds.put, shaped_by=1),
    "_index_put_impl_": Rule(ones=upper_bounds.put),
    "index_fill_": Rule(ones=upper_bounds.filled, shaped_by=1),
    "cat": Rule(ones=_ALL),
    "mul": Rule(ones=_LEAST),
    **dict.fromkeys(("_to_copy", "clone"), Rule(ones=upper_bounds.same)),
    "gt": Rule(ones=partial(upper_bounds.compared, lambda value: value >= 0)),
    "ne": Rule(ones=partial(upper_bounds.compared, lambda value: value == 0)),
    "eq": Rule(ones=partial(upper_bounds.compared, lambda value: value != 0)),
    **dict.fromkeys(
        ("unsqueeze_", "squeeze_", "detach_"), Rule(ones=lambda bounds, args, out: None)
    ),
}
_NO_RULE = Rule()


def is_small(tensor: Tensor, since: float = SENT, count: Optional[int] = None) -> bool:
    """Whether values of such a tensor are kept. `since`: the age of the numbers that they are made
    of. `count`: how many of them stand for all."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return False
    if tensor.numel() <= FEW:
        return True
    if tensor.is_floating_point() or tensor.is_complex():
        return False
    if count is None:
        count = tensor.numel()
    return count <= MANY if tensor.dim() == 1 else count <= MANY_OF_SHAPES and since > SENT


class Following:
    """How an operation is followed; found out once for each."""

    __slots__ = ("makes", "rule", "written")

    def __init__(self, func: Any):
        schema = func._schema
        short = schema.name.split("::")[-1]
        infos = [argument.alias_info for argument in schema.arguments]
        self.rule = RULES.get(short, _NO_RULE)
        self.written = [
            number for number, info in enumerate(infos) if info is not None and info.is_write
        ]
        if short == "_amp_foreach_non_finite_check_and_unscale_":
            self.written = self.written[:1]  # no overflow: what was found before stays
        is_view = not self.written and any(info is not None for info in infos)
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        # what others' kernels do to values is not known
        is_pytorchs = schema.name.startswith("aten::")
        self.makes = is_pytorchs and not is_view and not is_random and not self.rule.unset


class Known:
    """The known values of an imaginary GPU. Numbers have an age: the number of the first allocation
    whose numbers went into them, or SENT."""

    def __init__(self, storages: Dict[int, Any]):
        self._storages = storages  # the ledgers' entries
        self._since = math.inf  # the age of what was looked at since it was set to this
        # the age of what somebody asked for; who wants to know sets it to this
        self.oldest_read = math.inf
        self.unknown_read = False  # the host read a value that nobody can know

    @one_at_a_time
    def values(self, tensor: Tensor) -> Optional[Tensor]:
        """The numbers of a tensor of the card, as a tensor of the host that shares them with its
        views; None: unknown."""
        self._since = math.inf
        values = self._values(tensor)
        self.oldest_read = min(self.oldest_read, self._since)
        return values

    def value_of(self, tensor: Tensor) -> Any:
        return self.is_true(tensor) or self.read(tensor).item()

    def read(self, tensor: Tensor, dtype: Optional[torch.dtype] = None) -> Tensor:
        """What the host gets when it reads `tensor`: a new tensor of the numbers that are known,
        else of zeros. A few numbers that are no whole ones (a loss, a norm, a sum and its count)
        are 1, since scripts divide by them and take their logarithm. A mask selects everything, as
        it does on the card (`aten.nonzero`); what says whether something is the end or equal
        (`aten.eq`) is false."""
        values = self.values(tensor)
        if values is not None:
            return values.to(dtype or tensor.dtype, copy=True)
        self.unknown_read = True
        is_one = tensor.is_floating_point() and (
            tensor.numel() == 1 or (tensor.dim() == 1 and tensor.numel() <= FEW)
        )
        if tensor.dtype == torch.bool and tensor.dim():
            entry = entry_of(self._storages, tensor)
            is_one = entry is not None and entry.op.startswith(_SELECTS)
        read = zeros_on_host(tensor, dtype)
        return read.fill_(1) if is_one else read

    def mark_true(self, tensor: Tensor) -> Tensor:
        """`tensor` is known to hold nothing but True (of isfinite, say)."""
        entry = entry_of(self._storages, tensor) if is_meta(tensor) else None
        if entry is not None:
            entry.known_true = True
        return tensor

    def is_true(self, tensor: Tensor) -> bool:
        entry = entry_of(self._storages, tensor) if is_meta(tensor) else None
        return entry is not None and entry.known_true

    @one_at_a_time
    def exceeds(self, tensor: Tensor, count: int) -> bool:
        """Whether one of its numbers is known not to be among 0 to `count` - 1. Nothing that
        follows depends on them."""
        values = self._values(tensor) if is_meta(tensor) else None
        if values is None or not values.numel():
            return False
        least, most = _alone(torch.aminmax, values)
        return bool(least < 0 or most >= count)

    def _values(self, tensor: Tensor) -> Optional[Tensor]:
        entry = entry_of(self._storages, tensor)
        if entry is None or entry.values is None:
            return None
        offset, stride = tensor.storage_offset(), tensor.stride()
        if entry.values_period:
            # rest: bytes read as a larger type
            period, rest = divmod(entry.values_period, tensor.element_size())
            across = sum(
                (count - 1) * step
                for count, step in zip(tensor.shape, stride)
                if not period or step % period
            )
            if rest or (tensor.numel() and offset % period + across >= period):
                entry.values = None  # a view in which rows are no rows any more
                return None
            offset, stride = offset % period, [step if step % period else 0 for step in stride]
        self._since = min(self._since, entry.values_since)
        shared = torch.empty(0, dtype=tensor.dtype, device="cpu")
        return shared.set_(entry.values, offset, tensor.shape, stride)

    @one_at_a_time
    def keep(self, tensor: Tensor, numbers: Tensor, since: float = SENT) -> None:
        """`tensor` of the card has these numbers, where they are few and it has its storage for
        itself. Of rows that are shown to be alike by a stride of 0, one is kept."""
        entry = entry_of(self._storages, tensor)
        if (
            entry is None
            or tensor.shape != numbers.shape
            or tensor.dtype != numbers.dtype
            or entry.nbytes != tensor.nbytes
        ):
            return
        row = numbers
        if not is_small(tensor, since):
            while tensor.is_contiguous() and row.numel() and row.dim() and row.stride(0) == 0:
                row = row[0]
            if not is_small(tensor, since, row.numel()):
                return
        alike = row is not numbers
        stride = row.contiguous().stride() if alike else tensor.stride()
        mine = torch.empty_strided(row.shape, stride, dtype=tensor.dtype, device="cpu")
        entry.values = _alone(mine.copy_, row).untyped_storage()
        entry.values_since = min(entry.id, since)
        entry.values_period = row.nbytes if alike else 0

    def forget(self, tensor: Tensor) -> None:
        entry = entry_of(self._storages, tensor)
        if entry is not None:
            entry.values, entry.values_since = None, SENT

    def _begin(self, tensor: Tensor) -> None:
        """A part of something is written. Where nobody wrote to it since it was made, its other
        numbers may be any: zeros."""
        entry = entry_of(self._storages, tensor)
        if (
            entry is None
            or entry.values is not None
            or entry.values_since != UNWRITTEN
            or tensor.is_floating_point()
        ):
            return
        if entry.nbytes <= MANY_OF_SHAPES * tensor.element_size():
            entry.values_since = entry.id
            entry.values = torch.zeros(
                entry.nbytes, dtype=torch.uint8, device="cpu"
            ).untyped_storage()

    def follow(
        self, func: Any, how: Following, args: Tuple, kwargs: Dict[str, Any], out: Any
    ) -> None:
        """What an operation made is known where all that it was made of is."""
        rule = how.rule
        written = [
            tensor
            for number in how.written
            for tensor in tensors_in(args[number : number + 1])
            if is_meta(tensor)
        ]
        for tensor in written:
            entry = entry_of(self._storages, tensor)
            if entry is not None and entry.values_period:
                entry.values = None  # one row may become another
        outs = tensors_in(out)
        if how.makes and all(is_small(made, math.inf, 0) for made in outs):
            self._since = math.inf
            numbers = self._done_on_host(func, how, args, kwargs, outs)
            if numbers is _UNKNOWN and rule.picks:
                numbers = self._picked(args[0], out)
            if numbers is not _UNKNOWN:
                since = self._since
                if not written or rule.decided_by is not None:
                    for made, number in zip(outs, tensors_in(numbers)):
                        if is_meta(made):
                            self.keep(made, number, since)
                written = [tensor for tensor in written if not self._grows_old(tensor, since)]
        for tensor in written:
            self.forget(tensor)
        if rule.unset and not how.written:
            for made in outs:
                entry = entry_of(self._storages, made)
                if entry is not None:
                    entry.values_since = UNWRITTEN

    def _grows_old(self, tensor: Tensor, since: float) -> bool:
        """Numbers of that age were written to `tensor`. Returns whether it is known as before."""
        entry = entry_of(self._storages, tensor)
        if entry is not None and entry.values is not None:
            entry.values_since = min(entry.values_since, since)
        return is_small(tensor, since)

    def _done_on_host(
        self, func: Any, how: Following, args: Tuple, kwargs: Dict[str, Any], outs: List[Tensor]
    ) -> Any:
        """What `func` gives on the known numbers; _UNKNOWN where one is not known. In place it
        changes the numbers kept."""
        rule = how.rule
        if (
            rule.overwrites
            and args
            and is_small(args[0], math.inf)
            and is_meta(args[0])
            and self._values(args[0]) is None
        ):
            self.keep(
                args[0], torch.zeros(args[0].shape, dtype=args[0].dtype, device="cpu"), math.inf
            )
            self._begin(args[0])
        try:
            plain = tuple(self._on_host(arg, rule) for arg in args)
            named = {
                name: self._on_host(arg, rule)
                for name, arg in kwargs.items()
                if name != "pin_memory"
            }
            needed = outs if rule.of_a_shape else [*outs, *tensors_in(plain)]
            if all(is_small(tensor, math.inf) for tensor in needed):
                return _alone(func, *plain, **named)
            return _UNKNOWN if how.written else _by_rows(func, plain, named, outs)
        except _NotKnown:
            return _UNKNOWN if rule.decided_by is None else self._decided(rule.decided_by, args)
        except Exception:  # no kernel for it on the host, or a value it refuses
            return _UNKNOWN

    def _numbers(self, tensor: Tensor) -> Tensor:
        """Those of a tensor of the card or of the host. Raises _NotKnown where it has none, or none
        that are kept."""
        values = self._values(tensor) if is_meta(tensor) else tensor if is_small(tensor) else None
        if values is None:
            raise _NotKnown
        if values is tensor:
            self._since = SENT
        return values

    def _picked(self, source: Tensor, out: Tensor) -> Any:
        try:
            return _spread_evenly(self._numbers(source), out)
        except _NotKnown:
            return _UNKNOWN

    def _decided(self, by: int, args: Tuple) -> Any:
        """``finished | True`` is true and ``unfinished & False`` false, whatever the other side
        is."""
        for arg in args[:2]:
            values = (
                self._values(arg)
                if isinstance(arg, Tensor) and is_meta(arg) and arg.dtype == torch.bool
                else None
            )
            if values is not None and bool((values == by).all()):
                shape = torch.broadcast_shapes(
                    *(other.shape for other in args[:2] if isinstance(other, Tensor))
                )
                dtype = torch.result_type(*args[:2]) if by == 0 else torch.bool
                return torch.full((), by, dtype=dtype, device="cpu").expand(shape)
        return _UNKNOWN

    def _on_host(self, arg: Any, rule: Rule) -> Any:
        if isinstance(arg, Tensor):
            if rule.of_a_shape:
                return torch.zeros((), dtype=arg.dtype, device="cpu").expand(arg.shape)
            return self._numbers(arg)
        if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], Tensor):
            return [self._on_host(item, rule) for item in arg]
        return torch.device("cpu") if isinstance(arg, torch.device) else arg


def _spread_evenly(values: Tensor, out: Tensor) -> Any:
    if values.dim() != 1 or out.dim() != 1 or values.is_floating_point() or not values.numel():
        return _UNKNOWN
    return values[torch.linspace(0, len(values) - 1, len(out), device="cpu").round().long()]


def _alone(func: Callable, *args: Any, **kwargs: Any) -> Any:
    """By this thread alone: PyTorch's others, once each had a part, take processor time for
    milliseconds until they sleep, and what is worked out here takes microseconds."""
    threads = torch.get_num_threads()
    if threads == 1:
        return func(*args, **kwargs)
    torch.set_num_threads(1)
    try:
        return func(*args, **kwargs)
    finally:
        torch.set_num_threads(threads)


def _by_rows(func: Any, args: Tuple, kwargs: Dict[str, Any], outs: List[Tensor]) -> Any:
    """What `func` gives on operands whose rows are alike, found out on two rows and on three: if
    the rows of the results are alike then, those of any batch are. _UNKNOWN where they are not."""
    operands = tensors_in(args)
    most = max((tensor.dim() for tensor in (*operands, *outs)), default=0)
    batched = [tensor for tensor in operands if tensor.dim() == most > 0 and len(tensor) > 1]
    lengths = {len(tensor) for tensor in batched or outs if tensor.dim() == most > 0}
    shapes = [arg for arg in args if isinstance(arg, (list, tuple)) and arg and arg[0] in lengths]
    if (
        len(lengths) != 1
        or max(lengths) <= 3
        or any(tensor.stride(0) and (tensor != tensor[0]).any() for tensor in batched)
        or not (batched or shapes)
        or any(
            made.dim() and made.numel() > len(made) * MANY_IN_A_ROW for made in (*outs, *batched)
        )
    ):
        return _UNKNOWN

    def of_rows(arg: Any, count: int) -> Any:
        if isinstance(arg, Tensor):
            return arg[:count] if arg.dim() == most > 0 else arg
        if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], Tensor):
            return [of_rows(item, count) for item in arg]
        return [count, *arg[1:]] if any(arg is shape for shape in shapes) else arg

    try:
        two, three = (
            tensors_in(func(*(of_rows(arg, count) for arg in args), **kwargs)) for count in (2, 3)
        )
    except Exception:  # the row of another number, say
        return _UNKNOWN
    results = []
    for made, from_two, from_three in zip(outs, two, three):
        if (
            from_two.dim()
            and len(from_two) == 2
            and len(from_three) == 3
            and made.shape[1:] == from_two.shape[1:]
        ):
            from_two = from_two[:1].expand(made.shape)
            alike = torch.equal(from_three, from_two[:3])
        else:
            alike = made.shape == from_two.shape and torch.equal(from_two, from_three)
        if not alike:
            return _UNKNOWN
        results.append(from_two)
    return results if len(results) == len(outs) else _UNKNOWN


class _NotKnown(Exception):
    """A tensor whose numbers are not known."""


_UNKNOWN = object()
