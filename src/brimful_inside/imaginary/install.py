"""Puts the imaginary GPU into a process: makes the state, gives it its handlers, and patches
torch."""

from __future__ import annotations

import os
from typing import Any, Optional, Sequence

from brimful_inside.imaginary.attribution.annotations import Annotations
from brimful_inside.imaginary.cuda_api import devices
from brimful_inside.imaginary.cuda_api.autocast import (
    Casts,
    handlers_under_autocast,
    of_library,
    patch_cache,
)
from brimful_inside.imaginary.cuda_api.compiler import leave_uncompiled
from brimful_inside.imaginary.cuda_api.cuda_api import patch_cuda
from brimful_inside.imaginary.cuda_api.data_parallel import patch_transfers
from brimful_inside.imaginary.cuda_api.stand_ins import stand_in
from brimful_inside.imaginary.cuda_api.types import patch_storages
from brimful_inside.imaginary.dispatch import autograd_in_place, dispatch_mode
from brimful_inside.imaginary.dispatch.function_mode import (
    Functions,
    Modes,
    follow_threads,
    let_bodies_run,
)
from brimful_inside.imaginary.distributed import patch_distributed
from brimful_inside.imaginary.operators import (
    attention,
    data_dependent,
    fused_kernels,
    recurrent,
)
from brimful_inside.imaginary.operators.convolutions import Plans
from brimful_inside.imaginary.operators.cublas import Workspaces
from brimful_inside.imaginary.operators.flops import Classes
from brimful_inside.imaginary.operators.meta_kernels import Remembered
from brimful_inside.imaginary.operators.temporaries import Machine
from brimful_inside.imaginary.state.cards import OpenTrace
from brimful_inside.imaginary.state.device import ImaginaryGpu
from brimful_inside.simulator.allocator_settings import AllocatorSettings
from brimful_inside.wire import Card


def enter(
    card: Card,
    capacity_bytes: Optional[int] = None,
    trace: OpenTrace = None,
    what_if: Sequence[str] = (),
    count: int = 1,
    annotations: bool = True,
    settings: Optional[AllocatorSettings] = None,
) -> ImaginaryGpu:
    """From here on this process has `count` cards like `card`. Call it in the main thread, once
    torch is imported.

    `capacity_bytes` is what PyTorch may hold on each card in segments, so the card's memory without
    the context; beyond it torch.OutOfMemoryError is raised in PyTorch's words. None is without
    limit. `trace` gets the rows of `simulator.trace`: a file for one card, or what opens the file
    of a card, by its number, when the card is first used (one that is not used leaves none).
    `what_if` does these things otherwise than the script (`attribution/what_if.py`). `settings`:
    the allocator's, before the script has its say; None: the environment's."""
    gpu = ImaginaryGpu(card, count, capacity_bytes, trace, settings)
    if trace is not None and annotations:
        gpu.annotations = Annotations(gpu, what_if)
    elif what_if:
        raise ValueError("a what-if needs a trace with annotations")
    _equip(gpu)
    _patch(gpu)
    return gpu


def insert(gpu: ImaginaryGpu, card: Card, capacity_bytes: Optional[int] = None) -> None:
    """The process has cards like `card` from here on, in place of those that it entered with and
    has not used."""
    gpu.insert(card, capacity_bytes)
    _choose_for_card(gpu)


def _choose_for_card(gpu: ImaginaryGpu) -> None:
    gpu.machine = Machine.of(gpu.card)
    gpu.classes = Classes(gpu.machine, gpu.pinned.is_pinned)
    gpu.workspaces = Workspaces(gpu)


def _equip(gpu: ImaginaryGpu) -> None:
    """The state gets its handlers, and what those keep in it."""
    _choose_for_card(gpu)
    gpu.plans, gpu.casts, gpu.remembered = Plans(gpu), Casts(), Remembered()
    gpu.operation_handlers = autograd_in_place.accumulating_in_place(dispatch_mode.handlers())
    gpu.function_handlers = handlers_under_autocast(
        {
            **devices.handlers(),
            **data_dependent.function_handlers(),
            **fused_kernels.function_handlers(),
            **attention.handlers(),
            **recurrent.function_handlers(),
        }
    )

    def operate(func: Any, *args: Any, **kwargs: Any) -> Any:
        with dispatch_mode.Operations(gpu):
            return func(*args, **kwargs)

    gpu.operate = operate
    gpu.functions = lambda: Functions(gpu, devices.call_on, of_library)


def _patch(gpu: ImaginaryGpu) -> None:
    """torch answers for the cards, in the current thread and in every thread started later, until
    `gpu.leave()`."""
    autograd_in_place.measure_owners()
    fused_kernels.register_meta_kernels(gpu)
    patch_cuda(gpu)
    patch_transfers(gpu)
    if gpu.annotations is not None:
        gpu.annotations.patch(gpu.patches)
    devices.patch_devices(gpu)
    patch_storages(gpu)
    data_dependent.patch_values(gpu)
    patch_cache(gpu)
    recurrent.flatten_weights_as_on_cuda(gpu)
    devices.group_by_card(gpu)
    let_bodies_run(gpu)
    leave_uncompiled(gpu)
    stand_in(gpu)
    data_dependent.refuse_nested_tensors(gpu)
    modes = Modes(lambda: (gpu.functions(), dispatch_mode.Operations(gpu)))
    follow_threads(gpu, modes)
    patch_distributed(gpu)
    gpu.garbage.patch(gpu.patches)
    os.register_at_fork(before=gpu.cards.flush, after_in_child=gpu.forked)
    gpu.patches.undo_by(modes.leave)
    modes.enter()
