"""torch.distributed on imaginary cards: process groups called "nccl" whose collectives act on shapes.

Collectives of the host's tensors, objects and barriers go between the ranks of the trial as they always do, through gloo. A
rank that was started alone (`alone`) answers for all others what it knows of itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from brimful_inside.imaginary.patches import Patches

if TYPE_CHECKING:
    from brimful_inside.imaginary.gpu import ImaginaryGpu

__all__ = ["put_distributed_in_place"]


def put_distributed_in_place(gpu: ImaginaryGpu, patches: Patches) -> None:
    """torch.distributed knows NCCL, and its collectives know the card. Does nothing where PyTorch was built without it."""
    if not torch.distributed.is_available():
        return
    from brimful_inside.imaginary.distributed import alone, collectives, functional, nccl, objects, reducer, sync_batch_norm

    gpu.operation_handlers.update(collectives.handlers())
    gpu.operation_handlers.update(functional.handlers())
    gpu.operation_handlers.update(sync_batch_norm.handlers())
    nccl.put_nccl_in_place(patches)
    objects.put_objects_in_place(gpu, patches)
    reducer.put_reducer_in_place(gpu, patches)
    if alone.is_alone():
        alone.put_alone_in_place(gpu, patches)
