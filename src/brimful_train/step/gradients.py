"""The sum of all ranks' gradients, once per update, through flat buckets that are allocated before
the first step.

Nothing is allocated here during a step: a rank that ran out of memory in the middle of it would
leave the others waiting. The sums of the loss ride along in a small bucket of their own.
"""

import functools
import itertools
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from brimful_train.distributed.parallel import is_sharded
from brimful_train.distributed.ranks import Ranks

BUCKET_BYTES = 25 * 2**20  # cited: DistributedDataParallel's default bucket_cap_mb of 25
BUCKETS_AT_ONCE = 2  # assumed: one is filled while the other is on its way

T = TypeVar("T", bound=torch.Tensor)
Parameters = list[torch.nn.Parameter]


class GradientSum:
    """Adds up the gradients of `parameters` over all ranks, in place. Parameters larger than a
    bucket go without one.
    """

    def __init__(self, parameters: Parameters, ranks: Ranks):
        self._parameters = parameters
        self._ranks = ranks
        self._groups: list[Parameters] = []
        self._large: Parameters = []
        # by type and device: buckets that are used again and again
        self._flat: dict[tuple, list[torch.Tensor]] = {}
        if ranks.size > 1:
            self._large = [p for p in self._parameters if p.nbytes > BUCKET_BYTES]
            small = [p for p in self._parameters if p.nbytes <= BUCKET_BYTES]
            self._groups = [  # all of one kind in a row
                group
                for alike in by_kind(small)
                for group in in_groups(alike, lambda parameter: parameter.nbytes, BUCKET_BYTES)
            ]
            for kind, groups in itertools.groupby(self._groups, _kind):
                lengths = [sum(p.numel() for p in group) for group in groups]
                shape = (min(len(lengths), BUCKETS_AT_ONCE), max(lengths))
                self._flat[kind] = list(torch.zeros(shape, dtype=kind[0], device=kind[1]))
            # one that failed before (loading a checkpoint, allocating this) is not waited for below
            ranks.confirm()
            for flats in self._flat.values():
                # what the backend allocates for itself at first use, it allocates now
                dist.all_reduce(flats[0])

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
        """Parameters without a gradient here and with one on another rank: this rank's part was
        empty, or went another way.
        """
        present = self._ranks.gather([p.grad is not None for p in self._parameters])
        pairs = zip(self._parameters, zip(*present, strict=True), strict=True)
        return [p for p, anywhere in pairs if any(anywhere) and p.grad is None]

    def reduce(self, *sums: torch.Tensor) -> None:
        """All ranks' gradients added up in place, and `sums` (loss and count, say) with them. All
        have the same ones present.
        """
        if self._ranks.size == 1:
            return
        alone = [*sums, *(p.grad for p in self._large if p.grad is not None)]
        work: list[Any] = [dist.all_reduce(tensor, async_op=True) for tensor in alone]
        under_way: deque[tuple] = deque()
        buckets = {kind: itertools.cycle(flats) for kind, flats in self._flat.items()}
        for group in self._groups:
            gradients = [p.grad for p in group if p.grad is not None]
            if not gradients:
                continue
            # the bucket that comes next must be free again
            while len(under_way) >= len(self._flat[_kind(group)]):
                _finish(*under_way.popleft())
            lengths = [gradient.numel() for gradient in gradients]
            filled = next(buckets[_kind(group)])[: sum(lengths)]
            views = [
                part.view(g.shape) for part, g in zip(filled.split(lengths), gradients, strict=True)
            ]
            torch._foreach_copy_(views, gradients)
            under_way.append((dist.all_reduce(filled, async_op=True), gradients, views))
        while under_way:
            _finish(*under_way.popleft())
        for reduction in work:
            reduction.wait()


def _finish(work: Any, gradients: list[torch.Tensor], views: list[torch.Tensor]) -> None:
    work.wait()
    torch._foreach_copy_(gradients, views)


def _kind(group: Sequence[torch.Tensor]) -> tuple:
    return group[0].dtype, group[0].device


def by_kind(tensors: Iterable[T]) -> list[list[T]]:
    """Those of one type and device together."""
    kinds: dict[tuple, list[T]] = {}
    for tensor in tensors:
        kinds.setdefault(_kind([tensor]), []).append(tensor)
    return list(kinds.values())


def in_groups(
    tensors: Iterable[T], bytes_of: Callable[[T], int], limit_bytes: int
) -> Iterator[list[T]]:
    """Neighbours together, as many as keep within the limit, and at least one."""
    group: list[T] = []
    size = 0
    for tensor in tensors:
        if group and size + bytes_of(tensor) > limit_bytes:
            yield group
            group, size = [], 0
        group.append(tensor)
        size += bytes_of(tensor)
    if group:
        yield group


def clip(parameters: Sequence[torch.Tensor], max_norm: float) -> torch.Tensor:
    """Scales all gradients by one factor so that their common 2-norm is at most `max_norm`; returns
    the norm before.

    Waits for no device. Of sharded gradients it is the norm over all ranks, and each must call. A
    norm that is infinite or NaN leaves gradients of NaN: under fp16 the scaler skips that step,
    else the check of the loss finds it.
    """
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return norm.full_tensor() if is_sharded(norm) else norm


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a sharded tensor; the tensor itself elsewhere."""
    return getattr(tensor, "_local_tensor", tensor)
