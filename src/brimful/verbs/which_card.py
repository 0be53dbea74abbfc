"""Which card: several cards of one question, traced as often as they differ in what they do, and
not once for each.

A trial on one card says for which other capabilities all would have been done in the same way:
attention, precision, whatever the script asks. Those cards share its traces, each with its own
workspaces, memory and rates. Only the answer of the cheapest card is traced once more, as it would
be alone.

Where the largest value of another setting is asked for, the largest card of a group is searched to
the end. Its traces speak for the others where they confirm a model of sizes; else each is searched
by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from brimful.decide.memory.bracket import run_search
from brimful.decide.memory.fit import Play
from brimful.decide.memory.search_traced import (
    Extrapolated,
    Traced,
    extrapolate,
    first_traces,
    search_largest,
)
from brimful.decide.run.settings import BATCH_SIZE
from brimful.decide.speed.epoch import epoch_of, loading_of
from brimful.errors import BrimfulError, DoesNotFit, Interrupted
from brimful.measure.gpus.prices import prices
from brimful.measure.traces import cards_of
from brimful.values import Budget, CardAnswer, Device, Diagnostic, Estimate, Gpu, Source, Verdict
from brimful.verbs import imaginary
from brimful.verbs.answers import asked_about, by_search, play_of_trial, timed_batch
from brimful.verbs.imaginary import Tracer
from brimful.verbs.session import Session
from brimful.verbs.start import Start
from brimful.verbs.step_speed import speed_of
from brimful.verbs.warnings import Answer

_HOUR_S = 3600.0
Asked = tuple[Device, Budget]


@dataclass
class _Group:
    """Cards that share their traces. `problem`: why the command fails on all of them."""

    tracer: Tracer
    members: list[Asked]
    has_a_place: bool = True
    asked: int | None = None
    multiple_of: int = 1
    shown: Mapping[int, Traced] | None = (
        None  # by batch size; None: the command was run as it stands
    )
    problem: str = ""


def which_card(
    session: Session, began: Start, samples: int | None, noted: list[Diagnostic]
) -> tuple[Tracer, Answer, tuple[CardAnswer, ...]]:
    """(The cheapest card that fits as it answers alone, its answer, a line for every card).

    Raises the errors of a command that does not train on the largest of them, DoesNotFit where an
    open batch size fits none.
    """
    groups = list(_groups(session, began, noted))
    per_hour = prices(began.options.home)
    found: list[tuple[CardAnswer, Tracer, _Group]] = []
    for group in groups:
        for device, budget in group.members:
            tracer = (
                group.tracer if device is group.tracer.device else group.tracer.on(device, budget)
            )
            found.append((_line(tracer, group, samples, per_hour), tracer, group))
    answered: tuple[Tracer, Answer] | None = None
    while True:
        found.sort(key=lambda one: _order(one[0]))
        line, tracer, group = found[0]
        if line.verdict not in (Verdict.FITS, Verdict.TIGHT):
            line, tracer, group = max(
                found, key=lambda one: (not one[0].problem, one[0].gpu.total_bytes.value)
            )
        if answered is None or answered[0] is not tracer:
            answered = tracer, by_search(tracer, group.has_a_place, group.asked)
        answer = answered[1]
        if line.traced or line is not found[0][0]:
            return tracer, answer, tuple(one[0] for one in found)
        found[0] = (_of_answer(line, answer, tracer, samples, per_hour), tracer, group)


def _groups(session: Session, began: Start, noted: list[Diagnostic]) -> Iterator[_Group]:
    """The largest of the cards that are left is traced, with all that would have done as it did."""
    left, first, command, question = list(began.several), True, began.command, None
    while left:
        device, budget = max(left, key=lambda one: (one[0].cards, _gpu(one[0]).total_bytes.value))
        same = [one for one in left if one[0].cards == device.cards]
        own = _gpu(device).capability
        others = tuple(sorted({_gpu(one).capability for one, _ in same} - {own}))
        timed = timed_batch(began) if began.sets == (BATCH_SIZE,) else None
        tracer = Tracer(
            session,
            command,
            device,
            budget,
            began.other_values(),
            timed,
            others,
            unknown=began.sets[0],
        )
        group = _Group(tracer, [])
        try:
            question = question or asked_about(tracer, began, noted)
            group.has_a_place, group.asked = question
            _trace(group)
        except BrimfulError as error:
            if first or isinstance(error, Interrupted):
                raise  # on the largest card it is the command's own
            group.problem = error.problem
        alike = tracer.alike
        group.members = [one for one in same if _gpu(one[0]).capability in alike]
        left = [one for one in left if one not in group.members]
        first, command = False, tracer.command
        yield group


def _trace(group: _Group) -> None:
    """The small traces of a search, and one at the requested size where they do not give it, or the
    whole search of the largest card where they give no size to the byte."""
    tracer = group.tracer
    if not group.has_a_place:
        tracer.result(None)
        return
    first, group.multiple_of = imaginary.first_that_trains(tracer, group.asked)
    limits = imaginary.limits_of(tracer)
    if tracer.in_batches:
        run_search(
            first_traces(tracer.card, limits, first, group.multiple_of, group.asked), tracer.traced
        )
    else:
        run_search(
            search_largest(tracer.card, limits, first, group.multiple_of, unknown=tracer.unknown),
            tracer.traced,
        )
    group.shown = _shown(tracer)
    model = extrapolate(tracer.card, limits, group.shown, group.multiple_of).size_model
    exact = model is not None and model.exact
    if group.asked is not None and (
        model is None or not exact or group.asked < min(model.fitted_at)
    ):
        play_of_trial(tracer, group.asked)
    elif (
        tracer.in_batches and not exact
    ):  # two small traces say little of sizes that are hundreds of times as large
        begun, limits = tuple(group.shown), imaginary.limits_of(tracer)
        run_search(
            search_largest(tracer.card, limits, first, group.multiple_of, begun), tracer.traced
        )
    else:
        return
    group.shown = _shown(tracer)


def _shown(tracer: Tracer) -> dict[int, Traced]:
    """What each trial showed, without the rows of its traces: the programs have them."""
    sizes = sorted(size for size in tracer.results if size is not None)
    shown = {size: tracer.traced(size) for size in sizes}
    return {
        size: replace(
            one, traces=tuple(trace._replace(rows=[], notes=(), runs=()) for trace in one.traces)
        )
        for size, one in shown.items()
    }


def _line(
    tracer: Tracer, group: _Group, samples: int | None, per_hour: Mapping[str, Estimate]
) -> CardAnswer:
    """A card by the traces of its group."""
    gpu, count = tracer.device.gpu, tracer.device.ranks or tracer.device.cards
    assert gpu is not None
    if group.problem:
        return CardAnswer(gpu, count, None, group.asked, problem=group.problem)
    size, found, play = (
        None,
        Extrapolated(None, None, None),
        tracer.play(None) if group.shown is None else None,
    )
    if group.shown is not None:
        own = {
            at: replace(one, program=imaginary.joined_of(tracer, at))
            for at, one in group.shown.items()
        }
        found = extrapolate(
            tracer.card, imaginary.limits_of(tracer), own, group.multiple_of, tracer.unknown
        )
        if found.largest_batch_size is None and not tracer.in_batches:
            return _searched(tracer, group, samples, per_hour)
        size = group.asked or found.largest_batch_size
        play = _play(tracer, found, size)
    verdict = Verdict.DOES_NOT_FIT if play is None else tracer.card.verdict(play)
    peak = None if play is None else tracer.card.peak(play)
    line = _with_sizes(
        CardAnswer(tracer.gpu, count, verdict, size, peak), tracer, size, found.largest_batch_size
    )
    caps = [one for one in (size, tracer.dataset_length(), found.loader_cap) if one is not None]
    return _priced(line, tracer, min(caps) if size is not None else None, samples, per_hour)


def _searched(
    tracer: Tracer, group: _Group, samples: int | None, per_hour: Mapping[str, Estimate]
) -> CardAnswer:
    """A card that is searched by itself."""
    line = CardAnswer(
        tracer.gpu, tracer.device.ranks or tracer.device.cards, Verdict.DOES_NOT_FIT, None
    )
    try:
        answer = by_search(tracer, group.has_a_place, group.asked)
    except DoesNotFit:
        return _priced(line, tracer, None, samples, per_hour)
    return _of_answer(line, answer, tracer, samples, per_hour)


def _with_sizes(
    line: CardAnswer, tracer: Tracer, size: int | None, largest: int | None
) -> CardAnswer:
    """What a line answers for: the batch size asked or the largest, else the command's own with the
    largest other value.
    """
    if tracer.in_batches:
        return replace(line, batch_size=size, largest_batch_size=largest)
    own = tracer.settings_at(size).get(BATCH_SIZE)
    return replace(line, batch_size=own if isinstance(own, int) else None, solved=largest)


def _play(tracer: Tracer, found: Extrapolated, size: int | None) -> Play | None:
    if size is None:
        return None
    at, model = tracer.effective(size) or size, found.size_model
    if at in tracer.results:
        return tracer.play(at)
    return partial(model.replay_at, at, tracer.card.settings) if model is not None else None


def _of_answer(
    line: CardAnswer,
    answer: Answer,
    tracer: Tracer,
    samples: int | None,
    per_hour: Mapping[str, Estimate],
) -> CardAnswer:
    """The line of a card that was asked alone."""
    conclusion = answer.conclusion
    largest = conclusion.estimate.largest_batch_size if conclusion is not None else None
    found = _with_sizes(
        replace(line, verdict=answer.verdict, peak=answer.peak), tracer, answer.size, largest
    )
    return _priced(
        replace(found, traced=True),
        tracer,
        tracer.in_force(conclusion, answer.size),
        samples,
        per_hour,
    )


def _priced(
    line: CardAnswer,
    tracer: Tracer,
    batch_size: int | None,
    samples: int | None,
    per_hour: Mapping[str, Estimate],
) -> CardAnswer:
    """With its speed at a batch size, the time of an epoch by the card alone, what that costs, and
    the cards it leaves idle.
    """
    if tracer.device.ranks is None:
        used = {index for _, index in cards_of(tracer.representative())}
        line = replace(line, unused=line.cards - len(used) if used else 0)
    hour = per_hour.get(line.gpu.key)
    price = None if hour is None else replace(hour, value=hour.value * line.cards)
    speed = (
        None
        if batch_size is None and tracer.results.keys() != {None}
        else speed_of(tracer, batch_size, None)
    )
    if speed is None or isinstance(speed, Diagnostic):
        return replace(line, price_per_h=price)
    epoch = epoch_of(tracer.representative(), speed, None, samples)
    epoch_s = None if epoch is None else epoch.train_s
    loading = loading_of(tracer.session.results, speed)
    return replace(
        line,
        samples_per_s=speed.samples_per_s,
        epoch_s=epoch_s,
        slow_loading=loading is not None and loading.binds,
        price_per_h=price,
        epoch_price=None if price is None or epoch_s is None else _price_of(price, epoch_s),
    )


def _price_of(price: Estimate, seconds: Estimate) -> Estimate:
    """Of so many seconds; its interval is that of the seconds."""
    return replace(
        seconds.with_all(lambda time: price.value * time / _HOUR_S),
        source=Source.ASSUMED,
        note=price.note,
    )


def _order(line: CardAnswer) -> tuple[float, ...]:
    """What fits comes first, by the price of an epoch, or of a sample; without prices the fastest.
    Where another setting was asked for, by its largest value."""
    rate = line.samples_per_s.value if line.samples_per_s is not None else 0.0
    price = line.price_per_h.value if line.price_per_h is not None else None
    cost = price / rate if price is not None and rate else float("inf")
    return (
        Verdict.badness(line.verdict),
        -(line.solved or 0),
        cost,
        -rate,
        line.gpu.total_bytes.value * line.cards,
    )


def _gpu(device: Device) -> Gpu:
    assert device.gpu is not None
    return device.gpu
