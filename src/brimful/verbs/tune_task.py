"""What `tune` is to do on a device that is here, and what its search found."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from brimful import command as commands
from brimful.decide.batch_size_place import WORKERS_ALONE
from brimful.decide.run.settings import BATCH_SIZE, WORKERS
from brimful.decide.tune.problem import SearchResult
from brimful.errors import Interrupted, TimeIsUp
from brimful.units import counted
from brimful.values import Diagnostic, Objective, Setting, Trial, TrialKind, TrialResult
from brimful.verbs.session import Session
from brimful.verbs.start import Start, following

_MEMORY_STEPS = 2
_SPEED_STEPS = 8
_SPEED_WARMUP_STEPS = 2


@dataclass(frozen=True)
class Task:
    """What to tune."""

    start: Start
    objective: Objective
    settings: Mapping[str, Setting]  # all but the batch size
    host_policy: str = "measured"
    strict: bool = False
    tried: Mapping[int, TrialResult] = field(
        default_factory=dict
    )  # trials of the memory that were run already
    defaults: Mapping[str, Setting] = field(
        default_factory=dict
    )  # the script's own, where a placeholder stands open
    noted: tuple[Diagnostic, ...] = ()

    @property
    def on_cpu(self) -> bool:
        return self.start.device.kind == "cpu"

    @property
    def chooses_workers(self) -> bool:
        command = self.start.command
        return WORKERS not in self.start.given and (
            WORKERS in command.places or WORKERS in commands.placeholders(command)
        )

    @property
    def asked_workers(self) -> Setting | None:
        """By --set, or by a flag of the command."""
        command = self.start.command
        return self.start.given.get(
            WORKERS, None if WORKERS in command.places else command.given.get(WORKERS)
        )

    @property
    def searches_largest(self) -> bool:
        """Else a few memory trials show how far the search for speed may go, and no largest size is
        named.
        """
        return not self.on_cpu or self.objective is not Objective.FASTEST

    def following(self, batch_size: Setting | None) -> dict[str, Setting]:
        return (
            {}
            if batch_size is None
            else following(self.start.command, self.settings, int(batch_size))
        )

    def trial(
        self, session: Session, kind: TrialKind, settings: Mapping[str, Setting], **others
    ) -> Trial:
        """On a CPU the budget is host memory, and the trial is ended before the kernel
        would do it.
        """
        steps, find = session.options.steps, None
        if kind is TrialKind.SPEED:
            others = {"see_eval": False, "warmup_steps": _SPEED_WARMUP_STEPS} | others
        elif self.start.finds_places:
            find = WORKERS_ALONE
        return Trial(
            command=self.start.command,
            settings={**self.settings, **self.following(settings.get(BATCH_SIZE)), **settings},
            device=self.start.device,
            kind=kind,
            steps=steps or _SPEED_STEPS
            if kind is not TrialKind.MEMORY
            else min(steps or _MEMORY_STEPS, _MEMORY_STEPS),
            host_limit_bytes=self.start.budget.bytes
            if self.start.budget.memory == "host"
            else None,
            find_places=find,
            **others,
        )


@dataclass(frozen=True)
class SearchEnd:
    """What the search found. `partial`: what ended it before its time."""

    result: SearchResult
    partial: str | None = None


def ended_early(session: Session, stop: BaseException) -> str:
    """What ended a search of which something is known; the verb then ends with the exit code of
    that.
    """
    if not isinstance(stop, TimeIsUp):
        session.exit_code = Interrupted.exit_code
    ended = "the time limit was up" if isinstance(stop, TimeIsUp) else "interrupted"
    return f"{ended} after {counted(len(session.results), 'trial')}"


def partial_advice(partial: str | None, what: str) -> list[Diagnostic]:
    """For a plan that is `what`, where the search did not come to its end."""
    if partial is None:
        return []
    return [
        Diagnostic(
            "partial-plan",
            f"{partial}: the search did not come to its end",
            f"the plan is {what}; a whole search may find another",
            "tune again",
        )
    ]
