"""Results of operations, remembered by their arguments' shapes, strides and dtypes: PyTorch's meta
kernels are Python, which takes a tenth of a millisecond to several. Only for operations that change
nothing and whose results are new tensors."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

import torch

from brimful_inside.imaginary.state.tensors import META, Tensor, is_meta, tensors_in

MOST = 20_000  # calls; then the table is emptied
_SEVERAL = (list, tuple)
_VALUES = (
    int,
    float,
    bool,
    str,
    type(None),
    torch.dtype,
    torch.layout,
    torch.device,
    torch.memory_format,
)


class _New(NamedTuple):
    """A tensor that has its storage for itself."""

    shape: torch.Size
    stride: Tuple[int, ...]
    dtype: torch.dtype


class Remembered:
    """One for all threads: entries are only added, and all at once forgotten."""

    def __init__(self) -> None:
        # of each call what holds the results, and those
        self._known: Dict[Any, Tuple[Any, List[Any]]] = {}

    def run(
        self, gpu: Any, func: Any, args: Tuple, kwargs: Dict[str, Any], handler: Optional[Callable]
    ) -> Any:
        """What `func` gives, which `is_remembered`, by its `handler` if it has one."""
        try:
            key = (
                func,
                torch.get_default_dtype(),
                _of(args),
                _of(kwargs.items()) if kwargs else None,
            )
            known = self._known.get(key)
        except _NotPlain:
            return func(*args, **kwargs) if handler is None else handler(gpu, func, args, kwargs)
        if known is not None:
            kind, made = known
            results = [
                torch.empty_strided(*each[:2], dtype=each[2], device=META)
                if type(each) is _New
                else each
                for each in made
            ]
            return results[0] if kind is Tensor else kind(results)
        out = func(*args, **kwargs) if handler is None else handler(gpu, func, args, kwargs)
        results = _results(
            out, {tensor.untyped_storage()._cdata for tensor in tensors_in(args, kwargs)}
        )
        if results is not None:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[key] = Tensor if isinstance(out, Tensor) else type(out), results
        return out


def is_remembered(func: Any) -> bool:
    """Whether results of an operation are new tensors whose shapes follow from the arguments'
    alone."""
    schema = func._schema
    depends = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
    if (
        not schema.name.startswith("aten::")
        or not schema.returns
        or any(tag in func.tags for tag in depends)
    ):
        return False
    return all(each.alias_info is None for each in (*schema.arguments, *schema.returns))


class _NotPlain(Exception):
    """An argument that says more than its shape."""


def _of(values: Any) -> Tuple[Any, ...]:
    parts: List[Any] = []
    for value in values:
        if isinstance(value, Tensor):
            if not is_meta(value) or value.layout is not torch.strided:
                raise _NotPlain  # its number may decide
            parts += (value.shape, value.stride(), value.dtype)
        elif type(value) in _SEVERAL:
            parts += (len(value), _of(value))
        elif type(value) in _VALUES:
            parts += (type(value), value)
        else:
            raise _NotPlain
    return tuple(parts)


def _results(out: Any, given: Set[int]) -> Optional[List[Any]]:
    """What has to be made again; None where that is more than new plain tensors. `given`: the
    arguments' storages."""
    results: List[Any] = []
    if not isinstance(out, Tensor) and type(out) not in _SEVERAL:
        return None
    for each in (out,) if isinstance(out, Tensor) else out:
        if (
            type(each) is Tensor
            and is_meta(each)
            and each.layout is torch.strided
            and not each.is_complex()
        ):
            new, storage = _New(each.shape, each.stride(), each.dtype), each.untyped_storage()
            if each.storage_offset() or storage.nbytes() != _nbytes(new) or storage._cdata in given:
                return None
            results.append(new)
        elif type(each) in _VALUES:
            results.append(each)
        else:
            return None
    return results


def _nbytes(new: _New) -> int:
    """What torch.empty_strided takes."""
    if 0 in new.shape:
        return 0
    return new.dtype.itemsize * (
        1 + sum((size - 1) * step for size, step in zip(new.shape, new.stride))
    )
