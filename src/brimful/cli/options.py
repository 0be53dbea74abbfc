"""The options of the verbs, and what they become."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from brimful.errors import UsageError
from brimful.units import parse_batch_size, parse_duration, parse_setting
from brimful.values import Setting
from brimful.verbs.session import Options, Watcher

TRIALS = Group("Trials", sort_key=2)
RUN = Group("Run", sort_key=2)
OUTPUT = Group("Output", sort_key=3)
WHERE = Group("Device", sort_key=1)


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """What every verb that runs trials takes."""

    set_: Annotated[
        tuple[str, ...],
        Parameter(name=["--set", "-s"], group=TRIALS, negative="", show_default=False),
    ] = ()
    """Give a setting its value: --set lr=3e-4 for {lr}. May be repeated."""
    budget: Annotated[str | None, Parameter(group=TRIALS)] = None
    """The most memory to use: a share of what is free (90%), or bytes (20GiB). Default: 90%, or all
    of an imaginary card.
    """
    max_batch_size: Annotated[str | None, Parameter(group=TRIALS)] = None
    """Never name or try a larger batch size."""
    time_limit: Annotated[str | None, Parameter(group=TRIALS)] = None
    """The longest that one trial may take (default: 10min). For tune: the longest that the whole
    search may take; its plan is then the best found so far.
    """
    steps: Annotated[str | None, Parameter(group=TRIALS)] = None
    """How many optimizer steps a trial measures. Memory trials of tune take at most two."""
    batch_size_from: Annotated[str, Parameter(group=TRIALS)] = "auto"
    """Where brimful sets the batch size: flag (of the command), script (a number in its text),
    loader (where the DataLoader is made) or none. auto takes the first that exists.
    """
    home: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """The folder of the records. Default: BRIMFUL_HOME, or .brimful here."""
    json: Annotated[
        bool, Parameter(name="--json", negative="", show_default=False, group=OUTPUT)
    ] = False
    """One JSON object on standard output; progress goes to standard error."""
    details: Annotated[bool, Parameter(negative="", show_default=False, group=OUTPUT)] = False
    """Print everything: where the memory goes, how each number was found, every trial."""

    def chosen(self, watcher: Watcher) -> dict[str, Any]:
        """The settings and options as the verbs take them."""
        options = Options(
            home=self.home,
            budget=self.budget,
            max_batch_size=parse_batch_size(self.max_batch_size)
            if self.max_batch_size is not None
            else None,
            time_limit_s=parse_duration(self.time_limit) if self.time_limit is not None else None,
            steps=whole("--steps", self.steps, 1) if self.steps is not None else None,
            batch_size_from=self.batch_size_from,
            watcher=watcher,
        )
        return {"settings": dict(map(pair, self.set_)), "options": options}


@Parameter(name="*")
@dataclass(frozen=True)
class Card:
    """An imaginary card."""

    gpu: Annotated[str | None, Parameter(group=WHERE)] = None
    """A card of the catalogue (brimful gpus) to imagine: a100-40gb, or three of them: a100-40gb:3.
    predict compares several: l4,a100-80gb:1..4, or all.
    """
    gpu_memory: Annotated[str | None, Parameter(group=WHERE)] = None
    """A card with this much memory to imagine: 20GiB, or three of them: 20GiB:3."""
    ranks: Annotated[int | None, Parameter(group=WHERE)] = None
    """Start one rank alone, on an imaginary card, of a training over so many: --ranks 64."""
    as_rank: Annotated[int | None, Parameter(group=WHERE)] = None
    """Which of these ranks to start. Default: 0."""

    def chosen(self) -> dict[str, Any]:
        """The cards as the verbs take them."""
        return asdict(self)


@Parameter(name="*")
@dataclass(frozen=True)
class Here:
    """What is here."""

    device: Annotated[str, Parameter(group=WHERE)] = "auto"
    """auto (the accelerator that is here, else the CPU), cpu or accelerator."""


@Parameter(name="*")
@dataclass(frozen=True)
class Running:
    """What `run` takes."""

    plan: Annotated[str | None, Parameter(group=RUN)] = None
    """A record of `brimful tune`, `latest` (the newest of this command) or `none`. Without it and
    without --set: the newest of this command that is for this machine, if there is one."""
    strict: Annotated[bool, Parameter(group=RUN, negative="", show_default=False)] = False
    """Refuse a plan that was tuned with another seed, output folder, run name or number of epochs;
    without it, brimful lists such differences and follows the plan."""
    set_: Annotated[
        tuple[str, ...], Parameter(name=["--set", "-s"], group=RUN, negative="", show_default=False)
    ] = ()
    """Give a setting its value, in place of the plan's: --set batch_size=64. May be repeated."""
    max_restarts: Annotated[str, Parameter(group=RUN)] = "10"
    """How often it may start again with a smaller batch size after it ran out of memory."""
    resume_with: Annotated[str | None, Parameter(group=RUN, allow_leading_hyphen=True)] = None
    """The text that replaces {resume} when it starts again: --resume-with "--resume last"."""
    grace: Annotated[str, Parameter(group=RUN)] = "90s"
    """How long the command may take to end after a signal, writing its checkpoint, before brimful
    kills it.
    """
    batch_size_from: Annotated[str, Parameter(group=RUN)] = "auto"
    """Where brimful sets the batch size: flag, script (a number in its text), loader (where it is
    made) or none. auto takes the first that exists.
    """
    host_limit: Annotated[str | None, Parameter(group=RUN)] = None
    """End the command as out of host memory when its processes hold more: 20GiB. brimful checks
    about every 0.01 s, and they can pass the limit between two checks."""
    device: Annotated[str | None, Parameter(group=WHERE)] = None
    """auto (the plan's, else the accelerator that is here, else the CPU), cpu or accelerator."""
    gpu: Annotated[str | None, Parameter(group=WHERE, show=False)] = None
    gpu_memory: Annotated[str | None, Parameter(group=WHERE, show=False)] = None
    home: Annotated[Path | None, Parameter(group=OUTPUT)] = None
    """The folder of the records. Default: BRIMFUL_HOME, or .brimful here."""
    json: Annotated[
        bool, Parameter(name="--json", negative="", show_default=False, group=OUTPUT)
    ] = False
    """One JSON object on standard output; what the command prints there goes to standard error."""

    def refuse_imaginary_cards(self) -> None:
        if self.gpu is not None or self.gpu_memory is not None:
            raise UsageError(
                problem=f"brimful run --gpu {self.gpu or self.gpu_memory}",
                explanation="an imaginary card computes nothing, so nothing can be trained on it",
                suggestion="ask `brimful predict` or `brimful tune` for that card, and run the "
                "plan on a real one",
            )

    def chosen(self) -> dict[str, Any]:
        return {
            "plan": self.plan,
            "strict": self.strict,
            "settings": dict(map(pair, self.set_)),
            "device": self.device,
            "max_restarts": whole("--max-restarts", self.max_restarts, 0),
            "resume_with": self.resume_with,
            "grace_s": parse_duration(self.grace),
            "host_limit": self.host_limit,
            "options": Options(home=self.home, batch_size_from=self.batch_size_from),
        }


def whole(name: str, text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise UsageError(f"{name} {text}", "it takes a whole number", f"give {least} or more")
    return int(text)


def setting_name(text: str) -> str:
    """The name of a setting, also where it was written as the script's flag is: max-length."""
    return text.strip().replace("-", "_")


def pair(text: str) -> tuple[str, Setting]:
    written, equals, value = text.partition("=")
    name = setting_name(written)
    if not equals or not name.isidentifier():
        raise UsageError(
            f"--set {text}", "a setting is given as name=value", "for instance --set lr=3e-4"
        )
    if name.endswith("batch_size"):
        return name, parse_batch_size(value)
    return name, parse_setting(value)


def axes(texts: Sequence[str]) -> dict[str, tuple[Setting, ...]]:
    """The sides of a table, each as name=value,value."""
    sides: dict[str, tuple[Setting, ...]] = {}
    for text in texts:
        written, equals, values = text.partition("=")
        name = setting_name(written)
        parts = [part.strip() for part in values.split(",")]
        if not equals or not name.isidentifier():
            raise UsageError(
                f"--grid {text}",
                "a side of a table is name=value,value",
                "for instance --grid batch_size=1,2,4",
            )
        if not all(parts):
            raise UsageError(
                f"--grid {text}: a value is missing",
                "values stand between commas",
                f"as in --grid {name}=1,2,4",
            )
        if name in sides:
            raise UsageError(
                f"--grid {name} was given twice",
                "a setting is one side of the table",
                "give its values together",
            )
        sides[name] = tuple(pair(f"{name}={part}")[1] for part in parts)
        twice = next((part for part in sides[name] if sides[name].count(part) > 1), None)
        if twice is not None:
            raise UsageError(
                f"--grid {text} has {twice} twice",
                "each value is one line of the table",
                "leave one out",
            )
    return sides


# of a command line that names no option
CARD, COMMON, HERE, RUNNING = Card(), Common(), Here(), Running()
