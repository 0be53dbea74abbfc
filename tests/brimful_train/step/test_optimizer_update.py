"""An update that runs out of memory half-way is undone and done again: weights change once."""

import itertools

import pytest
import torch
from torch import nn

from brimful.errors import DoesNotFit
from brimful_train.step.optimizer_update import Update
from tests.brimful_train.ledger import failing_kernels, same

CPU = torch.device("cpu")
OPTIMIZERS = {
    "adamw, fused": lambda groups: torch.optim.AdamW(groups, lr=0.1, fused=True),
    "adamw, one by one": lambda groups: torch.optim.AdamW(
        groups, lr=0.1, foreach=False, fused=False
    ),
    "adamw, several at once": lambda groups: torch.optim.AdamW(groups, lr=0.1, foreach=True),
    "sgd with momentum, fused": lambda groups: torch.optim.SGD(
        groups, lr=0.1, momentum=0.9, fused=True
    ),
    "sgd with momentum, several at once": lambda groups: torch.optim.SGD(
        groups, lr=0.1, momentum=0.9, foreach=True
    ),
    "adafactor": lambda groups: torch.optim.Adafactor(groups, lr=0.1),
}
KERNELS = [
    "_fused_adamw_",
    "_fused_sgd_",
    "_foreach_addcdiv_",
    "_foreach_sqrt",
    "_foreach_add_",
    "_foreach_mul_",
    "sqrt",
    "_foreach_lerp_",
]


def model_and(make):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(3, 2))
    weights = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    return model, make([{"params": weights}, {"params": others, "weight_decay": 0.0}])


def trained(make, failures: set[int], survived: list) -> list[torch.Tensor]:
    """Four updates, in which the kernel calls of these numbers find no memory; what changed before
    them did change.
    """
    model, optimizer = model_and(make)
    update = Update(optimizer, CPU, survived.append)
    calls = itertools.count()
    generator = torch.Generator().manual_seed(1)

    def fail_if_due() -> None:
        if next(calls) in failures:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")

    with failing_kernels(KERNELS, fail_if_due):
        for _ in range(4):
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=generator)
            update.step()
    return [
        *model.parameters(),
        *(v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)),
    ]


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("at", [{0}, {3}, {2, 3}, {0, 2, 20}])
def test_weights_and_state_are_those_of_an_update_that_never_failed(name, at):
    survived: list = []
    whole = trained(OPTIMIZERS[name], set(), [])
    hit = trained(OPTIMIZERS[name], at, survived)
    if name not in ("adamw, one by one", "adafactor"):
        assert survived  # some kernel was reached
    assert same(whole, hit)


def test_a_parameter_that_cannot_be_updated_at_all_is_a_sentence():
    with pytest.raises(DoesNotFit, match="one parameter of shape"):
        trained(OPTIMIZERS["adamw, fused"], set(range(1000)), [])
