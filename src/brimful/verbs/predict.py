"""`predict`: does a command fit a card that need not be here, its memory by phase, the largest
batch size, its speed.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path

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
from brimful.decide.next_command import after_prediction, recommended
from brimful.decide.run.settings import BATCH_SIZE
from brimful.decide.speed.epoch import epoch_of, loading_of
from brimful.decide.tune.sizes import sizes_to_show
from brimful.errors import UntilStopped, UsageError
from brimful.measure.traces import cards_of
from brimful.trials.devices import CardRequest
from brimful.trials.results import PHASES
from brimful.trials.session import Options
from brimful.trials.start import start
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


def predict(
    argv: Sequence[str],
    *,
    gpu: str | None = None,
    gpu_memory: str | None = None,
    ranks: int | None = None,
    as_rank: int | None = None,
    link: str | None = None,
    settings: Mapping[str, Setting] | None = None,
    options: Options | None = None,
    what_if: bool | None = None,
    samples: int | None = None,
    solve: str | None = None,
    grid: Mapping[str, Sequence[Setting]] | None = None,
    sizes: Sequence[int] = (),
    snapshot: str | Path | None = None,
    smallest: bool = False,
) -> Record:
    """Runs the command for a few steps on an imaginary card. Returns the record, whose `prediction`
    is the answer.

    `what_if`: whether to try what would save memory; None tries it where the requested batch size
    does not fit. `samples`: of an epoch, where only a part of the data is here. With
    ``{batch_size}`` left open it answers for the largest that fits. `solve`: another setting to
    name the largest value of, on each of the cards. `grid`: one or two settings with their values;
    each combination is a cell of a table, and the fastest that fits is the answer. `sizes`: the
    batch sizes of its table of them; () takes some up to the largest. `snapshot`: the file to write
    for PyTorch's memory viewer, of the run at the batch size that is answered for. `smallest`: of
    several cards the answer is for the smallest that fits, not for the cheapest. Raises UsageError
    for a file that cannot be written and without a card, NoSuchDevice for an unknown one,
    DoesNotFit when an open batch size fits at no value, and the errors of `trials.results`.
    """
    request = CardRequest(gpu, gpu_memory, ranks, as_rank, link)
    _require_card(request)
    if snapshot is not None:
        require_writable(Path(snapshot))
    sets = _sets(solve, grid, settings or {})
    began = start(argv, settings, options, "auto", request, takes_several=True, sets=sets)
    if grid and len(began.several) > 1:
        raise UsageError(
            f"--grid for {len(began.several)} cards",
            "a table of settings is for one card",
            "name one card, or compare cards without --grid",
        )
    if sizes and (grid or solve is not None or len(began.several) > 1):
        raise UsageError(
            "--sizes together with --grid, --solve or several cards",
            "these have a table of their own",
            "leave --sizes out",
        )
    if solve is not None:
        began = replace(began, asked=None)
    with began.session("predict") as session:
        noted: list[Diagnostic] = []
        rows: tuple[Answer, ...] = ()
        rows_of = "settings" if grid else "cards" if len(began.several) > 1 else "sizes"
        if grid:
            view, answer, rows = grid_of(session, began, grid, noted)
            noted += without_effect(rows)
        elif len(began.several) > 1:
            order = by_memory if smallest else by_price
            view, answer, rows = which_card(session, began, samples, noted, order)
        else:
            timed, settings = timed_batch(began), began.other_values()
            view = view_of(session, began, settings, time_loader=timed, unknown=sets[0])
            session.limits_the_whole = True
            answer = find(view, began, noted)
        trials, is_open, prediction = view.trials, began.asked is None, None
        if answer.conclusion is not None:
            session.keep(answer.conclusion.estimate)
        with UntilStopped() as work:
            explained = explain(view, answer)
            if explained is not None:
                answer = opened_downwards(view.card, answer, explained)
            prediction = _prediction(view, answer, explained, noted)
            fits = prediction.verdict == Verdict.FITS
            if explained and session.stop is None and (not fits if what_if is None else what_if):
                prediction = _with_what_if(prediction, view, answer, explained, bool(what_if))
            speed = prediction.speed
            outside = seconds_outside_steps(view, speed.batch_size) if speed is not None else {}
            epoch = epoch_of(trials.representative(), speed, prediction.loading, samples, outside)
            if rows_of == "sizes":
                rows = _sizes(view, answer, prediction, is_open, sizes, samples)
            prediction = replace(prediction, rows=rows, rows_of=rows_of)
            following = after_prediction(trials.command, prediction, is_open, trials.settings_at)
            warnings = (*prediction.warnings, *about_steps(prediction, epoch))
            prediction = replace(prediction, next_command=following, epoch=epoch, warnings=warnings)
            if snapshot is not None:
                written = write_snapshot(view, answer, Path(snapshot))
                if isinstance(written, Diagnostic):
                    session.note(written)
                else:
                    prediction = replace(prediction, written=(written,))
        prediction = prediction or _prediction(view, answer, None, noted)
        if work.stop is not None:
            left_out = "the answer is there, and not all that is said beside it"
            note = session.partial(work.stop, left_out)
            prediction = replace(prediction, warnings=(*prediction.warnings, note))
        session.keep(
            replace(
                prediction,
                rows=rows,
                rows_of=rows_of if rows else "",
                smallest=smallest,
                places=trials.command.places,
                seconds=time.monotonic() - session.started,
            )
        )
    return session.record()


def _require_card(request: CardRequest) -> None:
    if not request.names and request.ranks is None and request.as_rank is None:
        raise UsageError(
            problem="no card was named",
            explanation="a prediction is for a card that need not be here",
            suggestion="name one: --gpu a100-40gb (see `brimful gpus`), or --gpu-memory 20GiB",
        )


def _sets(
    solve: str | None, grid: Mapping[str, Sequence[Setting]] | None, given: Mapping[str, Setting]
) -> tuple[str, ...]:
    """The settings that trials are given: what is solved for, or those of the grid. Raises
    UsageError.
    """
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
    explained: Explained,
    searches: bool,
) -> Prediction:
    noted: list[Diagnostic] = []
    step_s = None if prediction.speed is None else prediction.speed.step_s
    what_if = what_would_help(view, answer, explained, step_s, searches, noted)
    return replace(prediction, what_if=what_if, warnings=(*prediction.warnings, *noted))


def _prediction(
    view: CardView, answer: MemoryAnswer, explained: Explained | None, noted: Sequence[Diagnostic]
) -> Prediction:
    trials = view.trials
    report, fits = trials.representative().reports[0], answer.verdict == Verdict.FITS
    estimate = answer.conclusion.estimate if answer.conclusion else None
    traced = (answer.size if estimate else trials.effective(answer.size)) in trials.results
    is_whole = answer.alone is None and not view.is_least(answer.size)
    drawn = trials.drawn.get(trials.effective(answer.size))
    warnings = [*warnings_of(view, answer), *noted]
    largest = _largest(trials, answer, fits)
    in_force = trials.in_force(answer.conclusion, answer.size)
    most = largest_with_a_step(trials, largest)
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
        evaluates_later="eval" not in answer.phases and report.unused_loader,
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
    wanted: Sequence[int],
    samples: int | None,
) -> tuple[Answer, ...]:
    """The table of batch sizes: those wanted, else the size in question, the recommended one, the
    largest, and some between, as far as something is known of them."""
    conclusion, largest = answer.conclusion, prediction.largest_batch_size
    if conclusion is None or largest is None or not view.trials.in_batches:
        return ()
    size, _ = recommended(prediction, is_open)
    spills = prediction.limited_by == "budget"
    named = [prediction.batch_size, size]
    sizes = sorted(set(wanted)) or sizes_to_show(largest, named, spills)
    return sizes_of(view, conclusion, sizes, prediction.loading, samples, bool(wanted))


def _solved(trials: Trials, answer: MemoryAnswer, largest: int | None) -> Solved | None:
    if trials.in_batches or answer.size is None:
        return None
    multiple_of = answer.conclusion.multiple_of if answer.conclusion is not None else 1
    return Solved(trials.unknown, answer.size, largest, multiple_of)


def _largest(trials: Trials, answer: MemoryAnswer, fits: bool) -> int | None:
    """The largest batch size of the search, or the requested one where the search stopped below it
    and its own trace fits.
    """
    if answer.conclusion is None:
        return None
    estimate, most = answer.conclusion.estimate, trials.limits().max_batch_size
    largest, size = estimate.largest_batch_size, trials.in_force(answer.conclusion, answer.size)
    if largest is None and (estimate.ignores_batch_size or estimate.limited_by == NOT_FOLLOWED):
        return None
    if fits and size is not None and (most is None or size <= most):
        return max(largest or 0, size)
    return largest


def _card_peaks(view: CardView, answer: MemoryAnswer) -> tuple[CardPeak, ...]:
    """The peak of every card of every rank; () where there is but one card."""
    card, results, size = view.card, view.trials.results, answer.size
    model = answer.conclusion.size_model if answer.conclusion else None
    traced = [results[size]] if size in results else results.values()
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
    return tuple(
        CardPeak(rank, index, card.estimate(shown.peak))
        for (rank, index), shown in zip(labels, replayed, strict=True)
    )
