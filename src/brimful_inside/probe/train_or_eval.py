"""Whether the script trains or evaluates, by what it calls: the signs by which its course goes on
(`course.py`)."""

from __future__ import annotations

import weakref
from typing import Any, Optional, Tuple

import torch

from brimful_inside.probe.hooks.forward_backward import trained_in, trains_now
from brimful_inside.probe.hooks.optimizer_steps import is_to_be_trained
from brimful_inside.probe.passes import EVAL, TRAIN, Pass


class TrainOrEval:
    """Of a probe whose parts it asks."""

    def __init__(self, probe: Any):
        self._probe = probe
        self._course = probe.course
        self.batch_since_step = False  # a training batch came since the last step
        # The module whose eval() was called since the last sign of training.
        self._set_to_eval: Any = None
        # train() was called during the current evaluation, after its last eval().
        self._set_to_train = False
        # A forward pass without gradients began it, which a further step on the same batch (by a
        # teacher, a generator) would show to be of the training.
        self._may_be_training = False

    # --- signs ---

    def trains(self) -> None:
        self._set_to_eval = None
        self._set_to_train = False
        self._course.train()

    def went_backward(self) -> None:
        """A backward pass or a step begins."""
        mistaken = self._probe.loaders.trained() if self._probe.loaders.recent else None
        if mistaken is not None:
            self._was_training(mistaken)
        self._trains_on_the_same_batch()
        self.trains()

    def _trains_on_the_same_batch(self) -> None:
        """A forward pass with gradients or a backward pass begins: if it is of a training's batch,
        and no other one was drawn since the latest step, no evaluation came between."""
        if self._may_be_training and self._course.evaluates:
            self._course.evaluation_was_none()

    def _evaluate(self, evaluation: Optional[Pass], may_be_training: bool = False) -> None:
        self._may_be_training = may_be_training
        if self._course.evaluate(evaluation):
            self._set_to_train = False

    def _was_training(self, mistaken: Pass) -> None:
        """What looked like an evaluation was a part of training."""
        self._probe.outside.evaluation_ends(batches=0)
        if mistaken.role != TRAIN:
            mistaken.loader.role = None
            self._probe.loaders.decide(mistaken, TRAIN)
        if self._course.evaluates and self._course.evaluation is mistaken:
            self._course.evaluation_was_none()

    def tried(self, visit: Any, failed: bool) -> None:
        """What was tried before the first step is over. Its memory is in the cache now, so the
        setup does not go on: after a failure that phase does, else the training, whose times begin
        with its own first sign."""
        self._course.leave(visit, then=visit.name if failed else TRAIN)

    def eval_called(self, module: Any) -> None:
        """Module.eval() outside of a step. Most evaluations begin so."""
        if not self._probe.steps.stepping:
            self._set_to_eval = weakref.ref(module)
            self._set_to_train = False
            if not self._probe.steps.count and is_to_be_trained(module):
                self._probe.forward.arm()  # an evaluation before the first step may have no loader

    def train_called(self) -> None:
        """Module.train(). After an evaluation the next forward pass may be of training: its peak is
        not the evaluation's.
        """
        if self._course.evaluates and not self._set_to_train:
            self._set_to_train = True
            self._probe.forward.arm()

    # --- batches and forward passes ---

    def role_of(self, pass_: Pass) -> Optional[str]:
        if pass_.role is not None:
            return pass_.role
        if not torch.is_grad_enabled() or self._in_eval_mode():
            return EVAL
        return pass_.loader.role

    def _in_eval_mode(self) -> bool:
        """Whether what is trained is. A frozen encoder stays so, as a copy for averages may: a
        forward pass will show.
        """
        steps = self._probe.steps
        module = self._set_to_eval() if self._set_to_eval is not None and steps.count else None
        return module is not None and not module.training and steps.trains(module)

    def batch_given(self, pass_: Pass, role: Optional[str]) -> None:
        if role == TRAIN:
            self.batch_since_step = True
            self._course.resume()
        elif role == EVAL:
            if pass_.role is None:
                self._probe.loaders.decide(pass_, EVAL)
                # a model in training mode, with gradients, would show that this was a mistake
                self._probe.forward.arm()
            if not self._probe.steps.stepping:
                self._evaluate(pass_)
        else:
            if self._set_to_train and torch.is_grad_enabled():
                self._course.resume()  # a first pass over this loader
            self._probe.forward.arm()

    def forward_begins(self, module: Any) -> None:
        latest, steps = self._probe.loaders.latest, self._probe.steps
        if torch.is_grad_enabled() and module.training:
            if latest is not None and not latest.ended and latest.role is None:
                self._probe.loaders.decide(latest, TRAIN)
            elif latest is not None and latest.role == EVAL and latest.may_be_mistaken:
                self._was_training(latest)
            self._trains_on_the_same_batch()
            self.trains()
            return
        # Its batch went into the step before: what comes now without gradients, by whatever module
        # (a copy that averages the weights), is of no step unless training goes on without another.
        batch_is_used = steps.count > 0 and latest is not None and latest.role == TRAIN
        aside = batch_is_used and not torch.is_grad_enabled()
        trains = steps.trains(module)
        if not steps.stepping and not self.batch_since_step and (trains or aside):
            if latest is not None and latest.role is None:
                self._probe.loaders.decide(latest, EVAL)
            self._evaluate(latest, may_be_training=aside and (module.training or not trains))
        if (
            self._course.evaluates
            and not torch.is_grad_enabled()
            and (module.training or self._set_to_train)
        ):
            # training may resume without a call of train()
            self._probe.forward.arm(with_gradients=True)

    def now(self, trace_left: Any) -> Tuple[str, int, bool]:
        """(phase, step, whether all steps are made, those of the trial or those of the script
        itself) of a failure. Where no hook saw the first forward pass after an evaluation begin
        (torch.compile), the stack shows the phase; `trace_left`: the traceback of what nobody
        caught."""
        trains = self._course.evaluates and (
            trains_now() or (self._set_to_train and trained_in(trace_left))
        )
        return (
            TRAIN if trains else self._probe.phases.current,
            self._probe.steps.count,
            self._course.measured or self._course.extended,
        )
