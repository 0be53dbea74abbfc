"""A training under a plan: its attempts, how it ended, and what is seen while it goes on. (`brimful.values` has them too.)"""

from __future__ import annotations

from dataclasses import dataclass

from brimful.basic_values import Outcome, PlannedSetting
from brimful_inside.wire import Failure, PhasePeak, Report


@dataclass(frozen=True)
class RunStarted:
    """What a run was asked to do, before its first attempt."""

    source: str  # of its settings: "plan", "settings" (given with --set) or "command" (as it stands)
    why: str  # in a sentence: which plan, or why none
    plan_record: str | None  # the folder of the plan's record
    max_restarts: int
    resume_words: tuple[str, ...]  # what stands for {resume} from the second attempt on; () where the command has none
    grace_s: float  # how long the command may take to end by itself after a signal
    host_limit_bytes: int | None = None  # an attempt is ended as out of host memory when its processes are seen to hold more


@dataclass(frozen=True)
class Attempt:
    """One start of the command, to its end; all ranks gathered: worst memory, summed samples per second."""

    number: int  # from 1
    settings: tuple[PlannedSetting, ...]
    argv: tuple[str, ...]
    environment: dict[str, str]  # added to the user's own
    resumed: bool | None  # told to go on from its checkpoint; False: no place for that; None: a first attempt
    outcome: Outcome
    reports: tuple[Report, ...]  # one a rank, by rank: the last that each told
    phases: dict[str, PhasePeak]  # the worst rank's, by phase
    peak: PhasePeak | None  # over whole processes, worst rank
    steps: int  # of the rank that came furthest
    samples: int | None  # trained on, over all ranks; None where not known
    samples_per_s: float | None  # while training, over the whole attempt
    loading_share: float | None  # of the training time, waited for data
    started_unix_s: float
    duration_s: float
    folder: str  # relative to the record
    failure: Failure | None = None
    failed_rank: int | None = None  # the rank that fell first, where there are several
    exit_code: int | None = None  # of the command; negative is a signal; None if brimful ended it
    process_tree_host_bytes: int | None = None  # resident memory of all its processes together, sampled from outside
    output_cut: str | None = None  # why a part of its output is not in the record
    notes: tuple[str, ...] = ()


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
class RunBeat:
    """What is seen of an attempt while it goes on, about once a second. Absent is None."""

    phase: str | None  # None: no rank has told anything yet
    steps: int
    seconds: float  # since the attempt began
    ranks: int = 0
    samples_per_s: float | None = None  # of all ranks, lately
    loading_share: float | None = None  # of the slowest rank, lately
    loss: float | None = None  # what went backward in `loss_rank` alone; None where reading it would wait for a device
    loss_rank: int | None = None
    allocated_bytes: int | None = None  # now, of the fullest rank
    reserved_bytes: int | None = None
    process_tree_host_bytes: int | None = None  # of all processes together
    host_used_share: float | None = None  # of the machine's memory or the cgroup's, whoever uses it
    alloc_retries: int | None = None  # since the attempt began, worst rank
    retry_streak: int = 0  # looks running in which the allocator had to try again, the longest of any rank
