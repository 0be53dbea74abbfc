"""The gradient noise scale of a training, from the parts that its updates have anyway: the
micro-batches of all ranks.

One update of `EVERY` is looked at. Hooks take the norm of the gradient of each backward pass before
it is added to others; the ranks add up three numbers beside their gradients. Nothing of that
changes a gradient. Only "split" changes an update that has one part: it is made in two halves.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from brimful.values import EffectiveSetting
from brimful_inside.script import is_imaginary
from brimful_train.config import Config
from brimful_train.distributed.parallel import Network
from brimful_train.step.noise_scale import NoiseScale, PassNorms, squared_norm
from brimful_train.step.oom import Pieces

EVERY = 50  # updates; assumed: seldom enough for the cost that bench/engine_cost.py shows


class GradientNoise:
    """`scale`: what was read so far, alike on all ranks. `how`: the effective setting."""

    def __init__(self, network: Network, how: str, device: torch.device, ranks: int):
        self.scale = NoiseScale()
        # of the update under way, to be added up over the ranks; empty where it is not looked at
        self.sums: list[torch.Tensor] = []
        self._looks, self._splits = how != "off", how == "split"
        self._ranks = ranks
        self._parameters = network.parameters()
        self._passes = PassNorms()
        # squared norms, 1 / samples, and the number of the passes
        self._of_passes = torch.zeros(3, device=device)
        self._pending: tuple[int, torch.Tensor] | None = None

    @contextmanager
    def watching(self, update: int, pieces: Pieces) -> Iterator[Pieces]:
        """Around the passes over `pieces` of this update, and again where they are replayed. Gives
        the pieces to make.
        """
        self.sums = []
        if self._looks and (update - 1) % EVERY == 0:
            self.read()
            if self._splits and len(pieces) == 1:
                ((part, start, stop),) = pieces
                middle = (start + stop) // 2
                halves = [(part, start, middle), (part, middle, stop)]
                pieces = [half for half in halves if half[2] > half[1]]
            if len(pieces) > 1 or self._ranks > 1:
                self._of_passes.zero_()
                self.sums = [self._of_passes]
                self._passes.watch(self._parameters)
        try:
            yield pieces
        finally:
            self._passes.unwatch()

    def add_pass(self, samples: int, weight: torch.Tensor | float, reference: int) -> None:
        """A backward pass over `samples` has ended. Its gradient is their mean's, times `weight` /
        `reference`.
        """
        square = self._passes.take()
        if square is not None:
            self._of_passes[0] += square * (reference / torch.as_tensor(weight)) ** 2
            self._of_passes[1] += 1 / samples
            self._of_passes[2] += 1

    def add_update(self, samples: int) -> None:
        """The parameters hold the mean gradient of all `samples` now. Waits for no device."""
        whole = squared_norm(self._parameters).reshape(1)
        self._pending = samples, torch.cat([self._of_passes, whole])

    def read(self) -> None:
        """What was looked at last counts from now on. Waits for the device to have come so far."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        samples, (squares, inverses, passes, whole) = pending[0], pending[1].tolist()
        if passes > 1:
            # of passes of uneven sizes the harmonic mean is exact: noise is by 1 / samples
            self.scale = self.scale.add(passes / inverses, squares / passes, samples, whole)


def noise_row(
    config: Config, sharded: bool, accumulation: int, ranks: int, decomposes: bool
) -> EffectiveSetting:
    """What `config.noise_scale` becomes, and why."""
    asked, parts = config.noise_scale, accumulation * ranks
    effective, why = "off", "as asked"
    if asked == "off":
        pass
    elif is_imaginary():
        why = "an imaginary card has no data"
    elif sharded:
        why = "under FSDP2 no rank has a whole gradient of its own"
    elif config.cuda_graphs:
        why = "a replayed CUDA graph has no pass to look into"
    elif parts > 1:
        effective = "auto"
        why = f"from the {parts:,} micro-batches of one update in {EVERY}, over all ranks"
    elif asked == "auto":
        why = f'an update has one part; "split" makes one in {EVERY} in two halves'
    elif not decomposes:
        why = "the loss is no mean over samples: an update in two halves would be another one"
    else:
        effective, why = "split", f"one update in {EVERY} is made in two halves"
    return EffectiveSetting("noise_scale", asked, effective, why)
