"""`brimful compare`: its options."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from brimful.cli import views
from brimful.cli.options import COMMON, GPU, GPU_MEMORY, Common, Where, Words, flag, whole
from brimful.errors import UsageError
from brimful.units import parse_duration


@Parameter(name="*")
@dataclass(frozen=True)
class Course:
    """What is compared, and for how long.

    Parameters
    ----------
    plan
        Compare the command with its own settings, and with the plan that `brimful tune` left of it.
    minutes
        How long each run trains, not counting what comes before its first step (default: 2).
    samples
        How many samples each run trains on, in place of a time.
    to_end
        Run both to their end.
    pairs
        How often both are run, by turns. Where the command takes a seed, each pair has its own.
    gpu
        Compare predictions of memory and time for this card, which need not be here.
    gpu_memory
        The same for a card that is in no catalogue, by its memory.
    """

    plan: Annotated[bool, flag()] = False
    minutes: Annotated[str | None, Parameter(metavar="N")] = None
    samples: Annotated[str | None, Parameter(metavar="N")] = None
    to_end: Annotated[bool, flag()] = False
    pairs: Annotated[str, Parameter(metavar="N")] = "2"
    gpu: Annotated[str | None, GPU] = None
    gpu_memory: Annotated[str | None, GPU_MEMORY] = None


def compare(
    record: str | None = None,
    /,
    *,
    course: Course = Course(),
    device: Where = "auto",
    common: Common = COMMON,
    words: Words = (),
) -> int:
    """Which of two ways to train is faster, and learns sooner?

    Speed, memory, and how soon they come to the same loss.

    Parameters
    ----------
    record
        With --plan: the record of `brimful tune` whose plan is meant.
    """
    from brimful.verbs.compare import Until
    from brimful.verbs.compare import compare as verb

    minutes, samples = course.minutes, course.samples
    if [minutes, samples, course.to_end or None].count(None) < 2:
        raise UsageError("--minutes, --samples and --to-end exclude each other", "name one of them")
    until = None
    if minutes or samples or course.to_end:
        until = Until(
            parse_duration(f"{minutes}min") if minutes else None,
            whole("--samples", samples, 1) if samples else None,
        )
    with views.progress() as watcher:
        compared = verb(
            words,
            record=record,
            plan=course.plan,
            gpu=course.gpu,
            gpu_memory=course.gpu_memory,
            device=device,
            until=until,
            pairs=whole("--pairs", course.pairs, 1),
            **common.chosen(watcher),
        )
    return views.show_comparison(compared, common.json, common.details)
