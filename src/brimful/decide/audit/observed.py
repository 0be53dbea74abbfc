"""What all findings of an audit read."""

from collections.abc import Mapping
from dataclasses import dataclass

from brimful.decide.loaders_seen import batches_per_step, samples_of
from brimful.values import Budget, Machine, Report, Setting, TrialResult
from brimful_inside.wire import LoaderSeen

Texts = tuple[str, str, str] | None  # problem, explanation, suggestion


@dataclass(frozen=True)
class Observed:
    """What all findings read: rank 0, whose loader stands for all."""

    sample: TrialResult
    report: Report
    requested: Mapping[str, Setting]
    evaluations: tuple[LoaderSeen, ...]  # their loaders, those that were iterated
    loaders: tuple[LoaderSeen, ...]  # of training, those that were iterated
    loader: LoaderSeen | None  # the one that gave most batches
    budget: Budget | None
    machine: Machine | None

    @property
    def asked(self) -> int | None:
        """The requested batch size."""
        value = self.requested.get("batch_size")
        return (
            int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        )

    @property
    def learning_rate(self) -> float | None:
        value = self.requested.get("lr")
        return (
            float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        )

    @property
    def given(self) -> int | None:
        """The largest batch that the loader gave, else its own batch_size."""
        if self.loader is None:
            return None
        return max(
            (b.samples for b in self.loader.batches if b.samples is not None),
            default=self.loader.batch_size,
        )

    @property
    def length(self) -> int | None:
        """Samples of an epoch, in this rank."""
        return samples_of(self.loader) if self.loader else None

    @property
    def batches_per_step(self) -> int | None:
        count = batches_per_step(self.sample)
        return None if count is None else round(count)
