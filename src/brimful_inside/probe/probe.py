"""The probe of one rank: ties the hooks together."""

from __future__ import annotations

import gc
import time
from typing import Any, List, Optional, Tuple

import torch

from brimful_inside.left_out import FEW_OPERATIONS, Evaluations
from brimful_inside.probe.context import ProcessContext, guarded
from brimful_inside.probe.course import Course
from brimful_inside.probe.hooks.audited import Audited
from brimful_inside.probe.hooks.data_loaders import Loaders
from brimful_inside.probe.hooks.exceptions import Failures
from brimful_inside.probe.hooks.forward_backward import ForwardWatch, Losses, first_of
from brimful_inside.probe.hooks.optimizer_steps import CapturedSteps, Stepped, Steps
from brimful_inside.probe.memory.leaks import Leaks
from brimful_inside.probe.memory.phases import Phases
from brimful_inside.probe.outside_work import OutsideWork
from brimful_inside.probe.passes import EVAL, KEPT_STEPS, TRAIN, Pass
from brimful_inside.probe.process import exit
from brimful_inside.probe.process.early_stop import Limits
from brimful_inside.probe.report import Reporting
from brimful_inside.probe.script_text.places import places_of_input
from brimful_inside.probe.timing import RunCounter, StepTimes, clock_for
from brimful_inside.probe.train_or_eval import TrainOrEval
from brimful_inside.wire import NO_LIMIT


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
        steps = config.ends.steps if config.cut else None
        self.times = StepTimes(clock_for(config.device), config.ends.warmup_steps, steps)
        self.losses = Losses(imaginary, config.cut)
        long = not config.cut or config.ends.steps == NO_LIMIT
        self.counter = RunCounter(device.held) if long else None
        self._kept_steps = NO_LIMIT if config.cut else KEPT_STEPS
        self.loaders = Loaders(config.audits, imaginary, config.time_loader, self._kept_steps)
        self.steps = Steps(
            self.step_begins, self.step_made, self._decide_end, self._other_step_made
        )
        self.captured = CapturedSteps(
            self.steps, self.step_captured, self.loaders.consumption.worked_on
        )
        self.limits = Limits(config)
        self.evaluations = Evaluations(config)
        self.outside = OutsideWork(device, self.loaders)
        self.course = Course(
            self.limits, self.steps, self.phases, self.outside, self._begin_times, self._leave
        )
        self.leaks = Leaks(device.alive_bytes, config.ends.steps)
        self.forward = ForwardWatch(self.forward_begins)
        self.activity = TrainOrEval(self)
        self._trace_left: Any = None  # the traceback of what nobody caught
        self.failures = Failures(context.emit, lambda: self.activity.now(self._trace_left))
        device.on_out_of_memory(self.failures.out_of_memory)
        self.audited = Audited(self.phases)
        self.loading_s: List[float] = []
        self.warmup_steps = config.ends.warmup_steps
        self._clocked = config.cut and not imaginary and not config.worst_batch
        self.first_step_unix_s: Optional[float] = None
        # (backward passes, samples) by step, without a DataLoader
        self.inputs: List[Tuple[int, Optional[int]]] = []
        self._backwards = 0  # since the last step of any optimizer
        self.backwards_in_all = 0
        self._samples = 0  # of all steps, of this rank
        self._first_dimension: Optional[int] = None  # of the model's input, in this step
        self.reporting = Reporting(self)

    @guarded
    def left_the_script(self, error: BaseException) -> None:
        """An exception that nobody caught: its calls have returned by now, and only its traceback
        holds them.
        """
        self._trace_left = error.__traceback__
        self.failures.left_the_script(error)

    # --- loaders ---

    @guarded
    def replacement(self, loader: Any) -> Any:
        """An iterator to use in place of the loader's own, or None."""
        same = self.same_batch(loader)
        if same is not None or self.worst is None:
            return same
        return self.worst.before_pass(loader)

    @guarded
    def same_batch(self, loader: Any) -> Any:
        """An iterator that gives a batch of before again, once a trial has its steps; None where
        none is kept.
        """
        measured = self.course.measured and not self.phases.named
        return self.loaders.same_batch(loader) if measured else None

    @guarded
    def stops(self, drawing: Pass) -> bool:
        """Whether this pass ends before its next batch."""
        self.steps.end_by_hand()
        role = None if self.phases.named else self.activity.role_of(drawing)
        ends = False
        if role == EVAL:
            ends = self._stops_evaluation(drawing)
        elif role == TRAIN:
            self.outside.draws_for_training(drawing)
            self.activity.trains()
            ends = self.course.ends_training(drawing.given)
        ends = not self.leaks.batch(drawing, ends) and ends
        if ends and role == EVAL:
            drawing.loader.shown = drawing.given
        return ends

    def _stops_evaluation(self, drawing: Pass) -> bool:
        operations = self.device.operations() - drawing.operations
        if drawing.given == 1 and operations <= FEW_OPERATIONS:
            drawing.ahead = True
        if drawing.ahead and self.evaluations.is_over(
            drawing.given, self.course.measured, operations
        ):
            drawing.loader.shown = drawing.given - 1
            self.outside.evaluation_ends(batches=drawing.given - 1)
            self.context.note(
                "the evaluation was ended after its first batch, of %d operations on the card: "
                "what follows was not seen" % operations
            )
            exit.leave(self)
        if self.config.audits:
            drawing.marks.append(self.times.mark())
        return self.evaluations.stops(drawing.given, self.steps.count, operations)

    @guarded
    def pass_ended(self, ended: Pass) -> None:
        self.loaders.end(ended)
        self.outside.pass_ends(ended)

    @guarded
    def batch_given(self, giving: Pass, iterator: Any, batch: Any, waited_s: float) -> None:
        self.failures.script_continues()
        if not giving.given:
            giving.operations = self.device.operations()
        self.loaders.gave(giving, iterator, batch, waited_s)
        role = self.activity.role_of(giving)
        if role == TRAIN and self.config.cut and self.config.device == "imaginary":
            self.loaders.keep(giving, iterator, batch)
        self.activity.batch_given(giving, role)
        self.reporting.progress()

    # --- work ---

    @guarded
    def forward_begins(self, module: Any, args: Any) -> None:
        """The first forward pass since a step, or since a batch whose use is not known."""
        self.steps.end_by_hand()
        self.loaders.consumption.worked_on()
        # An agent acts without gradients, on one state, before it learns of a batch.
        if (self._first_dimension is None or torch.is_grad_enabled()) and not self.loaders.any:
            self._first_dimension = _samples_in(args, self.config.settings.get("batch_size"))
        self.activity.forward_begins(module)
        self.reporting.progress()

    @guarded
    def backward_begins(self, tensors: Any) -> None:
        self.steps.end_by_hand()
        self.failures.script_continues()
        self.loaders.consumption.worked_on()
        self._backwards += 1
        self.backwards_in_all += 1
        self.losses.backward(tensors)
        self.activity.went_backward()
        self.reporting.progress()
        if self.steps.are_by_hand(
            self.backwards_in_all, getattr(first_of(tensors), "device", None)
        ):
            self.forward.arm()

    def _begin_times(self) -> None:
        self.times.begin()
        if self.counter is not None:
            self.counter.begin(self.loaders.waited_s)

    def step_begins(self) -> None:
        if self.first_step_unix_s is None:
            self.first_step_unix_s = time.time()
            exit.world()  # the process group may be gone when the report is written
        self.failures.script_continues()
        self.activity.went_backward()

    def step_made(self, number: int) -> None:
        if number == 1 and self.steps.pace is not None:
            self.times.works_on(self.steps.pace.device)
            self.audited.steps(self.steps.pace.groups)
        if number == self.config.ends.warmup_steps and self._clocked:
            # The full collection that imports make due takes 0.1 s: as long as many steps.
            gc.collect()
            more = self.loaders.steps_ahead(number)
            self.times.extend(more)
            self.limits.extend(more)
        measured = not self.course.measured and self.times.end_step(number)
        waited_s = self.loaders.take_waited_s()
        if measured and self.config.device != "imaginary":
            self.loading_s.append(waited_s)
        samples = self._samples_of_step()
        self._samples += samples or 0
        self.losses.step()
        if self.counter is not None:
            self.counter.step(samples, waited_s)
        self._first_dimension, self._backwards = None, 0
        self.activity.batch_since_step = False
        # later ones may have saved a checkpoint in between
        self.device.step(number, counts=not self.course.measured)
        if number >= self.warmup_steps:
            self.leaks.step(self.loaders.latest)
        if number == 1:
            self.loaders.time_trained(self.device.leave_worker)
            if self.config.ends.after_s is not None and exit.others() > 0:
                exit.follow_others(self)  # the ranks' clocks differ
        self.outside.goes_on()
        self.forward.arm()
        self.reporting.progress()
        held = self.device.held() if self.config.ends.settles_after is not None else None
        if held is not None:
            self.limits.holds(number, held.reserved_bytes)
        self._decide_end()

    def _other_step_made(self, record: Stepped) -> None:
        """The backward passes so far were of another network's step (an actor's, a critic's)."""
        self._backwards = 0
        if record.steps == 1:
            self.audited.steps(record.groups)

    @guarded
    def scaler_skipped(self, optimizer: Any) -> None:
        self.losses.skip()
        self.steps.skipped(optimizer)

    def _samples_of_step(self) -> Optional[int]:
        """By what the loaders gave; else by the model's input at each backward pass."""
        self.loaders.consumption.step()
        if self.loaders.any_trained:
            return self.loaders.consumption.latest
        samples = self._first_dimension
        if samples is not None:
            samples *= max(1, self._backwards)
        if len(self.inputs) < self._kept_steps:
            self.inputs.append((self._backwards, samples))
        return samples

    def step_captured(self) -> None:
        """A CUDA graph holds a whole step: the steps before it were its warm-up, and its replays
        are those that count.
        """
        self.warmup_steps = self.steps.count + self.config.ends.warmup_steps
        self.times.restart(self.warmup_steps)
        self.course.restart()
        self.loading_s.clear()
        self.leaks.restart()
        self._first_dimension, self._backwards = None, 0

    def _decide_end(self) -> None:
        before, others = self.course.measured, exit.others() if self.config.cut else 0
        samples = self._samples * (others + 1)
        self.course.step(self.loaders.any_trained, self.backwards_in_all, samples)
        follows = self.config.ends.after_s is None and others > 0
        if self.course.measured and not before and follows:
            exit.follow_others(self)

    def _leave(self) -> None:
        exit.leave(self, at_a_step=not self.config.ends.see_eval)


def _samples_in(args: Any, batch_size: Any = None) -> Optional[int]:
    """The first dimension of the model's input; or the second where that is the batch size set, or
    one that the script's text names where the first is none (recurrent networks).
    """
    first = (
        next((a for a in args if isinstance(a, torch.Tensor)), None)
        if isinstance(args, tuple)
        else None
    )
    if first is None or first.dim() == 0:
        return None
    sizes = [int(size) for size in first.shape[:2]]
    if batch_size is None:
        return next((size for size in sizes if places_of_input(size)), sizes[0])
    return batch_size if batch_size in sizes else sizes[0]
