"""What an audit looks for in a training besides: lines that wait for a card, the precision (dtype)
that it computes in, split batches.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any, Dict, Optional, Set

import torch

from brimful_inside.probe.context import call_probe, current_probe, guarded, patch
from brimful_inside.probe.import_hooks import import_hooks
from brimful_inside.probe.memory.device_memory import is_started
from brimful_inside.probe.memory.phases import TRAIN, Phases
from brimful_inside.probe.script_text.user_code import is_users
from brimful_inside.wire import Precision

MAX_LINES = 16
# of a value on a card: the host waits for all that came before
_READS = ("item", "tolist", "__float__", "__int__", "__bool__")


class Audited:
    """What was seen. Empty where the trial is no audit."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self.split_over = 1
        self._reads: Counter[str] = Counter()
        self._autocast: Optional[str] = None
        self._dtypes: Set[str] = set()
        self._elements = {True: 0, False: 0}  # of weights of convolutions, and of others

    @guarded
    def read_on_host(self, tensor: Any, frame: Any) -> None:
        file = frame.f_code.co_filename
        if self._phases.current == TRAIN and tensor.device.type != "cpu" and is_users(file):
            self._reads["%s:%d" % (os.path.basename(file), frame.f_lineno)] += 1

    @guarded
    def autocasts(self, context: Any) -> None:
        if context._enabled and context.device != "cpu":
            self._autocast = _name(context.fast_dtype)

    @guarded
    def shards_in(self, policy: Any) -> None:
        """FSDP gathers weights in another dtype than its shards have, and computes in that."""
        if policy.param_dtype is not None:
            self._autocast = _name(policy.param_dtype)

    def steps(self, groups: Any) -> None:
        """An optimizer's groups, at its first step. What is no Parameter is a copy in float32 of
        one that computes in a half type (DeepSpeed's)."""
        for parameter in (p for group in groups for p in group["params"]):
            if not isinstance(parameter, torch.nn.Parameter) or not parameter.is_floating_point():
                continue
            self._dtypes.add(_name(parameter.dtype))
            self._elements[parameter.dim() > 2] += parameter.numel()

    def reads(self) -> Dict[str, int]:
        return dict(self._reads.most_common(MAX_LINES))

    def precision(self) -> Optional[Precision]:
        """None without a card of CUDA, and before the first step."""
        if not self._dtypes or not is_started() or not torch.cuda.is_initialized():
            return None
        return Precision(
            capability=list(torch.cuda.get_device_capability()),
            weights=sorted(self._dtypes),
            autocast=self._autocast,
            tf32=bool(torch.backends.cuda.matmul.allow_tf32),
            convolutions=self._elements[True] / max(1, sum(self._elements.values())),
        )


def _name(dtype: Any) -> str:
    return str(dtype).replace("torch.", "")


def patch_for_audits() -> None:
    for name in _READS:
        patch(torch.Tensor, name, _read)
    patch(torch.amp.autocast_mode.autocast, "__enter__", _autocast)
    patch(torch.nn.DataParallel, "scatter", _scatter)
    import_hooks.when_imported("torch.distributed.fsdp", _patch_sharding)


def _read(original: Any, tensor: Any, *args: Any) -> Any:
    call_probe("audited.read_on_host", tensor, sys._getframe(2))
    return original(tensor, *args)


def _autocast(original: Any, context: Any) -> Any:
    call_probe("audited.autocasts", context)
    return original(context)


def _patch_sharding(module: Any) -> None:
    for name in ("MixedPrecision", "MixedPrecisionPolicy"):
        patch(getattr(module, name), "__init__", _mixed)


def _mixed(original: Any, policy: Any, *args: Any, **kwargs: Any) -> None:
    original(policy, *args, **kwargs)
    call_probe("audited.shards_in", policy)


def _scatter(original: Any, module: Any, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
    probe = current_probe()
    if probe is not None:
        probe.audited.split_over = max(probe.audited.split_over, len(device_ids))
    return original(module, inputs, kwargs, device_ids)
