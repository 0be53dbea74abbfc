"""What is concluded about time."""

from dataclasses import dataclass

from brimful.values.number import Estimate, Point


@dataclass(frozen=True)
class SpeedEstimate:
    """What is concluded about speed."""

    points: tuple[Point, ...]  # samples per second, measured, with interval
    best_batch_size: int | None
    knee_batch_size: int | None  # the smallest within the tolerance of the best
    noise: float | None  # relative spread of repeats
    tolerance: float  # 0.03 or the noise, whichever is larger


@dataclass(frozen=True)
class KernelShare:
    """An operation's part of a step's time."""

    op: str  # "convolution_backward"
    share: float  # of the step; all calls together
    # what most of its time is spent on: "compute", "bandwidth", "launches" or "transfer"
    bound_by: str


@dataclass(frozen=True)
class PredictedSpeed:
    """The time of a step on a card where nothing was run, from each kernel's arithmetic and bytes.
    All of it is predicted.

    Loading is not in it: how fast the host loads there cannot be known from here.
    """

    batch_size: int | None  # None: of the command as it stands
    step_s: Estimate
    samples_per_s: Estimate | None  # None where nobody knows how many samples are in a step
    curve: tuple[Point, ...]  # samples per second, up to the largest batch size that fits
    best_batch_size: int | None
    knee_batch_size: int | None  # the smallest within the tolerance of the best
    # where it lies with a host twice as fast, and half as fast
    knee_interval: tuple[int, int] | None
    tolerance: float
    # shares of the step: "compute", "bandwidth", "launches" (the host is awaited), "transfer"
    bound_by: dict[str, float]
    kernels: tuple[KernelShare, ...]  # the operations that take longest
    exact: bool  # the same kernels ran in all traces
    notes: tuple[str, ...] = ()  # what is not in it: "communication between 4 ranks is not counted"
    ranks: int = 1
    # seconds of it between cards, hidden ones too; the note names the link. None: none seen
    exchange: Estimate | None = None


@dataclass(frozen=True)
class Loading:
    """How fast this machine makes one rank's batches, beside what its card takes. Samples per
    second.
    """

    workers: int  # that the loader asks for
    one_worker: Estimate
    all_workers: Estimate  # of all these; of one where there are none
    card: Estimate | None  # one rank's share of the predicted speed; None where that is not known
    needed: int | None  # workers that keep up with it; None likewise
    binds: bool  # the card waits for what is loaded here


@dataclass(frozen=True)
class Epoch:
    """An epoch of the training at the predicted speed, over all ranks."""

    steps: int
    samples_per_step: int
    samples: int
    samples_given: bool  # by the user, not by the data that is here
    distinct: int | None  # of these; None where nobody knows
    train_s: Estimate
    waits_for_data: bool  # both times are those of loading as it is here, where that is longer
    evaluated: int | None  # samples of an evaluation; None where none was seen
    evaluation_s: Estimate | None
    # of what runs on the card from one pass over the data to the next, evaluations aside
    between_s: Estimate | None = None
