"""Two ways to train beside each other, as `compare` has them."""

from dataclasses import dataclass, field

from brimful.values.given import Diagnostic, Estimate, Setting, Source


@dataclass(frozen=True)
class Side:
    """One of the two, by its median run."""

    name: str  # "A" or "B"
    command_line: str
    settings: dict[str, Setting] = field(default_factory=dict)
    samples_per_step: int | None = None  # over all ranks
    # in force at the first and at the last step, of each group of parameters; () where not known
    first_learning_rates: tuple[float, ...] = ()
    last_learning_rates: tuple[float, ...] = ()
    runs: int = 1
    # (samples trained on, seconds of training, smoothed loss), of its longest run, thinned
    curve: tuple[tuple[float, float, float], ...] = ()


@dataclass(frozen=True)
class Quantity:
    """A number that both have, as medians over their runs."""

    code: str  # "samples_per_s", "peak_device_bytes", "time_to_loss_s", ...
    a: float | None
    b: float | None
    # B over A, with its 95 % interval where there is noise to judge; None where not both are known
    ratio: Estimate | None = None

    @property
    def differs(self) -> bool:
        """Whether noise leaves no doubt that the ratio is not 1."""
        ratio = self.ratio
        if ratio is None or ratio.low is None or ratio.high is None:
            return False
        return not ratio.low <= 1 <= ratio.high


@dataclass(frozen=True)
class Comparison:
    """`verdict` is a sentence; `better` the side to take, None where nothing tells."""

    sides: tuple[Side, Side]
    verdict: str
    better: str | None
    quantities: tuple[Quantity, ...]
    source: Source  # measured or predicted
    basis: str  # "4 runs of 2.00 min"
    target_loss: float | None = None  # that the slower one reached
    at_samples: float | None = None  # where the losses at equal samples are read
    at_s: float | None = None  # and those at equal time
    warnings: tuple[Diagnostic, ...] = ()
