"""Whether the script trains or evaluates, by what it calls, and so which phase it is in, and whose
the work on the card is."""

from __future__ import annotations

import weakref
from typing import Any, Optional, Tuple

import torch

from brimful_inside.probe.hooks.forward_backward import trained_in, trains_now
from brimful_inside.probe.hooks.optimizer_steps import is_to_be_trained
from brimful_inside.probe.passes import EVAL, TRAIN, Pass
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


class TrainOrEval:
    """Of a probe whose parts it tells."""

    def __init__(self, probe: Any):
        self._probe = probe
        # Training, as the times of steps see it: begun, and not interrupted by an evaluation.
        self._timed = False
        self.batch_since_step = False  # a training batch came since the last step
        # The module whose eval() was called since the last sign of training.
        self._set_to_eval: Any = None
        # train() was called during the current evaluation, after its last eval().
        self._set_to_train = False
        self._evaluates: Optional[Pass] = None  # whose batch began the current evaluation
        # A forward pass without gradients began it, which a further step on the same batch (by a
        # teacher, a generator) would show to be of the training.
        self._may_be_training = False

    # --- signs ---

    def trains(self) -> None:
        """A sign of training."""
        probe = self._probe
        probe.outside.training()
        self._set_to_eval = None
        self._set_to_train = False
        if probe.config.cut:
            probe.ending.training_resumes()
            probe.leave_if_over()
        self._to_train()

    def _to_train(self, closing_as: Optional[str] = None) -> None:
        if self._timed and self._probe.phases.current == TRAIN:
            return  # as at most of the signs, of which a step has five
        if self._probe.phases.to(TRAIN, closing_as) or not self._timed:
            self._timed = True
            self._probe.begin_times()

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
        if self._may_be_training and self._probe.phases.current == EVAL:
            self._probe.ending.evaluation_was_none()
            self._to_train(closing_as=TRAIN)

    def _evaluate(self, evaluation: Optional[Pass], may_be_training: bool = False) -> None:
        self._timed, self._may_be_training = False, may_be_training
        if self._probe.phases.to(EVAL):
            self._evaluates = evaluation
            self._set_to_train = False
            self._probe.ending.evaluation_begins(self._probe.steps.count)
        if evaluation is not None and evaluation.role == EVAL and self._probe.steps.count:
            self._probe.outside.evaluation_begins(evaluation)

    def _was_training(self, mistaken: Pass) -> None:
        """What looked like an evaluation was a part of training, and its peak belongs there."""
        self._probe.outside.evaluation_ends(batches=0)
        if mistaken.role != TRAIN:
            mistaken.loader.role = None
            self._probe.loaders.decide(mistaken, TRAIN)
        if self._probe.phases.current == EVAL and self._evaluates is mistaken:
            self._probe.ending.evaluation_was_none()
            self._to_train(closing_as=TRAIN)

    def tried(self, visit: Any, failed: bool) -> None:
        """What was tried before the first step is over. Its memory is in the cache now, so the
        setup does not go on: after a failure that phase does, else the training, whose times begin
        with its own first sign."""
        self._probe.phases.leave(visit, cached=False, then=visit.name if failed else TRAIN)
        self._timed = False

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
        if self._probe.phases.current == EVAL and not self._set_to_train:
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
            self._to_train()
        elif role == EVAL:
            if pass_.role is None:
                self._probe.loaders.decide(pass_, EVAL)
                # a model in training mode, with gradients, would show that this was a mistake
                self._probe.forward.arm()
            if not self._probe.steps.stepping:
                self._evaluate(pass_)
        else:
            if self._set_to_train and torch.is_grad_enabled():
                self._to_train()  # a first pass over this loader
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
            self._probe.phases.current == EVAL
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
        trains = self._probe.phases.current == EVAL and (
            trains_now() or (self._set_to_train and trained_in(trace_left))
        )
        return (
            TRAIN if trains else self._probe.phases.current,
            self._probe.steps.count,
            self._probe.ending.measured or self._probe.ending.extended,
        )
