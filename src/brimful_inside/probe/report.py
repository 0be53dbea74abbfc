"""The reports of one rank and how far it is, as events of the wire."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any, List, Optional

import torch

from brimful_inside.probe.context import guarded, note_own_error
from brimful_inside.probe.hooks.optimizer_steps import BY_HAND
from brimful_inside.probe.memory.device_memory import accelerator_type, is_started
from brimful_inside.probe.process.exit import world
from brimful_inside.probe.script_text import branches, user_code
from brimful_inside.probe.script_text.definitions import definitions
from brimful_inside.probe.script_text.places import places_of_input
from brimful_inside.probe.script_text.recorders import replaced
from brimful_inside.simulator.allocator_settings import ignored_in
from brimful_inside.simulator.workspaces import torch_release
from brimful_inside.wire import NO_LIMIT, Place, Progress, Report, RunCounters

PROGRESS_S = 0.5
FURTHER = 5  # times its steps: what a trial without an evaluation is advised to make
ENVIRONMENTS = ("gymnasium", "gym")  # packages of reinforcement learning
REPORT_S = 1.0
# Of a whole run: what is lost at most where it is killed (assumed to be little of a night).
RUN_REPORT_S = 30.0
# Later snapshots come at most this often, as a share of the time that passed,
REPORT_SHARE = 0.05
REPORT_PAUSE = 500  # and this many times as long after the last one as that took


class Reporting:
    """Tells the parent, now and then and at the end."""

    def __init__(self, probe: Any):
        self._probe = probe
        self._next_progress = self._next_report = self._started = time.monotonic()
        # a second thread continues, perhaps to end the process, when the report is written
        self._lock = threading.RLock()
        self._trained = False  # and the parent knows
        self._knows_loader = False  # the parent does, of the training
        self.ended = False

    def progress(self) -> None:
        probe, now = self._probe, time.monotonic()
        cut = probe.config.cut
        # Of a whole run the first step at once: the script may save a checkpoint after it, which a
        # run that follows a kill must not write over.
        first = not cut and not self._trained and probe.steps.count > 0
        if first or now >= self._next_progress:
            self._trained = probe.steps.count > 0
            self._next_progress = now + PROGRESS_S
            progress = Progress(
                probe.phases.current,
                probe.steps.count,
                time.time(),
                self.counters(),
                world()[0],
                probe.loaders.batches_seen,
                probe.backwards_in_all,
            )
            probe.context.emit(progress, replaces=not cut)
        # A trial may be killed for its memory in its first forward pass: the training loader, and
        # where its batch size is set, are known by then.
        knows_loader = self._knows_loader or (cut and probe.loaders.any_trained)
        if now >= self._next_report or knows_loader != self._knows_loader:
            self._knows_loader = knows_loader
            probe.context.emit(report_of(probe, "running"), replaces=not cut)
            after = time.monotonic()
            pause = max(
                REPORT_S, REPORT_SHARE * (after - self._started), REPORT_PAUSE * (after - now)
            )
            self._next_report = after + (pause if cut else min(pause, RUN_REPORT_S))

    def counters(self) -> Optional[RunCounters]:
        """Of a whole run, and of a trial as long as one; None of other trials."""
        counter, losses = self._probe.counter, self._probe.losses
        return None if counter is None else counter.read(losses.latest, losses.reported)

    @guarded
    def end(self, ended: Optional[str] = None, waits: bool = True) -> None:
        """The last report: once, however the process ends. Without `waits` it reads nothing that
        waits for the device.
        """
        probe = self._probe
        with self._lock:
            if self.ended:
                return
            self.ended = True
            probe.failures.script_continues()
            probe.outside.process_ends()
            probe.device.flush()
            how = ended or how_it_ended(probe)
            try:
                probe.context.emit(report_of(probe, how, waits))
            except Exception:
                note_own_error("the last report")
                probe.context.emit(minimal_report(probe, how))


def how_it_ended(probe: Any) -> str:
    """ "steps_done", "script_ended", "out_of_memory" or "crashed", when brimful did not end the
    trial.
    """
    last = probe.failures.last
    if last is not None and not last.caught:
        if last.kind.startswith("out_of"):
            return "out_of_memory"
        if not last.after_measured:
            return "crashed"
    return (
        "steps_done"
        if probe.course.measured or (last is not None and probe.course.extended)
        else "script_ended"
    )


def report_of(probe: Any, ended: str, waits: bool = True) -> Report:
    """Reads everything. With `ended` other than "running" it waits for the device, as the script
    has come to its end; not
    without `waits`: then losses and learning rates that lie on the device stay unread."""
    over = ended != "running"
    waits = over and waits
    rank, size = world()
    batches, samples = probe.loaders.consumption.by_step()
    if not any(batches) and probe.inputs:
        batches, samples = (
            [count for count, _ in probe.inputs],
            [samples for _, samples in probe.inputs],
        )
    overlay, passed_over = probe.context.overlay, probe.times.passed_over
    return Report(
        rank=rank,
        world_size=size,
        device=device_label(probe),
        device_name=_device_name(probe),
        torch_version=str(torch.__version__),
        ended=ended,
        steps=probe.steps.count,
        warmup_steps=probe.warmup_steps + passed_over,
        step_s=probe.times.read(wait=waits),
        cpu_s=probe.times.processor_s[passed_over:] if probe.config.device == "cpu" else [],
        loading_s=probe.loading_s[passed_over:],
        micro_batches_per_step=batches,
        samples_per_step=samples,
        optimizers=probe.steps.read(waits),
        loaders=probe.loaders.read(probe.times.between),
        phases=probe.phases.read(),
        losses=probe.losses.read(waits) if over else [],
        worst_batch=probe.worst.report(probe.loaders.is_trained)
        if probe.worst is not None
        else None,
        peak_unphased=probe.phases.whole(),
        notes=[*probe.context.notes, *(_notes(probe) if over else [])],
        sources=user_code.loaded() if over and rank == 0 else [],
        wrote=list(overlay.written) if overlay is not None else [],
        places=_places(probe) if over else [],
        first_step_unix_s=probe.first_step_unix_s,
        ignored_settings=ignored_in(os.environ, torch_release(torch.__version__)),
        growth={**probe.leaks.read(), **probe.device.in_cycles(_gradients(probe))},
        counters=probe.reporting.counters(),
        device_reads=probe.audited.reads(),
        precision=probe.audited.precision(),
        asked=[*(definitions() or []), *replaced.values()]
        if over and rank == 0 and probe.config.audits
        else [],
        batch_asked=probe.context.batch_asked,
        resumes_itself=probe.context.resumes_itself,
        environments=None
        if probe.loaders.any_trained
        else next((name for name in ENVIRONMENTS if name in sys.modules), None),
        unused_loader=over and probe.loaders.any_unused,
        not_run=branches.not_run() if over and rank == 0 else [],
        not_reached=branches.not_reached() if over and rank == 0 else [],
        left_out=[*probe.device.left_out(), *probe.loaders.left_out()],
        **{"split_over": probe.audited.split_over, **probe.device.read()},
    )


def minimal_report(probe: Any, ended: str) -> Report:
    """How far the script came and our notes: for when something else cannot be read."""
    (rank, size), config = world(), probe.config
    return Report(
        rank,
        size,
        config.device,
        None,
        str(torch.__version__),
        ended,
        probe.steps.count,
        config.ends.warmup_steps,
        trace_file=probe.device.trace_file,
        notes=list(probe.context.notes),
    )


def _gradients(probe: Any) -> int:
    """Tensors that the pace-setting optimizer steps."""
    groups = probe.steps.pace.groups if probe.steps.pace is not None else []
    return sum(len(group["params"]) for group in groups)


def device_label(probe: Any) -> str:
    if probe.config.device in ("cpu", "imaginary"):
        return probe.config.device
    return "%s:%d" % (accelerator_type(), _device_index(probe)) if is_started() else "cpu"


def _device_index(probe: Any) -> int:
    """Of the card that the parameters lie on, which need not be the current one; else of that."""
    trained = probe.steps.pace.device if probe.steps.pace is not None else None
    if trained is not None and trained.type == accelerator_type() and trained.index is not None:
        return int(trained.index)
    index = (
        getattr(torch.accelerator, "current_device_index", None)
        or torch.accelerator.current_device_idx
    )  # until 2.6
    return int(index())


def _device_name(probe: Any) -> Optional[str]:
    if probe.config.device == "imaginary":
        return probe.config.card.name
    is_cuda = probe.config.device != "cpu" and torch.cuda.is_initialized()
    return torch.cuda.get_device_name(_device_index(probe)) if is_cuda else None


def _places(probe: Any) -> List[Place]:
    """Without a loader, by the model's input in the first step that shows it."""
    sizes = (samples // backwards for backwards, samples in probe.inputs if samples and backwards)
    size = next(sizes, None)
    return [] if size is None else places_of_input(size)


def _notes(probe: Any) -> List[str]:
    """Sentences about what was not as usual."""
    steps, config, overlay = probe.steps, probe.config, probe.context.overlay
    optimizers = steps.read()
    skipped = sum(record.skipped for record in steps.records)
    kinds = ", ".join("%s: %d" % (optimizer.name, optimizer.steps) for optimizer in optimizers)
    target = probe.warmup_steps + config.ends.steps
    unevaluated = probe.course.measured and "eval" not in probe.phases.read()
    # a branch that evaluates is said by itself
    unevaluated = unevaluated and not any(branch.evaluates for branch in branches.not_run())
    notes = {
        "the script used no accelerator": config.device == "accelerator" and not is_started(),
        "no optimizer stepped": steps.count == 0,
        "no DataLoader was used": not probe.loaders.any,
        "samples are counted by the model's input, assumed: its first dimension, or the second "
        "where that is the batch size": probe.inputs and not probe.loaders.any,
        "the script has no optimizer of torch.optim: each backward pass counts as a step": any(
            record.kind == BY_HAND for record in steps.records
        ),
        "steps skipped by the GradScaler: %d" % skipped: skipped,
        "%d optimizers stepped (%s); the first one sets the pace"
        % (len(steps.records), kinds): len(steps.records) > 1,
        "the optimizer is given a closure: forward and backward passes run inside its step": any(
            optimizer.uses_closure for optimizer in optimizers
        ),
        **{
            "the script resumed from its own checkpoint %s: the trial shows the rest of that "
            "training" % path: True
            for path in (overlay.resumed_from() if overlay is not None else [])
        },
        "the script ended after %d of the %d steps of the trial" % (steps.count, target): (
            config.cut and not probe.course.measured and 0 < steps.count < target < NO_LIMIT
        ),
        "evaluation was not reached in %d steps and is not counted; --steps %d may reach it"
        % (steps.count, FURTHER * steps.count): config.cut and config.ends.see_eval and unevaluated,
    }
    return [sentence for sentence, holds in notes.items() if holds]
