"""The options that verbs share, and what the words of an option mean."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from brimful.errors import UsageError
from brimful.trials.session import Options
from brimful.units import parse_batch_size, parse_duration, parse_setting
from brimful.values import Setting
from brimful.watcher import Watcher

TRIALS = Group("Trials", sort_key=2)
OUTPUT = Group("Output", sort_key=3)
WHERE = Group("Device", sort_key=1)


def flag(**more: Any) -> Parameter:
    """One that is given or not: it takes no value, and has no opposite."""
    return Parameter(negative="", show_default=False, **more)


def _gpu_names(context: object) -> list[str]:
    """For a shell that completes --gpu."""
    from brimful.measure.gpus import CARDS

    return [gpu.key for gpu in CARDS]


GPU = Parameter(group=WHERE, metavar="NAME", completer=_gpu_names)
GPU_MEMORY = Parameter(group=WHERE, metavar="MEMORY")
Words = Annotated[tuple[str, ...], Parameter(parse=False)]
Json = Annotated[bool, flag(name="--json")]
Home = Annotated[Path | None, Parameter(group=OUTPUT, metavar="FOLDER")]
Settings = Annotated[
    tuple[str, ...],
    Parameter(
        name=["--set", "-s"], group=TRIALS, metavar="NAME=VALUE", negative="", show_default=False
    ),
]
Where = Annotated[
    str,
    Parameter(
        group=WHERE,
        metavar="DEVICE",
        help="auto (the accelerator that is here, else the CPU), cpu or accelerator.",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Common:
    """What every verb that runs trials takes.

    Parameters
    ----------
    set_
        The value of a placeholder of your command: --set lr=3e-4 for {lr}. May be repeated.
    budget
        The most memory to use: a share of what is free (90%), or bytes (20GiB). Default: 90%, or
        all of an imaginary card.
    max_batch_size
        Never name or try a larger batch size.
    time_limit
        The longest that one trial may take (default: 10min). For tune and predict: the longest that
        the whole search may take; what is known by then is the answer.
    steps
        How many optimizer steps a trial measures. Memory trials of tune take at most two.
    batch_size_from
        Where brimful sets the batch size: flag (of the command), script (a number in its text),
        loader (where the DataLoader is made) or none (it stays as it is). auto takes the first of
        them that exists.
    home
        The folder of the records. Default: BRIMFUL_HOME, or .brimful here.
    json
        One JSON object on standard output; progress goes to standard error.
    details
        Print everything: where the memory goes, how each number was found, every trial.
    """

    set_: Settings = ()
    budget: Annotated[str | None, Parameter(group=TRIALS, metavar="MEMORY")] = None
    max_batch_size: Annotated[str | None, Parameter(group=TRIALS, metavar="N")] = None
    time_limit: Annotated[str | None, Parameter(group=TRIALS, metavar="TIME")] = None
    steps: Annotated[str | None, Parameter(group=TRIALS, metavar="N")] = None
    batch_size_from: Annotated[str, Parameter(group=TRIALS, metavar="PLACE")] = "auto"
    home: Home = None
    json: Annotated[bool, flag(name="--json", group=OUTPUT)] = False
    details: Annotated[bool, flag(group=OUTPUT)] = False

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
    """An imaginary card.

    Parameters
    ----------
    gpu
        A card of the catalogue (`brimful gpus`), which need not be here: a100-40gb, or three of
        them: a100-40gb:3, or eight in each of four machines: h100:8x4. predict compares several:
        l4,a100-80gb:1..4, or all.
    gpu_memory
        A card that is in no catalogue, by its memory: 20GiB, or three of them: 20GiB:3.
    ranks
        How many ranks the training has, where brimful is to start one of them alone: --ranks 64.
    as_rank
        With --ranks, or several machines: which rank to start. Default: 0.
    link
        What each card can send to other machines: 400Gb, 100GbE or 50GB/s.
    """

    gpu: Annotated[str | None, GPU] = None
    gpu_memory: Annotated[str | None, GPU_MEMORY] = None
    ranks: Annotated[int | None, Parameter(group=WHERE, metavar="N")] = None
    as_rank: Annotated[int | None, Parameter(group=WHERE, metavar="N")] = None
    link: Annotated[str | None, Parameter(group=WHERE, metavar="SPEED")] = None


# of a command line that names no option
CARD, COMMON = Card(), Common()

_MOST_DIGITS = 15  # more than anything that is counted here has


def line(text: str) -> str:
    """ "train.py:88", of --reach."""
    file, _, number = text.rpartition(":")
    if not file.endswith(".py") or not number.isdecimal():
        raise UsageError(f"--reach {text[:80]}", "it takes a line of the script: train.py:88")
    return text


def whole(name: str, text: str, least: int) -> int:
    if not text.isdecimal() or len(text) > _MOST_DIGITS or int(text) < least:
        raise UsageError(f"{name} {text[:80]}", f"it takes a whole number, {least} or more")
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
