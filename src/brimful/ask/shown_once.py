"""What one trial shows whole, and others end before: an evaluation that takes longer to trace than
the training and far less memory, as one that generates token by token; and steps that do the same
again, made in search of an evaluation that did not come."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from brimful.measure.traces import read_trace
from brimful.units import format_bytes
from brimful.values import Diagnostic, Outcome, TrialKind, TrialResult
from brimful_inside.left_out import takes_little
from brimful_inside.simulator.program import Program, joined
from brimful_inside.simulator.trace import Free, Malloc, Phase, Row, Step


def first_to_show_whole(results: Sequence[TrialResult], folder: Path) -> TrialResult | None:
    """The first of these trials that shows what others need not; None if none does."""
    return next((result for result in results if _shows_for_others(result, folder)), None)


def _shows_for_others(result: TrialResult, folder: Path) -> bool:
    trial, train, evaluation = result.trial, result.phases.get("train"), result.phases.get("eval")
    whole = (
        result.outcome is Outcome.COMPLETED
        and trial.kind is TrialKind.TRACE
        and trial.ends.see_eval
        and not trial.what_ifs
    )
    worlds = {report.world_size for report in result.reports}
    if not whole or train is None:
        return False
    if len(result.reports) > 1 and worlds != {len(result.reports)}:
        return False  # trainings one after another, not ranks of one
    trace = read_trace(result, folder)
    rows = trace.rows if trace is not None else ()
    if evaluation is None:
        return _repeats_itself(rows, _last_step(result))
    if not takes_little(evaluation.allocated_bytes or 0, train.allocated_bytes or 0):
        return False
    train_rows, eval_rows = _lengths(rows, _last_step(result))
    return eval_rows > train_rows


def _repeats_itself(rows: Sequence[Row], last: int) -> bool:
    """Whether each step after the last one that is wanted makes and ends as many allocations of as
    many bytes in all, and what follows the steps takes no more."""
    requests, ends, nbytes, number = 0, 0, 0, 0
    later: list[tuple[int, int, int]] = []
    for row in rows:
        if isinstance(row, Malloc):
            requests, nbytes = requests + 1, nbytes + row.nbytes
        elif isinstance(row, Free):
            ends += 1
        elif isinstance(row, Step):
            number = row.number
            if number >= last:
                later.append((requests, ends, nbytes))
            requests = ends = nbytes = 0
    alike = len(set(later)) == 1 and later[0][0] == later[0][1]
    return len(later) > 1 and alike and nbytes <= later[0][2]


def _lengths(rows: Sequence[Row], last: int) -> tuple[int, int]:
    """Of the training up to its last step, and of all from the evaluation after it on, in rows."""
    trained = next(
        (at for at, row in enumerate(rows) if isinstance(row, Step) and row.number >= last),
        len(rows),
    )
    after = enumerate(islice(rows, trained, None), trained)
    is_evaluation = (at for at, row in after if isinstance(row, Phase) and row.name == "eval")
    return trained, len(rows) - next(is_evaluation, len(rows))


def training_of(program: Program | None, result: TrialResult | None) -> Program | None:
    """The program of all cards as far as the last of the steps that the trials were to make, where
    one that sees no evaluation ends; all of it where `result`, the one that showed the rest, is
    None."""
    if program is None or result is None:
        return program
    wanted = ("step", _last_step(result))
    cards = []
    for card in program.cards:
        at = next((at for at, event in enumerate(card.events) if event == wanted), None)
        cards.append(card if at is None else card.first(at + 1))
    return joined(cards)


def _last_step(result: TrialResult) -> int:
    return result.trial.ends.warmup_steps + result.trial.ends.steps


def seen_once(result: TrialResult | None) -> list[Diagnostic]:
    """That an evaluation was traced at one batch size alone."""
    if result is None or "eval" not in result.phases:
        return []
    size, train, evaluation = (
        result.trial.settings.get("batch_size"),
        result.phases["train"],
        result.phases["eval"],
    )
    where = f"batch size {size:,}" if isinstance(size, int) else "the command as it stands"
    note = Diagnostic(
        "evaluation-seen-once",
        "the evaluation, which is longer than the training that trials make, was traced at "
        f"{where}: it allocates "
        f"{format_bytes(evaluation.allocated_bytes or 0)}, and the training "
        f"{format_bytes(train.allocated_bytes or 0)}",
        "trials at other batch sizes end before it: it is taken to stay below the training there "
        "as well",
        "",
    )
    return [note]
