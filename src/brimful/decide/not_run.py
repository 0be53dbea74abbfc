"""Branches of the script that no step of a trial took, and the lines that it was to reach."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from brimful.values import Diagnostic, NotRun, Outcome, TrialResult


def branches_not_run(results: Sequence[TrialResult]) -> tuple[NotRun, ...]:
    """By the latest trial that watched them and trained."""
    watched = [result for result in results if result.trial.watches_branches or result.trial.reach]
    trained = [result for result in watched if result.outcome is Outcome.COMPLETED]
    return tuple(trained[-1].reports[0].not_run) if trained and trained[-1].reports else ()


def about_branches(results: Sequence[TrialResult]) -> Iterator[Diagnostic]:
    for branch in branches_not_run(results):
        line = branch.first_line or branch.line
        one_more = f"--reach {Path(branch.file).name}:{line} counts it"
        yield Diagnostic("not-run", _problem(branch), "", one_more)
    reports = results[-1].reports if results else ()
    for place in reports[0].not_reached if reports else ():
        yield Diagnostic(
            "not-reached",
            f"{place} was not reached, and is not counted",
            "the trial met no condition that leads there",
            "name a line behind an `if` of the script's own files that it asks while it trains",
        )


def _problem(branch: NotRun) -> str:
    first, last = branch.first_line, branch.last_line
    if not first:
        return (
            f"`{branch.condition}` (line {branch.line}) held in every step of the trials: later "
            "steps are not counted"
        )
    lines = f"line {first}" if first == last else f"lines {first}–{last}"
    what = "it takes" if first == last else "they take"
    return f"{lines} (`{branch.condition}`) ran in no trial: what {what} is not counted"
