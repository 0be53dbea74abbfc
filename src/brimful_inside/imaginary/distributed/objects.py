"""Objects, barriers and splits of groups whose only backend is the card's: they go through a gloo group of the same ranks.

NCCL would carry pickled objects through the card's memory, which has no data here.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Dict, Optional
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from brimful_inside.imaginary.distributed.names import replace_everywhere
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.imaginary.state.patches import Patches

__all__ = ["host_group", "patch_objects"]

_NAMES = (
    *("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list"),
    *("send_object_list", "recv_object_list"),
)
_groups: WeakKeyDictionary = WeakKeyDictionary()


def host_group(group: Any = None) -> Any:
    """A group of the same ranks whose tensors lie on the host. Made at the first call, by all of them."""
    group = group or c10d._get_default_group()
    if not isinstance(group, dist.ProcessGroup) or str(c10d._get_object_coll_device(group)) == "cpu":
        return group
    known = _groups.get(group)
    if known is None:
        ranks = dist.get_process_group_ranks(group)
        known = _groups[group] = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    return known


def patch_objects(gpu: ImaginaryGpu, patches: Patches) -> None:
    for name in _NAMES:
        original = getattr(c10d, name, None)
        if original is not None:
            replace_everywhere(patches, name, _through_host(original))
    replace_everywhere(patches, "barrier", _barrier)
    if hasattr(c10d, "split_group"):
        replace_everywhere(patches, "split_group", _split_group)


def _through_host(original: Callable) -> Callable:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def through_host(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        arguments: Dict[str, Any] = bound.arguments
        group = host_group(arguments.get("group"))
        if group is not arguments.get("group") and isinstance(group, dist.ProcessGroup):
            arguments["group"] = group
            arguments.pop("device", None)
        return original(*bound.args, **bound.kwargs)

    return through_host


def _barrier(group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: Any = None) -> Any:
    """torch.distributed.barrier, on the host."""
    through = host_group(group)
    if not isinstance(through, dist.ProcessGroup):  # this rank is not in it
        return None
    options = dist.BarrierOptions() if hasattr(dist, "BarrierOptions") else c10d.BarrierOptions()
    options.device = torch.device("cpu")
    if timeout is not None:
        options.timeout = timeout
    work = through.barrier(opts=options)
    if async_op or work is None:
        return work
    work.wait()
    return None


def _split_group(
    parent_pg: Any = None,
    split_ranks: Optional[list] = None,
    timeout: Any = None,
    pg_options: Any = None,
    group_desc: Optional[str] = None,
    **options: Any,
) -> Any:
    """torch.distributed.split_group, which asks NCCL to split a communicator: a new group of the ranks that go with this one.

    `split_ranks` count within the parent, as there.
    """
    parent = parent_pg or c10d._get_default_group()
    for ranks in split_ranks or []:
        if parent.rank() in ranks:
            of_parent = dist.get_process_group_ranks(parent)
            return dist.new_group([of_parent[rank] for rank in ranks], timeout, "nccl", use_local_synchronization=True)
    return None
