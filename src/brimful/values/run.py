"""A training under a plan."""

from dataclasses import dataclass

from brimful.values.command import EffectiveSetting
from brimful.values.trial import Execution, Outcome


@dataclass(frozen=True)
class RunStarted:
    """What a run was asked to do, before its first attempt."""

    # of its settings: "plan", "settings" (given with --set) or "command" (as it stands)
    source: str
    why: str  # in a sentence: which plan, or why none
    max_restarts: int
    # what stands for {resume} from the second attempt on; () where the command has none
    resume_words: tuple[str, ...]
    # an attempt is ended as out of host memory when its processes are seen to hold more
    host_limit_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Attempt(Execution):
    """One start of the command in a run, to its end."""

    number: int  # from 1
    settings: tuple[EffectiveSetting, ...]
    argv: tuple[str, ...]
    environment: dict[str, str]  # added to the user's own
    # whether it got the words that resume from a checkpoint; None: a first attempt
    resumed: bool | None
    steps: int  # of the rank that came furthest
    samples: int | None = None  # trained on, over all ranks; None where not known
    started_unix_s: float
    output_cut: str | None = None  # why a part of its output is not in the record


@dataclass(frozen=True)
class RunEnded:
    """How a run ended: by the outcome of its last attempt."""

    outcome: Outcome
    exit_code: int  # of brimful (`brimful.errors` has them)
    message: str  # in a sentence


@dataclass(frozen=True)
class Run:
    """A run as the record has it; put together from its entries."""

    started: RunStarted
    attempts: tuple[Attempt, ...] = ()
    ended: RunEnded | None = None  # None: cut off, or still going on


@dataclass(frozen=True)
class Heartbeat:
    """What is seen of an attempt while it goes on, about once a second. Absent is None."""

    phase: str | None  # None: no rank has reported yet
    steps: int
    seconds: float  # since the attempt began
    ranks: int = 0
    samples_per_s: float | None = None  # of all ranks, lately
    loading_share: float | None = None  # of the slowest rank, lately
    # as the engine reports it, else what went backward; None where reading waits for a device
    loss: float | None = None
    loss_rank: int | None = None  # whose loss it is; None: the mean of all ranks
    allocated_bytes: int | None = None  # now, of the fullest rank
    reserved_bytes: int | None = None
    process_tree_host_bytes: int | None = None  # of all processes together
    host_used_share: float | None = None  # of the machine's memory or the cgroup's, whoever uses it
    alloc_retries: int | None = None  # since the attempt began, worst rank
    # polls in a row in which the allocator had to try again, the longest of any rank
    retry_streak: int = 0
