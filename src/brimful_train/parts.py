"""The parts of a training, built from a task and a config: everything that exists before the first
step.
"""

from collections.abc import Callable, Sized
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import default_collate

from brimful.decide.loading import EVAL_TIMES, Host, eval_batch, refuse
from brimful.values import Diagnostic, EffectiveSetting
from brimful_inside.script import is_imaginary
from brimful_train.batching import (
    Batching,
    Split,
    plan_batches,
    token_rows,
    with_eval_batch,
)
from brimful_train.config import Config
from brimful_train.data.batch_errors import batches_are_made
from brimful_train.data.epoch_sampler import EpochSampler
from brimful_train.data.pipeline import DataPipeline
from brimful_train.data.room import (
    Room,
    device_free_bytes,
    shared_host,
)
from brimful_train.data.workers import largest_samples_bytes
from brimful_train.distributed.parallel import OVERLAP_AFTER, Network, overlapping, shard, shards
from brimful_train.distributed.ranks import Ranks
from brimful_train.evaluation import Evaluation
from brimful_train.model.options import apply_model_options
from brimful_train.model.precision import Precision
from brimful_train.model.threads import adopt_threads, choose_threads
from brimful_train.optim.optimizers import make_optimizer
from brimful_train.optim.schedules import Schedule
from brimful_train.reporting.peak_memory import Peaks, limit_memory
from brimful_train.reporting.progress_log import Log
from brimful_train.step.gradient_noise import GradientNoise, noise_row
from brimful_train.step.oom import Restart, SamplesAtOnce
from brimful_train.task import Task


@dataclass
class Parts:
    """All of one training but where it stands."""

    network: Network
    optimizer: Optimizer
    precision: Precision
    schedule: Schedule
    batching: Batching
    at_once: SamplesAtOnce
    sampler: EpochSampler
    pipeline: DataPipeline
    evaluation: Evaluation | None
    noise: GradientNoise
    rows: list[EffectiveSetting]
    warnings: tuple[Diagnostic, ...]  # of what was given and kept, and is too much for the host

    @property
    def eval_split(self) -> Split | None:
        return None if self.evaluation is None else self.evaluation.at_once.split

    def oom_limits(self) -> dict[str, Any]:
        """For a checkpoint. A limit holds as long as the same size is asked for."""
        evaluation = self.eval_split
        return {
            "micro_batch": self.at_once.split.micro_batch,
            "limit": self.at_once.split.limit,
            "eval_batch": evaluation.micro_batch if evaluation else None,
            "eval_limit": evaluation.limit if evaluation else None,
        }

    def adopt_checkpoint(self, limits: dict[str, Any]) -> None:
        """Batches that out-of-memory errors had made smaller before stay so, unless another size is
        requested now.
        """
        limit = limits["limit"] if limits["micro_batch"] == self.batching.micro_batch else None
        split = self.eval_split
        same = split is not None and limits["eval_batch"] == split.micro_batch
        why = (
            "it ran out of memory with more before the checkpoint; the effective batch is as "
            "planned"
        )
        self.adopt_limits(limit, limits["eval_limit"] if same else None, why)

    def adopt_threads(self, threads: int, cores: int) -> None:
        at = next(number for number, row in enumerate(self.rows) if row.name == "threads")
        self.rows[at] = adopt_threads(self.rows[at], threads, cores)

    def adopt_limits(self, limit: int | None, eval_limit: int | None, why: str) -> None:
        split = self.at_once.split
        if limit is not None and limit < split.limit:
            self.rows.append(EffectiveSetting("micro_batch", split.micro_batch, limit, why))
            self.at_once.split = split.agreed(limit)
        if eval_limit is not None and self.evaluation is not None:
            self.evaluation.at_once.split = self.evaluation.at_once.split.agreed(eval_limit)


def build_parts(
    task: Task,
    config: Config,
    device: torch.device,
    ranks: Ranks,
    log: Log,
    restart: Restart | None,
    peaks: Peaks,
) -> Parts:
    """Raises UsageError for settings that cannot be meant with this task's data, before any memory
    is taken.
    """
    train_data, eval_data = cast(Sized, task.train_data), cast(Sized | None, task.eval_data)
    host = shared_host(device, ranks)
    batching = plan_batches(
        config.batch, ranks.size, len(train_data), None if eval_data is None else len(eval_data)
    )
    rows = _device_rows(config, device, host)
    rows += [*batching.rows, *token_rows(config.batch.max_tokens, task.eval_data)]
    if config.memory_budget is not None:
        rows.append(limit_memory(config.memory_budget, device))

    module = _placed(task, device, ranks, log)
    precision = Precision(config.precision, device)
    network, network_rows = _network(module, task, config, device, ranks)
    optimizer, optimizer_rows = make_optimizer(
        module,
        config.optimizer,
        effective_batch=batching.effective,
        scaling=config.scaling,
        device=device,
    )
    rows += [precision.row, *network_rows, *optimizer_rows]

    def loaded(data: Any, sampler: EpochSampler, host: Host) -> DataPipeline:
        room = Room(host, device_free_bytes(device, ranks))
        return DataPipeline(data, sampler, device, config.data, config.seed, ranks, room)

    def at_once(batch: int, sampler: EpochSampler, *phase: str) -> SamplesAtOnce:
        split = Split(batch, batch, by_size=sampler.max_tokens is not None)
        restarts = restart if not phase or network.sharded else None
        return SamplesAtOnce(task, split, ranks, log.say, restarts, peaks, *phase)

    sampler = _sampler(task, config, batching, ranks)
    room = host.for_training() if task.eval_data is not None else host
    pipeline = loaded(task.train_data, sampler, room)
    schedule = _schedule(config, sampler, batching, optimizer)
    noise = noise_row(config, network.sharded, batching.accumulation, ranks.size, task.decomposes)
    rows += [pipeline.residence, *pipeline.rows, *schedule.rows(), noise]
    watched = GradientNoise(network, str(noise.effective), device, ranks.size)
    micro, warnings = at_once(batching.micro_batch, sampler), pipeline.plan.warnings
    computes = (network, optimizer, precision, schedule, batching, micro, sampler, pipeline)
    parts = Parts(*computes, evaluation=None, noise=watched, rows=rows, warnings=warnings)
    if task.eval_data is not None:
        _add_evaluation(parts, task, config, host, ranks, loaded, at_once)
    if config.data.strict:
        refuse(parts.warnings)
    return parts


def _device_rows(config: Config, device: torch.device, host: Host) -> list[EffectiveSetting]:
    why = "as asked" if config.device != "auto" else "what PyTorch found here"
    return [
        EffectiveSetting("device", config.device, str(device), why),
        choose_threads(host, device),
    ]


def _add_evaluation(
    parts: Parts,
    task: Task,
    config: Config,
    host: Host,
    ranks: Ranks,
    loaded: Callable[[Any, EpochSampler, Host], DataPipeline],
    at_once: Callable[..., SamplesAtOnce],
) -> None:
    host = host.less(parts.pipeline.plan.host_bytes, parts.pipeline.plan.shm_bytes)
    batching, warnings = _with_room_for_evaluation(task, config, parts.batching, host, ranks)
    changed = {row.name: row for row in batching.rows}
    data = loaded(task.eval_data, _eval_sampler(task, config, batching, ranks), host)
    parts.batching = batching
    parts.rows = [changed.get(row.name, row) for row in parts.rows]
    parts.rows += [replace(row, name=f"eval {row.name}") for row in data.rows if data.plan.workers]
    parts.warnings = tuple(dict.fromkeys((*parts.warnings, *warnings, *data.plan.warnings)))
    split = at_once(batching.eval_batch, data.sampler, "evaluation")
    parts.evaluation = Evaluation(task, parts.network, parts.precision, ranks, data, split)


def _network(
    module: nn.Module, task: Task, config: Config, device: torch.device, ranks: Ranks
) -> tuple[Network, list[EffectiveSetting]]:
    """The model as the settings want it, in place: checkpointed, compiled, sharded; or wrapped for
    `overlap`.
    """
    shapes_alike = getattr(task.train_data, "sizes", None) is None
    rows = apply_model_options(module, config, device, shapes_alike=shapes_alike, ranks=ranks.size)
    overlapped = None
    if config.parallel == "fsdp2":
        rows.append(shard(module, ranks))
    elif config.overlap and ranks.size > 1:
        overlapped = overlapping(module, device)
    network = Network(module, overlapped, shards(config, ranks))
    return network, [*rows, _overlap_row(config, ranks)]


def _with_room_for_evaluation(
    task: Task, config: Config, batching: Batching, host: Host, ranks: Ranks
) -> tuple[Batching, tuple[Diagnostic, ...]]:
    """An evaluation batch whose samples the host has room for, by the largest of them."""
    if is_imaginary():
        return batching, ()
    sample_bytes = None
    if ranks.first:
        with batches_are_made():
            collate = getattr(task.eval_data, "collate", None) or default_collate
            sample_bytes = largest_samples_bytes(task.eval_data, collate)
    size, why, warnings = eval_batch(
        host,
        ranks.from_first(sample_bytes),
        batching.eval_batch,
        config.gave("batch.eval_batch"),
    )
    return (with_eval_batch(batching, size, why) if why is not None else batching), warnings


def _placed(task: Task, device: torch.device, ranks: Ranks, log: Log) -> nn.Module:
    """The model on its device, in training mode, with rank 0's weights."""
    module = task.model.to(device)
    # as `from_pretrained` gives one; where a part alone is in evaluation mode, it is frozen
    if not module.training:
        module.train()
        log.line(
            "The model came in evaluation mode (model.eval()): it is put into training mode, all "
            "of it."
        )
    ranks.broadcast([*module.parameters(), *module.buffers()])
    return module


def _sampler(task: Task, config: Config, batching: Batching, ranks: Ranks) -> EpochSampler:
    return EpochSampler(
        len(task.train_data),  # type: ignore[arg-type]
        seed=config.seed,
        micro_batch=batching.micro_batch,
        accumulation=batching.accumulation,
        ranks=ranks.size,
        rank=ranks.rank,
        drop_last=config.batch.drop_last,
        sizes=getattr(task.train_data, "sizes", None),
        max_tokens=config.batch.max_tokens,
    )


def _eval_sampler(task: Task, config: Config, batching: Batching, ranks: Ranks) -> EpochSampler:
    """The evaluation data in a fixed order, a batch of each rank at a time; of samples with sizes,
    the largest first.
    """
    sizes, most = getattr(task.eval_data, "sizes", None), config.batch.max_tokens
    return EpochSampler(
        len(task.eval_data),  # type: ignore[arg-type]
        seed=config.seed,
        micro_batch=batching.eval_batch,
        accumulation=1,
        ranks=ranks.size,
        rank=ranks.rank,
        shuffle=False,
        sizes=sizes,
        max_tokens=EVAL_TIMES * most if sizes is not None and most else None,
    )


def _schedule(
    config: Config, sampler: EpochSampler, batching: Batching, optimizer: Optimizer
) -> Schedule:
    """Over the samples that the training will see."""
    per_epoch = (
        sampler.steps_per_epoch() * batching.effective if config.batch.drop_last else sampler.length
    )
    total = config.epochs * per_epoch
    if config.max_steps is not None:
        total = min(total, config.max_steps * batching.effective)
    return Schedule(config.schedule, optimizer.defaults["lr"], total, per_epoch)


def _overlap_row(config: Config, ranks: Ranks) -> EffectiveSetting:
    effective = config.overlap and ranks.size > 1
    if not config.overlap:
        why = "gradients are summed after the step, so that out of memory costs a step"
    elif ranks.size == 1:
        why = "one process has no gradients to sum"
    elif config.parallel == "fsdp2":
        why = "FSDP2 communicates during the backward pass anyway"
    else:
        why = f"once {OVERLAP_AFTER} updates in a row had enough memory"
    return EffectiveSetting("overlap", config.overlap, effective, why)
