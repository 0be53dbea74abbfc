"""What is known of values that the card does not have, where that decides a shape: how many
elements of a mask are not zero, and how long a dimension is, at most."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Optional, Sequence, Tuple

import torch

from brimful_inside.imaginary.state.tensors import Tensor, entry_of, is_meta, tensors_in

MASKS = (torch.bool, torch.uint8)


class Bounds:
    """How many elements of a mask are not zero, at most: a detector that samples 512 of 2000
    proposals writes ones at 512 places of a mask of zeros. A bound belongs to a storage, and so
    holds for every view; whatever changes the storage in another way ends it. `any` is True once a
    mask of zeros was made: until then there are none."""

    def __init__(self, storages: Dict[int, Any]):
        self._storages = storages  # the ledgers' entries
        self.any = False

    def of(self, tensor: Any) -> Optional[int]:
        """The most elements of `tensor` that are other than zero; None where nothing is known."""
        entry = self._entry(tensor) if self.any and isinstance(tensor, Tensor) else None
        if entry is None or entry.most is None or tensor.nbytes > entry.nbytes:
            return None  # an expanded view shows elements more than once
        return min(entry.most, tensor.numel())

    def set(self, tensor: Tensor, most: Optional[int]) -> None:
        entry = self._entry(tensor)
        if entry is not None:
            entry.most = most
            self.any = True

    def follow(self, rule: Optional[OnesRule], in_place: bool, args: Tuple, out: Any) -> None:
        """An operation ran: what it made has a bound, or what it changed has none any more."""
        if rule is not None:
            rule(self, args, out)
        elif self.any and in_place and isinstance(args[0], Tensor):
            self.set(args[0], None)

    def _entry(self, tensor: Tensor) -> Any:
        return entry_of(self._storages, tensor) if is_meta(tensor) else None


# how many elements of an operation's result are not zero
OnesRule = Callable[[Bounds, Tuple, Any], None]


def none(bounds: Bounds, args: Tuple, out: Any) -> None:
    if out.dtype in MASKS:
        bounds.set(out, 0)


def put(bounds: Bounds, args: Tuple, out: Any) -> None:
    """index_put_: at most as many places more as the index names."""
    mask, indices = args[0], args[1]
    before, index = bounds.of(mask), indices[0]
    if before is not None and len(indices) == 1 and index is not None and mask.dim() == 1:
        places = bounds.of(index) if index.dtype in MASKS else None
        bounds.set(mask, before + (index.numel() if places is None else places))
    elif before is not None:
        bounds.set(mask, None)


def filled(bounds: Bounds, args: Tuple, out: Any) -> None:
    """index_fill_, which is what writing one number at places is since 2.15: rows as the index
    names them."""
    mask, dim, index = args[:3]
    before = bounds.of(mask)
    if before is not None and mask.dim():
        bounds.set(mask, before + index.numel() * (mask.numel() // max(1, mask.shape[dim])))


def of_operands(sums: bool, bounds: Bounds, args: Tuple, out: Any) -> None:
    """The sum of the operands' bounds, or the least of those that are known. An operand that is
    broadcast counts as often as the result repeats it."""
    is_cat = isinstance(args[0], (list, tuple))
    parts = args[0] if is_cat else args[:2]
    known = [
        most * (1 if is_cat else out.numel() // max(1, part.numel()))
        for part in parts
        if (most := bounds.of(part)) is not None
    ]
    if known and (not sums or len(known) == len(parts)):
        bounds.set(out, sum(known) if sums else min(known))


def same(bounds: Bounds, args: Tuple, out: Any) -> None:
    most = bounds.of(args[0])
    if most is not None and isinstance(out, Tensor):
        bounds.set(out, most)


def compared(zero_is_false: Callable[[Any], bool], bounds: Bounds, args: Tuple, out: Any) -> None:
    """With a number: where zeros are false there, the bound holds."""
    if not isinstance(args[1], Tensor) and zero_is_false(args[1]):
        same(bounds, args, out)


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
        return self.any and any(self._of(tensor) for tensor in tensors_in(args))

    def of(self, name: str, shaped_by: Optional[int], args: Tuple, out: Any) -> Sequence[int]:
        """The lengths of the operation's result that are upper bounds. `shaped_by`: how many of its
        arguments say how it is shaped; None: all."""
        result, self._result = self._result, 0
        if result:
            return (result,)
        lengths = [size for tensor in tensors_in(*args[:shaped_by]) for size in self._of(tensor)]
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
