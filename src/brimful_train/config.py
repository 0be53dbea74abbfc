"""All settings of a training, each checked when it is made: UsageError names what cannot be meant
("config.batch.effective").

A recipe's command line is made of them: a field is a flag, its docstring the help. No torch here,
so that --help is quick.
"""

import dataclasses
import math
import numbers
import os
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from cyclopts import Group, Parameter

from brimful.errors import UsageError
from brimful.units import GIB, parse_budget

SCHEDULES = ("cosine", "wsd", "constant", "one_cycle", "step")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
_WORDS = {
    bool: "neither True nor False",
    int: "no whole number",
    float: "no number",
    str: "no text",
    Path: "no path",
}
_ACCEPTED: dict[type, Any] = {
    int: numbers.Integral,
    float: numbers.Real,
    Path: (str, os.PathLike),
}


# --- how settings are checked ---


def require(holds: object, name: str, value: object, problem: str, suggestion: str = "") -> None:
    """Raises UsageError "config.NAME = VALUE: PROBLEM" unless it `holds`."""
    if not holds:
        raise UsageError(f"config.{name} = {value!r}: {problem}", suggestion=suggestion)


def refuse_unread(
    settings: Any, prefix: str, choice: str, read_by: Mapping[str, tuple[str, ...]]
) -> None:
    """Refuses a setting that `choice` does not read and that is not at its default: nobody shall
    believe it is in force.
    """
    for setting in dataclasses.fields(settings):
        readers, value = read_by.get(setting.name), getattr(settings, setting.name)
        if readers and choice not in readers and value != setting.default:
            raise UsageError(
                f"config.{prefix}.{setting.name} = {value!r}: {choice} has no such setting",
                f"It is one of {' and '.join(readers)}, and would have no effect.",
                f"Leave it at {setting.default!r}, or choose {readers[0]}.",
            )


class Rule(NamedTuple):
    """Each of `names` (divided by spaces) that is set holds to it: else "config.NAME = VALUE:
    PROBLEM".
    """

    names: str
    holds: Callable[[Any], Any]
    problem: str
    suggestion: str = ""


def one_of(name: str, choices: tuple[str, ...]) -> Rule:
    suggestion = f"Name one of {', '.join(choices)}."
    return Rule(name, choices.__contains__, "there is no such choice", suggestion)


def check(settings: Any, prefix: str, *rules: Rule) -> None:
    """Holds each field of a dataclass to its annotation (bool, int, float, str, Path, another
    dataclass, or None beside one), and those that are set to the rules. `prefix`: "batch." of
    config.batch.

    A whole number does where a number is asked for, and text where a path is; numbers of other
    libraries (NumPy's) become Python's own, which are what JSON has. True is no number. Raises
    UsageError that names ``config.PREFIX.FIELD``.
    """
    for name, hint in typing.get_type_hints(type(settings)).items():
        value, kinds = getattr(settings, name), typing.get_args(hint) or (hint,)
        is_one = isinstance(value, tuple(_ACCEPTED.get(kind, kind) for kind in kinds))
        if not is_one or (isinstance(value, bool) and bool not in kinds):
            none = " and not None" if types.NoneType in kinds else ""
            kind_word = _WORDS.get(kinds[0], f"no {kinds[0].__name__}")
            raise UsageError(f"config.{prefix}{name} = {value!r} is {kind_word}{none}.")
        if isinstance(value, numbers.Number) and type(value) not in (bool, int, float):
            number: Any = value
            object.__setattr__(settings, name, int(number) if int in kinds else float(number))
    for rule in rules:
        for name in rule.names.split():
            value = getattr(settings, name)
            if value is not None:
                require(rule.holds(value), prefix + name, value, rule.problem, rule.suggestion)


# --- the settings ---


def _counts(number: float) -> bool:
    return number >= 1


def _is_finite(number: float) -> bool:
    return 0 <= number < math.inf


def _is_positive(number: float) -> bool:
    return 0 < number < math.inf


def _is_share(number: float) -> bool:
    return 0 < number <= 1


_BATCH, _LEARNING = Group("Batch", sort_key=1), Group("Learning", sort_key=2)
_COMPUTING, _KEEPING = Group("Computing", sort_key=3), Group("Keeping", sort_key=4)
ADAMS = ("adamw", "adam")
_READ_BY_OPTIMIZERS = {
    **dict.fromkeys(("beta1", "beta2", "eps"), ADAMS),
    **dict.fromkeys(("momentum", "nesterov"), ("sgd",)),
    "relative_step": ("adafactor",),
}
_READ_BY_SCHEDULES = {
    "decay_share": ("wsd",),
    **dict.fromkeys(("rise_share", "start_share"), ("one_cycle",)),
    **dict.fromkeys(("decay_factor", "decay_every_epochs"), ("step",)),
}


@Parameter(name="*", group=_BATCH)
@dataclass(frozen=True)
class BatchingConfig:
    """How many samples train together. `accumulation` and `effective` follow from each other; with
    neither, an update takes one micro-batch of each rank."""

    micro_batch: Annotated[int, Parameter(name="--batch-size")] = 64
    """Samples that go through the model at once, on each rank."""
    accumulation: int | None = None
    """Micro-batches of each rank in one update."""
    effective: Annotated[int | None, Parameter(name="--effective-batch")] = None
    """Samples in one update, over all ranks; accumulation follows from it."""
    eval_batch: Annotated[int | None, Parameter(name="--eval-batch-size")] = None
    """Samples at once in evaluation; without it three times the micro-batch."""
    max_tokens: int | None = None
    """For data with `sizes`: the samples of an update are sorted by them, and a micro-batch holds
    as many as keep samples × longest within it, a batch of the evaluation as many as keep within
    three times as much."""
    drop_last: bool = False
    """Leave out the samples at the end of an epoch that fill no whole effective batch."""

    def __post_init__(self) -> None:
        check(
            self,
            "batch.",
            Rule(
                "micro_batch accumulation effective eval_batch max_tokens",
                _counts,
                "it is a whole number of 1 or more",
            ),
        )


@Parameter(name="*", group=_LEARNING)
@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer and its settings. One that the chosen optimizer does not read is refused."""

    name: Annotated[str, Parameter(name="--optimizer")] = "adamw"
    """adamw, adam, sgd or adafactor."""
    lr: float = 1e-3
    """The peak learning rate; with a scaling rule, the one at the reference batch."""
    weight_decay: float = 0.01
    """Decoupled for AdamW and Adafactor, added to the gradient for Adam and SGD. Biases and
    normalization never decay.
    """
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    momentum: float = 0.9
    nesterov: bool = False
    relative_step: bool = False
    """Adafactor's own step, max(0.001, RMS of the parameter) × min(lr, 1/√step), in place of lr
    itself.
    """

    def __post_init__(self) -> None:
        check(
            self,
            "optimizer.",
            one_of("name", ("adamw", "adam", "sgd", "adafactor")),
            Rule("lr", _is_positive, "a learning rate is more than 0"),
            Rule("weight_decay eps", _is_finite, "it is 0 or more"),
            Rule(
                "beta1 beta2 momentum",
                lambda share: 0 <= share < 1,
                "it is at least 0 and less than 1",
            ),
        )
        require(
            self.momentum > 0 or not self.nesterov,
            "optimizer.nesterov",
            True,
            "Nesterov's step needs a momentum of more than 0",
        )
        refuse_unread(self, "optimizer", self.name, _READ_BY_OPTIMIZERS)


@Parameter(name="*", group=_LEARNING)
@dataclass(frozen=True)
class ScheduleConfig:
    """The learning rate as a function of the samples seen. A warm-up has one length, in epochs or
    in samples.
    """

    kind: Annotated[str, Parameter(name="--schedule")] = "cosine"
    """cosine, wsd, constant, one_cycle or step: the learning rate as a function of the samples
    seen.
    """
    warmup_epochs: float | None = None
    """Epochs until the peak learning rate is reached, linearly from 0; for one_cycle, the length of
    its rise.
    """
    warmup_samples: float | None = None
    """The same, in samples."""
    floor_lr: float = 0.0
    """The learning rate is never below it, in the warm-up neither."""
    decay_share: float = 0.2
    """The last part of a wsd training, which falls linearly to the floor."""
    rise_share: float = 0.3
    """The part of a one_cycle training that rises; 0.3 and 1/25 are
    torch.optim.lr_scheduler.OneCycleLR's.
    """
    start_share: float = 0.04
    """A one_cycle begins at this share of the peak."""
    decay_factor: float = 0.9
    """A step training multiplies its learning rate by it each time."""
    decay_every_epochs: float = 10
    """After so many epochs each; 0.9 and 10 are assumed."""

    def __post_init__(self) -> None:
        check(
            self,
            "schedule.",
            one_of("kind", SCHEDULES),
            Rule("warmup_epochs warmup_samples floor_lr", _is_finite, "it is 0 or more"),
            Rule(
                "decay_share rise_share start_share decay_factor",
                _is_share,
                "it is more than 0 and at most 1",
            ),
            Rule("decay_every_epochs", _is_positive, "it is above 0"),
        )
        warm = (self.warmup_epochs, self.warmup_samples)
        if None not in warm:
            raise UsageError(
                f"config.schedule.warmup_epochs = {warm[0]} and warmup_samples = {warm[1]}: a "
                "warm-up has one length",
                suggestion="Give one of the two.",
            )
        refuse_unread(self, "schedule", self.kind, _READ_BY_SCHEDULES)
        require(
            self.rise_share == ScheduleConfig.rise_share or warm == (None, None),
            "schedule.rise_share",
            self.rise_share,
            "the warm-up beside it is the rise's length already",
            "Give one of the two.",
        )


@Parameter(name="*", group=_LEARNING)
@dataclass(frozen=True)
class ScalingConfig:
    """What another batch than the reference does to the learning rate and to Adam's beta2."""

    rule: Annotated[str, Parameter(name="--scaling")] = "none"
    """none, linear, sqrt or auto (linear for SGD, sqrt for the others): how the learning rate
    follows the effective batch.
    """
    reference_batch: int | None = None
    """The effective batch, in samples, at which --lr (and beta2) is right."""
    hold_beta2: bool = True
    """With a reference batch, Adam's beta2 forgets over as many samples as it would there, whatever
    the rule.
    """

    def __post_init__(self) -> None:
        give = "Give the effective batch at which the learning rate was found."
        check(
            self,
            "scaling.",
            one_of("rule", ("none", "linear", "sqrt", "auto")),
            Rule("reference_batch", _counts, "a batch has 1 sample or more", give),
        )
        if self.rule != "none" and self.reference_batch is None:
            raise UsageError(
                f"config.scaling.rule = {self.rule!r} without config.scaling.reference_batch",
                "A learning rate can only be scaled from the batch at which it is right.",
                give,
            )


@Parameter(name="*", group=_KEEPING)
@dataclass(frozen=True)
class CheckpointConfig:
    """How often a checkpoint is written, how many stay, and where a training goes on from.

    None switches an interval off; several may hold at once.
    """

    every_epochs: Annotated[float | None, Parameter(name="--checkpoint-every-epochs")] = 1
    """How often a checkpoint is written."""
    every_steps: Annotated[int | None, Parameter(name="--checkpoint-every-steps")] = None
    """The same, in updates."""
    every_minutes: Annotated[float | None, Parameter(name="--checkpoint-every-minutes")] = None
    """The same, by the clock."""
    every_samples: Annotated[int | None, Parameter(name="--save-every")] = None
    """The same, in samples, whatever the batch size: after the update in which a multiple of it is
    reached.
    """
    keep_last: int = 3
    """How many of the newest whole checkpoints stay, 1 or more."""
    keep_best: bool = True
    """The one with the best score stays as well, however old it is."""
    resume: str = "auto"
    """auto (from the newest whole checkpoint in --out, if there is any), no, or the path of a
    checkpoint. Those of another training in the folder are removed as new ones come, which is
    announced first."""

    def __post_init__(self) -> None:
        check(
            self,
            "checkpoints.",
            Rule(
                "every_epochs every_steps every_minutes every_samples",
                _is_positive,
                "it is a number above 0",
                "Give None to switch it off.",
            ),
            Rule(
                "keep_last",
                _counts,
                "it is 1 or more: the newest whole checkpoint is never removed",
            ),
            Rule("resume", bool, 'it is "auto", "no" or the path of a checkpoint'),
        )


@Parameter(name="*", group=_COMPUTING)
@dataclass(frozen=True)
class DataConfig:
    """How data is loaded."""

    workers: Annotated[int | None, Parameter(name="--num-workers")] = None
    """Processes of each rank that load data; without it measured."""
    residence: str = "auto"
    """Where a data set of arrays lives: device, pinned, host (as it is), loader (behind workers),
    or auto: the first that its memory share allows. Other data sets are always behind a loader."""
    memory_share: float = 0.25  # assumed: the training needs most of the memory
    """Of the free memory, for the data set."""
    prefetch: int | None = None
    """Batches made ahead by each worker; without it 2, or 1 where memory is short."""
    pin_memory: bool | None = None
    """Copy batches into pinned memory on their way to a card; without it wherever there is room for
    that.
    """
    strict: bool = False
    """Refuse what you gave where the host has no room for it; without it, it is kept with a
    warning.
    """
    given: Annotated[str | None, Parameter(show=False)] = None
    """The settings that the user gave (batch.micro_batch,data.workers), where a preset gave others;
    a recipe fills it in.
    None: those that are not at their defaults."""
    random_samples: bool = True
    """Each sample has a random state of its own; False: the data set draws no random numbers."""

    def __post_init__(self) -> None:
        check(
            self,
            "data.",
            one_of("residence", ("auto", "device", "pinned", "host", "loader")),
            Rule("workers", _is_finite, "it is 0 or more"),
            Rule("memory_share", _is_share, "a share is above 0 and up to 1"),
            Rule("prefetch", _counts, "a worker makes one batch at least"),
            Rule(
                "given",
                re.compile(r"[a-z]\w*(\.\w+)*(,[a-z]\w*(\.\w+)*)*").fullmatch,
                "it is names of settings with commas between them",
            ),
        )


@Parameter(name="*", group=_COMPUTING)
@dataclass(frozen=True)
class Config:
    """Settings of one training."""

    out: Annotated[Path, Parameter(group=_KEEPING)]
    """Folder of checkpoints, statistics and log."""
    epochs: Annotated[float, Parameter(group=_LEARNING)] = 1
    """How often each sample is trained on; may be a part of one (0.5)."""
    max_steps: Annotated[int | None, Parameter(group=_LEARNING)] = None
    """End after so many updates; the learning rate comes to its end there as well."""
    patience_samples: Annotated[int | None, Parameter(group=_LEARNING)] = None
    """End at the evaluation that is so many samples after the best one; None: only when the epochs
    or steps are done.
    """
    seed: Annotated[int, Parameter(group=_LEARNING)] = 0
    """Of weights, order of samples and dropout."""
    device: str = "auto"
    """auto (an accelerator if there is one), cpu, cuda, cuda:0 ..."""
    backend: str | None = None
    """By which several ranks communicate: gloo, nccl ...; without it what PyTorch has for the
    device.
    """
    batch: BatchingConfig = field(default_factory=BatchingConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    precision: str = "fp32"
    """fp32, tf32, bf16, fp16 or auto (what the device computes fast)."""
    clip_norm: Annotated[float | None, Parameter(group=_LEARNING)] = None
    """The largest 2-norm of all gradients together; 0 (or None): no clipping."""
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    data: DataConfig = field(default_factory=DataConfig)
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    compile: bool = False
    """torch.compile."""
    cuda_graphs: bool = False
    """torch.compile with mode="reduce-overhead": forward and backward are replayed as CUDA graphs.
    """
    channels_last: bool = False
    """Keep images and convolution weights with the channels last in memory."""
    cudnn_benchmark: bool = False
    """Let cuDNN try its kernels at each new shape and take the fastest (a card, batches of one
    shape).
    """
    parallel: str = "ddp"
    """ddp or fsdp2, where there are several ranks."""
    overlap: bool = False
    """Once some hundred steps passed without out-of-memory, reduce gradients while the backward
    pass goes on; an out-of-memory error then costs what was trained since the last checkpoint
    instead of one step."""
    on_nan: Annotated[str, Parameter(group=_LEARNING)] = "stop"
    """What happens when the loss becomes NaN or infinite: stop, or skip (leave that update out and
    count it).
    """
    memory_budget: str | None = None
    """Memory that training may use, of the device or on a CPU of the host: a share of what is free
    (80%) or bytes (20GiB).
    """
    eval_every_epochs: Annotated[float | None, Parameter(group=_LEARNING)] = 1
    """How often the held-out data is measured; None: at the end alone."""
    tensorboard: Annotated[bool, Parameter(group=_KEEPING)] = False
    """Write events for TensorBoard into --out (pip install 'brimful[tensorboard]')."""
    log_every_s: Annotated[float, Parameter(group=_KEEPING)] = 10.0
    """Seconds between two lines of the log within an epoch."""
    noise_scale: Annotated[str, Parameter(group=_KEEPING)] = "auto"
    """The gradient noise scale in the log: auto (where an update has several micro-batches or
    ranks), split (where it has none of both, one update in 50 is made in two halves) or off.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", self.clip_norm or None)
        check(
            self,
            "",
            Rule("epochs", _is_positive, "it is a number above 0"),
            Rule("max_steps patience_samples", _counts, "it is 1 or more"),
            Rule("seed", _is_finite, "it is 0 or more"),
            Rule(
                "device",
                re.compile(r"[a-z]+(:\d+)?").fullmatch,
                'it is no device\'s name ("auto", "cpu", "cuda:0")',
            ),
            Rule(
                "backend", re.compile(r"[a-z]+").fullmatch, "it is no backend's name (gloo, nccl)"
            ),
            one_of("precision", (*PRECISIONS, "auto")),
            one_of("parallel", ("ddp", "fsdp2")),
            one_of("on_nan", ("stop", "skip")),
            one_of("noise_scale", ("auto", "split", "off")),
            Rule("clip_norm", _is_positive, "it is 0 (no clipping) or more"),
            Rule("eval_every_epochs", _is_positive, "it is above 0 (None: at the end alone)"),
            Rule("log_every_s", lambda every: every > 0, "it is above 0"),
        )
        object.__setattr__(self, "out", Path(self.out))
        try:
            if self.memory_budget is not None:
                parse_budget(self.memory_budget, GIB)
        except UsageError as error:
            raise UsageError(
                f"config.memory_budget = {self.memory_budget!r}: {error.problem}",
                error.explanation,
                error.suggestion,
            ) from None

    def gave(self, name: str) -> bool:
        """Whether the user gave the setting of this dotted name ("batch.micro_batch"), and no
        preset or default.
        """
        if self.data.given is not None:
            return name in self.data.given.split(",")
        part, _, field_name = name.partition(".")
        settings = getattr(self, part)
        return getattr(settings, field_name) != getattr(type(settings), field_name)

    def as_json(self) -> dict[str, Any]:
        """JSON values alone."""
        return dataclasses.asdict(self) | {"out": str(self.out)}
