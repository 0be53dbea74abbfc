"""Where a training stands and what it cost so far: what a checkpoint of it holds, and what must
agree before a training goes on from one.
"""

import dataclasses
import signal
import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from brimful.errors import DiskFull, UsageError
from brimful.measure import host
from brimful.units import counted
from brimful_inside.script import keeps_writes_out, resumes_by_itself
from brimful_inside.signals import held_back
from brimful_train.checkpoints.checkpoint import Loaded
from brimful_train.checkpoints.folder import Checkpoints
from brimful_train.config import Config
from brimful_train.data.epoch_sampler import Position
from brimful_train.distributed.parallel import full, sharded_as
from brimful_train.distributed.ranks import Ranks
from brimful_train.evaluation import Best
from brimful_train.optim.optimizers import load_optimizer_state
from brimful_train.parts import Parts
from brimful_train.reporting.peak_memory import TRAIN, Peaks
from brimful_train.reporting.progress_log import (
    Log,
    Standing,
    Statistics,
    peaks_of_all_ranks,
    write_json,
)
from brimful_train.rng_state import Randomness
from brimful_train.step.buffers import running_statistics
from brimful_train.step.noise_scale import NoiseScale
from brimful_train.step.non_finite import LossSums, UpdateFacts, all_finite
from brimful_train.step.oom import Missing, Restart
from brimful_train.step.step import Counts
from brimful_train.task import Task

NAMED = 4  # of what differs, in an error
# Settings that may change between runs without a message: where things are written, how often, and
# what only costs time.
UNREPORTED = (
    "out",
    "log_every_s",
    "tensorboard",
    "checkpoints",
    "data",
    "eval_every_epochs",
    "memory_budget",
    "device",
    "backend",
)


class TrainingState:
    """Where the training with `parts` stands, and the folder that keeps it."""

    def __init__(
        self,
        task: Task,
        config: Config,
        parts: Parts,
        ranks: Ranks,
        log: Log,
        peaks: Peaks,
        restart: Restart | None,
    ):
        self.config, self.parts, self.ranks, self.log = config, parts, ranks, log
        self.peaks, self.restart, self.device = peaks, restart, parts.precision.device
        self.checkpoints = Checkpoints(config.out / "checkpoints", config.checkpoints, log.say)
        self.position, self.counts, self.statistics = Position(), Counts(), Statistics()
        self.measures: dict[str, float] = {}
        self.best = Best(*task.best)
        self.update_recoveries = 0
        self.sums = LossSums(self.device).both  # of the epoch
        self.start_the_clock()

    @property
    def epochs(self) -> float:
        """2.25 a quarter into the third epoch."""
        return self.position.epoch + self.position.samples / self.parts.sampler.length

    def lost_patience(self) -> bool:
        return self.best.lost_patience(self.config.patience_samples)

    def is_over(self) -> bool:
        steps = self.config.max_steps
        done = steps is not None and self.counts.updates >= steps
        return done or self.epochs >= self.config.epochs - 1e-9 or self.lost_patience()

    def standing(self) -> Standing:
        counts, (loss_sum, loss_count) = self.counts, self.sums.tolist()
        return Standing(
            self.clock,
            self.epochs,
            counts.updates,
            counts.samples,
            loss_sum,
            loss_count,
            self.noise().samples,
        )

    def noise(self) -> NoiseScale:
        """By all updates so far. Waits for the device."""
        self.parts.noise.read()
        return self.parts.noise.scale

    def note_recovery(self, missing: Missing) -> None:
        self.update_recoveries += 1
        self.log.say(
            f"Out of memory in the optimizer's update ({missing.pattern}): it is done in smaller "
            "pieces; nothing is lost."
        )

    # --- loading ---

    def resume(self) -> None:
        """Goes on from the checkpoint that the config asks for."""
        if self.config.checkpoints.resume == "auto":
            resumes_by_itself()
        loaded = self._checkpoint() if self.ranks.first else None
        folder = self.ranks.from_first(None if loaded is None else loaded.folder)
        if folder is not None:
            self._load(loaded or self.checkpoints.load(folder))
        if self.restart is not None:
            why = f"restart {self.restart.number} by torchrun: it ran out of memory with more"
            self.parts.adopt_limits(self.restart.limit, self.restart.eval_limit, why)

    def _checkpoint(self) -> Loaded | None:
        """The checkpoint to go on from."""
        if keeps_writes_out():
            folder = self.checkpoints.folder
            if self.config.checkpoints.resume != "no" and any(folder.glob("step-*")):
                self.log.line(
                    "A trial by brimful goes on from no checkpoint: it begins anew, and "
                    f"{folder} stays as it is."
                )
            return None
        written = self.restart.checkpoint if self.restart is not None else None
        return self.checkpoints.resume() if written is None else self.checkpoints.load(written)

    def _load(self, loaded: Loaded) -> None:
        state, where, parts = loaded.state, str(loaded.folder), self.parts
        then, now = state["settings"]["train_samples"], parts.sampler.length
        if then != now:
            raise UsageError(
                f"The checkpoint {where} was made on {then:,} training samples, and there are "
                f"{now:,} now.",
                "Where it stood in its epoch means nothing in other data.",
                'Resume with the same data, or set config.checkpoints.resume to "no".',
            )
        for sentence in changed_settings(state["settings"]["config"], self.config):
            self.log.line(sentence)
        load_model(parts.network.module, state["model"], where)
        load_optimizer_state(parts.optimizer, state["optimizer"])
        if changed := parts.precision.load_state_dict(state["precision"]):
            self.log.line(changed)
        self.position = position = parts.sampler.place(Position(**state["position"]))
        self.statistics = statistics = Statistics(**state["statistics"])
        if position.epoch != state["position"]["epoch"]:
            statistics.epoch_loss = statistics.epoch_count = statistics.this_epoch_s = 0.0
            self.log.line(
                "The rest of its epoch is less than a step now, and is left out (drop_last)."
            )
        self.sums.copy_(
            torch.tensor([statistics.epoch_loss, statistics.epoch_count], dtype=torch.float64)
        )
        statistics.resumed += 1
        self.measures = state["measures"]
        self.counts = Counts(**state["counts"])
        self.best.load_state(state)
        parts.noise.scale = NoiseScale(**state.get("noise", {}))  # older ones have none
        parts.adopt_checkpoint(state["oom_limits"])
        threads = state["settings"]["threads"]
        if len(threads) == self.ranks.size:
            parts.adopt_threads(*threads[self.ranks.rank])
        random = state["random"]
        if self.ranks.rank < len(random):
            Randomness(self.device).put_back(random[self.ranks.rank])
        else:
            self.log.say(
                f"Rank {self.ranks.rank} was not there when the checkpoint was made: its random "
                "state is a new one."
            )
        samples = position.samples
        more = f" and {counted(samples, 'sample')} of the next" if samples else ""
        self.log.line(f"Resumed from {where}: {counted(position.epoch, 'epoch')}{more} done.")

    # --- saving ---

    def save(self, score: float | None, facts: UpdateFacts, must: bool) -> None:
        """Writes a checkpoint. Where it cannot be written the training goes on, unless nothing is
        to follow (`must`).
        """
        self.stop_the_clock("train_time_s")
        module, step = self.parts.network.module, self.counts.updates
        finite = all_finite([*module.parameters(), *running_statistics(module)])
        if not all(self.ranks.gather(finite)):
            raise facts.error("The weights became NaN or infinite")
        self.ranks.broadcast(list(module.buffers()))
        tree = self._tree()
        if self.ranks.first:
            try:
                # torch raises an error at a worker's end, wherever the main thread is
                with held_back([signal.SIGCHLD]):
                    path = self.checkpoints.save(
                        tree, step=step, score=score, best=self.best.direction
                    )
                if self.restart is not None:
                    self.restart.note_checkpoint(path)
                self.log.event("checkpoint", path=str(path), step=step, score=score)
            except DiskFull as error:
                if must:
                    raise
                sentences = [
                    *error.sentences(),
                    "The training goes on, and tries again when the next one is due.",
                ]
                self.log.say(" ".join(sentence.rstrip(".") + "." for sentence in sentences))
        self.saved_at = time.perf_counter()
        self.stop_the_clock("checkpoint_time_s")
        if not must:
            self.write_statistics()

    def _tree(self) -> dict[str, Any]:
        parts = self.parts
        whole = full if parts.network.sharded else dict
        self.statistics.epoch_loss, self.statistics.epoch_count = self.sums.tolist()
        return {
            "model": whole(parts.network.module.state_dict()),
            "optimizer": whole(parts.optimizer.state_dict()),
            "precision": parts.precision.state_dict(),
            "position": dataclasses.asdict(self.position),
            "counts": dataclasses.asdict(self.counts),
            "random": self.ranks.gather(Randomness(self.device).take()),
            "oom_limits": parts.oom_limits(),
            "statistics": dict(vars(self.statistics)),
            "measures": self.measures,
            "noise": self.noise()._asdict(),
            **self.best.state(),
            "settings": {
                "config": self.config.as_json(),
                "train_samples": parts.sampler.length,
                "ranks": self.ranks.size,
                # of each rank, with the cores that it may use
                "threads": self.ranks.gather([torch.get_num_threads(), host.cores()]),
            },
        }

    # --- what it cost ---

    def start_the_clock(self) -> None:
        self.clock = self.saved_at = time.perf_counter()

    def stop_the_clock(self, name: str) -> None:
        """What passed since the last stop goes to `name`."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        now = time.perf_counter()
        self.statistics.add(name, now - self.clock)
        self.clock = now

    def write_statistics(self) -> None:
        self.peaks.read(TRAIN)
        peaks = peaks_of_all_ranks(self.peaks.of, self.ranks)
        if not self.ranks.first:
            return
        counts, parts = self.counts, self.parts
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
            epochs=self.epochs,
            recoveries=counts.recoveries,
            eval_recoveries=parts.evaluation.recoveries if parts.evaluation is not None else 0,
            update_recoveries=self.update_recoveries,
            skipped_nan=counts.skipped_nan,
            skipped_by_scaler=parts.precision.skipped,
            noise_scale=self.noise().samples,
            noise_scale_updates=self.noise().measured,
            measures=self.measures,
            best=self.best.found,
            ended_early=self.lost_patience(),
            settings=[dataclasses.asdict(row) for row in parts.rows],
        )
        write_json(self.config.out / "training_stats.json", content, self.log)


def load_model(module: nn.Module, state: Mapping[str, torch.Tensor], where: str) -> None:
    """Of a sharded model each rank keeps its part. Raises UsageError, naming what differs, where
    `state` is of another model.
    """
    held = module.state_dict()
    wrong = [f"{name} is not in the checkpoint" for name in held if name not in state]
    wrong += [f"{name} is not in the model" for name in state if name not in held]
    wrong += [
        f"{name} has shape {tuple(state[name].shape)} in the checkpoint and "
        f"{tuple(tensor.shape)} in the model"
        for name, tensor in held.items()
        if isinstance(tensor, torch.Tensor) and name in state and state[name].shape != tensor.shape
    ]
    if wrong:
        more = f"; and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
        raise UsageError(
            f"The checkpoint {where} is of another model: {'; '.join(wrong[:NAMED])}{more}.",
            "Its weights cannot be loaded into this one.",
            "Resume with the model it was made with, choose another folder, or set "
            'config.checkpoints.resume to "no".',
        )
    module.load_state_dict({name: sharded_as(held[name], state[name]) for name in state})


def changed_settings(saved: Mapping[str, Any], config: Config) -> Iterator[str]:
    """A sentence for each setting that is not what the checkpoint was made with."""
    before, now = flat(saved), flat(config.as_json())
    for name in now:
        # a setting that is newer than the checkpoint has nothing to differ from
        if name.split(".")[0] in UNREPORTED or before.get(name, now[name]) == now[name]:
            continue
        sentence = (
            f"config.{name} was {before[name]!r} when the checkpoint was made and is "
            f"{now[name]!r} now."
        )
        if name == "seed":
            sentence += (
                " The order of the samples is another one: in the epoch under way some will be "
                "met twice and others not at all."
            )
        yield sentence


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested settings by their dotted names."""
    made: dict[str, Any] = {}
    for name, value in settings.items():
        made |= (
            flat(value, f"{prefix}{name}.")
            if isinstance(value, Mapping)
            else {prefix + name: value}
        )
    return made
