"""Which card: several cards of one question, traced as often as they differ in what they do, and
not once for each.

A trial on one card says for which other capabilities all would have been done in the same way:
attention, precision, whatever the script asks. Those cards share its traces, each with its own
workspaces, memory and rates: each is asked as it would be alone, and a model of sizes is enough for
its answer. Only the first of them is traced at its own answer. Where no model is confirmed, each
card is searched by itself, from all traces that are there.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from brimful.ask.answer import by_search, find, timed_batch
from brimful.ask.reading import CardView, MemoryAnswer, view_of
from brimful.ask.rows import until_confirmed, with_peak, with_speed
from brimful.ask.speed import speed_of
from brimful.decide.run.settings import BATCH_SIZE
from brimful.decide.speed.epoch import loading_of
from brimful.errors import BrimfulError, DoesNotFit, UntilStopped
from brimful.measure.gpus.prices import prices
from brimful.measure.traces import cards_of
from brimful.trials.session import Session
from brimful.trials.start import Start
from brimful.units import GIB
from brimful.values import (
    NOT_LOOKED_AT,
    Answer,
    Device,
    Diagnostic,
    Estimate,
    Gpu,
    Setting,
    Source,
    Verdict,
)

_HOUR_S = 3600.0


@dataclass
class _Row:
    """A card with its line, and the answer that it is of: None where no size fits, or the command
    fails."""

    view: CardView
    line: Answer
    answer: MemoryAnswer | None = None


def by_price(line: Answer) -> tuple[float, ...]:
    """What fits comes first, by the price of an epoch, or of a sample; without prices the fastest.
    Where another setting was asked for, by its largest value."""
    rate = line.samples_per_s.value if line.samples_per_s is not None else 0.0
    price = line.price_per_h.value if line.price_per_h is not None else None
    cost = price / rate if price is not None and rate else float("inf")
    largest = 0 if line.settings.keys() <= {BATCH_SIZE} else line.largest or 0
    return (Verdict.badness(line.verdict), -largest, cost, -rate, _bytes(line))


def by_memory(line: Answer) -> tuple[float, ...]:
    """What fits comes first, by the memory of all its cards in whole GiB; of as much by price."""
    fit, *rest = by_price(line)
    return (fit, round(_bytes(line) / GIB), *rest)


def which_card(
    session: Session,
    began: Start,
    samples: int | None,
    noted: list[Diagnostic],
    order: Callable[[Answer], tuple[float, ...]] = by_price,
) -> tuple[CardView, MemoryAnswer, tuple[Answer, ...]]:
    """(The first card in that order as it answers alone, its answer, a line for every card).
    `noted` gets what cut it short.

    Raises the errors of a command that does not train on the largest of them, DoesNotFit where an
    open batch size fits none.
    """
    rows: list[_Row] = []
    line_of = partial(_line, samples=samples, per_hour=prices(began.options.home))
    with UntilStopped() as work:
        for row in _rows(session, began, noted, line_of):
            rows.append(row)
        if session.stop is None:
            _confirm_the_first(rows, order, line_of)
    stop = work.stop or session.stop
    if stop is not None:
        session.ended_early(stop)
        rows.sort(key=lambda row: order(row.line))
    first = next((row for row in rows if row.answer is not None), None)
    if first is None or first.answer is None:
        raise stop or AssertionError("a search names a size, or says that none fits")
    answer = first.answer
    if first.view.is_read:  # no trial confirmed it
        answer = replace(answer, conclusion=None)
    lines = tuple(row.line for row in rows)
    looked_at = [row.view.device for row in rows]
    others = [pair for pair in began.several if pair[0] not in looked_at]
    missing = [_without_answer(first.view.on(*pair), NOT_LOOKED_AT) for pair in others]
    if stop is not None:
        left_out = "no trial confirmed the first card"
        left_out = "not every card was looked at" if missing else left_out
        noted.append(session.partial(stop, left_out))
    return first.view, answer, (*lines, *missing)


def _confirm_the_first(
    rows: list[_Row],
    order: Callable[[Answer], tuple[float, ...]],
    line_of: Callable[[CardView, MemoryAnswer], Answer],
) -> None:
    """The first card is asked as it would be alone, until it stays the first. Where none fits, that
    is the largest one, which says why."""

    def first() -> int:
        place = min(range(len(rows)), key=lambda at: order(rows[at].line))
        if rows[place].line.verdict in (Verdict.FITS, Verdict.TIGHT):
            return place
        return max(
            range(len(rows)), key=lambda at: (not rows[at].line.problem, _bytes(rows[at].line))
        )

    def confirm(place: int) -> None:
        row, alone = rows[place], replace(rows[place].view, is_read=False)
        if row.answer is None or row.view.is_read:
            row.answer = by_search(alone)
            row.view, row.line = alone, line_of(alone, row.answer)

    answered = rows[until_confirmed(first, confirm)]
    rows.sort(key=lambda row: order(row.line))
    if rows[0].line.verdict not in (Verdict.FITS, Verdict.TIGHT):
        rows.sort(key=lambda row: row is not answered)


def _rows(
    session: Session,
    began: Start,
    noted: list[Diagnostic],
    line_of: Callable[[CardView, MemoryAnswer], Answer],
) -> Iterator[_Row]:
    """The largest of the cards that are left is asked, and then all that do as it does."""
    left, question = list(began.several), None
    while left and session.stop is None:
        device, budget = max(
            left, key=lambda pair: (pair[0].cards, _gpu(pair[0]).total_bytes.value)
        )
        # other numbers of cards or ranks around a rank make another trace
        around = (device.cards, device.ranks)
        same = [pair for pair in left if (pair[0].cards, pair[0].ranks) == around]
        capabilities = {_gpu(other).capability for other, _ in same}
        view = view_of(
            session,
            replace(began, device=device, budget=budget),
            began.other_values(),
            time_loader=timed_batch(began),
            others=tuple(sorted(capabilities - {_gpu(device).capability})),
            unknown=began.sets[0],
        )
        view.question, problem = question, ""
        try:
            row = _asked(view, partial(find, began=began, noted=noted), line_of)
        except BrimfulError as error:
            if question is None or session.stop is not None:
                raise  # on the largest card it is the command's own
            problem = error.problem
            row = _Row(view, _without_answer(view, problem))
        yield row
        question = view.question
        alike = view.trials.alike
        members = [pair for pair in same if _gpu(pair[0]).capability in alike]
        for other, its_budget in members:
            if session.stop is None and other is not device:
                shared = view.on(other, its_budget)
                yield (
                    _Row(shared, _without_answer(shared, problem))
                    if problem
                    else _asked(shared, by_search, line_of)
                )
        left = [pair for pair in left if pair not in members and pair[0] is not device]
        began = replace(began, command=view.trials.command)


def _asked(
    view: CardView,
    find_answer: Callable[[CardView], MemoryAnswer],
    line_of: Callable[[CardView, MemoryAnswer], Answer],
) -> _Row:
    try:
        answer = find_answer(view)
    except DoesNotFit:
        return _Row(view, _without_answer(view, "", Verdict.DOES_NOT_FIT))
    return _Row(view, line_of(view, answer), answer)


def _line(
    view: CardView, answer: MemoryAnswer, samples: int | None, per_hour: Mapping[str, Estimate]
) -> Answer:
    """With all cards of all machines: a machine is paid for as a whole; its speed, the time of an
    epoch by the card alone, what that costs, and the cards it leaves idle."""
    trials = view.trials
    at = trials.in_force(answer.conclusion, answer.size)
    line = replace(
        with_peak(_without_answer(view, "", answer.verdict), answer.peak),
        settings=_settings(view, answer.size),
        largest=answer.largest,
        gpu=view.gpu,
        traced=trials.effective(answer.size) in trials.results,
    )
    if view.device.ranks is None:
        used = {index for _, index in cards_of(trials.representative())}
        line = replace(line, unused=line.cards - len(used) if used else 0)
    hour = per_hour.get(view.gpu.key)
    price = None if hour is None else replace(hour, value=hour.value * line.cards)
    line = replace(line, price_per_h=price)
    speed = speed_of(view, at, None)
    if isinstance(speed, Diagnostic) or (at is None and trials.results.keys() != {None}):
        return line
    line = with_speed(line, view, speed, samples=samples)
    loading = loading_of(trials.session.results, speed)
    line = replace(line, slow_loading=loading is not None and loading.binds)
    if price is None or line.epoch_s is None:
        return line
    # its interval is that of the seconds
    of_seconds = line.epoch_s.with_all(lambda time: price.value * time / _HOUR_S)
    return replace(line, epoch_price=replace(of_seconds, source=Source.ASSUMED, note=price.note))


def _settings(view: CardView, size: int | None) -> dict[str, Setting]:
    """What was asked for at the size, and the batch size there."""
    settings = view.trials.settings_at(size)
    return {name: settings[name] for name in (view.trials.unknown, BATCH_SIZE) if name in settings}


def _without_answer(view: CardView, problem: str, verdict: Verdict | None = None) -> Answer:
    device, asked = view.device, view.question[1] if view.question else None
    return Answer(
        _settings(view, asked),
        verdict,
        traced=False,
        gpu=device.gpu,
        cards=device.cards * device.machines,
        machines=device.machines,
        problem=problem,
    )


def _gpu(device: Device) -> Gpu:
    assert device.gpu is not None
    return device.gpu


def _bytes(line: Answer) -> float:
    """The memory of all its cards."""
    return line.gpu.total_bytes.value * line.cards if line.gpu is not None else 0.0
