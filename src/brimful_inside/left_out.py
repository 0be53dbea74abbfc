"""What a trial leaves out, by one rule: a stretch of work may be left out once its peak stands and
what it would have run is known.

- Micro-batches of a step, and forward passes without gradients: after a few calls alike
  (`alike_enough`) the imaginary card plays their kernels (`imaginary/attribution/repeats.py`).
- Batches of an evaluation: after a few, or one of many operations (`Evaluations.stops`), the probe
  ends the pass over their loader. An evaluation that drew its second batch ahead of so long a first
  one is over with it (`Evaluations.is_over`), and the trial too.
- An evaluation in trials at other batch sizes, and between the epochs of one whose batches are as
  drawn: after one trial of it (`takes_little`), as `brimful/ask/shown_once.py` decides.

A report says of each what was run, and what that stands for (`wire.LeftOut`).
"""

from __future__ import annotations

from brimful_inside.wire import TrialConfig

ALIKE = 3  # calls with the same numbers, before one is not run
# Of calls without gradients that differ in numbers alone: the steps of a diffusion model.
ALIKE_OTHERWISE = 10
# Of one batch: generated token by token, or sampled. A second one would show the same peak.
MANY_OPERATIONS = 50_000
FEW_OPERATIONS = 200  # that send a batch to the card
# Of what the training allocates, what such an evaluation does at most: both grow with the batch,
# and at other sizes it is not looked at.
SHARE_OF_TRAINING = 0.5


def alike_enough(same: int, alike: int, same_numbers: bool, with_gradients: bool) -> bool:
    """Whether calls show what the next one does: `alike` of them one after another, the last `same`
    of them with the same numbers among their arguments; `same_numbers`: as the next one has."""
    if same_numbers and same >= ALIKE:
        return True
    return not with_gradients and alike >= ALIKE_OTHERWISE


class Evaluations:
    """How much a trial sees of each of its evaluations. On a real device no operations are counted,
    and `operations` is 0."""

    def __init__(self, config: TrialConfig) -> None:
        self._config = config

    def stops(self, given: int, steps: int, operations: int = 0) -> bool:
        """Whether a pass ends here, `given` batches after its start. Before the first step it may
        be an encoding whose results are needed."""
        most = 1 if operations >= MANY_OPERATIONS else self._config.ends.eval_batches
        return self._config.cut and steps > 0 and given >= most

    def is_over(self, given: int, measured: bool, operations: int) -> bool:
        """Whether the trial ends here, in an evaluation that drew a batch ahead (accelerate) and so
        would work on a second one for as long as on its first."""
        return self._config.cut and measured and given > 1 and operations >= MANY_OPERATIONS


def takes_little(eval_bytes: int, train_bytes: int) -> bool:
    """Whether an evaluation that a trial showed whole need not be seen at other batch sizes, if it
    is long: its peak stays below the training's there as well."""
    return eval_bytes <= SHARE_OF_TRAINING * train_bytes
