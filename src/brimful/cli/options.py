"""Options that several verbs share, and what they become."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from brimful.errors import UsageError
from brimful.units import parse_batch_size, parse_duration, parse_setting
from brimful.values import Setting
from brimful.verbs.session import Options, Watcher

TRIALS = Group("Trials", sort_key=2)
OUTPUT = Group("Output", sort_key=3)
WHERE = Group("Device", sort_key=1)


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """What every verb that runs trials takes."""

    set_: Annotated[tuple[str, ...], Parameter(name=["--set", "-s"], group=TRIALS, negative="")] = ()
    """Give a placeholder its value: --set lr=3e-4. May be repeated."""
    budget: Annotated[str | None, Parameter(group=TRIALS)] = None
    """Memory that may be used: a share of what is free (90%, the default) or bytes (20GiB)."""
    max_batch_size: Annotated[str | None, Parameter(group=TRIALS)] = None
    """Never name or try a larger batch size."""
    time_limit: Annotated[str, Parameter(group=TRIALS)] = "10min"
    """The longest that one trial may take."""
    steps: Annotated[str | None, Parameter(group=TRIALS)] = None
    """Measured optimizer steps of a trial."""
    home: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """Where records are kept; else BRIMFUL_HOME, else .brimful here."""
    json: Annotated[bool, Parameter(name="--json", negative="", group=OUTPUT)] = False
    """One JSON object on standard output; progress goes to standard error."""
    full: Annotated[bool, Parameter(negative="", group=OUTPUT)] = False
    """Show everything that is known: where the memory goes, how each number was found, every trial."""

    def options(self, watcher: Watcher) -> Options:
        return Options(
            home=self.home,
            budget=self.budget,
            max_batch_size=parse_batch_size(self.max_batch_size) if self.max_batch_size is not None else None,
            time_limit_s=parse_duration(self.time_limit),
            steps=_steps(self.steps) if self.steps is not None else None,
            watcher=watcher,
        )

    def settings(self) -> dict[str, Setting]:
        return dict(map(pair, self.set_))


@Parameter(name="*")
@dataclass(frozen=True)
class Card:
    """An imaginary card."""

    gpu: Annotated[str | None, Parameter(group=WHERE)] = None
    """An imaginary card of the catalogue (brimful gpus), for instance a100-40gb; a100-40gb:3 are three of them."""
    gpu_memory: Annotated[str | None, Parameter(group=WHERE)] = None
    """An imaginary card of your own with this much memory, for instance 20GiB; 20GiB:3 are three of them."""
    ranks: Annotated[int | None, Parameter(group=WHERE)] = None
    """Start one rank of so many, without the others; collectives act on shapes."""
    as_rank: Annotated[int | None, Parameter(group=WHERE)] = None
    """Which one of --ranks; 0 if it is not said."""

    def chosen(self) -> dict[str, Any]:
        """The cards as the verbs take them."""
        return {"gpu": self.gpu, "gpu_memory": self.gpu_memory, "ranks": self.ranks, "as_rank": self.as_rank}


@Parameter(name="*")
@dataclass(frozen=True)
class Here:
    """What is here."""

    device: Annotated[str, Parameter(group=WHERE)] = "auto"
    """auto (the accelerator that is here, else the CPU), cpu or accelerator."""


def _steps(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(
            problem=f"--steps {text}",
            explanation="a trial takes a whole number of steps, one at least",
            suggestion="give 1 or more",
        )
    return int(text)


def pair(text: str) -> tuple[str, Setting]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise UsageError(
            problem=f"--set {text}",
            explanation="a setting is given as name=value",
            suggestion="for instance --set lr=3e-4",
        )
    if name.endswith("batch_size"):
        return name, parse_batch_size(value)
    return name, parse_setting(value)
