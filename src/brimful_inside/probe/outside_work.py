"""What runs on the card outside of the training's passes."""

from __future__ import annotations

from typing import Any, Optional, Tuple

from brimful_inside.probe.passes import TRAIN, Pass
from brimful_inside.simulator.trace import BETWEEN, EVALUATION

Work = Tuple[str, Optional[int]]  # `name` and `loader` of a `trace.Outside`
_BETWEEN: Work = (BETWEEN, None)


class OutsideWork:
    """What runs on the card outside of the training's passes: evaluations, and what comes between
    two passes over the training's data. The clocks of imaginary cards count it (`trace.Outside`).
    `device` has them, and `loaders` know which evaluation is whose."""

    def __init__(self, device: Any, loaders: Any):
        self._device = device
        self._loaders = loaders
        # The training's pass that has ended, until the next one begins.
        self._between: Optional[Pass] = None
        self._evaluation: Optional[Pass] = None  # whose pass is under way

    def _runs(self, work: Optional[Work]) -> None:
        """From here on what runs is this work; None: it is of the training."""
        for clock in self._device.clocks:
            clock.outside(work)

    def _keep(self, work: Work, amount: int) -> None:
        """What ran as this work was so much of it; with 0 it is left out."""
        for clock in self._device.clocks:
            clock.keep_outside(work, amount)

    def evaluation_begins(self, evaluation: Pass) -> None:
        if not evaluation.ended and self._evaluation is not evaluation:
            self.evaluation_ends()
            self._evaluation = evaluation
            self._runs(self._work_of(evaluation))

    def evaluation_ends(self, batches: Optional[int] = None) -> None:
        """It has worked on so many batches; None: on all that were drawn, if the script did not
        break it off, after which anything may have run."""
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is None:
            return
        work = self._work_of(evaluation)
        if batches is None and not evaluation.ended:
            for clock in self._device.clocks:
                clock.outside_was(work, _BETWEEN)
        share = 1.0 if batches is None else batches / evaluation.given
        self._keep(work, round((evaluation.samples or 0) * share))
        self.goes_on()

    def _work_of(self, evaluation: Pass) -> Work:
        return EVALUATION, self._loaders.number_of(evaluation.loader)

    def goes_on(self) -> None:
        """What ran aside, an evaluation or a step of a batch drawn ahead, is over."""
        self._runs(None if self._between is None else _BETWEEN)

    def pass_ends(self, ended: Pass) -> None:
        if (ended.role or ended.loader.role) == TRAIN:
            self._between = ended
            self._runs(_BETWEEN)
        elif ended is self._evaluation:
            batches = self._loaders.consumption.worked_through(ended)
            if batches:  # else its only batch is worked on now
                self.evaluation_ends(batches)

    def draws_for_training(self, drawing: Pass) -> None:
        """The script wants a batch of this pass over the training's data."""
        if self._between is not None and drawing is not self._between:
            self.evaluation_ends()
            self._training_goes_on(another=True)

    def training(self) -> None:
        """A sign of training."""
        if self._between is None and self._evaluation is None:
            return
        # Over the training's data it was no evaluation, but for a mode that was still one's.
        mistaken = self._evaluation is not None and self._evaluation.loader.role == TRAIN
        self.evaluation_ends(batches=0 if mistaken else None)
        latest, before = self._loaders.latest, self._between
        another = latest is not None and before is not None and latest.serial > before.serial
        self._training_goes_on(another)

    def _training_goes_on(self, another: bool) -> None:
        """`another` pass over its data has begun, else the one before drew a batch ahead."""
        self._keep(_BETWEEN, int(another))
        self._runs(None)
        if another:
            self._between = None

    def process_ends(self) -> None:
        if self._evaluation is not None and self._evaluation.ended:
            self.evaluation_ends()
