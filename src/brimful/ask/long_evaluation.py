"""An evaluation that takes longer to trace than the training and far less memory, as one that
generates token by token: once a trial has shown it whole, others end before it."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from brimful.measure.traces import read_trace
from brimful.units import format_bytes
from brimful.values import Diagnostic, Outcome, TrialKind, TrialResult
from brimful_inside.left_out import takes_little
from brimful_inside.simulator.program import Program, joined
from brimful_inside.simulator.trace import Phase, Row, Step


def shown_whole(results: Sequence[TrialResult], folder: Path) -> TrialResult | None:
    """The first of these trials that shows such an evaluation; None if none does."""
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
    if not whole or train is None or evaluation is None:
        return False
    if len(result.reports) > 1 and worlds != {len(result.reports)}:
        return False  # trainings one after another, not ranks of one
    if not takes_little(evaluation.allocated_bytes or 0, train.allocated_bytes or 0):
        return False
    trace = read_trace(result, folder)
    train_rows, eval_rows = _lengths(trace.rows if trace is not None else (), _last_step(result))
    return eval_rows > train_rows


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
    one that sees no evaluation ends; all of it where `result`, the one that shows the evaluation,
    is None."""
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


def seen_once(result: TrialResult) -> Diagnostic:
    size, train, evaluation = (
        result.trial.settings.get("batch_size"),
        result.phases["train"],
        result.phases["eval"],
    )
    where = f"batch size {size:,}" if isinstance(size, int) else "the command as it stands"
    return Diagnostic(
        "evaluation-seen-once",
        "the evaluation, which is longer than the training that trials make, was traced at "
        f"{where}: it allocates "
        f"{format_bytes(evaluation.allocated_bytes or 0)}, and the training "
        f"{format_bytes(train.allocated_bytes or 0)}",
        "trials at other batch sizes end before it: it is taken to stay below the training there "
        "as well",
        "",
    )
