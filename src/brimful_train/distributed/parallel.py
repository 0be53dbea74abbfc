"""How a model is spread over ranks: gradients summed after the step (the default), while the
backward pass goes on, or sharded.

"after": nothing communicates in forward and backward, so that any failure there is this rank's own
business (gradients.py). "overlapped": the last backward of a step runs with
DistributedDataParallel's own reduction. "sharded": FSDP2 keeps a part of each parameter on each
rank; its forward gathers them.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from brimful.errors import UsageError
from brimful.values import EffectiveSetting
from brimful_train.config import Config
from brimful_train.distributed.ranks import Ranks

# Assumed: updates without out-of-memory, after which sizes that vary have been met.
OVERLAP_AFTER = 300


@dataclass(frozen=True)
class Network:
    """The model of a task on its device, and how it is spread over ranks. `module` is the bare one,
    whose parameters and buffers a checkpoint holds.
    """

    module: nn.Module
    overlapped: DistributedDataParallel | None = None
    sharded: bool = False

    @property
    def model(self) -> nn.Module:
        """What runs forward."""
        return self.module if self.overlapped is None else self.overlapped

    def parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]

    def without_gradient(self) -> list[str]:
        return [
            name for name, p in self.module.named_parameters() if p.requires_grad and p.grad is None
        ]


def shards(config: Config, ranks: Ranks) -> bool:
    """Whether parameters are sharded over the ranks: one process has nobody to share them with."""
    return config.parallel == "fsdp2" and ranks.size > 1


def overlapping(module: nn.Module, device: torch.device) -> DistributedDataParallel:
    """A model whose gradients can be summed over ranks within a backward pass. Its parameters all
    get a gradient then.
    """
    with warnings.catch_warnings():
        # newer PyTorch has another name for it, older has this one alone
        warnings.simplefilter("ignore", FutureWarning)
        model = DistributedDataParallel(
            module,
            device_ids=[device.index] if device.type != "cpu" else None,
            broadcast_buffers=False,
        )
    model.register_comm_hook(None, _sum)
    return model


def _sum(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """As the sum after a step is: DDP's own would divide by the number of ranks."""
    work: Any = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def no_overlap_sentence(names: list[str]) -> str:
    return (
        f"overlap is left off: {_some(names)} got no gradient in an update, and a reduction "
        "within the backward pass waits for "
        "each parameter's. Gradients are summed after the step, with the same result."
    )


def incomplete_in_overlap(names: list[str]) -> UsageError:
    return UsageError(
        f"{_some(names)} got no gradient in an update whose gradients were summed within the "
        "backward pass",
        f"That waits for the gradient of each parameter; in the {OVERLAP_AFTER} updates before, "
        "all had one.",
        "Set config.overlap to False, or take what is not trained out of the model "
        "(requires_grad_(False)).",
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more parameters" if names[3:] else "")


def shard(module: nn.Module, ranks: Ranks) -> EffectiveSetting:
    """FSDP2, in place: each repeated block, then the rest."""
    if ranks.size == 1:
        return EffectiveSetting(
            "parallel", "fsdp2", "one process", "there is nobody to share the parameters with"
        )
    from torch.distributed.fsdp import fully_shard  # a second that few trainings need

    holders = [m for m in module.modules() if isinstance(m, nn.ModuleList | nn.Sequential)]
    blocks = [
        child
        for holder in holders
        for child in holder
        if not isinstance(child, nn.ModuleList | nn.ModuleDict)
        and any(p.requires_grad for p in child.parameters())
    ]
    for block in (*reversed(blocks), module):  # inner ones first
        fully_shard(block)
    return EffectiveSetting(
        "parallel",
        "fsdp2",
        "fsdp2",
        f"{len(blocks)} blocks and the rest, each over {ranks.size} ranks",
    )


def is_sharded(value: object) -> TypeGuard[Any]:
    """Whether it is a DTensor, without an import of torch.distributed.tensor."""
    return hasattr(value, "full_tensor")


def full(tree: Any) -> Any:
    """The tree with sharded tensors put together, on the host. All ranks take part, in the same
    order.
    """
    if is_sharded(tree):
        return tree.full_tensor().cpu()
    if isinstance(tree, Mapping):
        return {name: full(value) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(full(value) for value in tree)
    return tree


def sharded_as(held: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole tensor, as `held` is sharded; the tensor itself elsewhere."""
    if not is_sharded(held) or is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor.to(held.device, held.dtype), held.device_mesh, held.placements)
