"""The sum of all ranks' gradients, once per update, through flat buckets that are allocated before the first step.

Nothing is allocated here during a step: a rank that ran out of memory in the middle of it would leave the others waiting.
The sums of the loss ride along in a small bucket of their own.
"""

from __future__ import annotations

import functools
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from brimful.train.distributed.ranks import Ranks

__all__ = ["GradientSum", "clip", "local"]

BUCKET_BYTES = 25 * 2**20  # cited: DistributedDataParallel's default bucket_cap_mb of 25
BUCKETS_AT_ONCE = 2  # assumed: one is filled while the other is on its way

Parameters = list[torch.nn.Parameter]


class GradientSum:
    """Adds up the gradients of `parameters` over all ranks, in place. Parameters larger than a bucket go without one."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter], ranks: Ranks, bucket_bytes: int = BUCKET_BYTES):
        self._parameters = list(parameters)
        self._ranks = ranks
        self._groups: list[Parameters] = []
        self._large: Parameters = []
        self._flat: dict[tuple, list[torch.Tensor]] = {}  # by type and device: buckets that are used again and again
        if ranks.size > 1:
            self._large = [p for p in self._parameters if _bytes(p) > bucket_bytes]
            small = [p for p in self._parameters if _bytes(p) <= bucket_bytes]
            self._groups = list(_grouped(small, bucket_bytes))
            for kind in dict.fromkeys(_kind(group) for group in self._groups):
                largest = max(sum(p.numel() for p in group) for group in self._groups if _kind(group) == kind)
                count = min(BUCKETS_AT_ONCE, sum(_kind(group) == kind for group in self._groups))
                self._flat[kind] = [torch.zeros(largest, dtype=kind[0], device=kind[1]) for _ in range(count)]
            ranks.confirm()  # one that failed before (loading a checkpoint, allocating this) is not waited for below
            for flats in self._flat.values():
                dist.all_reduce(flats[0])  # what the backend allocates for itself at first use, it allocates now

    @property
    def bucket_bytes(self) -> int:
        """What the buckets hold for as long as the training lasts."""
        return sum(_bytes(flat) for flats in self._flat.values() for flat in flats)

    def present(self) -> int:
        """A checksum of which parameters have a gradient, by which ranks see whether they agree."""
        if self._ranks.size == 1:
            return 0
        return zlib.crc32(bytes(p.grad is not None for p in self._parameters))

    @functools.cached_property
    def complete(self) -> int:
        """What `present` is where each parameter has a gradient."""
        return zlib.crc32(bytes([True]) * len(self._parameters))

    def missing(self) -> Parameters:
        """Parameters without a gradient here and with one on another rank: this rank's part was empty, or went another way."""
        wanted = [any(flags) for flags in zip(*self._ranks.gather([p.grad is not None for p in self._parameters]), strict=True)]
        return [p for p, needed in zip(self._parameters, wanted, strict=True) if needed and p.grad is None]

    def reduce(self, sums: torch.Tensor) -> None:
        """All ranks' gradients added up in place, and `sums` (loss and count) with them. All have the same ones present."""
        if self._ranks.size == 1:
            return
        work: list[Any] = [dist.all_reduce(sums, async_op=True)]
        work += [dist.all_reduce(p.grad, async_op=True) for p in self._large if p.grad is not None]
        under_way: deque[tuple] = deque()
        used = dict.fromkeys(self._flat, 0)
        for group in self._groups:
            kind = _kind(group)
            flats = self._flat[kind]
            if used[kind] >= len(flats):
                while under_way:  # the bucket that comes next must be free again
                    _finish(*under_way.popleft())
                used[kind] = 0
            flat = flats[used[kind]]
            used[kind] += 1
            gradients = [p.grad for p in group if p.grad is not None]
            if gradients:
                views = _views(flat, gradients)
                torch._foreach_copy_(views, gradients)
                filled = flat[: sum(g.numel() for g in gradients)]
                under_way.append((dist.all_reduce(filled, async_op=True), gradients, views))
        while under_way:
            _finish(*under_way.popleft())
        for one in work:
            one.wait()


def _finish(work: Any, gradients: list[torch.Tensor], views: list[torch.Tensor]) -> None:
    work.wait()
    torch._foreach_copy_(gradients, views)


def _views(flat: torch.Tensor, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    lengths = [gradient.numel() for gradient in gradients]
    parts = flat[: sum(lengths)].split(lengths)
    return [part.view(gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _kind(group: Parameters) -> tuple:
    return group[0].dtype, group[0].device


def _grouped(parameters: Parameters, bucket_bytes: int) -> Iterator[Parameters]:
    """Parameters of one type and device together, up to a bucket's size."""
    kinds: dict[tuple, Parameters] = {}
    for parameter in parameters:
        kinds.setdefault(_kind([parameter]), []).append(parameter)
    for kind in kinds.values():
        group: Parameters = []
        size = 0
        for parameter in kind:
            if group and size + _bytes(parameter) > bucket_bytes:
                yield group
                group, size = [], 0
            group.append(parameter)
            size += _bytes(parameter)
        if group:
            yield group


def clip(parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
    """Scales all gradients by one factor so that their common 2-norm is at most `max_norm`; returns the norm before.

    Waits for no device. Of sharded gradients it is the norm over all ranks, and each must call. A norm that is infinite or NaN
    leaves gradients of NaN: under fp16 the scaler skips that step, else the check of the loss finds it.
    """
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor; the tensor itself elsewhere."""
    return getattr(tensor, "_local_tensor", tensor)
