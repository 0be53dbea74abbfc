"""Lists of tensors, grouped by card and dtype before operations over lists (``torch._foreach_...``) take them.

PyTorch's Python asks of each group's device whether it has such operations: the meta device has none, the card has.
"""

from __future__ import annotations

from typing import Dict, List, Optional, Tuple

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.imaginary.state.tensors import C

__all__ = ["group_by_card"]

Tensor = torch.Tensor
Lists = List[List[Optional[Tensor]]]
Groups = Dict[Tuple[torch.device, torch.dtype], Tuple[Lists, List[int]]]


def group_by_card(gpu: ImaginaryGpu, patches: Patches) -> None:
    """torch._C._group_tensors_by_device_and_dtype, which torch.utils._foreach_utils calls, names the card."""
    group = C._group_tensors_by_device_and_dtype

    def by_card(lists: Lists, with_indices: bool = False) -> Groups:
        groups: Groups = {}
        for (device, dtype), (members, indices) in group(lists, with_indices).items():
            if device.type != "meta" or not gpu.holds(members[0][0]):
                groups[device, dtype] = (members, indices)
            elif gpu.count == 1:
                groups[gpu.device_of(members[0][0]), dtype] = (members, indices)
            else:
                _split(gpu, dtype, members, indices, groups)
        return groups

    patches.set(C, "_group_tensors_by_device_and_dtype", by_card)


def _split(gpu: ImaginaryGpu, dtype: torch.dtype, members: Lists, indices: List[int], groups: Groups) -> None:
    """One group of several cards as one for each: the tensors at one place in the lists belong together."""
    for at, first in enumerate(members[0]):
        if first is None:
            continue
        of_card, places = groups.setdefault((gpu.device_of(first), dtype), ([[] for _ in members], []))
        for column, whole in zip(of_card, members):
            column.extend(whole[at : at + 1])
        if indices:
            places.append(indices[at])
