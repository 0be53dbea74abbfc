"""The probe of one rank: ties the hooks together and decides which phase the script is in."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any, List, Optional, Tuple

import torch

from brimful_inside.probe import report
from brimful_inside.probe.context import ProcessContext, guarded, note_own_error
from brimful_inside.probe.hooks.audited import Audited
from brimful_inside.probe.hooks.data_loaders import Loaders
from brimful_inside.probe.hooks.exceptions import Failures
from brimful_inside.probe.hooks.forward_backward import (
    ForwardWatch,
    Losses,
    Repetition,
    trained_in,
    trains_now,
)
from brimful_inside.probe.hooks.optimizer_steps import CapturedSteps, Steps
from brimful_inside.probe.hooks.passes import EVAL, KEPT_STEPS, TRAIN, Pass
from brimful_inside.probe.memory.leaks import Leaks
from brimful_inside.probe.memory.phases import Phases
from brimful_inside.probe.process import exit
from brimful_inside.probe.process.early_stop import FEW_OPERATIONS, MAX_SAME_PASSES, EarlyStop
from brimful_inside.probe.timing import RunCounter, StepTimes, clock_for
from brimful_inside.simulator.trace import BETWEEN, EVALUATION
from brimful_inside.wire import Progress, RunCounters

_BETWEEN = BETWEEN, None
PROGRESS_S = 0.5
REPORT_S = 1.0
# of a whole run: what is lost at most where it is killed (assumed to be little of a night)
RUN_REPORT_S = 30.0
REPORT_SHARE = 0.05  # later snapshots come at most this often, as a share of the time that passed,
REPORT_PAUSE = 500  # and this many times as long after the last one as that took


class Probe:
    """All that is measured of one rank. Its methods run inside the script's own calls and never
    raise.
    """

    def __init__(self, context: ProcessContext, device: Any, host: Any, worst: Any = None):
        config = context.config
        imaginary = config.device == "imaginary"
        self.context = context
        self.config = config
        self.device = device
        self.worst = worst
        self.phases = Phases(device, host)
        self.times = StepTimes(
            clock_for(config.device), config.warmup_steps, config.steps if config.cut else None
        )
        self.losses = Losses(imaginary, config.cut)
        self.counter = None if config.cut else RunCounter(device.held)
        self.loaders = Loaders(config.audits, imaginary, config.time_loader)
        self.steps = Steps(self.step_begins, self.step_made, self._decide_end)
        self.captured = CapturedSteps(
            self.steps, self.step_captured, self.loaders.consumption.worked_on
        )
        self.ending = EarlyStop(config)
        self.leaks = Leaks(device.alive_bytes, config.steps)
        self.forward = ForwardWatch(self.forward_begins)
        self.compilation_begins = self.forward.disarm
        self._repetition = Repetition(
            lambda: device.peaks()[0], MAX_SAME_PASSES, self._evaluation_repeats
        )
        self.failures = Failures(context.emit, self._now)
        self.left_a_thread = self.failures.left_a_thread
        device.on_out_of_memory(self.failures.out_of_memory)
        self.audited = Audited()
        self.loading_s: List[float] = []
        self.warmup_steps = config.warmup_steps
        self._clocked = config.cut and config.device != "imaginary" and not config.worst_batch
        self.first_step_unix_s: Optional[float] = None
        self.inputs: List[
            Tuple[int, Optional[int]]
        ] = []  # (backward passes, samples) by step, without a DataLoader
        self.reported_end = False
        # training, as the times of steps see it: begun, and not interrupted by an evaluation
        self._timed = False
        self._backwards = 0  # since the last step
        self._backwards_in_all, self._step_by_hand = 0, False
        self._first_dimension: Optional[int] = None  # of the model's input, in this step
        self._batch_since_step = False  # a training batch came since the last step
        self._set_to_eval: Any = (
            None  # the module whose eval() was called since the last sign of training
        )
        self._set_to_train = (
            False  # train() was called during the current evaluation, after its last eval()
        )
        self._evaluates: Optional[Pass] = None  # the pass whose batch began the current evaluation
        self._between: Optional[Pass] = (
            None  # the training's pass that has ended, until the next one begins
        )
        self._timed_evaluation: Optional[Pass] = None  # the evaluation's pass that is under way
        self._trace_left: Any = None  # the traceback of what nobody caught
        self._next_progress = self._next_report = self._started = time.monotonic()
        self._reporting = threading.RLock()

    # --- phases ---

    def _train(self) -> None:
        """A sign of training."""
        if self._between is not None or self._timed_evaluation is not None:
            # over the training's data it was none, but for a mode that was still the evaluation's
            one = self._timed_evaluation
            self._evaluation_over(
                batches=0 if one is not None and one.loader.role == TRAIN else None
            )
            latest, before = self.loaders.latest, self._between
            self._between_over(
                latest is not None and before is not None and latest.serial > before.serial
            )
        self._set_to_eval = None
        self._set_to_train = False
        self._repetition.stop()
        self.ending.training_resumes()
        self._leave_if_over()
        self._to_train()

    def _to_train(self, closing_as: Optional[str] = None) -> None:
        if self.phases.to(TRAIN, closing_as) or not self._timed:
            self._timed = True
            self.times.begin()
            if self.counter is not None:
                self.counter.begin()

    def _evaluate(self, one: Optional[Pass]) -> None:
        self._timed = False
        if self.phases.to(EVAL):
            self._evaluates = one
            self._set_to_train = False
            self.ending.evaluation_begins(self.steps.count)
            self._report_progress()

    def _evaluation_begins(self, one: Optional[Pass]) -> None:
        """A pass over an evaluation's data, whose work is timed apart."""
        if (
            one is not None
            and not one.ended
            and self.steps.count
            and self._timed_evaluation is not one
        ):
            self._evaluation_over()
            self._timed_evaluation = one
            self.device.outside((EVALUATION, self.loaders.number_of(one.loader)))

    def _evaluation_over(self, batches: Optional[int] = None) -> None:
        """It has worked on so many batches; None: on all that were drawn, if the script did not
        break it off, after which anything may have run."""
        one, self._timed_evaluation = self._timed_evaluation, None
        if one is None:
            return
        work = EVALUATION, self.loaders.number_of(one.loader)
        if batches is None and not one.ended:
            self.device.outside_was(work, _BETWEEN)
        share = 1.0 if batches is None else batches / one.given
        self.device.keep_outside(work, round((one.samples or 0) * share))
        self.device.outside(None if self._between is None else _BETWEEN)

    @guarded
    def pass_ended(self, one: Pass) -> None:
        self.loaders.end(one)
        if (one.role or one.loader.role) == TRAIN:
            self._between = one
            self.device.outside(_BETWEEN)
        elif one is self._timed_evaluation:
            batches = self.loaders.consumption.worked_through(one)
            if batches:  # else its only batch is worked on now
                self._evaluation_over(batches)

    def _between_over(self, another: bool) -> None:
        """Training goes on: `another` pass over its data has begun, else a batch of the one before
        was drawn ahead.
        """
        self.device.keep_outside(_BETWEEN, int(another))
        self.device.outside(None)
        if another:
            self._between = None

    def tried(self, visit: Any, failed: bool) -> None:
        """What was tried before the first step is over. Its memory is in the cache now, so the
        setup does not go on: after a failure that phase does, else the training, whose times begin
        with its own first sign."""
        self.phases.leave(visit, cached=False, then=visit.name if failed else TRAIN)
        self._timed = False

    def _now(self) -> Tuple[str, int, bool]:
        """(phase, step, whether all steps are made, those of the trial or those of the script
        itself) of a failure. Where no hook saw the first forward pass after an evaluation begin
        (torch.compile), the stack shows the phase."""
        trains = self.phases.current == EVAL and (
            trains_now() or (self._set_to_train and trained_in(self._trace_left))
        )
        return (
            TRAIN if trains else self.phases.current,
            self.steps.count,
            self.ending.measured or self.ending.extended,
        )

    @guarded
    def left_the_script(self, error: BaseException) -> None:
        """An exception that nobody caught: its calls have returned by now, and only its traceback
        holds them.
        """
        self._trace_left = error.__traceback__
        self.failures.left_the_script(error)

    @property
    def trains(self) -> bool:
        return self.phases.current == TRAIN

    # --- loaders ---

    @guarded
    def before_pass(self, loader: Any) -> Any:
        """A pass over a loader is about to begin. Returns the iterator to use in place of the
        loader's own, or None.
        """
        return None if self.worst is None else self.worst.before_pass(loader)

    @guarded
    def same_batch(self, loader: Any) -> Any:
        """An iterator that gives a batch of before again, once a trial has its steps; None where
        none is kept.
        """
        return (
            self.loaders.same_batch(loader)
            if self.ending.measured and not self.phases.named
            else None
        )

    @guarded
    def stops(self, one: Pass) -> bool:
        """Whether this pass ends before its next batch."""
        self._end_step_by_hand()
        role, ends = None if self.phases.named else self._role_now(one), False
        if role == EVAL:
            operations = self.device.operations() - one.operations
            ends = self.ending.stops_evaluation(one.given, self.steps.count, operations)
            one.ahead = one.ahead or (one.given == 1 and operations <= FEW_OPERATIONS)
            if one.ahead and self.ending.is_over_long_evaluation(one.given, operations):
                self._evaluation_over(batches=one.given - 1)
                self._leave_evaluation("its first batch, of %d operations on the card" % operations)
            if self.config.audits:
                one.marks.append(self.times.mark())
        elif role == TRAIN:
            if self._between is not None and one is not self._between:
                self._evaluation_over()
                self._between_over(another=True)
            self._train()
            ends = self.ending.stops_training(one.given)
            self._leave_if_over()
        goes_on = self.leaks.batch(one, ends)
        return ends and not goes_on

    def _role_now(self, one: Pass) -> Optional[str]:
        if one.role is not None:
            return one.role
        if not torch.is_grad_enabled() or self._in_eval_mode():
            return EVAL
        return one.loader.role

    def eval_called(self, module: Any) -> None:
        """Module.eval() outside of a step. Most evaluations begin so."""
        if not self.steps.stepping:
            self._set_to_eval = weakref.ref(module)
            self._set_to_train = False

    def train_called(self) -> None:
        """Module.train(). After an evaluation the next forward pass may be of training: its peak is
        not the evaluation's.
        """
        if self.phases.current == EVAL and not self._set_to_train:
            self._set_to_train = True
            self.forward.arm()

    def _in_eval_mode(self) -> bool:
        """Whether what is trained is. A frozen encoder stays so, as a copy for averages may: a
        forward pass will show.
        """
        module = self._set_to_eval() if self._set_to_eval is not None and self.steps.count else None
        return module is not None and not module.training and self.steps.trains(module)

    @guarded
    def batch_given(self, one: Pass, iterator: Any, batch: Any, waited_s: float) -> None:
        self.failures.script_continues()
        if not one.given:
            one.operations = self.device.operations()
        self.loaders.gave(one, iterator, batch, waited_s)
        role = self._role_now(one)
        if role == TRAIN:
            if self.config.cut and self.config.device == "imaginary":
                self.loaders.keep(one, iterator, batch)
            self._batch_since_step = True
            self._to_train()
        elif role == EVAL:
            if one.role is None:
                self.loaders.decide(one, EVAL)
                # a model in training mode, with gradients, would show that this was a mistake
                self.forward.arm()
            if not self.steps.stepping:
                self._evaluate(one)
                self._evaluation_begins(one)
        else:
            if self._set_to_train and torch.is_grad_enabled():
                self._to_train()  # a first pass over this loader
            self.forward.arm()
        self._report_progress()

    # --- work ---

    @guarded
    def forward_begins(self, module: Any, args: Any) -> None:
        """The first forward pass of a module since a step, or since a batch whose use is not known."""
        self._end_step_by_hand()
        self.loaders.consumption.worked_on()
        if self._first_dimension is None and not self.loaders.any:
            self._first_dimension = _samples_in(args, self.config.settings.get("batch_size"))
        if torch.is_grad_enabled() and module.training:
            self._trains_forward()
            return
        if not self.steps.stepping and not self._batch_since_step and self.steps.trains(module):
            latest = self.loaders.latest
            if latest is not None and latest.role is None:
                self.loaders.decide(latest, EVAL)
            self._evaluate(latest)
            self._evaluation_begins(latest if latest is not None and latest.role == EVAL else None)
        if (
            self.ending.measured
            and self.config.cut
            and self.config.device == "imaginary"
            and not torch.is_grad_enabled()
        ):
            self._repetition.watch(module)
        if (
            self.phases.current == EVAL
            and not torch.is_grad_enabled()
            and (module.training or self._set_to_train)
        ):
            self.forward.arm(with_gradients=True)  # training may resume without a call of train()

    def _trains_forward(self) -> None:
        latest = self.loaders.latest
        if latest is not None and not latest.ended and latest.role is None:
            self.loaders.decide(latest, TRAIN)
        elif latest is not None and latest.role == EVAL and latest.may_be_mistaken:
            self._was_training(latest)
        self._train()

    def _evaluation_repeats(self) -> None:
        self._leave_evaluation(
            "%d forward passes in a row that took no more memory" % MAX_SAME_PASSES
        )

    def _leave_evaluation(self, after: str) -> None:
        self.context.note("the evaluation was ended after %s: what follows was not seen" % after)
        exit.leave(self)

    def _was_training(self, one: Pass) -> None:
        """What looked like an evaluation was a part of training, and its peak belongs there."""
        self._evaluation_over(batches=0)
        if one.role != TRAIN:
            one.loader.role = None
            self.loaders.decide(one, TRAIN)
        if self.phases.current == EVAL and self._evaluates is one:
            self.ending.evaluation_was_none()
            self._to_train(closing_as=TRAIN)

    @guarded
    def backward_begins(self, tensors: Any) -> None:
        self._end_step_by_hand()
        self.failures.script_continues()
        self.loaders.consumption.worked_on()
        self._backwards += 1
        self._backwards_in_all += 1
        self.losses.backward(tensors)
        self._sign_of_training()
        self._report_progress()
        if self.steps.are_by_hand(self._backwards_in_all, _device_of(tensors)):
            self._step_by_hand = True
            self.forward.arm()

    def _end_step_by_hand(self) -> None:
        """The first sign of what comes after a backward pass: the weights have been changed by now."""
        if self._step_by_hand:
            self._step_by_hand = False
            self.steps.made_by_hand()

    def _sign_of_training(self) -> None:
        mistaken = self.loaders.trained() if self.loaders.recent else None
        if mistaken is not None:
            self._was_training(mistaken)
        self._train()

    def step_begins(self) -> None:
        if self.first_step_unix_s is None:
            self.first_step_unix_s = time.time()
            exit.world()  # the process group may be gone when the report is written
        self.failures.script_continues()
        self._sign_of_training()

    def step_made(self, number: int) -> None:
        if number == 1 and self.steps.pace is not None:
            self.times.works_on(self.steps.pace.device)
            self.audited.steps(self.steps.pace.groups)
        if number == self.config.warmup_steps and self._clocked:
            more = self.loaders.steps_ahead(number)
            self.times.extend(more)
            self.ending.extend(more)
        measured = not self.ending.measured and self.times.end_step(number)
        waited_s = self.loaders.take_waited_s()
        if measured and self.config.device != "imaginary":
            self.loading_s.append(waited_s)
        samples = self._samples_of_step()
        self.losses.step()
        if self.counter is not None:
            self.counter.step(samples, waited_s)
        self._first_dimension, self._backwards, self._batch_since_step = None, 0, False
        self.device.step(
            number, counts=not self.ending.measured
        )  # later ones may have saved a checkpoint in between
        if number >= self.warmup_steps:
            self.leaks.step(self.loaders.latest)
        if number == 1:
            self.loaders.time_trained(self.device.leave_worker)
        if self._between is not None:  # of a batch that was drawn ahead
            self.device.outside(_BETWEEN)
        self.forward.arm()
        self._report_progress()
        self._decide_end()

    @guarded
    def scaler_steps(self, scaler: Any) -> None:
        self.losses.unscale(scaler)

    @guarded
    def scaler_skipped(self, optimizer: Any) -> None:
        self.losses.skip()
        self.steps.skipped(optimizer)

    def _samples_of_step(self) -> Optional[int]:
        """By what the loaders gave; else by the model's input at each backward pass."""
        self.loaders.consumption.step()
        if self.loaders.any_trained:
            return self.loaders.consumption.latest
        samples = (
            None
            if self._first_dimension is None
            else self._first_dimension * max(1, self._backwards)
        )
        if len(self.inputs) < KEPT_STEPS:
            self.inputs.append((self._backwards, samples))
        return samples

    def step_captured(self) -> None:
        """A CUDA graph holds a whole step: the steps before it were its warm-up, and its replays
        are those that count.
        """
        self.warmup_steps = self.steps.count + self.config.warmup_steps
        self.times.restart(self.warmup_steps)
        self.ending.restart(self.steps.count)
        self.loading_s.clear()
        self.leaks.restart()
        self._first_dimension, self._backwards = None, 0

    def _decide_end(self) -> None:
        before = self.ending.measured
        self.ending.stepped(
            self.steps.count, self.steps.attempts, self.loaders.any_trained, self._backwards_in_all
        )
        if self.ending.measured and not before and self.config.cut and exit.others() > 0:
            exit.follow_others(self)
        self._leave_if_over()

    def _leave_if_over(self) -> None:
        if self.ending.over:
            exit.leave(self)

    # --- reports ---

    def _report_progress(self) -> None:
        now = time.monotonic()
        replaces = not self.config.cut
        if now >= self._next_progress:
            self._next_progress = now + PROGRESS_S
            seen = (
                self.phases.current,
                self.steps.count,
                time.time(),
                self.counters(),
                exit.world()[0],
            )
            self.context.emit(
                Progress(*seen, self.loaders.batches_seen, self._backwards_in_all), replaces
            )
        if now >= self._next_report:
            self.context.emit(report.report_of(self, "running"), replaces)
            after = time.monotonic()
            pause = max(
                REPORT_S, REPORT_SHARE * (after - self._started), REPORT_PAUSE * (after - now)
            )
            self._next_report = after + (pause if self.config.cut else min(pause, RUN_REPORT_S))

    def counters(self) -> Optional[RunCounters]:
        """Of a whole run; None of a trial."""
        return (
            None
            if self.counter is None
            else self.counter.read(self.losses.latest, self.losses.reported)
        )

    @guarded
    def report_end(self, ended: Optional[str] = None, waits: bool = True) -> None:
        """The last report: once, however the process ends. Without `waits` it reads nothing that
        waits for the device.
        """
        with (
            self._reporting
        ):  # a second thread continues, perhaps to end the process, when the report is written
            if self.reported_end:
                return
            self.reported_end = True
            self.failures.script_continues()
            if self._timed_evaluation is not None and self._timed_evaluation.ended:
                self._evaluation_over()
            self.device.flush()
            how = ended or report.how_it_ended(self)
            try:
                self.context.emit(report.report_of(self, how, waits))
            except Exception:
                note_own_error("the last report")
                self.context.emit(report.minimal_report(self, how))


def _device_of(tensors: Any) -> Any:
    """Of what backward() was called on: a tensor, or several."""
    first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors or ()), None)
    return getattr(first, "device", None)


def _samples_in(args: Any, batch_size: Any = None) -> Optional[int]:
    """The first dimension of the model's input; or the second where that is the batch size set
    (recurrent networks).
    """
    first = (
        next((a for a in args if isinstance(a, torch.Tensor)), None)
        if isinstance(args, tuple)
        else None
    )
    if first is None or first.dim() == 0:
        return None
    return int(batch_size if batch_size in tuple(first.shape[:2]) else first.shape[0])
