"""The backend "nccl", whatever PyTorch was built with. It connects nothing: `collectives` answers
before they come to it."""

from __future__ import annotations

import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch._C import _distributed_c10d  # pyright: ignore[reportAttributeAccessIssue]
from torch._C._distributed_c10d import FakeProcessGroup

from brimful_inside.imaginary.distributed.collectives import done
from brimful_inside.imaginary.state.patches import Patches

_TEN_MINUTES = timedelta(minutes=10)  # ProcessGroupNCCL.hpp, kProcessGroupNCCLDefaultTimeout
_VERSION = (2 << 32) | (27 << 16) | 7  # 2.27.7, as torch._C packs it


def replace_everywhere(patches: Patches, name: str, value: Any) -> None:
    """Replaces distributed_c10d's `name` by `value`, also in the modules of torch that have
    imported it by name."""
    original = getattr(c10d, name, None)
    patches.set(c10d, name, value)
    modules = [
        module
        for key, module in sys.modules.items()
        if module is not None and key.startswith("torch.distributed")
    ]
    for module in modules:
        if original is not None and vars(module).get(name) is original:
            patches.set(module, name, value)


class _Options:
    """ProcessGroupNCCL.Options: kept, and without effect on memory that is known."""

    def __init__(self, is_high_priority_stream: bool = False):
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout = _TEN_MINUTES
        self.config = SimpleNamespace()  # ncclConfig_t, of which any field may be set
        self.split_from: Any = None
        self.split_color = 0
        self.global_ranks_in_group: Any = []
        self.group_name = self.group_desc = ""


def _new_backend(rank: int, size: int) -> Any:
    """A backend that connects nothing: PyTorch's own for tests."""
    make = getattr(FakeProcessGroup, "_create_internal", FakeProcessGroup)
    return make(rank, size)


class _StandIn(type):
    """The type of a class that is called as ProcessGroupNCCL or ProcessGroupGloo and connects
    nothing."""

    def __call__(cls, store: Any, rank: int, size: int, *args: Any, **kwargs: Any) -> Any:
        return _new_backend(rank, size)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, FakeProcessGroup)


def stand_in(name: str) -> Any:
    """A class for a backend that is not there."""
    return _StandIn(
        name, (), {"Options": _Options, "__module__": "torch.distributed.distributed_c10d"}
    )


def patch_nccl(patches: Patches) -> None:
    # torch 2.15 has three
    for name in (
        "ProcessGroupNCCL",
        "ProcessGroupNCCL2",
        "ProcessGroupNCCLLazy",
    ):
        if name == "ProcessGroupNCCL" or hasattr(c10d, name):
            backend = stand_in(name)
            replace_everywhere(patches, name, backend)
            patches.set(_distributed_c10d, name, backend)
    patches.set(torch.distributed, "ProcessGroupNCCL", c10d.ProcessGroupNCCL)
    patches.set(FakeProcessGroup, "_set_sequence_number_for_group", lambda self: None)
    # the end of a group; 2.6 has it in NCCL's class alone
    for name in (
        "_shutdown",
        "_abort",
        "shutdown",
        "abort",
    ):
        if not hasattr(FakeProcessGroup, name):
            patches.set(FakeProcessGroup, name, lambda self: None)
    _patch_coalescing(patches)
    replace_plugins(patches, "nccl")
    replace_everywhere(patches, "is_nccl_available", lambda: True)
    replace_everywhere(patches, "_NCCL_AVAILABLE", True)
    if not hasattr(torch._C, "_nccl_version"):
        patches.set(torch._C, "_nccl_version", lambda: _VERSION)
        patches.set(torch._C, "_nccl_version_suffix", lambda: b"")
    replace_everywhere(patches, "default_pg_nccl_timeout", _TEN_MINUTES)
    patches.set(_distributed_c10d, "_DEFAULT_PG_NCCL_TIMEOUT", _TEN_MINUTES)


def _patch_coalescing(patches: Patches) -> None:
    """A batch of collectives on the card: each is answered alone, and the backend of 2.6 refuses to
    be asked."""
    group: Any = c10d.ProcessGroup
    real_start, real_end = group._start_coalescing, group._end_coalescing

    def start(self: Any, device: torch.device) -> None:
        if device.type == "cpu":
            real_start(self, device)

    def end(self: Any, device: torch.device) -> Any:
        return real_end(self, device) if device.type == "cpu" else c10d.Work.unbox(done())

    patches.set(group, "_start_coalescing", start)
    patches.set(group, "_end_coalescing", end)


def replace_plugins(patches: Patches, kind: str) -> None:
    """From torch 2.15 on backends are entered, at their first use, in a table of functions that
    make them."""
    makers = [
        name
        for name in vars(c10d)
        if name.startswith("_create_%s" % kind) and name.endswith("_process_group")
    ]
    for name in makers:
        replace_everywhere(patches, name, _by_options)
    plugins = {
        name: c10d.Backend._BackendPlugin(_by_options, True)
        if makers and name.lower().startswith(kind)
        else plugin
        for name, plugin in c10d.Backend._plugins.items()
    }
    patches.set(c10d.Backend, "_plugins", plugins)


def _by_options(options: Any, backend_options: Any) -> Any:
    return _new_backend(options.group_rank, options.group_size)
