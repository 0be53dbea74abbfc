"""The command line that all recipes share: one dataclass of options, and what it becomes for the engine.

Every option is None until it is given. A preset is another `Options` with some of them set; what is given on the command line
wins, and `Chosen` says of each where it comes from. Importing this imports no torch, so that --help is quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from brimful.errors import UsageError, nearest
from brimful.train.effective import Effective

if TYPE_CHECKING:
    from brimful.train.config import Config

__all__ = ["FLAGS", "Chosen", "Options", "Preset", "choose", "config_from", "find_preset"]

BATCH = Group("Batch", sort_key=1)
LEARNING = Group("Learning", sort_key=2)
COMPUTING = Group("Computing", sort_key=3)
KEEPING = Group("Keeping", sort_key=4)

Whole = int | None
Number = float | None
Word = str | None
Flag = bool | None


def _option(group: Group, **more: Any) -> Parameter:
    return Parameter(group=group, show_default=False, **more)


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """What any training of a recipe can be told. None: as the preset says, else as the engine does by itself."""

    batch_size: Annotated[Whole, _option(BATCH)] = None
    """Samples that go through the model at once, on each rank."""
    accumulation: Annotated[Whole, _option(BATCH)] = None
    """Micro-batches of each rank in one update."""
    effective_batch: Annotated[Whole, _option(BATCH)] = None
    """Samples in one update, over all ranks; accumulation follows from it."""
    eval_batch_size: Annotated[Whole, _option(BATCH)] = None
    """Samples at once in evaluation; three times the batch size if it is not said."""
    drop_last: Annotated[Flag, _option(BATCH)] = None
    """Leave out the samples at the end of an epoch that fill no whole effective batch."""

    epochs: Annotated[Number, _option(LEARNING)] = None
    """How often each sample is trained on."""
    max_steps: Annotated[Whole, _option(LEARNING)] = None
    """End after so many updates; the learning rate comes to its end there as well."""
    optimizer: Annotated[Word, _option(LEARNING)] = None
    """adamw, adam, sgd or adafactor."""
    lr: Annotated[Number, _option(LEARNING)] = None
    """The peak learning rate."""
    weight_decay: Annotated[Number, _option(LEARNING)] = None
    """Of weights; biases and normalization never decay."""
    schedule: Annotated[Word, _option(LEARNING)] = None
    """cosine, wsd, constant or one_cycle: the learning rate as a function of the samples seen."""
    warmup_epochs: Annotated[Number, _option(LEARNING)] = None
    """Epochs until the peak learning rate is reached."""
    floor_lr: Annotated[Number, _option(LEARNING)] = None
    """The learning rate is never below it."""
    scaling: Annotated[Word, _option(LEARNING)] = None
    """none, linear, sqrt or auto: how the learning rate follows the effective batch, from --reference-batch."""
    reference_batch: Annotated[Whole, _option(LEARNING)] = None
    """The effective batch at which --lr is right."""
    clip_norm: Annotated[Number, _option(LEARNING)] = None
    """Gradients are clipped to this norm; 0 switches clipping off."""
    seed: Annotated[Whole, _option(LEARNING)] = None
    """Of weights, order of samples and dropout."""
    on_nan: Annotated[Word, _option(LEARNING)] = None
    """stop, or skip: what a loss that is no number does."""
    eval_every_epochs: Annotated[Number, _option(LEARNING)] = None
    """How often the held-out data is measured."""

    device: Annotated[Word, _option(COMPUTING)] = None
    """auto (an accelerator if there is one), cpu, cuda, cuda:0 ..."""
    precision: Annotated[Word, _option(COMPUTING)] = None
    """auto (what is fast here), fp32, tf32, bf16 or fp16."""
    gradient_checkpointing: Annotated[Flag, _option(COMPUTING)] = None
    """Compute activations again in the backward pass instead of keeping them."""
    compile: Annotated[Flag, _option(COMPUTING)] = None
    """torch.compile."""
    cuda_graphs: Annotated[Flag, _option(COMPUTING)] = None
    """Capture steps in CUDA graphs, where the shapes allow."""
    channels_last: Annotated[Flag, _option(COMPUTING)] = None
    """Keep images and convolution weights with the channels last in memory."""
    host_allocator: Annotated[Word, _option(COMPUTING)] = None
    """keep (glibc keeps freed memory for the next tensor) or system (as it is)."""
    parallel: Annotated[Word, _option(COMPUTING)] = None
    """ddp or fsdp2, where there are several ranks."""
    overlap: Annotated[Flag, _option(COMPUTING)] = None
    """Reduce gradients while the backward pass is under way; out-of-memory then costs more than a step."""
    num_workers: Annotated[Whole, _option(COMPUTING)] = None
    """Processes of each rank that load data; measured if it is not said."""
    residence: Annotated[Word, _option(COMPUTING)] = None
    """auto, device, pinned, host or loader: where the data lives."""
    memory_budget: Annotated[Word, _option(COMPUTING)] = None
    """Memory that training may use: a share (90%) or bytes (20GiB)."""

    out: Annotated[Path | None, _option(KEEPING)] = None
    """Folder of checkpoints, statistics and log."""
    resume: Annotated[Word, _option(KEEPING)] = None
    """auto (the newest whole checkpoint in --out), no, or the path of a checkpoint."""
    checkpoint_every_epochs: Annotated[Number, _option(KEEPING)] = None
    """How often a checkpoint is written."""
    checkpoint_every_steps: Annotated[Whole, _option(KEEPING)] = None
    """The same, in updates."""
    checkpoint_every_minutes: Annotated[Number, _option(KEEPING)] = None
    """The same, by the clock."""
    keep_last: Annotated[Whole, _option(KEEPING)] = None
    """How many of the newest checkpoints stay."""
    tensorboard: Annotated[Flag, _option(KEEPING)] = None
    """Write events for TensorBoard into --out (pip install 'brimful[tensorboard]')."""


@dataclass(frozen=True)
class Preset:
    """A named set of options. `why` is one sentence; `assumed` says of single options what has no better ground."""

    name: str
    why: str
    options: Options
    assumed: Mapping[str, str]


@dataclass(frozen=True)
class Chosen:
    """The options in force, and of each where it comes from."""

    options: Options
    rows: tuple[Effective, ...]


# Config's names, as its errors say them, and the flags that set them.
FLAGS: dict[str, str] = {
    "config.batch.micro_batch": "--batch-size",
    "config.batch.accumulation": "--accumulation",
    "config.batch.effective": "--effective-batch",
    "config.batch.eval_batch": "--eval-batch-size",
    "config.batch.drop_last": "--drop-last",
    "config.optimizer.name": "--optimizer",
    "config.optimizer.lr": "--lr",
    "config.optimizer.weight_decay": "--weight-decay",
    "config.schedule.kind": "--schedule",
    "config.schedule.warmup_epochs": "--warmup-epochs",
    "config.schedule.floor_lr": "--floor-lr",
    "config.scaling.rule": "--scaling",
    "config.scaling.reference_batch": "--reference-batch",
    "config.data.workers": "--num-workers",
    "config.data.residence": "--residence",
    "config.checkpoints.resume": "--resume",
    "config.checkpoints.every_epochs": "--checkpoint-every-epochs",
    "config.checkpoints.every_steps": "--checkpoint-every-steps",
    "config.checkpoints.every_minutes": "--checkpoint-every-minutes",
    "config.checkpoints.keep_last": "--keep-last",
    **{
        f"config.{name}": "--" + name.replace("_", "-")
        for name in (
            *("epochs", "max_steps", "seed", "device", "precision", "clip_norm", "gradient_checkpointing", "compile", "out"),
            *(
                "cuda_graphs",
                "channels_last",
                "parallel",
                "overlap",
                "on_nan",
                "memory_budget",
                "eval_every_epochs",
                "tensorboard",
            ),
        )
    },
}


def choose(given: Options, preset: Preset) -> Chosen:
    """The preset's options with what was given in their place.

    What a preset says for its own batch size or learning rate alone goes with them (`_freed`); that is a row of its own.
    """
    freed = _freed(given, preset.options)
    values, rows = {}, []
    for field in fields(Options):
        name = field.name
        asked, by_preset = getattr(given, name), getattr(preset.options, name)
        values[name] = None if name in freed else by_preset if asked is None else asked
        if name in freed:
            rows.append(Effective(_flag(name), None, None, freed[name]))
        elif values[name] is not None:
            rows.append(Effective(_flag(name), asked, values[name], _why(name, asked, by_preset, preset)))
    return Chosen(Options(**values), tuple(rows))


def _freed(given: Options, preset: Options) -> dict[str, str]:
    """Options of a preset that do not hold with what was given, and why.

    Its effective batch is one of its batch size; its scaling rule scales its learning rate, not one that was given.
    """
    freed = {}
    by = next((name for name in ("batch_size", "accumulation") if getattr(given, name) is not None), None)
    if by and given.effective_batch is None and preset.effective_batch is not None:
        freed["effective_batch"] = (
            f"{_flag(by)} is given: the preset's {preset.effective_batch:,} is not kept "
            f"(--effective-batch {preset.effective_batch} keeps it)"
        )
    scaled = given.scaling is not None or given.reference_batch is not None
    if given.lr is not None and not scaled and preset.scaling is not None:
        for name in ("scaling", "reference_batch"):
            freed[name] = f"--lr is given: it is taken as it is, not scaled from batch {preset.reference_batch:,}"
    return freed


def _why(name: str, asked: object, by_preset: object, preset: Preset) -> str:
    if asked is None:
        assumed = preset.assumed.get(name)
        return f"preset {preset.name}" + (f"; {assumed}" if assumed else "")
    return f"given; preset {preset.name} has {by_preset}" if by_preset not in (None, asked) else "given"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def find_preset(name: str, presets: Mapping[str, Preset]) -> Preset:
    if name not in presets:
        close = nearest(name, presets)
        raise UsageError(
            f"--preset {name}: there is no such preset.",
            suggestion=f"Name one of {', '.join(presets)}." + (f" Nearest: {close[0]}." if close else ""),
        )
    return presets[name]


def config_from(options: Options) -> Config:
    """The engine's settings. What is None here is left to the engine. Raises UsageError for what cannot be meant."""
    from brimful.train.checkpoints.config import CheckpointConfig
    from brimful.train.config import Config
    from brimful.train.data.config import DataConfig
    from brimful.train.optim.lr_scaling import ScalingConfig
    from brimful.train.optim.optimizers import OptimizerConfig
    from brimful.train.optim.schedules import ScheduleConfig
    from brimful.train.step.batching import BatchingConfig

    o = options
    if o.out is None:
        raise UsageError("No folder for checkpoints and statistics.", suggestion="Give one with --out.")
    batch = _set(micro_batch=o.batch_size, accumulation=o.accumulation, effective=o.effective_batch,
                 eval_batch=o.eval_batch_size, drop_last=o.drop_last)  # fmt: skip
    schedule = _set(kind=o.schedule, warmup_epochs=o.warmup_epochs, floor_lr=o.floor_lr)
    checkpoints = _set(every_epochs=o.checkpoint_every_epochs, every_steps=o.checkpoint_every_steps,
                       every_minutes=o.checkpoint_every_minutes, keep_last=o.keep_last, resume=o.resume)  # fmt: skip
    if o.checkpoint_every_epochs is None and (o.checkpoint_every_steps or o.checkpoint_every_minutes):
        checkpoints["every_epochs"] = None  # another interval was asked for in its place
    whole = _set(
        epochs=o.epochs, max_steps=o.max_steps, seed=o.seed, device=o.device, precision=o.precision,
        gradient_checkpointing=o.gradient_checkpointing, compile=o.compile, cuda_graphs=o.cuda_graphs, parallel=o.parallel,
        overlap=o.overlap, on_nan=o.on_nan, memory_budget=o.memory_budget, eval_every_epochs=o.eval_every_epochs,
        tensorboard=o.tensorboard, clip_norm=o.clip_norm or None, channels_last=o.channels_last,
    )  # fmt: skip
    return Config(
        out=o.out,
        batch=BatchingConfig(**batch),
        optimizer=OptimizerConfig(**_set(name=o.optimizer, lr=o.lr, weight_decay=o.weight_decay)),
        schedule=ScheduleConfig(**schedule),
        scaling=ScalingConfig(**_set(rule=o.scaling, reference_batch=o.reference_batch)),
        checkpoints=CheckpointConfig(**checkpoints),
        data=DataConfig(**_set(workers=o.num_workers, residence=o.residence)),
        **whole,
    )


def _set(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
