"""What all findings of an audit read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from brimful.decide.loaders_seen import batches_per_step, samples_of
from brimful.values import Asked, Budget, Machine, Report, Setting, TrialResult
from brimful_inside.simulator.roofline import Kernel
from brimful_inside.wire import LoaderSeen

# problem, explanation, suggestion, and the line that it is about, where that is known
Texts = tuple[str, str, str] | tuple[str, str, str, str] | None


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
    # by setting: where what is requested stands, and what becomes of it
    script: Mapping[str, Asked] = field(default_factory=dict)
    kernels: Sequence[Kernel] = ()  # of a step, on an imaginary card

    @property
    def asked(self) -> int | None:
        """The requested batch size; where the command has none, that which the script reports."""
        value = self.requested.get("batch_size", self.report.batch_asked)
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

    def replaced(self, setting: str) -> Asked | None:
        asked = self.script.get(setting)
        return asked if asked is not None and asked.changed_at else None

    @property
    def batches_per_step(self) -> int | None:
        count = batches_per_step(self.sample)
        return None if count is None else round(count)


def replacement(asked: Asked, what: str, loss: str) -> Texts:
    """Of a number that is asked for, by the line that puts another one in its place."""
    requested, effective = f"{asked.requested:,g}", f"{asked.effective:,g}"
    if not asked.text:
        return (
            f"{asked.changed_at} takes a {what} of {effective}, and nothing reads the {requested} "
            f"of {asked.place}.",
            f"{asked.name} has no effect: {loss}",
            f"Pass {asked.name} on, or take it out of the script.",
            asked.changed_at,
        )
    requested += f" ({asked.place})" if asked.place else ""
    caps, at = ("caps", "at") if (asked.effective or 0) < asked.requested else ("raises", "to")
    return (
        f"{asked.changed_at} {caps} the {what} of {requested} {at} {effective}.",
        f"`{asked.text}` stands between: {loss}",
        f"Take it out, or ask for {effective}.",
        asked.changed_at,
    )
