"""micro-batch × accumulation × ranks = effective batch: requested, in force, and why. No torch is
needed here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from brimful.decide.loading import EVAL_TIMES
from brimful.errors import UsageError
from brimful.units import counted
from brimful.values import EffectiveSetting
from brimful_train.config import BatchingConfig


@dataclass(frozen=True)
class Batching:
    """The sizes in force. `rows`: what was requested for each, and why it is what it is."""

    micro_batch: int
    accumulation: int
    ranks: int
    eval_batch: int
    rows: tuple[EffectiveSetting, ...]

    @property
    def effective(self) -> int:
        return self.micro_batch * self.accumulation * self.ranks


def plan_batches(
    config: BatchingConfig, ranks: int, train_samples: int, eval_samples: int | None
) -> Batching:
    """The sizes in force for data of these lengths.

    Raises UsageError for data without samples and for a batch that is larger than the data set.
    """
    if train_samples < 1:
        raise UsageError(
            "The training data set has 0 samples.",
            suggestion="Look at how task.train_data is made.",
        )
    _refuse_more_than_there_is("micro_batch", config.micro_batch, train_samples)
    _refuse_more_than_there_is("effective", config.effective or 0, train_samples)
    micro, accumulation = _cut(config, ranks)
    _refuse_more_than_there_is(
        "accumulation", micro * accumulation, train_samples, f"{micro:,} × {accumulation:,} = "
    )
    evaluated, why_evaluated = _eval_batch(config, micro, eval_samples)
    rows = (
        EffectiveSetting(
            "micro_batch",
            config.micro_batch,
            micro,
            "as asked"
            if micro == config.micro_batch
            else f"{config.effective:,} samples over {ranks} × {accumulation} micro-batches are "
            f"{micro:,} in each",
        ),
        EffectiveSetting(
            "accumulation",
            config.accumulation,
            accumulation,
            _why_accumulation(config, micro, ranks),
        ),
        EffectiveSetting("ranks", None, ranks, "processes of this training"),
        _effective_row(config, micro, accumulation, ranks, train_samples),
        EffectiveSetting("eval_batch", config.eval_batch, evaluated, why_evaluated),
        EffectiveSetting(
            "drop_last",
            config.drop_last,
            config.drop_last,
            _why_last(config, micro * accumulation * ranks, train_samples),
        ),
    )
    return Batching(micro, accumulation, ranks, evaluated, rows)


def with_eval_batch(batching: Batching, eval_batch: int, why: str) -> Batching:
    """With a smaller evaluation batch, and the reason in its row."""
    rows = tuple(
        replace(row, effective=eval_batch, why=why) if row.name == "eval_batch" else row
        for row in batching.rows
    )
    return replace(batching, eval_batch=eval_batch, rows=rows)


def _cut(config: BatchingConfig, ranks: int) -> tuple[int, int]:
    """Micro-batch and accumulation. For an effective batch they are as even as its number of
    samples allows.
    """
    if config.effective is None:
        return config.micro_batch, config.accumulation or 1
    per_rank = -(-config.effective // ranks)
    accumulation = config.accumulation or -(-per_rank // config.micro_batch)
    micro = -(-per_rank // accumulation)
    if micro > config.micro_batch:
        raise UsageError(
            f"config.batch: micro_batch {config.micro_batch:,} × accumulation {accumulation:,} × "
            f"{ranks} ranks is "
            f"{config.micro_batch * accumulation * ranks:,}, and effective = {config.effective:,}",
            "The three settings contradict each other.",
            "Leave accumulation out: it follows from the other two.",
        )
    return micro, accumulation


def _refuse_more_than_there_is(name: str, samples: int, there: int, sum_: str = "") -> None:
    if samples > there:
        raise UsageError(
            f"config.batch.{name}: a batch of {sum_}{samples:,} samples is more than the "
            f"{there:,} of the training data set",
            "Such a batch cannot be filled even once.",
            f"Set it to {there:,} at the most.",
        )


def _why_accumulation(config: BatchingConfig, micro: int, ranks: int) -> str:
    if config.accumulation is not None:
        return "as asked"
    if config.effective is not None:
        return (
            f"{config.effective:,} samples per update, {micro:,} at once on each of {ranks} ranks"
        )
    return "one micro-batch of each rank per update"


def _effective_row(
    config: BatchingConfig, micro: int, accumulation: int, ranks: int, samples: int
) -> EffectiveSetting:
    product = micro * accumulation * ranks
    why = f"{micro:,} × {accumulation:,} × {ranks}"
    if product > samples:
        return EffectiveSetting(
            "effective_batch",
            config.effective,
            samples,
            f"{why} = {product:,}, and the data set has {samples:,}",
        )
    if config.effective is not None and product != config.effective:
        why += (
            f": {config.effective:,} does not divide into {ranks} × {accumulation} equal "
            "micro-batches"
        )
    return EffectiveSetting("effective_batch", config.effective, product, why)


def _eval_batch(config: BatchingConfig, micro: int, samples: int | None) -> tuple[int, str]:
    wanted = config.eval_batch or EVAL_TIMES * micro
    why = (
        "as asked"
        if config.eval_batch
        else f"{EVAL_TIMES} × the micro-batch: evaluation keeps no activations"
    )
    if samples is None:
        return wanted, "not used: there is no evaluation data"
    if wanted > samples:
        return max(1, samples), f"{why}; the evaluation data has {counted(samples, 'sample')}"
    return wanted, why


def token_rows(max_tokens: int | None, eval_data: object) -> Iterator[EffectiveSetting]:
    """`eval_data`: None where there is none; its samples may have `sizes`."""
    if max_tokens is None:
        return
    why = "samples × longest of a micro-batch; it may have fewer samples than asked"
    yield EffectiveSetting("max_tokens", max_tokens, max_tokens, why)
    if getattr(eval_data, "sizes", None) is not None:
        why = f"{EVAL_TIMES} × max_tokens: evaluation keeps no activations"
        yield EffectiveSetting("eval max_tokens", None, EVAL_TIMES * max_tokens, why)
    elif eval_data is not None:
        why = "the evaluation data has no `sizes`: its batches are held to eval_batch alone"
        yield EffectiveSetting("eval max_tokens", None, None, why)


def _why_last(config: BatchingConfig, effective: int, samples: int) -> str:
    left = samples % effective
    if not left:
        return "the effective batch divides the data set"
    if config.drop_last:
        return (
            f"at the end of each epoch's order {counted(left, 'sample is', 'samples are')} left out"
        )
    return f"the last update of an epoch has {counted(left, 'sample')}"


@dataclass(frozen=True)
class Split:
    """Into which pieces a micro-batch is cut before it goes through the model.

    `limit` starts at the micro-batch (one piece) and becomes smaller by out-of-memory errors. Where
    micro-batches hold different numbers of samples because these are of different size (`by_size`),
    all are cut in the same proportion.
    """

    micro_batch: int
    limit: int
    by_size: bool = False

    def piece(self, samples: int) -> int:
        """The most samples of a micro-batch of `samples` that go through the model at once."""
        at_once = samples * self.limit // self.micro_batch if self.by_size else self.limit
        return max(1, min(samples, at_once))

    def pieces(self, samples: int, decomposes: bool = True) -> Iterator[tuple[int, int]]:
        """Start and stop of each piece of a micro-batch of `samples`: as few as the limit allows,
        of nearly one size.
        """
        count = self._count(samples, decomposes)
        for number in range(count):
            start, stop = samples * number // count, samples * (number + 1) // count
            if stop > start:
                yield start, stop

    def updates(self, largest: int) -> int:
        """Of a loss that does not decompose: into how many updates a step is cut whose
        micro-batches have up to `largest` samples. Each takes that part of every micro-batch."""
        return -(
            -(self.micro_batch if self.by_size else min(largest, self.micro_batch)) // self.limit
        )

    def at_once(self, samples: int, decomposes: bool = True) -> int:
        """The samples in the largest piece of a micro-batch of `samples`."""
        return -(-samples // self._count(samples, decomposes))

    def _count(self, samples: int, decomposes: bool) -> int:
        return -(-samples // self.piece(samples)) if decomposes else self.updates(samples)

    def smaller(self, samples: int, failed: int, fit: int | None = None) -> Self | None:
        """What to try after a piece of `failed` out of `samples` did not fit: half of it, or the
        `fit` samples of it that ought to fit where they are fewer. None when it was a single
        sample.
        """
        if failed <= 1:
            return None
        at_most = min(failed // 2, fit or failed)
        limit = self.limit * at_most // failed if self.by_size else at_most
        split = replace(self, limit=max(1, limit))
        while split.limit > 1 and split.at_once(samples) >= failed:
            split = replace(split, limit=split.limit // 2)
        return split

    def agreed(self, limit: int) -> Self:
        """With another rank's smaller limit."""
        return replace(self, limit=limit) if 0 < limit < self.limit else self
