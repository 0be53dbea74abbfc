"""How many elements of a mask are not zero, at most: a detector that samples 512 of 2000 proposals
writes ones at 512 places of a mask of zeros. A bound belongs to a storage, and so holds for every
view; whatever changes the storage in another way ends it."""

from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import torch

from brimful_inside.imaginary.state.tensors import Tensor, aten, is_meta

_MASKS = (torch.bool, torch.uint8)


class Bounds:
    """The bounds of an imaginary GPU. `any` is True once a mask of zeros was made: until then there
    are none."""

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
        strided = is_meta(tensor) and tensor.layout == torch.strided
        return self._storages.get(tensor.untyped_storage()._cdata) if strided else None


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
