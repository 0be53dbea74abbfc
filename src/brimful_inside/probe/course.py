"""Where the script is: setup, then training, step after step, and evaluations by turns, until the
trial is over.

    setup --> train --> eval --> train ... --> over
      |        steps     |
      '------> eval -----'

`train_or_eval.py` recognises the signs and tells them here. `phases` keep the peaks, `outside` the
work that is none of the training, `limits` say how long each state lasts, and two callbacks time
the training and end the process."""

from __future__ import annotations

from typing import Any, Callable, Optional

from brimful_inside.probe.hooks.optimizer_steps import Steps
from brimful_inside.probe.memory.phases import Phases
from brimful_inside.probe.outside_work import OutsideWork
from brimful_inside.probe.passes import EVAL, TRAIN, Pass
from brimful_inside.probe.process.early_stop import Limits
from brimful_inside.probe.script_text import branches


class Course:
    def __init__(
        self,
        limits: Limits,
        steps: Steps,
        phases: Phases,
        outside: OutsideWork,
        begins_to_train: Callable[[], None],
        is_over: Callable[[], None],
    ):
        self._limits = limits
        self._steps = steps
        self._phases = phases
        self._outside = outside
        self._begins_to_train = begins_to_train
        self._is_over = is_over
        self.measured = False  # all steps of the trial are made: the training loader ends
        # batches were given beyond the script's own epochs: what fails now may be for that
        self.extended = False
        self.evaluated = self._evaluated_before = False  # since training began
        self.evaluation: Optional[Pass] = None  # whose batch began the current evaluation
        # training, as the times of steps see it: begun, and not interrupted by an evaluation
        self._timed = False

    @property
    def evaluates(self) -> bool:
        return self._phases.current == EVAL

    @property
    def _has_evaluated(self) -> bool:
        """Or need not; and a line that the trial is to reach was reached."""
        over = self._limits.ends_with_steps or self.evaluated
        return over and not branches.not_reached(self._steps.count)

    def train(self) -> None:
        """A sign of training. After the measured steps and an evaluation, that is the end."""
        self._outside.training()
        if self.measured and self._has_evaluated:
            self._is_over()
        self.resume()

    def resume(self, closing_as: Optional[str] = None) -> None:
        """Training begins or goes on."""
        if self._timed and self._phases.current == TRAIN:
            return  # as at most of the signs, of which a step has five
        if self._phases.to(TRAIN, closing_as) or not self._timed:
            self._timed = True
            self._begins_to_train()

    def evaluate(self, evaluation: Optional[Pass]) -> bool:
        """A sign of an evaluation, of which this pass gives the batches. True if it begins."""
        self._timed = False
        begins = self._phases.to(EVAL)
        if begins:
            self.evaluation, self._evaluated_before = evaluation, self.evaluated
            self.evaluated = self.evaluated or self._steps.count > 0
        if evaluation is not None and evaluation.role == EVAL and self._steps.count:
            self._outside.evaluation_begins(evaluation)
        return begins

    def evaluation_was_none(self) -> None:
        """What looked like one was a part of training, and its peak belongs there."""
        self.evaluated = self._evaluated_before
        self.resume(closing_as=TRAIN)

    def leave(self, visit: Any, then: str) -> None:
        """A phase that the script named is over, in which it tried something."""
        self._phases.leave(visit, cached=False, then=then)
        self._timed = False

    def step(self, has_loader: bool, passes: int, samples: int) -> None:
        """A step was made, or skipped by a GradScaler. `passes`: backward ones; `samples`: of all
        steps so far, over all ranks."""
        steps, attempts = self._steps.count, self._steps.attempts
        if self.measured:
            if self._limits.too_many(has_loader, passes) or self._has_evaluated:
                self._is_over()
        elif self._limits.enough(steps, attempts, passes, samples):
            self.measured = True
            if self._has_evaluated:
                self._is_over()

    def restart(self) -> None:
        """All steps so far were the warm-up of a CUDA graph: those that count are its replays."""
        self.measured = False
        self._limits.restart(self._steps.count)

    def ends_training(self, given: int) -> bool:
        """Whether a pass over a training loader ends here, `given` batches after its start."""
        if not self.measured:
            return False
        ends, over = self._limits.ends_pass(given)
        if over:
            self._is_over()
        return ends
