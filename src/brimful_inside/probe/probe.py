"""The probe of one rank: ties the watchers together and decides which phase the script is in."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any, Optional

import torch

from brimful_inside.probe import report
from brimful_inside.probe.context import ProcessContext, guarded, tell_own_error
from brimful_inside.probe.hooks.backward import Losses
from brimful_inside.probe.hooks.cuda_graphs import Captures
from brimful_inside.probe.hooks.data_loaders import Loaders
from brimful_inside.probe.hooks.exceptions import Failures
from brimful_inside.probe.hooks.forward import ForwardWatch, trained_in, trains_now
from brimful_inside.probe.hooks.loader_passes import (
    EVAL,
    KEPT_STEPS,
    TRAIN,
    Iteration,
)
from brimful_inside.probe.hooks.optimizer_steps import Steps
from brimful_inside.probe.memory.leaks import Growth
from brimful_inside.probe.memory.phases import Phases, Visit
from brimful_inside.probe.process import exit
from brimful_inside.probe.process.early_stop import Ending
from brimful_inside.probe.timing.run_counters import Counting
from brimful_inside.probe.timing.step_times import StepTimes, clock_for
from brimful_inside.wire import Progress, RunCounters

PROGRESS_S = 0.5
REPORT_S = 1.0
RUN_REPORT_S = 30.0  # of a whole run: what is lost at most where it is killed (assumed to be little of a night)
REPORT_SHARE = 0.05  # later snapshots come at most this often, as a share of the time that passed,
REPORT_PAUSE = 500  # and this many times as long after the last one as that took


class Probe:
    """Everything that is seen of one rank. Its methods run inside the script's own calls and never raise."""

    def __init__(self, context: ProcessContext, device: Any, host: Any, worst: Any = None):
        config = context.config
        imaginary = config.device == "imaginary"
        self.context = context
        self.config = config
        self.device = device
        self.phases = Phases(device, host)
        self.times = StepTimes(clock_for(config.device), config.warmup_steps, config.steps if config.cut else None)
        self.loading_s: list = []
        self.backwards = 0
        self.losses = Losses(imaginary, not config.cut)
        self.counting = None if config.cut else Counting(device.held)
        self.loaders = Loaders(config.checksums, imaginary)
        self.worst = worst
        self.steps = Steps(self.step_begins, self.step_made, self.step_skipped)
        self.ending = Ending(config)
        self.growth = Growth(device.alive_bytes, config.steps)
        self.captures = Captures(self.steps, self.step_captured, self.loaders.consumption.worked_on)
        self.warmup_steps = config.warmup_steps
        self.first_step_unix_s: Optional[float] = None
        self.failures = Failures(context.emit, lambda: (self._failing_phase(), self.steps.count, self.ending.had_its_own))
        device.on_out_of_memory(self.failures.out_of_memory)
        self.forward = ForwardWatch(self.forward_begins)
        self._put_in_eval: Any = None  # the module whose eval() was called since the last sign of training
        self._put_in_training = False  # train() was called during the evaluation that goes on, after its last eval()
        self._left_by: Any = None  # the traceback of what nobody caught
        self._evaluates: Optional[Iteration] = None  # the pass whose batch began the evaluation that goes on
        self.batch_since_step = False  # a training batch came since the last step
        self.inputs: list = []  # samples of each step by the model's input, for scripts without a DataLoader
        self.first_dimension: Optional[int] = None
        self._next_progress = time.monotonic()
        self._next_report = self._started = time.monotonic()
        self.reported_end = False
        self._telling = threading.RLock()

    # --- phases -------------------------------------------------------------------------------------------------------

    def enter_named_phase(self, name: str) -> Visit:
        return self.phases.enter(name)

    def leave_named_phase(self, visit: Visit, cached: bool) -> None:
        self.phases.leave(visit, cached)

    def _train(self) -> None:
        """A sign of training."""
        self._put_in_eval = None
        self._put_in_training = False
        self.ending.training_resumes()
        self._leave_if_over()
        self._to_train()

    def _to_train(self, closing_as: Optional[str] = None) -> None:
        resumed = self.phases.current != TRAIN
        self.phases.to(TRAIN, closing_as)
        if resumed:
            self.times.begin()
            if self.counting is not None:
                self.counting.begin()

    def _evaluate(self, iteration: Optional[Iteration]) -> None:
        if self.phases.to(EVAL):
            self._evaluates = iteration
            self._put_in_training = False
            self.ending.evaluation_begins(self.steps.count)
            self._progress()

    def _failing_phase(self) -> str:
        """Where the first forward pass after an evaluation was not seen to begin (torch.compile), the stack tells of it."""
        trains = self.phases.current == EVAL and (trains_now() or (self._put_in_training and trained_in(self._left_by)))
        return TRAIN if trains else self.phases.current

    def left_the_script(self, error: BaseException) -> None:
        """An exception that nobody caught: by now its calls have been left, and only its traceback holds them."""
        self._left_by = error.__traceback__
        self.failures.left_the_script(error)

    # --- loaders ------------------------------------------------------------------------------------------------------

    @guarded
    def before_iteration(self, loader: Any) -> Any:
        """A pass over a loader is about to begin. Gives the iterator to use in place of the loader's own, or None."""
        if self.worst is None:
            return None
        return self.worst.before_iteration(loader)

    @guarded
    def stops(self, iteration: Iteration) -> bool:
        """Whether this pass ends before its next batch."""
        ends = self._ends(iteration)
        self.growth.batch(iteration, ends)
        return ends

    def _ends(self, iteration: Iteration) -> bool:
        if self.phases.named:
            return False
        role = self._role_now(iteration)
        if role == EVAL:
            return self.ending.stops_evaluation(iteration.given, self.steps.count)
        if role != TRAIN:
            return False
        self._train()
        stops = self.ending.stops_training(iteration.given)
        self._leave_if_over()
        return stops

    def _role_now(self, iteration: Iteration) -> Optional[str]:
        if iteration.role is not None:
            return iteration.role
        if not torch.is_grad_enabled() or self._in_eval_mode():
            return EVAL
        return iteration.expected_role

    def eval_called(self, module: Any) -> None:
        """Module.eval() outside of a step. Most evaluations begin so."""
        if not self.steps.stepping:
            self._put_in_eval = weakref.ref(module)
            self._put_in_training = False

    def train_called(self) -> None:
        """Module.train(). After an evaluation the next forward pass may be of training: its peak is not the evaluation's."""
        if self.phases.current == EVAL and not self._put_in_training:
            self._put_in_training = True
            self.forward.arm()

    def _in_eval_mode(self) -> bool:
        """Before the first step it may be a copy for averages that was put there for good: the forward pass will tell."""
        module = self._put_in_eval() if self._put_in_eval is not None and self.steps.count else None
        return module is not None and not module.training

    @guarded
    def batch_given(self, iteration: Iteration, iterator: Any, batch: Any, waited_s: float) -> None:
        self.failures.script_goes_on()
        self.loaders.gave(iteration, iterator, batch, waited_s)
        role = self._role_now(iteration)
        if role == TRAIN:
            self.batch_since_step = True
            self._to_train()
        elif role == EVAL:
            if iteration.role is None:
                self.loaders.decide(iteration, EVAL)
                self.forward.arm()  # a model in training mode, with gradients, would show that this was a mistake
            if not self.steps.stepping:
                self._evaluate(iteration)
        else:
            if self._put_in_training and torch.is_grad_enabled():
                self._to_train()  # a first pass over this loader
            self.forward.arm()
        self._progress()

    # --- work ---------------------------------------------------------------------------------------------------------

    @guarded
    def forward_begins(self, module: Any, args: Any) -> None:
        """The first forward pass of a module since a step, or since a batch whose use is not known."""
        self.loaders.consumption.worked_on()
        if self.first_dimension is None and not self.loaders.any:
            self.first_dimension = _samples_in(args, self.config.settings.get("batch_size"))
        if torch.is_grad_enabled() and module.training:
            self._trains_forward()
            return
        if not self.steps.stepping and not self.batch_since_step and self.steps.trains(module):
            latest = self.loaders.latest
            if latest is not None and latest.role is None:
                self.loaders.decide(latest, EVAL)
            self._evaluate(latest)
        if self.phases.current == EVAL and not torch.is_grad_enabled() and (module.training or self._put_in_training):
            self.forward.arm(with_gradients=True)  # no call of train() has to come before training goes on

    def _trains_forward(self) -> None:
        latest = self.loaders.latest
        if latest is not None and not latest.ended and latest.role is None:
            self.loaders.decide(latest, TRAIN)
        elif latest is not None and latest.role == EVAL and latest.given == 1 and not latest.ended:
            self._was_training(latest)
        self._train()

    def _was_training(self, iteration: Iteration) -> None:
        """What looked like an evaluation was a part of training, and its peak belongs there."""
        if iteration.role != TRAIN:
            iteration.watched.role = None
            self.loaders.decide(iteration, TRAIN)
        if self.phases.current == EVAL and self._evaluates is iteration:
            self.ending.evaluation_was_none()
            self._to_train(closing_as=TRAIN)

    @guarded
    def backward_begins(self, tensors: Any) -> None:
        self.failures.script_goes_on()
        self.loaders.consumption.worked_on()
        self.backwards += 1
        self.losses.problem(tensors)
        self._sign_of_training()

    def _sign_of_training(self) -> None:
        mistaken = self.loaders.trained() if self.loaders.recent else None
        if mistaken is not None:
            self._was_training(mistaken)
        self._train()

    def step_begins(self) -> None:
        if self.first_step_unix_s is None:
            self.first_step_unix_s = time.time()
            exit.world()  # the process group may be gone when the report is written
        self.failures.script_goes_on()
        self._sign_of_training()

    def step_made(self, number: int) -> None:
        if number == 1 and self.steps.pace is not None:
            self.times.works_on(self.steps.pace.device)
        measured = self.times.end_step(number)
        waited_s = self.loaders.take_waited_s()
        if measured and self.config.device != "imaginary":
            self.loading_s.append(waited_s)
        self.loaders.consumption.step()
        samples = self.loaders.consumption.latest
        if not self.loaders.any_trained:
            samples = None if self.first_dimension is None else self.first_dimension * max(1, self.backwards)
            if len(self.inputs) < KEPT_STEPS:
                self.inputs.append((self.backwards, samples))
        self.losses.step()
        if self.counting is not None:
            self.counting.step(samples, waited_s)
        self.first_dimension = None
        self.backwards = 0
        self.batch_since_step = False
        self.device.step(number)
        if number >= self.warmup_steps:
            self.growth.step(self.loaders.latest)
        self.forward.arm()
        self._progress()
        self._decide_end()

    def step_captured(self) -> None:
        """A CUDA graph holds a whole step: the steps before it were its warm-up, and its replays are those that count."""
        self.warmup_steps = self.steps.count + self.config.warmup_steps
        self.times.begin_anew(self.warmup_steps)
        self.ending.begins_anew(self.steps.count)
        self.loading_s.clear()
        self.growth.begin_anew()
        self.first_dimension, self.backwards = None, 0

    def step_skipped(self) -> None:
        self._decide_end()

    def _decide_end(self) -> None:
        before = self.ending.measured
        self.ending.stepped(self.steps.count, self.steps.attempts, self.loaders.any_trained)
        if self.ending.measured and not before and self.config.cut and exit.others() > 0:
            exit.follow_others(self)
        self._leave_if_over()

    def _leave_if_over(self) -> None:
        if self.ending.over:
            exit.leave(self)

    # --- telling ------------------------------------------------------------------------------------------------------

    def _progress(self) -> None:
        now = time.monotonic()
        tell = self.context.emit if self.config.cut else self.context.keep_latest
        if now >= self._next_progress:
            self._next_progress = now + PROGRESS_S
            tell(Progress(self.phases.current, self.steps.count, time.time(), self.counters(), exit.world()[0]))
        if now >= self._next_report:
            tell(report.report_of(self, "running"))
            after = time.monotonic()
            pause = max(REPORT_S, REPORT_SHARE * (after - self._started), REPORT_PAUSE * (after - now))
            self._next_report = after + (pause if self.config.cut else min(pause, RUN_REPORT_S))

    def counters(self) -> Optional[RunCounters]:
        """Of a whole run; None of a trial."""
        return None if self.counting is None else self.counting.read(self.losses.latest)

    @guarded
    def tell_end(self, ended: Optional[str] = None, waits: bool = True) -> None:
        """The last report: once, however the process ends. Without `waits` it has what can be had without the device."""
        with self._telling:  # a thread that comes second goes on, perhaps to end the process, when all is told
            if self.reported_end:
                return
            self.reported_end = True
            self.failures.script_goes_on()
            self.device.flush()
            how = ended or report.how_it_ended(self)
            try:
                self.context.emit(report.report_of(self, how, waits))
            except Exception:
                tell_own_error("the last report")
                self.context.emit(report.bare_report(self, how))


def _samples_in(args: Any, asked: Any = None) -> Optional[int]:
    """The first dimension of the model's input; the second where that is the batch size asked for (recurrent networks)."""
    first = next((a for a in args if isinstance(a, torch.Tensor)), None) if isinstance(args, tuple) else None
    if first is None or first.dim() == 0:
        return None
    return int(asked if asked in tuple(first.shape[:2]) else first.shape[0])
