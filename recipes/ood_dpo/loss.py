"""The losses. An energy is low in distribution and high out of it; each pair of the two in a batch
should be ranked so.

    dpo    mean over all pairs of softplus(-β (E_ood - E_id)) (arXiv 2509.25509, Mole-PAIR)
    hinge  mean over all pairs of max(0, margin - (E_ood - E_id))
    bce    mean over all molecules of the binary cross-entropy, the energy as the logit of "out of
           distribution"
    mse    mean of σ(E_id)² + mean of (1 - σ(E_ood))²

each with λ (mean E_id² + mean E_ood²) added, as its authors' code has them
(github.com/langzhouhe/OOD-DPO, `model.py`).

A batch of 8,192 pairs has 67 million differences: 256 MiB, and plain PyTorch keeps about four of
them. Here they are computed in tiles, and the gradients with them: memory is linear in the batch,
and nothing is computed twice.
"""

from collections.abc import Callable

import torch
from torch.nn import functional as F

from recipes.ood_dpo.settings import HeadOptions

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# Differences at once. On a CPU 2 MiB of floats: from 0.25 to 4 MiB one thread is as fast
# (measured), and more threads wait less for each other with large ones. On a card 16 MiB, which
# fill it (assumed).
TILE_ON_CPU, TILE_ON_A_CARD = 2**19, 2**22
DECOMPOSE = ("bce", "mse")  # means over molecules: a batch of them may be cut


def head_loss(options: HeadOptions) -> Loss:
    """loss(energy_id (..., n), energy_ood (..., m)) -> (...), computed in fp32 or wider.

    Leading dimensions are members of an ensemble, each with a loss of its own.
    """

    def loss(energy_id: torch.Tensor, energy_ood: torch.Tensor) -> torch.Tensor:
        wide = torch.promote_types(energy_id.dtype, torch.float32)
        low, high = energy_id.to(wide), energy_ood.to(wide)
        with torch.autocast(low.device.type, enabled=False):
            squares = low.square().mean(-1) + high.square().mean(-1)
            return main(low, high) + options.lambda_reg * squares

    main: Loss = {
        "dpo": lambda low, high: all_pairs("dpo", low * options.beta, high * options.beta),
        "hinge": lambda low, high: all_pairs("hinge", low, high, options.margin),
        "bce": cross_entropy,
        "mse": squared_error,
    }[options.loss]
    return loss


def cross_entropy(energy_id: torch.Tensor, energy_ood: torch.Tensor) -> torch.Tensor:
    n, m = energy_id.shape[-1], energy_ood.shape[-1]
    return (F.softplus(energy_id).sum(-1) + F.softplus(-energy_ood).sum(-1)) / (n + m)


def squared_error(energy_id: torch.Tensor, energy_ood: torch.Tensor) -> torch.Tensor:
    return energy_id.sigmoid().square().mean(-1) + (-energy_ood).sigmoid().square().mean(-1)


def all_pairs(
    kind: str, low: torch.Tensor, high: torch.Tensor, margin: float = 0.0, tile: int | None = None
) -> torch.Tensor:
    """The mean over all pairs, in tiles: "dpo" of softplus(low - high), "hinge" of relu(low - high
    + margin).
    """
    if tile is None:
        tile = TILE_ON_CPU if low.device.type == "cpu" else TILE_ON_A_CARD
    if torch.is_grad_enabled() and (low.requires_grad or high.requires_grad):
        return _AllPairs.apply(kind, low, high, margin, tile)  # type: ignore[return-value]
    return _tiled(kind, low, high, margin, tile, learns=False)[0]


def _tiled(
    kind: str, low: torch.Tensor, high: torch.Tensor, margin: float, tile: int, learns: bool
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
    """The mean of `all_pairs`, and its gradients."""
    n, m = low.shape[-1], high.shape[-1]
    members = max(1, low[..., 0].numel())
    rows = max(1, tile // (members * m))
    total = torch.zeros_like(low[..., 0])
    of_low = torch.empty_like(low) if learns else None
    of_high = torch.zeros_like(high) if learns else None
    for start in range(0, n, rows):
        part = low[..., start : start + rows, None] - high[..., None, :]
        if kind == "hinge":
            part.add_(margin).relu_()
            total += part.sum((-2, -1))
            slope = part.sign_()
        else:
            total += F.softplus(part).sum((-2, -1))
            slope = part.sigmoid_()
        if of_low is not None and of_high is not None:
            of_low[..., start : start + rows] = slope.sum(-1)
            of_high -= slope.sum(-2)
    pairs = n * m
    if of_low is not None and of_high is not None:
        of_low, of_high = of_low.div_(pairs), of_high.div_(pairs)
    return total / pairs, of_low, of_high


class _AllPairs(torch.autograd.Function):
    """The gradients are computed with the loss, and `backward` scales them."""

    @staticmethod
    def forward(ctx, kind: str, low, high, margin: float, tile: int):  # type: ignore[override]
        loss, of_low, of_high = _tiled(kind, low, high, margin, tile, learns=True)
        ctx.save_for_backward(of_low, of_high)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):  # type: ignore[override]
        of_low, of_high = ctx.saved_tensors
        return None, of_low * grad.unsqueeze(-1), of_high * grad.unsqueeze(-1), None, None
