"""The energy head: 512 features of a molecule to one number, low in distribution and high out of
it.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from recipes.common.pieces import in_pieces
from recipes.ood_dpo.settings import HeadOptions

FEATURES = 512
# assumed: rows that an evaluation sends through a head at once, 16 MiB of features
FORWARD_ROWS = 8192


class EnergyHead(nn.Module):
    """512 → 256 → 128 → 1 with ReLU and dropout: 164,353 parameters."""

    def __init__(self, hidden: int = 256, dropout: float = 0.1, seed: int = 0) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, hidden)
        self.second = nn.Linear(hidden, hidden // 2)
        self.last = nn.Linear(hidden // 2, 1)
        self.drop_first = SeededDropout(dropout, 2 * seed)
        self.drop_second = SeededDropout(dropout, 2 * seed + 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(n, 512) -> (n,) energies."""
        inside = self.drop_first(F.relu(self.first(features)))
        inside = self.drop_second(F.relu(self.second(inside)))
        return self.last(inside).squeeze(-1)


def make_head(options: HeadOptions, seed: int) -> EnergyHead:
    """The head that a training of this seed begins with; the global random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return EnergyHead(options.hidden, options.dropout, seed)


@torch.no_grad()
def energies(
    head: nn.Module, features: np.ndarray, device: torch.device, at_once: int = FORWARD_ROWS
) -> np.ndarray:
    """(n, 512) -> (n,) float32, without dropout. DoesNotFit where memory is missing for a single
    molecule.
    """
    head.eval()
    rows = torch.from_numpy(np.ascontiguousarray(features))
    pieces = in_pieces(
        range(len(rows)),
        lambda some: head(rows[some[0] : some[-1] + 1].to(device)).cpu(),
        at_once,
        device,
    )
    return torch.cat(list(pieces)).numpy()


class SeededDropout(nn.Module):
    """Dropout whose masks follow from the seed, the number of the forward pass and the place alone.

    So a member of an ensemble drops what it would drop if it were trained alone, a resumed training
    what it would have dropped, on any device. The seed and the count are buffers:
    `torch.func.stack_module_state` stacks them, checkpoints hold them. The bits come from an
    integer hash of the place (Wellons' lowbias32, nullprogram.com/blog/2018/07/31).
    """

    def __init__(self, share: float, seed: int) -> None:
        super().__init__()
        self.share = share
        self.register_buffer("seed", torch.tensor(_signed(seed), dtype=torch.int32))
        self.register_buffer("passes", torch.tensor(0, dtype=torch.int32))
        self.seed: torch.Tensor
        self.passes: torch.Tensor

    def forward(self, inside: torch.Tensor) -> torch.Tensor:
        """(rows, units) -> the same, where a share of the entries is 0 and the others are 1 / (1 -
        share) times as large.
        """
        if not self.training or not self.share:
            return inside
        self.passes.add_(1)
        kept = self._bits(*inside.shape[-2:]) >= _signed(int(self.share * 2**32) - 2**31)
        # A product with 0 or 1 / (1 - share): cheaper on a CPU than torch.where and its gradient.
        return (inside * (kept.float() * (1 / (1 - self.share)))).to(inside.dtype)

    def _bits(self, rows: int, units: int) -> torch.Tensor:
        """(rows, units) int32, uniform. A row and a unit each get a number, and their difference is
        mixed once more.
        """
        device = self.seed.device
        key = _mixed(_mixed(self.seed) + self.passes)
        row = _mixed(torch.arange(rows, dtype=torch.int32, device=device) + key)
        unit = _mixed(torch.arange(units, dtype=torch.int32, device=device) - key)
        bits = (row.unsqueeze(-1) - unit).mul_(_FIRST)
        return bits.bitwise_xor_(bits >> 15).mul_(_SECOND)


def _signed(value: int) -> int:
    """The 32 lowest bits as a signed number."""
    return (value + 2**31) % 2**32 - 2**31


_FIRST, _SECOND = _signed(0x7FEB352D), _signed(0x846CA68B)


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    bits = (bits ^ (bits >> 16)) * _FIRST
    bits = (bits ^ (bits >> 15)) * _SECOND
    return bits ^ (bits >> 16)
