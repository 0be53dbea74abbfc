"""`predict`: does a command fit a card that need not be here, its memory by phase, the largest
batch size, its speed.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Unpack

from brimful.ask.answer import find, timed_batch
from brimful.ask.cards import by_memory, by_price, which_card
from brimful.ask.grid import MOST_CELLS, grid_of, without_effect
from brimful.ask.reading import CardView, MemoryAnswer, view_of
from brimful.ask.rows import sizes_of
from brimful.ask.speed import largest_with_a_step, seconds_outside_steps, speed_of
from brimful.ask.traces import Trials
from brimful.ask.warnings import about_steps, warnings_of
from brimful.decide.loaders_seen import largest_batch
from brimful.decide.memory.search_traced import NOT_FOLLOWED
from brimful.decide.memory.strays import strays
from brimful.decide.next_command import after_prediction, recommended
from brimful.decide.not_run import branches_not_run
from brimful.decide.run.settings import BATCH_SIZE
from brimful.decide.speed.epoch import epoch_of, loading_of
from brimful.decide.tune.sizes import sizes_to_show
from brimful.errors import UntilStopped, UsageError
from brimful.measure.traces import cards_of
from brimful.trials.devices import CardNames, CardRequest
from brimful.trials.results import PHASES
from brimful.trials.session import Options, Session
from brimful.trials.start import Start, start
from brimful.values import (
    Answer,
    CardPeak,
    Diagnostic,
    Prediction,
    Record,
    Setting,
    Solved,
    Verdict,
)
from brimful.verbs.exports import require_writable, write_snapshot
from brimful.verbs.what_if import Explained, explain, opened_downwards, what_would_help


class Words(CardNames, total=False):
    """The keywords of `predict`: those of a card, and those of `Question`."""

    what_if: bool | None
    samples: int | None
    solve: str | None
    grid: Mapping[str, Sequence[Setting]] | None
    sizes: Sequence[int]
    snapshot: str | Path | None
    smallest: bool


@dataclass(frozen=True)
class Question:
    """`what_if`: whether to try what would save memory; None tries it where the requested batch
    size does not fit. `samples`: of an epoch, where only a part of the data is here. `solve`:
    another setting to name the largest value of, on each of the cards. `grid`: one or two settings
    with their values; each combination is a cell of a table, and the fastest that fits is the
    answer. `sizes`: the batch sizes of its table of them; () takes some up to the largest.
    `snapshot`: the file to write for PyTorch's memory viewer, of the run at the batch size that is
    answered for. `smallest`: of several cards the answer is for the smallest that fits, not for the
    cheapest.
    """

    what_if: bool | None = None
    samples: int | None = None
    solve: str | None = None
    grid: Mapping[str, Sequence[Setting]] | None = None
    sizes: Sequence[int] = ()
    snapshot: str | Path | None = None
    smallest: bool = False


def predict(
    argv: Sequence[str],
    *,
    settings: Mapping[str, Setting] | None = None,
    options: Options | None = None,
    **words: Unpack[Words],
) -> Record:
    """Runs the command for a few steps on an imaginary card. Returns the record, whose `prediction`
    is the answer.

    `words`: those of `CardRequest` and `Question`. With ``{batch_size}`` left open it answers for
    the largest that fits. Raises UsageError for a file that cannot be written and without a card,
    NoSuchDevice for an unknown one, DoesNotFit when an open batch size fits at no value, and the
    errors of `trials.results`.
    """
    # 1. What is asked, of which command, on which cards.
    left: dict[str, Any] = {**words}
    names = [field.name for field in fields(CardRequest) if field.name in left]
    request = CardRequest(**{name: left.pop(name) for name in names})
    question = Question(**left)
    _require_card(request)
    if question.snapshot is not None:
        require_writable(Path(question.snapshot))
    sets = _sets(question, settings or {})
    began = start(argv, settings, options, "auto", request, takes_several=True, sets=sets)
    _require_one_table(question, began)
    if question.solve is not None:
        began = replace(began, asked=None)
    with began.session("predict") as session:
        # 2. The answer, by as many trials as it takes; a search that is told to stop has a part of
        # it.
        noted: list[Diagnostic] = []
        view, answer, rows = _answered(session, began, question, noted)
        rows_of = ("settings" if question.grid else "cards") if rows else ""
        if answer.conclusion is not None:
            session.keep(answer.conclusion.estimate)
        # 3. What is said beside it, unless it is told to stop.
        prediction = None
        with UntilStopped() as work:
            explained = explain(view, answer)
            if explained is not None:
                answer = opened_downwards(view.card, answer, explained)
            prediction = _prediction(view, answer, explained, noted)
            prediction = replace(prediction, rows=rows, rows_of=rows_of)
            prediction = _with_what_if(prediction, view, answer, explained, question)
            prediction = _with_an_epoch(prediction, view, answer, began.asked is None, question)
            if question.snapshot is not None:
                prediction = _with_snapshot(prediction, view, answer, Path(question.snapshot))
        if prediction is None:
            prediction = _prediction(view, answer, None, noted)
            prediction = replace(prediction, rows=rows, rows_of=rows_of)
        if work.stop is not None:
            left_out = "the answer is there, and not all that is said beside it"
            note = session.partial(work.stop, left_out)
            prediction = replace(prediction, warnings=(*prediction.warnings, note))
        # 4. The record keeps it.
        places, seconds = view.trials.command.places, time.monotonic() - session.started
        session.keep(
            replace(prediction, smallest=question.smallest, places=places, seconds=seconds)
        )
    return session.record()


def _answered(
    session: Session, began: Start, question: Question, noted: list[Diagnostic]
) -> tuple[CardView, MemoryAnswer, tuple[Answer, ...]]:
    """(The card that is answered for, its answer, the rows of other cards or combinations.)"""
    if question.grid:
        view, answer, rows = grid_of(session, began, question.grid, noted)
        noted += without_effect(rows)
        return view, answer, rows
    if len(began.several) > 1:
        order = by_memory if question.smallest else by_price
        return which_card(session, began, question.samples, noted, order)
    timed, settings = timed_batch(began), began.other_values()
    view = view_of(session, began, settings, time_loader=timed, unknown=began.sets[0])
    session.limits_the_whole = True

    def tell(answer: MemoryAnswer) -> None:
        session.options.watcher.predicted_so_far(_prediction(view, answer, None, noted))

    return view, find(view, began, noted, tell), ()


def _require_card(request: CardRequest) -> None:
    if not request.names and request.ranks is None and request.as_rank is None:
        raise UsageError(
            problem="no card was named",
            explanation="a prediction is for a card that need not be here",
            suggestion="name one: --gpu a100-40gb (see `brimful gpus`), or --gpu-memory 20GiB",
        )


def _require_one_table(question: Question, began: Start) -> None:
    several = len(began.several) > 1
    if question.grid and several:
        raise UsageError(
            f"--grid for {len(began.several)} cards",
            "a table of settings is for one card",
            "name one card, or compare cards without --grid",
        )
    if question.sizes and (question.grid or question.solve is not None or several):
        raise UsageError(
            "--sizes together with --grid, --solve or several cards",
            "these have a table of their own",
            "leave --sizes out",
        )


def _sets(question: Question, given: Mapping[str, Setting]) -> tuple[str, ...]:
    """The settings that trials are given: what is solved for, or those of the grid. Raises
    UsageError.
    """
    solve, grid = question.solve, question.grid
    if solve is None and not grid:
        return (BATCH_SIZE,)
    if solve is not None and grid:
        raise UsageError(
            f"--solve {solve} together with --grid",
            "one finds the largest value, the other shows values that you give",
            "ask for one of them",
        )
    if grid and len(grid) > 2:
        raise UsageError(
            f"a grid of {len(grid)} settings: {', '.join(grid)}",
            "a table has two sides",
            "give --grid once or twice",
        )
    cells = prod(map(len, (grid or {}).values()))
    if not 1 <= cells <= MOST_CELLS:
        raise UsageError(
            f"a grid of {cells:,} combinations",
            "each takes a trial or two" if cells else "a side of a table needs values",
            f"give fewer values: at most {MOST_CELLS} combinations",
        )
    sets = tuple(grid) if grid else (solve or "",)
    for name in sets:
        if name in given:
            raise UsageError(
                f"--set {name}={given[name]} together with --{'grid' if grid else 'solve'} {name}",
                f"brimful gives {name} its values by itself then",
                "leave one out",
            )
    return sets


def _with_what_if(
    prediction: Prediction,
    view: CardView,
    answer: MemoryAnswer,
    explained: Explained | None,
    question: Question,
) -> Prediction:
    """With what would make it fit, where that is asked, or where it does not fit."""
    wanted = question.what_if
    if wanted is None:
        wanted = prediction.verdict != Verdict.FITS and not answer.fills_up
    if explained is None or view.trials.session.stop is not None or not wanted:
        return prediction
    noted: list[Diagnostic] = []
    step_s = None if prediction.speed is None else prediction.speed.step_s
    searches = bool(question.what_if)
    what_if = what_would_help(view, answer, explained, step_s, searches, noted)
    return replace(prediction, what_if=what_if, warnings=(*prediction.warnings, *noted))


def _with_an_epoch(
    prediction: Prediction,
    view: CardView,
    answer: MemoryAnswer,
    is_open: bool,
    question: Question,
) -> Prediction:
    """With an epoch, the rows of other points, and what to type next."""
    speed, trials = prediction.speed, view.trials
    outside = seconds_outside_steps(view, speed.batch_size) if speed is not None else {}
    usual, loading = trials.representative(), prediction.loading
    epoch = epoch_of(usual, speed, loading, question.samples, outside)
    prediction = replace(prediction, epoch=epoch)
    if not prediction.rows_of and (rows := _sizes(view, answer, prediction, is_open, question)):
        prediction = replace(prediction, rows=rows, rows_of="sizes")
    following = after_prediction(trials.command, prediction, is_open, trials.settings_at)
    warnings = (*prediction.warnings, *about_steps(prediction, epoch))
    return replace(prediction, next_command=following, warnings=warnings)


def _with_snapshot(
    prediction: Prediction, view: CardView, answer: MemoryAnswer, path: Path
) -> Prediction:
    written = write_snapshot(view, answer, path)
    if isinstance(written, Diagnostic):
        view.trials.session.note(written)
        return prediction
    return replace(prediction, written=(written,))


def _prediction(
    view: CardView, answer: MemoryAnswer, explained: Explained | None, noted: Sequence[Diagnostic]
) -> Prediction:
    trials = view.trials
    report, fits = trials.representative().reports[0], answer.verdict == Verdict.FITS
    estimate = answer.conclusion.estimate if answer.conclusion else None
    traced = (answer.size if estimate else trials.effective(answer.size)) in trials.results
    is_whole = answer.alone is None and not view.is_least(answer.size)
    drawn = view.uneven.drawn.get(trials.effective(answer.size))
    warnings = [*warnings_of(view, answer), *noted]
    largest = _largest(trials, answer, fits)
    in_force = trials.in_force(answer.conclusion, answer.size)
    most = largest_with_a_step(trials, largest)
    branches = branches_not_run(trials.session.results)
    speed = speed_of(view, in_force, most)
    if isinstance(speed, Diagnostic):
        warnings.append(speed)
        speed = None
    batch_size = trials.settings_at(answer.size).get(BATCH_SIZE, report.batch_asked)
    if answer.size is None and report.batch_asked is not None:
        in_force = largest_batch(trials.representative())
    return Prediction(
        verdict=answer.verdict,
        retries_per_step=answer.retries_per_step,
        giving_back_s=answer.giving_back_s,
        batch_size=batch_size if isinstance(batch_size, int) else None,
        peak=answer.peak,
        phases=answer.phases,
        not_seen=tuple(name for name in PHASES if name not in answer.phases),
        evaluates_later="eval" not in answer.phases
        and report.unused_loader
        and not any(branch.evaluates for branch in branches),
        largest_batch_size=largest if trials.in_batches else None,
        largest_with_a_step=most if trials.in_batches else None,
        solved=_solved(trials, answer, largest),
        in_force=in_force if in_force != answer.size else None,
        ignores_batch_size=estimate is not None and estimate.ignores_batch_size,
        nothing_fits=estimate is not None and estimate.nothing_fits and largest is None,
        limited_by=estimate.limited_by if estimate else None,
        gpu=view.gpu,
        budget=view.budget,
        method="trace" if traced else estimate.method if estimate else "extrapolated",
        exact=is_whole and (traced or (estimate is not None and estimate.exact)),
        largest_batches_peak=answer.alone,
        approximations=report.approximations,
        worst_batch=drawn.reports[0].worst_batch if drawn else report.worst_batch,
        warnings=tuple(warnings),
        cards=_card_peaks(view, answer) if answer.peak is not None else (),
        alone_of=view.device.ranks,
        not_run=branches,
        speed=speed,
        loading=loading_of(trials.session.results, speed),
        breakdown=explained.breakdowns.whole if explained else None,
        phase_breakdowns=explained.breakdowns.phases if explained else {},
        seconds=time.monotonic() - trials.session.started,
    )


def _sizes(
    view: CardView,
    answer: MemoryAnswer,
    prediction: Prediction,
    is_open: bool,
    question: Question,
) -> tuple[Answer, ...]:
    """The table of batch sizes: those wanted, else the size in question, the recommended one, the
    largest, and some between, as far as something is known of them."""
    conclusion, largest = answer.conclusion, prediction.largest_batch_size
    if conclusion is None or largest is None or not view.trials.in_batches:
        return ()
    size, _ = recommended(prediction, is_open)
    spills = prediction.limited_by == "budget"
    named = [prediction.batch_size, size]
    wanted = sorted(set(question.sizes))
    sizes = wanted or sizes_to_show(largest, named, spills)
    loading, samples = prediction.loading, question.samples
    return sizes_of(view, conclusion, sizes, loading, samples, bool(wanted))


def _solved(trials: Trials, answer: MemoryAnswer, largest: int | None) -> Solved | None:
    if trials.in_batches or answer.size is None:
        return None
    multiple_of = answer.conclusion.multiple_of if answer.conclusion is not None else 1
    return Solved(trials.unknown, answer.size, largest, multiple_of)


def _largest(trials: Trials, answer: MemoryAnswer, fits: bool) -> int | None:
    """The largest batch size of the search, or the requested one where the search stopped below it
    and its own trace fits.
    """
    if answer.conclusion is None or answer.fills_up:
        return None
    estimate, most = answer.conclusion.estimate, trials.limits().max_batch_size
    largest, size = estimate.largest_batch_size, trials.in_force(answer.conclusion, answer.size)
    if largest is None and (estimate.ignores_batch_size or estimate.limited_by == NOT_FOLLOWED):
        return None
    if fits and size is not None and (most is None or size <= most):
        return max(largest or 0, size)
    return largest


def _card_peaks(view: CardView, answer: MemoryAnswer) -> tuple[CardPeak, ...]:
    """The peak of the cards that each rank works on; () where there is but one card."""
    card, results, size = view.card, view.trials.results, answer.size
    model = answer.conclusion.size_model if answer.conclusion else None
    traced = [results[size]] if size in results else list(results.values())
    labels = next(filter(None, map(cards_of, traced)), ())
    if len(labels) < 2:
        return ()
    replayed = []
    if size in results:
        replayed = [card.shown(partial(card.replay, program)) for program in view.programs(size)]
    elif model is not None and size is not None:
        replayed = model.replay_cards_at(size, card.settings)
    if len(replayed) != len(labels):
        return ()
    elsewhere = {stray[:2] for result in traced for stray in strays(result.reports)}
    return tuple(
        CardPeak(rank, index, card.estimate(shown.peak))
        for (rank, index), shown in zip(labels, replayed, strict=True)
        if (rank, index) not in elsewhere
    )
