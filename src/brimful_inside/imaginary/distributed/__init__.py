"""torch.distributed on imaginary cards: process groups called "nccl" whose collectives act on
shapes.

Tensors of the host, objects and barriers go between the ranks of the trial through gloo. A rank
that was started alone answers for all others."""

from __future__ import annotations

import torch

from brimful_inside.imaginary.state.device import ImaginaryGpu


def patch_distributed(gpu: ImaginaryGpu) -> None:
    """torch.distributed knows NCCL, and its collectives know the card. Does nothing where PyTorch
    was built without it."""
    if not torch.distributed.is_available():
        return
    from brimful_inside.imaginary.distributed import collectives, objects

    gpu.operation_handlers.update(collectives.handlers())
    collectives.patch_nccl(gpu)
    objects.patch_objects(gpu)
    objects.patch_reducer(gpu)
    if objects.is_alone():
        objects.patch_alone(gpu)
    else:
        objects.patch_broadcasts(gpu)
