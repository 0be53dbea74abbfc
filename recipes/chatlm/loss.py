"""Cross-entropy over a large vocabulary without a tensor of all logits.

Of 64 × 512 positions and 29,298 tokens the logits are 3.6 GiB in fp32, and plain PyTorch keeps
several copies of them. Here the gradients of the loss are known as soon as a piece's logits are:
both are computed piece by piece in the forward pass, and only the gradients of the hidden states
and of the head's matrix are kept. Nothing is computed twice.
"""

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

IGNORED = -100  # a label that is padding
# fp16 has no numbers below 6e-8: a softmax over 29,298 tokens is raised before it is rounded, and
# lowered after. Assumed: 64 leaves the products of a piece far below 65,504, and losses are scaled
# once more by the GradScaler.
_RAISED = {torch.float16: 64.0}


def summed_cross_entropy(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, chunk: int
) -> torch.Tensor:
    """The sum of -log softmax(hidden weightᵀ)[label] over all labels but IGNORED: a scalar, fp32 or
    wider.

    hidden (positions, d), weight (vocabulary, d), labels (positions,) int64. `chunk`: positions at
    once; 0: all, by PyTorch's own functions. Matrix products are in autocast's type where it is on,
    all else in fp32.
    """
    if chunk:
        total: torch.Tensor = _Chunked.apply(hidden, weight, labels, chunk, torch.is_grad_enabled())  # type: ignore[assignment]
        return total
    logits = F.linear(hidden, weight)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide, labels, ignore_index=IGNORED, reduction="sum")


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, labels, chunk: int, learns: bool):  # type: ignore[override]
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        raised = _RAISED.get(dtype, 1.0)
        wide = torch.promote_types(dtype, torch.float32)
        matrix = weight.detach().to(dtype)
        of_hidden = torch.empty_like(hidden) if learns and ctx.needs_input_grad[0] else None
        of_weight = (
            torch.zeros_like(weight, dtype=wide) if learns and ctx.needs_input_grad[1] else None
        )
        total = torch.zeros((), dtype=wide, device=hidden.device)
        with torch.autocast(kind, enabled=False):
            for start in range(0, len(labels), chunk):
                piece = slice(start, start + chunk)
                states = hidden[piece].to(dtype)
                exponents, lost = _softmax_and_loss(
                    (states @ matrix.T).to(wide), labels[piece], raised
                )
                total += lost
                if of_hidden is not None or of_weight is not None:
                    pull = exponents.to(dtype)  # the loss's gradient by the logits
                    if of_hidden is not None:
                        of_hidden[piece] = (pull @ matrix).to(hidden.dtype) / raised
                    if of_weight is not None:
                        of_weight += pull.T @ states
        ctx.save_for_backward(
            of_hidden, None if of_weight is None else of_weight.div_(raised).to(weight.dtype)
        )
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # type: ignore[override]
        of_hidden, of_weight = ctx.saved_tensors
        return (
            *(
                None if known is None else known * gradient.to(known.dtype)
                for known in (of_hidden, of_weight)
            ),
            None,
            None,
            None,
        )


def _softmax_and_loss(
    logits: torch.Tensor, labels: torch.Tensor, raised: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(softmax - one-hot) × raised, with zeros for ignored labels, in place of `logits`; and the
    summed loss.
    """
    counts = labels != IGNORED
    place = torch.where(counts, labels, 0)[:, None]
    logits -= logits.amax(-1, keepdim=True)
    right = logits.gather(1, place)[:, 0]
    logits.exp_()
    sums = logits.sum(-1, keepdim=True)
    lost = torch.where(counts, sums[:, 0].log() - right, 0.0).sum()
    logits /= sums
    logits.scatter_add_(1, place, torch.full_like(place, -1, dtype=logits.dtype))
    logits *= counts[:, None] * raised
    return logits, lost
