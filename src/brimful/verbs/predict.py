"""`predict`: does a command fit a card that need not be here, its memory by phase, the largest batch size, its speed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from brimful import command as commands
from brimful.decide.batch_size_place import AUTO
from brimful.decide.memory.fit import Play
from brimful.decide.memory.search_traced import NOT_FOLLOWED, MemoryConclusion
from brimful.decide.next_command import after_prediction
from brimful.decide.speed.epoch import epoch_of
from brimful.decide.speed.kernels import fit_kernels
from brimful.decide.speed.loading import loading_of
from brimful.decide.speed.predicted import MACHINE_RANKS, is_of_a_fixed_total, predict_speed, rates_of, samples_by_size
from brimful.errors import UsageError
from brimful.outcomes import SCRIPT_FAILED
from brimful.values import CardPeak, Diagnostic, Outcome, PredictedSpeed, Prediction, Record, Setting, TrialResult
from brimful.verbs import imaginary
from brimful.verbs.imaginary import Tracer
from brimful.verbs.results import PHASES, batches_per_step
from brimful.verbs.session import Options
from brimful.verbs.start import Start, start, takes_a_batch_size
from brimful.verbs.warnings import Answer, warnings_of
from brimful.verbs.what_if import find, what_would_help

TIMED_BATCH = 256  # samples of a batch by which the loader is timed, where nobody asked for a size (assumed)
FIXED_TOTAL = "steps at other batch sizes, and so the knee: as many batches make a step as come to a fixed total"


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
) -> Record:
    """Runs the command for a few steps on an imaginary card. Returns the record, whose `prediction` is the answer.

    `what_if`: whether to try what would save memory; None tries it where the requested batch size does not fit. `samples`: of
    an epoch, where only a part of the data is here. With ``{batch_size}`` left open it answers for the largest that fits.
    Raises UsageError without a card, NoSuchDevice for an unknown one, DoesNotFit when an open batch size fits at no value, and
    the errors of `verbs.results`.
    """
    if not gpu and not gpu_memory and ranks is None and as_rank is None:
        raise UsageError(
            problem="no card was named",
            explanation="a prediction is for a card that need not be here",
            suggestion="name one: --gpu a100-40gb (see `brimful gpus`), or --gpu-memory 20GiB",
        )
    began = start(argv, settings, options, "auto", gpu, gpu_memory, ranks, as_rank)
    with began.session("predict") as session:
        timed = began.asked or TIMED_BATCH
        tracer = Tracer(session, began.command, began.device, began.budget, began.other_values(), timed)
        noted: list[Diagnostic] = []
        has_a_place = takes_a_batch_size(began.command)
        answer = _by_search(tracer, began.asked) if has_a_place else _without_a_flag(tracer, began, noted)
        prediction = _prediction(tracer, answer, what_if, noted)
        epoch = epoch_of(tracer.representative(), prediction.speed, prediction.loading, samples)
        following = after_prediction(tracer.command, prediction, began.asked is None, tracer.settings_at)
        session.keep(replace(prediction, next_command=following, epoch=epoch))
    return session.record()


def _without_a_flag(tracer: Tracer, began: Start, noted: list[Diagnostic]) -> Answer:
    """By a search where the script's own number can be set; else it is run as it stands, and other sizes are not predicted."""
    why = commands.no_place_for_a_batch_size()
    if began.finds_places:
        located = tracer.locate(began.asked, began.given)
        if located.place is not None:
            noted += [located.note] if located.note else []
            return _by_search(tracer, began.asked or located.place.number)
        why = commands.no_place_for_a_batch_size(located.why)
        if began.asked is not None or began.options.batch_size_from != AUTO:
            tracer.result(None)
            raise why
    as_it_stands = "the prediction is for the command as it stands"
    noted.append(Diagnostic("no-batch-size", why.problem, as_it_stands, why.suggestion))
    return _at(tracer, None, _play_of_trial(tracer, None))


def _by_search(tracer: Tracer, asked: int | None) -> Answer:
    """The peak at the requested batch size, else at the largest that fits."""
    conclusion = imaginary.search(tracer, asked)
    estimate, largest = conclusion.estimate, conclusion.estimate.largest_batch_size
    without_size = estimate.ignores_batch_size or estimate.limited_by == NOT_FOLLOWED
    capped = estimate.ignores_batch_size and estimate.loader_cap is not None
    if (largest is None and without_size) if asked is None else capped:
        size = min(conclusion.traced)
        return _at(tracer, asked or tracer.in_force(conclusion, size), _play_of_trial(tracer, size), conclusion)
    size = asked or largest
    if size is None:
        raise imaginary.nothing_fits(tracer, conclusion)
    return _at(tracer, size, _play_at(tracer, conclusion, tracer.effective(size) or size), conclusion)


def _at(tracer: Tracer, batch_size: int | None, play: Play | None, conclusion: MemoryConclusion | None = None) -> Answer:
    if play is None:
        return Answer(batch_size, "does_not_fit", None, {}, conclusion=conclusion)
    card = tracer.card
    played = card.shown(play)
    phases = {name: card.estimate(peaks) for name, peaks in played.phases.items()}
    retries = played.retries / max(1, played.steps)
    return Answer(batch_size, card.verdict(play), card.estimate(played.peak), phases, retries, conclusion)


def _play_at(tracer: Tracer, conclusion: MemoryConclusion, batch_size: int) -> Play | None:
    """The replay at a batch size: by a verified model, by its own trace, or by one without a limit where the card is full.

    A model that was fitted near the edge, beyond a kink, says nothing of smaller sizes on its other side; and none knows where
    the script raises an error, so that a size above all that ran is traced.
    """
    ran = [size for size, one in tracer.results.items() if size is not None and one.outcome is Outcome.COMPLETED]
    failed = any(one.outcome in SCRIPT_FAILED for one in tracer.results.values())
    model = conclusion.size_model
    if model is not None and batch_size >= min(model.fitted_at) and not (failed and batch_size > max(ran, default=0)):
        return partial(model.replay_at, batch_size, tracer.card.settings)
    return _play_of_trial(tracer, batch_size)


def _play_of_trial(tracer: Tracer, batch_size: int | None) -> Play | None:
    """The replay of a trial at this size, traced whole on a card as large as it needs to be."""
    if tracer.result(batch_size).outcome is Outcome.OUT_OF_DEVICE_MEMORY:
        tracer.result(batch_size, limitless=True)
    return tracer.play(batch_size)


def _prediction(tracer: Tracer, answer: Answer, wants_what_if: bool | None, noted: Sequence[Diagnostic]) -> Prediction:
    """The prediction, of all its parts."""
    report, budget = tracer.representative().reports[0], tracer.budget
    fits, traced = answer.verdict == "fits", answer.batch_size in tracer.results
    estimate = answer.conclusion.estimate if answer.conclusion else None
    warnings = [*warnings_of(tracer, answer), *noted]
    largest = _largest(tracer, answer, fits)
    in_force = tracer.in_force(answer.conclusion, answer.batch_size)
    speed = speed_of(tracer, in_force, largest)
    if isinstance(speed, Diagnostic):
        warnings.append(speed)
    found = find(tracer, answer)
    tries_what_if = not fits if wants_what_if is None else wants_what_if
    step_s = None if isinstance(speed, Diagnostic) else speed.step_s
    return Prediction(
        verdict=answer.verdict,
        retries_per_step=answer.retries_per_step,
        batch_size=answer.batch_size,
        peak=answer.peak,
        phases=answer.phases,
        not_seen=tuple(name for name in PHASES if name not in answer.phases),
        largest_batch_size=largest,
        in_force=in_force if in_force != answer.batch_size else None,
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
        loading=loading_of(tracer.results.values(), None if isinstance(speed, Diagnostic) else speed),
        breakdown=found.breakdowns.whole if found else None,
        phase_breakdowns=found.breakdowns.phases if found else {},
        what_if=what_would_help(tracer, answer, found, step_s, bool(wants_what_if)) if found and tries_what_if else None,
        seconds=time.monotonic() - tracer.session.started,
    )


def _largest(tracer: Tracer, answer: Answer, fits: bool) -> int | None:
    """The largest batch size of the search, or the requested one where the search stopped below it and its own trace fits."""
    if answer.conclusion is None:
        return None
    largest, most = answer.conclusion.estimate.largest_batch_size, tracer.session.options.max_batch_size
    own = tracer.in_force(answer.conclusion, answer.batch_size)
    if largest is None and (
        answer.conclusion.estimate.ignores_batch_size or answer.conclusion.estimate.limited_by == NOT_FOLLOWED
    ):
        return None
    if fits and own is not None and (most is None or own <= most):
        return max(largest or 0, own)
    return largest


def _card_peaks(tracer: Tracer, answer: Answer) -> tuple[CardPeak, ...]:
    """The peak of every card of every rank; () where there is but one card."""
    card = tracer.card
    if answer.batch_size in tracer.results:
        labels = tracer.cards(answer.batch_size)
        played = [card.shown(partial(card.replay, one.trace)) for one in labels] if len(labels) > 1 else []
    else:
        labels = next((found for size in tracer.results if (found := tracer.cards(size))), ())
        model = answer.conclusion.size_model if answer.conclusion else None
        size = answer.batch_size
        played = model.replay_cards_at(size, card.settings) if model is not None and size is not None else []
    if len(labels) < 2 or len(played) != len(labels):
        return ()
    return tuple(CardPeak(one.rank, one.index, card.estimate(p.peak)) for one, p in zip(labels, played, strict=True))


def speed_of(tracer: Tracer, batch_size: int | None, largest: int | None) -> PredictedSpeed | Diagnostic:
    """The speed at `batch_size` (None: of the command as it stands), and up to `largest`, from the traces taken so far.

    Or what stands in the way of one.
    """
    if rates_of(tracer.gpu) is None:
        suggestion = "name a card of the catalogue where there is one: --gpu (see `brimful gpus`)"
        return Diagnostic("no-clock", "only the memory of this card is known", "so no speed is predicted", suggestion)
    done = {
        size: result
        for size, result in tracer.results.items()
        if result.outcome is Outcome.COMPLETED and (size is None) == (batch_size is None)
    }
    counted = {size or 0: result.samples_per_step for size, result in done.items()}
    batches = {size or 0: count for size, result in done.items() if (count := batches_per_step(result))}
    accumulates = is_of_a_fixed_total(counted, batches)
    kernels = fit_kernels({size or 0: tracer.kernels(size) for size in done}, alike=not accumulates)
    if kernels is None:
        return Diagnostic("no-clock", "no trial measured a step from its beginning to its end", "so no speed is predicted", "")
    samples, notes = samples_by_size(counted), _left_out(tracer.representative())
    if accumulates:
        notes.append(FIXED_TOTAL)
    elif samples is not None and batch_size is not None:
        first, last = kernels.fitted_at[0], kernels.fitted_at[-1]
        if samples(first) == samples(last) and kernels.at(first) != kernels.at(last):
            samples = float  # the work of a step grows with the batch size
            notes.append("samples are counted as the batch size, for the steps' own count does not change with it")
    ranks = tracer.representative().reports[0].world_size
    speed = predict_speed(
        kernels, tracer.gpu, batch_size, largest, samples, notes=tuple(notes), ranks=ranks, draws=not accumulates
    )
    assert speed is not None
    return speed


def _left_out(result: TrialResult) -> list[str]:
    """What happens in a step and is not in its predicted time."""
    report = result.reports[0]
    notes = []
    if report.world_size > MACHINE_RANKS:
        notes.append(f"a network between machines: {report.world_size} ranks count as those of one")
    if report.worst_batch is not None and report.worst_batch.varies:
        notes.append("this is for the largest batch there can be; ordinary ones are faster")
    if any("compile" in name for name in report.approximations):
        notes.append("the trial ran the model as it is; compiled, it is faster as a rule")
    return notes
