"""How brimful trains, from top to bottom: build, resume, dry run, epochs of steps, evaluation,
checkpoint, statistics.
"""

import dataclasses
import math
import os
import signal as signals
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from types import FrameType

import torch

from brimful.errors import TOLD_TO_END, BrimfulError, DoesNotFit, Interrupted
from brimful.values import EffectiveSetting
from brimful_inside import script
from brimful_inside.script import ends_with
from brimful_inside.signals import ENDING, MEANINGS, handled_by
from brimful_train.config import Config
from brimful_train.data.batch_errors import dead_worker
from brimful_train.data.epoch_sampler import Position
from brimful_train.data.pipeline import StepData
from brimful_train.distributed.parallel import shards
from brimful_train.distributed.ranks import BROKEN, Ranks, Vote, device_for
from brimful_train.parts import Parts, build_parts
from brimful_train.reporting.peak_memory import EVAL, TRAIN, Peaks
from brimful_train.reporting.progress_log import Log, ProgressLog, write_json
from brimful_train.rng_state import Randomness
from brimful_train.step.buffers import Buffers
from brimful_train.step.non_finite import UpdateFacts
from brimful_train.step.oom import (
    Missing,
    Restart,
    SamplesAtOnce,
    attempt,
    free_what_is_cached,
)
from brimful_train.step.optimizer_update import Update
from brimful_train.step.passes import Passes
from brimful_train.step.step import Counts, Done, Stepper
from brimful_train.task import Result, Task
from brimful_train.training_state import TrainingState


def fit(task: Task, config: Config, peaks: Peaks | None = None) -> Result:
    """Trains `task` under `config`, from the newest checkpoint in `config.out` if there is one.

    `peaks` of phases before the training (encoding) go into its statistics. Under torchrun every
    rank calls this alike.

    Raises UsageError for settings that contradict the data or the checkpoint, DoesNotFit where a
    single sample does not fit, TrainingDiverged for a NaN loss, Terminated and Interrupted after a
    checkpoint that a signal asked for, DiskFull where the last checkpoint could not be written.
    """
    device, threads = device_for(config.device), torch.get_num_threads()
    benchmark = torch.backends.cudnn.benchmark
    ranks = Ranks(device, config.backend)
    try:
        config.out.mkdir(parents=True, exist_ok=True)
        log = Log(config.out, writes=ranks.first, tensorboard=config.tensorboard)
        stop = Stop()
        with stop.noticing():
            training = attempt(
                lambda: _Training(task, config, device, ranks, log, stop, peaks or Peaks(device))
            )
            if isinstance(training, Missing):
                raise DoesNotFit(
                    "The model and the state of its optimizer do not fit into memory: "
                    f"{training.message}",
                    "No batch size changes what they take. No step was made; what checkpoints "
                    "there are stay as they are.",
                    "Raise config.memory_budget if that is the limit, or choose an optimizer with "
                    "less state (sgd, adafactor).",
                )
            with closing(training):
                training.resume()
                return training.run()
    except BaseException as error:
        ranks.announce(BROKEN)
        known = _in_words(error)
        if known is None:
            raise
        raise known from error
    finally:
        torch.backends.cudnn.benchmark = benchmark
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        ranks.close()


def _in_words(error: BaseException) -> BrimfulError | None:
    """Of what comes from outside, wherever the training is; None for all other errors."""
    if isinstance(error, KeyboardInterrupt):
        return Interrupted(
            "Interrupted a second time: the training ended at once.",
            "Steps after the last checkpoint are lost; those that were written are whole.",
            "The same command goes on from the last one.",
        )
    return dead_worker(error)


@contextmanager
def exit_codes() -> Iterator[None]:
    """``with exit_codes(): fit(task, config)``: what `fit` raises ends the script without a
    traceback.

    2 usage, 3 does not fit, 5 diverged, 130 interrupted and 143 terminated after a checkpoint
    (`brimful.errors` has all). A scheduler can distinguish a clean stop from a crash by them. Rank
    0 prints all of it, every other rank a line.
    """
    try:
        yield
    except BrimfulError as error:
        ends_with(error)
        rank = os.environ.get("RANK", "0")
        sentences = error.sentences() if rank == "0" else (f"rank {rank}: {error.problem}",)
        print("\n".join(sentences), file=sys.stderr, flush=True)
        raise SystemExit(error.exit_code) from None


class Stop:
    """`signal`: the number of the first SIGTERM, SIGINT or SIGHUP, once there was one."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._interrupts = 0

    def noticing(self) -> AbstractContextManager[None]:
        """Meanwhile signals to end are noted instead of ending the process, so that a training
        finishes its step and writes a checkpoint first.

        A second SIGINT raises KeyboardInterrupt, for those who do not want to wait; a second
        SIGTERM changes nothing, since clusters repeat it. Signals reach a process's main thread
        alone: in any other thread nothing is caught.
        """
        return handled_by(self._note, ENDING)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += number == signals.SIGINT
        if self._interrupts > 1:
            raise KeyboardInterrupt
        self.signal = self.signal or number


class _Training:
    """One training in this process."""

    def __init__(
        self,
        task: Task,
        config: Config,
        device: torch.device,
        ranks: Ranks,
        log: Log,
        stop: Stop,
        peaks: Peaks,
    ):
        self.task, self.config, self.ranks = task, config, ranks
        self.log, self.stop, self.peaks = log, stop, peaks
        Randomness(device).seed(config.seed, ranks.rank)
        restarts = shards(config, ranks) or (config.overlap and ranks.size > 1)
        restart = Restart() if restarts else None
        ranks.meets_in_steps = restart is None
        self.parts = build_parts(task, config, device, ranks, log, restart, peaks)
        self.state = TrainingState(task, config, self.parts, ranks, log, peaks, restart)
        self.stepper: Stepper

    def resume(self) -> None:
        """Goes on from the checkpoint that the config asks for; then logs what is in force."""
        parts, state = self.parts, self.state
        state.resume()
        passes = Passes(
            self.task, parts.network, parts.precision, self.ranks, parts.at_once, parts.noise
        )
        update = Update(parts.optimizer, parts.precision.device, state.note_recovery)
        self.stepper = Stepper(passes, update, self.ranks, self.config, self.log.say)
        self.stepper.counts = state.counts
        if self.ranks.first:
            write_json(self.config.out / "config.json", self.config.as_json(), self.log)
        self.log.settings(parts.rows)
        self.log.warnings(parts.warnings)

    def run(self) -> Result:
        state = self.state
        with self.peaks.phase(TRAIN):
            if not state.is_over():
                dry_run(self.parts, self.stepper, self.ranks, self.log)
            self._probe_evaluation()
            state.start_the_clock()
            whole = self.config.epochs if self.config.max_steps is None else None
            self.progress = ProgressLog(self.log, self.peaks, state.standing(), whole)
            if state.is_over() and not state.lost_patience():
                self.log.line(
                    "This training is finished: its epochs or steps are done. Raise epochs (or "
                    "max_steps) to go on."
                )
            while not state.is_over():
                self._epoch()
            if state.lost_patience():
                self.log.line(state.best.ending(self.config.patience_samples or 0))
            state.write_statistics()
        counts = state.counts
        if counts.skipped_nan:
            self.log.line(
                f"{counts.skipped_nan:,} of {counts.updates:,} updates were left out: a loss was "
                "NaN or infinite."
            )
        self.ranks.confirm()  # what rank 0 wrote is there for all
        best = state.best.found or {"measures": None, "step": None}
        return Result(
            dict(state.measures),
            best["measures"],
            best["step"],
            counts.updates,
            counts.samples,
            self.config.out / "checkpoints",
            self.config.out / "training_stats.json",
        )

    def _epoch(self) -> None:
        state = self.state
        epoch = state.position.epoch
        for data in self.parts.pipeline.steps(state.position):
            before, counts = state.epochs, dataclasses.replace(state.counts)
            done = None
            for done in self.stepper.train_on(data, self.parts.schedule.lr, self._asks):
                state.sums += done.sums
                state.statistics.timed_samples += done.samples
            assert done is not None
            state.position = data.indices.after
            self._after_step(before, counts, done, data)
            if state.is_over():
                return
        # the loader ended early, as in a trial, which comes to evaluation next
        if state.position.epoch == epoch:
            state.position = Position(epoch + 1, 0)
            self._evaluate()

    def _after_step(self, before: float, had: Counts, done: Done, data: StepData) -> None:
        """`before` and `had`: epochs and counts before the step, which is several updates where a
        loss had to be cut.
        """
        state, config = self.state, self.config.checkpoints
        now, counts = state.epochs, state.counts
        over, epoch_ends = state.is_over(), state.position.epoch > data.indices.before.epoch
        evaluates = over or crossed(self.config.eval_every_epochs, before, now)
        score = self._evaluate() if evaluates else None
        over |= state.lost_patience()
        quiet_s = time.perf_counter() - self.progress.last.at_s
        if epoch_ends or evaluates or quiet_s > self.config.log_every_s:
            state.stop_the_clock("train_time_s")
            measures = state.measures if evaluates else {}
            self.progress.write(state.standing(), done.lr, measures, epoch_ends)
        if epoch_ends:
            state.statistics.end_epoch()
            state.sums.zero_()
        due = (
            crossed(config.every_steps, had.updates, counts.updates)
            or crossed(config.every_samples, had.samples, counts.samples)
            or crossed(config.every_epochs, before, now)
        )
        is_best = config.keep_best and score is not None and state.best.is_of(counts.updates)
        if over or done.signal or done.save or due or is_best:
            self.stepper.finite.settle()
            facts = UpdateFacts(counts.updates, counts.samples, done.lr, data.indices.indices)
            state.save(score, facts, must=bool(over or done.signal))
        if done.signal:
            state.write_statistics()
            raise TOLD_TO_END[MEANINGS[done.signal]](
                f"Stopped by {signals.Signals(done.signal).name} after a checkpoint.",
                suggestion=f"The same command goes on from it: {state.checkpoints.folder}.",
            )

    def _asks(self) -> Vote:
        minutes = self.config.checkpoints.every_minutes
        due = minutes is not None and time.perf_counter() - self.state.saved_at > 60 * minutes
        return Vote(signal=self.stop.signal or 0, save=due)

    def _probe_evaluation(self) -> None:
        evaluation = self.parts.evaluation
        if evaluation is None:
            return
        requested = evaluation.at_once.split.limit
        with self.peaks.phase(EVAL), script.tried(EVAL):
            evaluation.probe()
        why = "the first evaluation batch, tried before the training, ran out of memory with more"
        _log_smaller(self.log, "eval_batch", requested, evaluation.at_once, why)

    def _evaluate(self) -> float | None:
        """Measures, and returns the score by which checkpoints are compared; None without
        evaluation data.
        """
        if self.parts.evaluation is None:
            return None
        self.state.stop_the_clock("train_time_s")
        self.ranks.broadcast(list(self.parts.network.module.buffers()))
        # the room they take belongs to the evaluation, as it did when its batch was tried
        self.stepper.passes.drop_gradients()
        with self.peaks.phase(EVAL):
            # one rank alone shall not end
            measures = self.ranks.from_first(self.parts.evaluation.measure())
        self.state.stop_the_clock("eval_time_s")
        self.state.measures = measures
        counts = self.state.counts
        return self.state.best.note(measures, counts.updates, counts.samples)

    def close(self) -> None:
        self.parts.precision.close()
        self.log.close()


def dry_run(parts: Parts, stepper: Stepper, ranks: Ranks, log: Log) -> None:
    """The worst micro-batches are tried before the first step, so that memory that is missing is
    missing at the start: forward and backward, as in a step; then gradients are dropped, random
    states and buffers put back, and nothing was trained.

    Makes `stepper`'s pieces smaller where a micro-batch as bad as any that can come does not
    fit. Of samples without sizes the first step shows what any other does, and nothing is tried.
    Raises DoesNotFit on all ranks where one sample is too large for one of them.
    """
    if parts.pipeline.worst_step(stepper.at_once.split.at_once) is None:
        return
    at_once, device = stepper.at_once, parts.precision.device
    requested, recoveries = at_once.split.limit, 0
    with script.tried(TRAIN), Randomness(device).kept():
        buffers = Buffers(parts.network.module)
        try:
            step = _worst_step(parts, stepper)
            while isinstance(missing := attempt(partial(_try, stepper, step)), Missing):
                recoveries += 1
                stepper.passes.drop_gradients()
                free_what_is_cached(device)
                stepper.shrink(
                    missing,
                    " in the worst micro-batch that can come, tried before the training",
                    ".",
                    step,
                )
                step = _worst_step(parts, stepper)
        finally:
            stepper.passes.drop_gradients()
            buffers.put_back()
    votes = ranks.meet(Vote(piece=at_once.split.limit, recoveries=recoveries))
    at_once.adopt(votes)
    stepper.counts.recoveries += sum(vote.recoveries for vote in votes)
    why = (
        "the worst micro-batches that the sizes allow, tried before the training, ran out of "
        "memory with more"
    )
    _log_smaller(log, "micro_batch", requested, at_once, why)


def _log_smaller(log: Log, name: str, requested: int, at_once: SamplesAtOnce, why: str) -> None:
    if at_once.split.limit < requested:
        log.settings([EffectiveSetting(name, requested, at_once.split.limit, why)])


def _worst_step(parts: Parts, stepper: Stepper) -> StepData:
    """What is worst depends on how micro-batches are cut."""
    split, decomposes = stepper.at_once.split, stepper.task.decomposes
    step = parts.pipeline.worst_step(lambda samples: split.at_once(samples, decomposes))
    assert step is not None
    return step


def _try(stepper: Stepper, step: StepData) -> None:
    """The first micro-batch comes again at the end, when there are gradients already, as there are
    in a step of several."""
    split, decomposes = stepper.at_once.split, stepper.task.decomposes
    order = (*range(len(step.parts)), 0)
    stepper.passes.forward_backward(
        step,
        [(part, *piece) for part in order for piece in split.pieces(step.parts[part], decomposes)],
    )


def crossed(every: float | None, before: float, after: float) -> bool:
    """Whether a multiple of `every` lies in (before, after]. None: never."""
    if every is None:
        return False
    slack = 1e-9  # of a float's rounding: 3 × 0.1 is 0.30000000000000004
    return math.floor(after / every + slack) > math.floor(before / every + slack)
