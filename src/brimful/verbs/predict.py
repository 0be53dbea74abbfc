"""`predict`: does a command fit a card that need not be here, its memory by phase, the largest
batch size, its speed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from brimful.decide.memory.search_traced import NOT_FOLLOWED
from brimful.decide.next_command import after_prediction
from brimful.decide.run.settings import BATCH_SIZE
from brimful.decide.speed.epoch import epoch_of, loading_of
from brimful.errors import UsageError
from brimful.measure.traces import cards_of
from brimful.values import (
    CardAnswer,
    CardPeak,
    Diagnostic,
    GridCell,
    Prediction,
    Record,
    Setting,
    Solved,
    Verdict,
)
from brimful.verbs import imaginary
from brimful.verbs.answers import asked_about, by_search, timed_batch
from brimful.verbs.grid import MOST_CELLS, grid_of, without_effect
from brimful.verbs.imaginary import Tracer
from brimful.verbs.results import PHASES
from brimful.verbs.session import Options
from brimful.verbs.start import start
from brimful.verbs.step_speed import seconds_outside_steps, speed_of
from brimful.verbs.warnings import Answer, warnings_of
from brimful.verbs.what_if import find, what_would_help
from brimful.verbs.which_card import which_card


def predict(
    argv: Sequence[str],
    *,
    gpu: str | None = None,
    gpu_memory: str | None = None,
    ranks: int | None = None,
    as_rank: int | None = None,
    settings: Mapping[str, Setting] | None = None,
    options: Options | None = None,
    what_if: bool | None = None,
    samples: int | None = None,
    solve: str | None = None,
    grid: Mapping[str, Sequence[Setting]] | None = None,
) -> Record:
    """Runs the command for a few steps on an imaginary card. Returns the record, whose `prediction`
    is the answer.

    `what_if`: whether to try what would save memory; None tries it where the requested batch size
    does not fit. `samples`: of an epoch, where only a part of the data is here. With
    ``{batch_size}`` left open it answers for the largest that fits. `solve`: another setting to
    name the largest value of, on each of the cards. `grid`: one or two settings with their values;
    each combination is a cell of a table, and the fastest that fits is the answer. Raises
    UsageError without a card, NoSuchDevice for an unknown one, DoesNotFit when an open batch size
    fits at no value, and the errors of `verbs.results`.
    """
    _require_card(gpu, gpu_memory, ranks, as_rank)
    sets = _sets(solve, grid, settings or {})
    began = start(
        argv,
        settings,
        options,
        "auto",
        gpu,
        gpu_memory,
        ranks,
        as_rank,
        takes_several=True,
        sets=sets,
    )
    if grid and len(began.several) > 1:
        problem, suggestion = (
            f"--grid for {len(began.several)} cards",
            "name one card, or compare cards without --grid",
        )
        raise UsageError(problem, "a table of settings is of one card", suggestion)
    began = began if solve is None else replace(began, asked=None)
    with began.session("predict") as session:
        noted: list[Diagnostic] = []
        which: tuple[CardAnswer, ...] = ()
        cells: tuple[GridCell, ...] = ()
        if grid:
            tracer, answer, cells = grid_of(session, began, grid)
            noted += without_effect(cells)
        elif len(began.several) > 1:
            tracer, answer, which = which_card(session, began, samples, noted)
        else:
            # Loading is timed in the first trial, which says nothing of samples of another length
            # or size.
            timed, others = (
                timed_batch(began) if sets == (BATCH_SIZE,) else None,
                began.other_values(),
            )
            tracer = Tracer(
                session, began.command, began.device, began.budget, others, timed, unknown=sets[0]
            )
            answer = by_search(tracer, *asked_about(tracer, began, noted))
        prediction = replace(_prediction(tracer, answer, what_if, noted), which=which, grid=cells)
        outside = (
            seconds_outside_steps(tracer, prediction.speed.batch_size)
            if prediction.speed is not None
            else {}
        )
        epoch = epoch_of(
            tracer.representative(), prediction.speed, prediction.loading, samples, outside
        )
        following = after_prediction(
            tracer.command, prediction, began.asked is None, tracer.settings_at
        )
        session.keep(replace(prediction, next_command=following, epoch=epoch))
    return session.record()


def _require_card(
    gpu: str | None, gpu_memory: str | None, ranks: int | None, as_rank: int | None
) -> None:
    if not gpu and not gpu_memory and ranks is None and as_rank is None:
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
    if solve is not None and grid:
        why = "one names the largest value, the other shows given ones"
        raise UsageError(f"--solve {solve} together with --grid", why, "ask for one of them")
    if grid and len(grid) > 2:
        raise UsageError(
            f"a grid of {len(grid)} settings: {', '.join(grid)}",
            "a table has two sides",
            "give --grid once or twice",
        )
    cells = prod(map(len, (grid or {}).values()))
    if grid and not 1 <= cells <= MOST_CELLS:
        what = "each takes a trial or two" if cells else "a side of a table needs values"
        raise UsageError(
            f"a grid of {cells:,} combinations",
            what,
            f"give fewer values: at most {MOST_CELLS} combinations",
        )
    sets = tuple(grid) if grid else (solve or BATCH_SIZE,)
    for name in sets if solve or grid else ():
        if name in given:
            why = f"brimful gives {name} its values by itself then"
            raise UsageError(
                f"--set {name}={given[name]} together with --{'grid' if grid else 'solve'} {name}",
                why,
                "leave one out",
            )
    return sets


def _prediction(
    tracer: Tracer, answer: Answer, wants_what_if: bool | None, noted: Sequence[Diagnostic]
) -> Prediction:
    """The prediction, of all its parts."""
    report, budget = tracer.representative().reports[0], tracer.budget
    fits, traced = answer.verdict == Verdict.FITS, answer.size in tracer.results
    estimate = answer.conclusion.estimate if answer.conclusion else None
    warnings = [*warnings_of(tracer, answer), *noted]
    largest = _largest(tracer, answer, fits)
    in_force = tracer.in_force(answer.conclusion, answer.size)
    speed = speed_of(tracer, in_force, largest)
    if isinstance(speed, Diagnostic):
        warnings.append(speed)
    found = find(tracer, answer)
    tries_what_if = not fits if wants_what_if is None else wants_what_if
    step_s = None if isinstance(speed, Diagnostic) else speed.step_s
    own = tracer.settings_at(answer.size).get(BATCH_SIZE)
    return Prediction(
        verdict=answer.verdict,
        retries_per_step=answer.retries_per_step,
        giving_back_s=answer.giving_back_s,
        batch_size=own if isinstance(own, int) else None,
        peak=answer.peak,
        phases=answer.phases,
        not_seen=tuple(name for name in PHASES if name not in answer.phases),
        largest_batch_size=largest if tracer.in_batches else None,
        solved=_solved(tracer, answer, largest),
        in_force=in_force if in_force != answer.size else None,
        ignores_batch_size=estimate is not None and estimate.ignores_batch_size,
        nothing_fits=estimate is not None and estimate.nothing_fits and largest is None,
        limited_by=estimate.limited_by if estimate else None,
        gpu=tracer.gpu,
        budget=budget,
        method="trace" if traced or estimate is None else estimate.method,
        exact=traced or estimate is None or estimate.exact,
        approximations=report.approximations,
        worst_batch=report.worst_batch,
        warnings=tuple(warnings),
        cards=_card_peaks(tracer, answer) if answer.peak is not None else (),
        alone_of=tracer.device.ranks,
        speed=None if isinstance(speed, Diagnostic) else speed,
        loading=loading_of(
            tracer.session.results, None if isinstance(speed, Diagnostic) else speed
        ),
        breakdown=found.breakdowns.whole if found else None,
        phase_breakdowns=found.breakdowns.phases if found else {},
        what_if=what_would_help(tracer, answer, found, step_s, bool(wants_what_if))
        if found and tries_what_if
        else None,
        seconds=time.monotonic() - tracer.session.started,
    )


def _solved(tracer: Tracer, answer: Answer, largest: int | None) -> Solved | None:
    if tracer.in_batches or answer.conclusion is None or answer.size is None:
        return None
    return Solved(tracer.unknown, answer.size, largest, answer.conclusion.multiple_of)


def _largest(tracer: Tracer, answer: Answer, fits: bool) -> int | None:
    """The largest batch size of the search, or the requested one where the search stopped below it
    and its own trace fits.
    """
    if answer.conclusion is None:
        return None
    largest, most = (
        answer.conclusion.estimate.largest_batch_size,
        imaginary.limits_of(tracer).max_batch_size,
    )
    own = tracer.in_force(answer.conclusion, answer.size)
    if largest is None and (
        answer.conclusion.estimate.ignores_batch_size
        or answer.conclusion.estimate.limited_by == NOT_FOLLOWED
    ):
        return None
    if fits and own is not None and (most is None or own <= most):
        return max(largest or 0, own)
    return largest


def _card_peaks(tracer: Tracer, answer: Answer) -> tuple[CardPeak, ...]:
    """The peak of every card of every rank; () where there is but one card."""
    card = tracer.card
    if answer.size in tracer.results:
        labels, programs = cards_of(tracer.results[answer.size]), tracer.programs(answer.size)
        played = (
            [card.shown(partial(card.replay, one)) for one in programs] if len(labels) > 1 else []
        )
    else:
        labels = next(
            (found for result in tracer.results.values() if (found := cards_of(result))), ()
        )
        model = answer.conclusion.size_model if answer.conclusion else None
        size = answer.size
        played = (
            model.replay_cards_at(size, card.settings)
            if model is not None and size is not None
            else []
        )
    if len(labels) < 2 or len(played) != len(labels):
        return ()
    return tuple(
        CardPeak(rank, index, card.estimate(p.peak))
        for (rank, index), p in zip(labels, played, strict=True)
    )
