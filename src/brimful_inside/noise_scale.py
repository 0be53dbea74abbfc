"""The gradient noise scale tr(Σ) / |G|² of McCandlish et al. 2018 (arXiv 1812.06162, appendix A.1):
the batch size at which half of what a step of a huge batch teaches is reached.

Whatever both norms are scaled with, by a GradScaler or the weight of a micro-batch, cancels.
"""

from __future__ import annotations

from typing import NamedTuple

# Of what was measured before, with each measurement, as gpt-neox has it: some hundred count.
DECAY = 0.99


class NoiseScale(NamedTuple):
    """What was measured so far, in averages: the noise scale is their quotient, trace / square, as
    a mean of quotients is biased. It is lost in its own noise where one of them is not above 0.
    """

    trace: float = 0.0  # of the covariance of a sample's gradient
    square: float = 0.0  # of the norm of the true gradient
    measured: int = 0  # steps

    def add(self, small: float, small_square: float, big: float, big_square: float) -> NoiseScale:
        """With one more step. `small_square`: the squared norm of the gradient of `small` samples,
        averaged over the parts of the step; `big_square`: that of the whole step's `big` samples.
        """
        trace = (small_square - big_square) / (1 / small - 1 / big)
        square = (big * big_square - small * small_square) / (big - small)
        kept = min(DECAY, self.measured / (self.measured + 1))  # at first a plain mean
        return NoiseScale(
            kept * self.trace + (1 - kept) * trace,
            kept * self.square + (1 - kept) * square,
            self.measured + 1,
        )
