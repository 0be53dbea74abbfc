"""What `tune` knows of a command while it works."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from brimful import command as commands
from brimful.decide.batch_size_place import WORKERS_ALONE
from brimful.decide.run.settings import BATCH_SIZE, WORKERS
from brimful.trials.session import Session
from brimful.trials.start import Start, following
from brimful.values import (
    Command,
    Diagnostic,
    Objective,
    Setting,
    Trial,
    TrialKind,
    TrialResult,
)
from brimful_inside.wire import Ends

_MEMORY_STEPS = 2
_SPEED_STEPS = 8
_SPEED_WARMUP_STEPS = 2


@dataclass
class Tuning:
    """A command with its settings; what short trials find out of it is put in their place."""

    session: Session
    start: Start
    objective: Objective
    settings: dict[str, Setting]  # all but the batch size
    command: Command
    asked: int | None  # the user's own batch size
    # trials of the memory that were run already
    tried: dict[int, TrialResult] = field(default_factory=dict)
    # the script's own, where a placeholder stands open
    defaults: dict[str, Setting] = field(default_factory=dict)
    notes: list[Diagnostic] = field(default_factory=list)

    @property
    def on_cpu(self) -> bool:
        return self.start.device.kind == "cpu"

    @property
    def chooses_workers(self) -> bool:
        places = (*self.command.places, *commands.placeholders(self.command))
        return WORKERS not in self.start.given and WORKERS in places

    @property
    def asked_workers(self) -> Setting | None:
        """By --set, or by a flag of the command."""
        by_flag = None if WORKERS in self.command.places else self.command.given.get(WORKERS)
        return self.start.given.get(WORKERS, by_flag)

    @property
    def searches_largest(self) -> bool:
        """Else a few memory trials show how far the search for speed may go, and no largest size is
        named.
        """
        return not self.on_cpu or self.objective is Objective.LARGEST

    def trial(
        self,
        kind: TrialKind,
        settings: Mapping[str, Setting],
        command: Command | None = None,
        see_eval: bool = True,
    ) -> Trial:
        """On a CPU the budget is host memory, and the trial is ended before the kernel
        would do it.
        """
        steps, command = self.session.options.steps, command or self.command
        follows = following(command, self.settings, settings.get(BATCH_SIZE))
        finds_workers = self.start.finds_places and kind is not TrialKind.SPEED
        warmup_steps = _SPEED_WARMUP_STEPS if kind is TrialKind.SPEED else Ends.warmup_steps
        if kind is TrialKind.MEMORY:
            steps = min(steps or _MEMORY_STEPS, _MEMORY_STEPS)
        budget = self.start.budget
        return Trial(
            command=command,
            settings={**self.settings, **follows, **settings},
            device=self.start.device,
            kind=kind,
            ends=Ends(steps or _SPEED_STEPS, warmup_steps, see_eval),
            find_places=WORKERS_ALONE if finds_workers else None,
            host_limit_bytes=budget.bytes if budget.memory == "host" else None,
        )
