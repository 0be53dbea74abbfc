"""Values that are known although the card has none: those of small tensors that came from the host
(lengths, sizes, counters, positions, flags), and of what is made of known ones alone.

They decide about shapes and about which way a script takes: with zeros ``x[:, : lengths.max()]``
would be empty. Masks and token numbers that the host sends are not kept, since they differ from
batch to batch. What the card makes of shapes alone (``arange`` and what follows from it) is the
same for each batch, and kept in any shape: Transformers leaves the causal mask out where such
positions show that nothing is packed. Where all rows of a batch are alike, one of them stands for
all, so that what is known does not depend on how many there are. Whole numbers that are picked by
unknown places (``batch[perm]``: the graph of each node that is left) are taken to be spread evenly
over those there are.

Of a mask it may be known how many elements are not zero, at most (`Bounds`): a detector that
samples 512 of 2000 proposals writes ones at 512 places of a mask of zeros."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import torch

from brimful_inside.imaginary.state.lock import one_at_a_time
from brimful_inside.imaginary.state.tensors import Tensor, aten, entry_of, is_meta, tensors_in

FEW = 16  # elements: of any shape and type
MANY = 1 << 20  # elements: of one dimension and whole numbers; some milliseconds at most
# of more dimensions: the positions of a batch, not the masks of long texts, which each layer may
# make
MANY_OF_SHAPES = 1 << 18
MANY_IN_A_ROW = 1 << 16
SENT = 0  # the age of numbers that came from the host, or that a script wrote down
UNWRITTEN = math.inf  # the age of what nobody wrote to since it was made (torch.empty)

_UNSET = (
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "empty_permuted",
    "resize_",
    "set_",
)
_OVERWRITES = ("fill_", "zero_", "copy_")
# whatever the other operand is
_DECIDED_BY = {
    "bitwise_and": 0,
    "logical_and": 0,
    "bitwise_or": 1,
    "logical_or": 1,
}
# values do not matter
_OF_A_SHAPE = (
    "zeros_like",
    "ones_like",
    "full_like",
    "new_zeros",
    "new_ones",
    "new_full",
)


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


class follows:
    """How an operation is followed; found out once for each."""

    __slots__ = ("decided_by", "makes", "of_a_shape", "overwrites", "picks", "unset", "written")

    def __init__(self, func: Any):
        schema = func._schema
        short = schema.name.split("::")[-1]
        infos = [argument.alias_info for argument in schema.arguments]
        self.written = [
            number for number, info in enumerate(infos) if info is not None and info.is_write
        ]
        if short == "_amp_foreach_non_finite_check_and_unscale_":
            self.written = self.written[:1]  # no overflow: what was found before stays
        is_view = not self.written and any(info is not None for info in infos)
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        # what others' kernels do to values is not known
        is_pytorchs = schema.name.startswith("aten::")
        self.unset = short in _UNSET
        self.makes = is_pytorchs and not is_view and not is_random and not self.unset
        self.decided_by = _DECIDED_BY.get(short.rstrip("_"))
        self.overwrites = short in _OVERWRITES
        self.of_a_shape = short in _OF_A_SHAPE
        self.picks = short in ("index", "index_select", "take")


class Known:
    """The known values of an imaginary GPU.

    Numbers have an age: the number of the first allocation whose numbers went into them, or
    SENT."""

    def __init__(self, storages: Dict[int, Any]):
        self._storages = storages  # the ledgers' entries
        self._since = math.inf  # the age of what was looked at since it was set to this
        # the age of what somebody asked for; who wants to know sets it to this
        self.oldest_read = math.inf

    @one_at_a_time
    def values(self, tensor: Tensor) -> Optional[Tensor]:
        """The numbers of a tensor of the card, as a tensor of the host that shares them with its
        views; None: unknown."""
        self._since = math.inf
        values = self._values(tensor)
        self.oldest_read = min(self.oldest_read, self._since)
        return values

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
            period = 1 if rest else period
            across = sum(
                (count - 1) * step for count, step in zip(tensor.shape, stride) if step % period
            )
            if tensor.numel() and not rest and offset % period + across < period:
                offset, stride = (
                    offset % period,
                    tuple(step if step % period else 0 for step in stride),
                )
            else:  # a view in which rows are no rows any more
                self._spread(tensor)
                if entry.values is None:
                    return None
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
        while tensor.is_contiguous() and row.numel() and row.dim() and row.stride(0) == 0:
            row = row[0]
        if not is_small(tensor, since, row.numel()):
            return
        alike = row is not numbers and numbers.numel() > FEW
        kept, stride = (row, row.contiguous().stride()) if alike else (numbers, tensor.stride())
        mine = torch.empty_strided(kept.shape, stride, dtype=tensor.dtype, device="cpu")
        entry.values, entry.values_since = (
            _alone(mine.copy_, kept).untyped_storage(),
            min(entry.id, since),
        )
        entry.values_period = kept.numel() * kept.element_size() if alike else 0

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
        self, func: Any, how: follows, args: Tuple, kwargs: Dict[str, Any], out: Any
    ) -> None:
        """An operation was done on the card: what it made is known where all that it was made of
        is."""
        written = [
            tensor
            for number in how.written
            for tensor in tensors_in(args[number : number + 1])
            if is_meta(tensor)
        ]
        for tensor in written:
            self._spread(tensor)
        outs = tensors_in(out)
        if how.makes and all(is_small(made, math.inf, 0) for made in outs):
            self._since = math.inf
            numbers = self._done_on_host(func, how, args, kwargs, outs)
            if numbers is _UNKNOWN and how.picks:
                numbers = self._picked(args[0], out)
            if numbers is not _UNKNOWN:
                since = self._since
                if not written or how.decided_by is not None:
                    for made, number in zip(outs, tensors_in(numbers)):
                        if is_meta(made):
                            self.keep(made, number, since)
                written = [tensor for tensor in written if not self._grows_old(tensor, since)]
        for tensor in written:
            self.forget(tensor)
        if how.unset and not how.written:
            for made in outs:
                entry = entry_of(self._storages, made)
                if entry is not None:
                    entry.values_since = UNWRITTEN

    def _spread(self, tensor: Tensor) -> None:
        """Where one row stands for all, each has its own now; or none is known, where they are too
        many."""
        entry = entry_of(self._storages, tensor)
        if entry is None or entry.values is None or not entry.values_period:
            return
        row = torch.empty(0, dtype=tensor.dtype, device="cpu").set_(entry.values)
        count = entry.nbytes // tensor.element_size()
        entry.values = (
            row.repeat(count // len(row)).untyped_storage() if count <= MANY_OF_SHAPES else None
        )
        entry.values_period = 0

    def _grows_old(self, tensor: Tensor, since: float) -> bool:
        """Numbers of that age were written to `tensor`. Returns whether it is known as before."""
        entry = entry_of(self._storages, tensor)
        if entry is not None and entry.values is not None:
            entry.values_since = min(entry.values_since, since)
        return is_small(tensor, since)

    def _done_on_host(
        self, func: Any, how: follows, args: Tuple, kwargs: Dict[str, Any], outs: List[Tensor]
    ) -> Any:
        """What `func` gives on the known numbers; _UNKNOWN where one is not known. In place it
        changes the numbers kept."""
        if (
            how.overwrites
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
            plain = tuple(self._on_host(arg, how) for arg in args)
            named = {
                name: self._on_host(arg, how)
                for name, arg in kwargs.items()
                if name != "pin_memory"
            }
            numbers = _UNKNOWN if how.written else _by_rows(func, plain, named, outs)
            needed = outs if how.of_a_shape else [*outs, *tensors_in(plain)]
            few = all(is_small(tensor, math.inf) for tensor in needed)
            return _alone(func, *plain, **named) if numbers is _UNKNOWN and few else numbers
        except _NotKnown:
            return _UNKNOWN if how.decided_by is None else self._decided(how.decided_by, args)
        except (
            Exception
        ):  # no kernel for it on the host, or a value it refuses: a card would not be asked here
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
        """`out` is what unknown places of `source` hold."""
        try:
            values = self._numbers(source)
        except _NotKnown:
            return _UNKNOWN
        if values.dim() != 1 or out.dim() != 1 or values.is_floating_point() or not values.numel():
            return _UNKNOWN
        return values[torch.linspace(0, len(values) - 1, len(out), device="cpu").round().long()]

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

    def _on_host(self, arg: Any, how: follows) -> Any:
        if isinstance(arg, Tensor):
            if how.of_a_shape:
                return torch.zeros((), dtype=arg.dtype, device="cpu").expand(arg.shape)
            return self._numbers(arg)
        if isinstance(arg, (list, tuple)) and arg and isinstance(arg[0], Tensor):
            return [self._on_host(item, how) for item in arg]
        return torch.device("cpu") if isinstance(arg, torch.device) else arg


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
        or any(tensor.stride(0) for tensor in batched)
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


# --- how many elements of a mask are not zero, at most ---

_MASKS = (torch.bool, torch.uint8)


class Bounds:
    """The bounds of an imaginary GPU. One belongs to a storage, and so holds for every view;
    whatever changes the storage in another way ends it. `any` is True once a mask of zeros was
    made: until then there are none."""

    def __init__(self, storages: Dict[int, Any]):
        self._storages = storages  # the ledgers' entries
        self.any = False

    def of(self, tensor: Any) -> Optional[int]:
        """The most elements of `tensor` that are other than zero; None where nothing is known."""
        if not self.any or not isinstance(tensor, Tensor):
            return None
        entry = self._entry(tensor)
        if (
            entry is None
            or entry.most is None
            or tensor.numel() * tensor.element_size() > entry.nbytes
        ):
            return None  # an expanded view shows elements more than once
        return min(entry.most, tensor.numel())

    def set(self, tensor: Tensor, most: Optional[int]) -> None:
        entry = self._entry(tensor)
        if entry is not None:
            entry.most = most
            self.any = True

    def ran(self, func: Any, in_place: bool, args: Tuple, out: Any) -> None:
        """An operation ran: what it made has a bound, or what it changed has none any more."""
        rule = RULES.get(func)
        if rule is not None:
            rule(self, args, out)
        elif self.any and in_place and isinstance(args[0], Tensor):
            self.set(args[0], None)

    def _entry(self, tensor: Tensor) -> Any:
        return entry_of(self._storages, tensor) if is_meta(tensor) else None


def _zeros(bounds: Bounds, args: Tuple, out: Any) -> None:
    if out.dtype in _MASKS:
        bounds.set(out, 0)


def _written(bounds: Bounds, args: Tuple, out: Any) -> None:
    """index_put_: at most as many places as the index names."""
    mask, indices = args[0], args[1]
    before = bounds.of(mask)
    if before is None:
        return
    index = indices[0] if len(indices) == 1 else None
    if index is None or mask.dim() != 1:
        bounds.set(mask, None)
        return
    places = bounds.of(index) if index.dtype in _MASKS else None
    bounds.set(mask, before + (index.numel() if places is None else places))


def _filled(bounds: Bounds, args: Tuple, out: Any) -> None:
    """index_fill_, which is what writing one number at places is since 2.15: rows as the index
    names them."""
    mask, dim, index = args[:3]
    before = bounds.of(mask)
    if before is not None and mask.dim():
        bounds.set(mask, before + index.numel() * (mask.numel() // max(1, mask.shape[dim])))


def _sum(bounds: Bounds, args: Tuple, out: Any) -> None:
    """Ones of either, or of all that are put behind one another."""
    parts = args[0] if isinstance(args[0], (list, tuple)) else args[:2]
    known = [bounds.of(part) for part in parts]
    if None not in known:
        bounds.set(out, sum(most for most in known if most is not None))


def _least(bounds: Bounds, args: Tuple, out: Any) -> None:
    known = [most for most in (bounds.of(part) for part in args[:2]) if most is not None]
    if known:
        bounds.set(out, min(known))


def _same(bounds: Bounds, args: Tuple, out: Any) -> None:
    most = bounds.of(args[0])
    if most is not None and isinstance(out, Tensor):
        bounds.set(out, most)


def _compared(zero_is_false: Callable[[Any], bool]) -> Callable[[Bounds, Tuple, Any], None]:
    def rule(bounds: Bounds, args: Tuple, out: Any) -> None:
        if zero_is_false(args[1]):
            _same(bounds, args, out)

    return rule


def _unchanged(bounds: Bounds, args: Tuple, out: Any) -> None:
    """Shapes and the like may change in place without ending a bound."""


RULES: Dict[Any, Callable[[Bounds, Tuple, Any], None]] = {
    **dict.fromkeys(
        (aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.zero_.default),
        _zeros,
    ),
    **dict.fromkeys((aten.index_put_.default, aten._index_put_impl_.default), _written),
    **dict.fromkeys((aten.index_fill_.int_Scalar, aten.index_fill_.int_Tensor), _filled),
    **dict.fromkeys((aten.bitwise_or.Tensor, aten.logical_or.default, aten.cat.default), _sum),
    **dict.fromkeys((aten.bitwise_and.Tensor, aten.logical_and.default, aten.mul.Tensor), _least),
    **dict.fromkeys((aten._to_copy.default, aten.clone.default), _same),
    aten.gt.Scalar: _compared(lambda value: value >= 0),
    aten.ne.Scalar: _compared(lambda value: value == 0),
    aten.eq.Scalar: _compared(lambda value: value != 0),
    **dict.fromkeys(
        (aten.unsqueeze_.default, aten.squeeze_.default, aten.detach_.default), _unchanged
    ),
}


# --- which tensors are as long as an upper bound ---

# What they return is shaped as their first argument, whatever is written to it.
_AS_THE_FIRST = ("index_put", "index_add", "index_copy", "index_fill", "scatter", "masked_")


class Lengths:
    """Of which tensors a dimension has a length that is an upper bound, as the values are not there
    that decide it: results of `nonzero` and the like, and what is computed from them. One belongs
    to a storage. `any` is True once there was one.

    A dimension is recognized by its length; where another one of the tensor is as long, nothing
    follows from it."""

    def __init__(self, storages: Dict[int, Any]):
        self._storages = storages  # the ledgers' entries
        self._result = 0
        self.any = False

    def result_is(self, length: int) -> None:
        """The operation that runs returns so many elements at most."""
        self._result, self.any = length, True

    def result_is_as_long_as(self, indices: Iterable[Any]) -> None:
        """As `result_is`, by indices of which some are themselves of an upper bound's length."""
        lengths = [self._of(index)[0] for index in indices if self._of(index)]
        self.result_is(max(lengths, default=0))

    def are_among(self, args: Tuple) -> bool:
        """Whether an operation reads such a tensor."""
        return self.any and any(self._of(tensor) for tensor in tensors_in(args))

    def of(self, name: str, args: Tuple, out: Any) -> Sequence[int]:
        """The lengths of the operation's result that are upper bounds."""
        result, self._result = self._result, 0
        if result:
            return (result,)
        if name.startswith("new_"):  # of a shape that the host gives
            return ()
        read = args[:1] if name.startswith(_AS_THE_FIRST) else args
        lengths = [length for tensor in tensors_in(*read) for length in self._of(tensor)]
        if name == "cat" and lengths:
            lengths.append(out.shape[args[1] if len(args) > 1 else 0])
        return lengths

    def _of(self, tensor: Any) -> Sequence[int]:
        """Those of a tensor; of a flattened one the multiples of what it was."""
        is_cards = isinstance(tensor, Tensor) and is_meta(tensor)
        entry = entry_of(self._storages, tensor) if is_cards else None
        if entry is None or not entry.at_most:
            return ()
        count = tuple(tensor.shape).count(entry.at_most)
        if count:
            return (entry.at_most,) if count == 1 else ()
        return [size for size in tensor.shape if size and size % entry.at_most == 0]
