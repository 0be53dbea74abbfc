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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from brimful.errors import BrimfulError, DiskFull, Interrupted, Terminated
from brimful.units import counted
from brimful.values import EffectiveSetting
from brimful_inside import script
from brimful_inside.script import ends_with, keeps_writes_out
from brimful_train.best import Best
from brimful_train.checkpoints import training_state
from brimful_train.checkpoints.checkpoint import Loaded
from brimful_train.checkpoints.folder import Checkpoints
from brimful_train.checkpoints.signals import Stop
from brimful_train.config import Config
from brimful_train.data.epoch_sampler import Position
from brimful_train.data.pipeline import StepData
from brimful_train.distributed.parallel import full, shards
from brimful_train.distributed.ranks import BROKEN, Ranks, device_for
from brimful_train.dry_run import dry_run
from brimful_train.oom_limits import Restart, limits_of
from brimful_train.optim.optimizers import load_optimizer_state
from brimful_train.parts import build_parts
from brimful_train.reporting.peak_memory import EVAL, TRAIN, Peaks
from brimful_train.reporting.progress_log import Log, ProgressLog, Standing
from brimful_train.reporting.statistics import Statistics, peaks_of_all_ranks, write_json
from brimful_train.rng_state import Randomness, RandomState
from brimful_train.step.buffers import running_statistics
from brimful_train.step.non_finite import LossSums, UpdateFacts, all_finite
from brimful_train.step.oom import Missing, attempt, no_room_at_the_start
from brimful_train.step.optimizer_update import Update
from brimful_train.step.step import Asks, Counts, Done, Stepper
from brimful_train.task import Result, Task


def fit(task: Task, config: Config, peaks: Peaks | None = None) -> Result:
    """Trains `task` under `config`, from the newest checkpoint in `config.out` if there is one.

    `peaks` of phases before the training (encoding) go into its statistics. Under torchrun every
    rank calls this alike.

    Raises UsageError for settings that contradict the data or the checkpoint, DoesNotFit where a
    single sample does not fit, TrainingDiverged for a NaN loss, Terminated and Interrupted after a
    checkpoint that a signal asked for, DiskFull where the last checkpoint could not be written.
    """
    device = device_for(config.device)
    ranks = Ranks(device, config.backend)
    try:
        config.out.mkdir(parents=True, exist_ok=True)
        log = Log(config.out, writes=ranks.first, tensorboard=config.tensorboard)
        with Stop() as stop:
            training = attempt(
                lambda: _Training(task, config, device, ranks, log, stop, peaks or Peaks(device))
            )
            if isinstance(training, Missing):
                raise no_room_at_the_start(training.message)
            try:
                training.resume()
                return training.run()
            finally:
                training.close()
    except BaseException:
        ranks.announce(BROKEN)
        raise
    finally:
        ranks.close()


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


class _Training:
    """One training in this process: its parts, and where it stands."""

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
        self.task, self.config, self.device, self.ranks = task, config, device, ranks
        self.log, self.stop, self.peaks = log, stop, peaks
        self.randomness = Randomness(device)
        self.randomness.seed(config.seed, ranks.rank)
        restarts = shards(config, ranks) or (config.overlap and ranks.size > 1)
        self.restart = Restart() if restarts else None
        ranks.meets_in_steps = self.restart is None
        self.parts = build_parts(task, config, device, ranks, log, self.restart)
        self.checkpoints = Checkpoints(config.out / "checkpoints", config.checkpoints, log.say)
        self.position = Position()
        self.statistics = Statistics()
        self.measures: dict[str, float] = {}
        self.best = Best(*task.best)
        self.stepper: Stepper
        self.update_recoveries = 0

    # --- before the first step ---

    def resume(self) -> None:
        """Goes on from the checkpoint that the config asks for; then logs what is in force."""
        parts = self.parts
        loaded = self._checkpoint() if self.ranks.first else None
        folder = self.ranks.from_first(None if loaded is None else loaded.folder)
        counts = Counts()
        if folder is not None:
            counts = self._load(loaded or self.checkpoints.load(folder))
        if self.restart is not None:
            why = f"restart {self.restart.number} by torchrun: it ran out of memory with more"
            parts.adopt_limits(self.restart.limit, self.restart.eval_limit, why)
        update = Update(parts.optimizer, self.device, self._update_recovered)
        self.stepper = Stepper(
            self.task,
            parts.network,
            update,
            parts.precision,
            self.ranks,
            parts.at_once,
            self.config,
            self.log.say,
        )
        self.stepper.counts = counts
        self.sums = LossSums(self.device).both  # of the epoch
        self.sums += torch.tensor(
            [self.statistics.epoch_loss, self.statistics.epoch_count], dtype=torch.float64
        ).to(self.sums)
        if self.ranks.first:
            write_json(self.config.out / "config.json", self.config.as_json(), self.log)
        self.log.settings(parts.rows)
        self.log.warnings(parts.warnings)

    def _checkpoint(self) -> Loaded | None:
        """The checkpoint to go on from."""
        if keeps_writes_out():
            if self.config.checkpoints.resume != "no" and any(
                self.checkpoints.folder.glob("step-*")
            ):
                folder = self.checkpoints.folder
                self.log.line(
                    "A trial by brimful goes on from no checkpoint: it begins anew, and "
                    f"{folder} stays as it is."
                )
            return None
        checkpoint = self.restart.checkpoint if self.restart is not None else None
        return (
            self.checkpoints.load(checkpoint)
            if checkpoint is not None
            else self.checkpoints.resume()
        )

    def _load(self, loaded: Loaded) -> Counts:
        state, where, parts = loaded.state, str(loaded.folder), self.parts
        training_state.check_data(state["settings"], parts.sampler.length, where)
        for sentence in training_state.changed_settings(state["settings"]["config"], self.config):
            self.log.line(sentence)
        sharded = parts.network.sharded
        training_state.load_model(parts.network.module, state["model"], where, sharded=sharded)
        load_optimizer_state(parts.optimizer, state["optimizer"])
        changed = parts.precision.load_state_dict(state["precision"])
        if changed:
            self.log.line(changed)
        self.position = parts.sampler.place(Position(**state["position"]))
        self.statistics = Statistics.from_tree(state["statistics"])
        if self.position.epoch != state["position"]["epoch"]:
            self.statistics.epoch_loss = self.statistics.epoch_count = (
                self.statistics.this_epoch_s
            ) = 0.0
            self.log.line(
                "The rest of its epoch is less than a step now, and is left out (drop_last)."
            )
        self.statistics.resumed += 1
        self.measures = state["measures"]
        self.best.load_state(state)
        parts.adopt_checkpoint(state["oom_limits"])
        self._adopt_randomness(state["random"])
        more = (
            f" and {counted(self.position.samples, 'sample')} of the next"
            if self.position.samples
            else ""
        )
        self.log.line(f"Resumed from {where}: {counted(self.position.epoch, 'epoch')}{more} done.")
        return Counts(**state["counts"])

    def _adopt_randomness(self, states: list[dict[str, Any]]) -> None:
        if self.ranks.rank < len(states):
            self.randomness.put_back(RandomState.from_tree(states[self.ranks.rank]))
        else:
            self.log.say(
                f"Rank {self.ranks.rank} was not there when the checkpoint was made: its random "
                "state is a new one."
            )

    # --- the training ---

    def run(self) -> Result:
        with self.peaks.phase(TRAIN):
            if not self._is_over():
                dry_run(self.parts, self.stepper, self.ranks, self.log)
            self._probe_evaluation()
            self.clock = time.perf_counter()
            self.saved_at = self.clock
            whole = self.config.epochs if self.config.max_steps is None else None
            self.progress = ProgressLog(self.log, self.peaks, self._standing(), whole)
            if self._is_over() and not self._lost_patience():
                self.log.line(
                    "This training is finished: its epochs or steps are done. Raise epochs (or "
                    "max_steps) to go on."
                )
            while not self._is_over():
                self._epoch()
            if self._lost_patience():
                self.log.line(self.best.ending(self.config.patience_samples or 0))
            self._write_statistics()
        counts = self.stepper.counts
        if counts.skipped_nan:
            self.log.line(
                f"{counts.skipped_nan:,} of {counts.updates:,} updates were left out: a loss was "
                "NaN or infinite."
            )
        self.ranks.confirm()  # what rank 0 wrote is there for all
        best = self.best.found or {"measures": None, "step": None}
        return Result(
            dict(self.measures),
            best["measures"],
            best["step"],
            counts.updates,
            counts.samples,
            self.config.out / "checkpoints",
            self.config.out / "training_stats.json",
        )

    def _epoch(self) -> None:
        epoch = self.position.epoch
        for data in self.parts.pipeline.steps(self.position):
            before, counts = self._epochs(), dataclasses.replace(self.stepper.counts)
            done = None
            for done in self.stepper.train_on(data, self.parts.schedule.lr, self._asks):
                self.sums += done.sums
                self.statistics.timed_samples += done.samples
            assert done is not None
            self.position = data.indices.after
            self._after_step(before, counts, done, data)
            if self._is_over():
                return
        if (
            self.position.epoch == epoch
        ):  # the loader ended early, as in a trial, which comes to evaluation next
            self.position = Position(epoch + 1, 0)
            if self.parts.evaluation is not None:
                self._evaluate()

    def _after_step(self, before: float, had: Counts, done: Done, data: StepData) -> None:
        """`before` and `had`: epochs and counts before the step, which is several updates where a
        loss had to be cut.
        """
        now, config, counts = self._epochs(), self.config.checkpoints, self.stepper.counts
        over, epoch_ends = self._is_over(), self.position.epoch > data.indices.before.epoch
        evaluates = over or crossed(self.config.eval_every_epochs, before, now)
        score = self._evaluate() if evaluates and self.parts.evaluation is not None else None
        over |= self._lost_patience()
        if (
            epoch_ends
            or evaluates
            or time.perf_counter() - self.progress.last.at_s > self.config.log_every_s
        ):
            self._stop_the_clock("train_time_s")
            self.progress.write(
                self._standing(), done.lr, self.measures if evaluates else {}, epoch_ends
            )
        if epoch_ends:
            self.statistics.end_epoch()
            self.sums.zero_()
        due = crossed(config.every_steps, had.updates, counts.updates)
        due |= crossed(config.every_samples, had.samples, counts.samples) or crossed(
            config.every_epochs, before, now
        )
        is_best = config.keep_best and score is not None and self.best.is_of(counts.updates)
        if over or done.signal or done.save or due or is_best:
            facts = UpdateFacts(counts.updates, counts.samples, done.lr, data.indices.indices)
            self._save(score, facts, must=bool(over or done.signal))
        if done.signal:
            self._write_statistics()
            raise _ended_by(done.signal, self.config.out)

    def _is_over(self) -> bool:
        steps = self.config.max_steps
        done = self._epochs() >= self.config.epochs - 1e-9 or (
            steps is not None and self.stepper.counts.updates >= steps
        )
        return done or self._lost_patience()

    def _lost_patience(self) -> bool:
        return self.best.lost_patience(self.config.patience_samples)

    def _epochs(self) -> float:
        """2.25 a quarter into the third epoch."""
        return self.position.epoch + self.position.samples / self.parts.sampler.length

    def _standing(self) -> Standing:
        counts = self.stepper.counts
        return Standing(
            self.clock, self._epochs(), counts.updates, counts.samples, *self.sums.tolist()
        )

    def _asks(self) -> Asks:
        minutes = self.config.checkpoints.every_minutes
        due = minutes is not None and time.perf_counter() - self.saved_at > 60 * minutes
        return Asks(self.stop.signal or 0, due)

    # --- evaluation ---

    def _probe_evaluation(self) -> None:
        evaluation = self.parts.evaluation
        if evaluation is None:
            return
        requested = evaluation.at_once.split.limit
        with self.peaks.phase(EVAL), script.tried(EVAL):
            evaluation.probe()
        limit = evaluation.at_once.split.limit
        if limit < requested:
            why = (
                "the first evaluation batch, tried before the training, ran out of memory with more"
            )
            self.log.settings([EffectiveSetting("eval_batch", requested, limit, why)])

    def _evaluate(self) -> float | None:
        """Measures, and returns the score by which checkpoints are compared."""
        assert self.parts.evaluation is not None
        self._stop_the_clock("train_time_s")
        self.ranks.broadcast(list(self.parts.network.module.buffers()))
        # the room they take belongs to the evaluation, as it did when its batch was tried
        self.stepper.drop_gradients()
        with self.peaks.phase(EVAL):
            self.measures = self.ranks.from_first(
                self.parts.evaluation.measure()
            )  # one rank alone shall not end
        self._stop_the_clock("eval_time_s")
        return self.best.note(
            self.measures, self.stepper.counts.updates, self.stepper.counts.samples
        )

    # --- checkpoints and statistics ---

    def _save(self, score: float | None, facts: UpdateFacts, must: bool) -> None:
        """Writes a checkpoint. Where it cannot be written the training goes on, unless nothing is
        to follow (`must`).
        """
        self._stop_the_clock("train_time_s")
        self.stepper.finite.settle()
        if not all(
            self.ranks.gather(
                all_finite(
                    [
                        *self.parts.network.module.parameters(),
                        *running_statistics(self.parts.network.module),
                    ]
                )
            )
        ):
            raise facts.error("The weights became NaN or infinite")
        self.ranks.broadcast(list(self.parts.network.module.buffers()))
        state = self._state()
        if self.ranks.first:
            try:
                path = self.checkpoints.save(
                    state, step=self.stepper.counts.updates, score=score, best=self.task.best[1]
                )
                if self.restart is not None:
                    self.restart.note_checkpoint(path)
                self.log.event(
                    "checkpoint", path=str(path), step=self.stepper.counts.updates, score=score
                )
            except DiskFull as error:
                if must:
                    raise
                sentences = [
                    *error.sentences(),
                    "The training goes on, and tries again when the next one is due.",
                ]
                self.log.say(" ".join(sentence.rstrip(".") + "." for sentence in sentences))
        self.saved_at = time.perf_counter()
        self._stop_the_clock("checkpoint_time_s")
        if not must:
            self._write_statistics()

    def _state(self) -> dict[str, Any]:
        parts = self.parts
        whole = full if parts.network.sharded else dict
        self.statistics.epoch_loss, self.statistics.epoch_count = self.sums.tolist()
        return {
            "model": whole(parts.network.module.state_dict()),
            "optimizer": whole(parts.optimizer.state_dict()),
            "precision": parts.precision.state_dict(),
            "position": dataclasses.asdict(self.position),
            "counts": dataclasses.asdict(self.stepper.counts),
            "random": [state.as_tree() for state in self.ranks.gather(self.randomness.take())],
            "oom_limits": limits_of(parts.at_once.split, parts.eval_split),
            "statistics": dict(vars(self.statistics)),
            "measures": self.measures,
            **self.best.state(),
            "settings": {
                "config": self.config.as_json(),
                "train_samples": parts.sampler.length,
                "ranks": self.ranks.size,
            },
        }

    def _stop_the_clock(self, name: str) -> None:
        """What passed since the last stop goes to `name`."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        now = time.perf_counter()
        self.statistics.add(name, now - self.clock)
        self.clock = now

    def _write_statistics(self) -> None:
        self.peaks.read(TRAIN)
        peaks = peaks_of_all_ranks(self.peaks.of, self.ranks)
        if not self.ranks.first:
            return
        counts, parts = self.stepper.counts, self.parts
        evaluation = parts.evaluation
        content = self.statistics.content(
            peaks,
            device=str(self.device),
            ranks=self.ranks.size,
            effective_batch=parts.batching.effective,
            micro_batch=parts.at_once.split.limit,
            micro_batch_requested=self.config.batch.micro_batch,
            eval_batch=None if parts.eval_split is None else parts.eval_split.limit,
            updates=counts.updates,
            samples=counts.samples,
            epochs=self._epochs(),
            recoveries=counts.recoveries,
            eval_recoveries=evaluation.recoveries if evaluation is not None else 0,
            update_recoveries=self.update_recoveries,
            skipped_nan=counts.skipped_nan,
            skipped_by_scaler=parts.precision.skipped,
            measures=self.measures,
            best=self.best.found,
            ended_early=self._lost_patience(),
            settings=[dataclasses.asdict(row) for row in parts.rows],
        )
        write_json(self.config.out / "training_stats.json", content, self.log)

    def _update_recovered(self, missing: Missing) -> None:
        self.update_recoveries += 1
        self.log.say(
            f"Out of memory in the optimizer's update ({missing.pattern}): it is done in smaller "
            "pieces; nothing is lost."
        )

    def close(self) -> None:
        self.parts.precision.close()
        self.log.close()


def crossed(every: float | None, before: float, after: float) -> bool:
    """Whether a multiple of `every` lies in (before, after]. None: never."""
    if every is None:
        return False
    slack = 1e-9  # of a float's rounding: 3 × 0.1 is 0.30000000000000004
    return math.floor(after / every + slack) > math.floor(before / every + slack)


def _ended_by(number: int, out: Path) -> Terminated | Interrupted:
    kind = Interrupted if number == signals.SIGINT else Terminated
    go_on = f"The same command goes on from it: {out / 'checkpoints'}."
    return kind(f"Stopped by {signals.Signals(number).name} after a checkpoint.", suggestion=go_on)
