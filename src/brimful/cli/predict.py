"""`brimful predict`: its options."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from brimful.cli import views
from brimful.cli.options import (
    CARD,
    COMMON,
    OUTPUT,
    Card,
    Common,
    Words,
    axes,
    flag,
    line,
    setting_name,
    whole,
)
from brimful.units import parse_batch_size


@Parameter(name="*")
@dataclass(frozen=True)
class Question:
    """What is predicted beside whether it fits.

    Parameters
    ----------
    what_if
        Try what would save memory (mixed precision, gradient checkpointing, ...), and what batch
        size would fit then. Without it, brimful tries it where the requested batch size does not
        fit; --no-what-if never tries it.
    samples
        Training samples of an epoch, over all ranks, where only a part of the data is here:
        --samples 50030.
    solve
        Find the largest value of another setting that fits: --solve max_length for the command's
        flag --max-length, or wherever {max_length} stands in it.
    grid
        Memory and speed at each of several values, as a table: --grid batch_size=1,2,4,8. Given
        twice, at every combination.
    sizes
        The batch sizes of the table that says what each means: --sizes 32,48,64. Without it,
        brimful takes some up to the largest. No further trial is run.
    reach
        A line that the script comes to later than a trial: --reach train.py:88. The conditions that
        lead there are let come true after the first steps, so that what it takes is counted.
    snapshot
        Write the predicted run for PyTorch's memory viewer (pytorch.org/memory_viz): --snapshot
        peak.pickle.
    """

    what_if: bool | None = None
    samples: Annotated[str | None, Parameter(metavar="N")] = None
    solve: Annotated[str | None, Parameter(metavar="NAME")] = None
    grid: Annotated[tuple[str, ...], flag(metavar="NAME=N,N,...")] = ()
    sizes: Annotated[str | None, Parameter(metavar="N,N,...")] = None
    reach: Annotated[tuple[str, ...], flag(metavar="FILE:LINE")] = ()
    snapshot: Annotated[Path | None, Parameter(group=OUTPUT, metavar="FILE")] = None


def predict(
    *,
    card: Card = CARD,
    question: Question = Question(),
    common: Common = COMMON,
    words: Words = (),
) -> int:
    """Will this training fit a GPU you don't have?

    Memory by phase, speed, and the largest batch size that fits.
    """
    from brimful.verbs.predict import predict as verb

    sizes, samples, solve = question.sizes, question.samples, question.solve
    with views.progress() as watcher:
        chosen = common.chosen(watcher)
        chosen["options"] = replace(chosen["options"], reach=tuple(map(line, question.reach)))
        record = verb(
            words,
            **asdict(card),
            **chosen,
            what_if=question.what_if,
            samples=whole("--samples", samples, 1) if samples is not None else None,
            solve=solve and setting_name(solve),
            grid=axes(question.grid),
            sizes=[parse_batch_size(size) for size in sizes.split(",")] if sizes else (),
            snapshot=question.snapshot,
        )
    return views.show_prediction(record, common.json, common.details)
