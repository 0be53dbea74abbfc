"""Which card: several cards of one question, traced as often as they differ in what they do, and
not once for each.

A trial on one card says for which other capabilities all would have been done in the same way:
attention, precision, whatever the script asks. Those cards share its traces, each with its own
workspaces, memory and rates. Only the answer of the cheapest card is traced once more, as it would
be alone.

Where the largest value is asked for, the largest card of a group is searched to the end: small
traces alone may not know where memory grows otherwise. Of another setting than the batch size its
traces speak for the others where they confirm a model of sizes; else each is searched by itself.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from brimful.decide.memory.bracket import CLOSE, Bracket, run_search, upper_limit
from brimful.decide.memory.known_traces import TracedSizes
from brimful.decide.memory.search_traced import (
    Extrapolated,
    Traced,
    extrapolate,
    first_traces,
    search_largest,
)
from brimful.decide.memory.uneven import MOST_RISE
from brimful.decide.run.settings import BATCH_SIZE
from brimful.decide.speed.epoch import epoch_of, loading_of
from brimful.errors import BrimfulError, DoesNotFit, UntilStopped
from brimful.measure.gpus.prices import prices
from brimful.measure.traces import cards_of
from brimful.outcomes import SCRIPT_FAILED
from brimful.units import GIB
from brimful.values import (
    NOT_LOOKED_AT,
    Budget,
    CardAnswer,
    Device,
    Diagnostic,
    Estimate,
    Gpu,
    PeakEstimate,
    Source,
    Verdict,
)
from brimful.verbs.answers import (
    answer_at,
    asked_about,
    by_search,
    concluded,
    replayers_of_trial,
    so_far,
    timed_batch,
)
from brimful.verbs.imaginary import CardView, Replayers, view_of
from brimful.verbs.session import Session
from brimful.verbs.start import Start
from brimful.verbs.step_speed import has_a_fixed_total, speed_of
from brimful.verbs.trials import first_that_trains
from brimful.verbs.warnings import Answer

_HOUR_S = 3600.0
Asked = tuple[Device, Budget]


@dataclass
class _Group:
    """Cards that share their traces. `problem`: why the command fails on all of them."""

    view: CardView
    members: list[Asked]
    has_a_place: bool = True
    asked: int | None = None
    multiple_of: int = 1
    # By batch size; None: the command was run as it stands.
    shown: Mapping[int, Traced] | None = None
    problem: str = ""


@dataclass
class _Candidate:
    """A card with its line, and the traces that it is read from."""

    line: CardAnswer
    view: CardView
    group: _Group
    replayers: Replayers | None = None  # at the size that it answers for


def by_price(line: CardAnswer) -> tuple[float, ...]:
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


def by_memory(line: CardAnswer) -> tuple[float, ...]:
    """What fits comes first, by the memory of all its cards in whole GiB; of as much by price."""
    fit, *rest = by_price(line)
    return (fit, line.cards * round(line.gpu.total_bytes.value / GIB), *rest)


def which_card(
    session: Session,
    began: Start,
    samples: int | None,
    noted: list[Diagnostic],
    order: Callable[[CardAnswer], tuple[float, ...]] = by_price,
) -> tuple[CardView, Answer, tuple[CardAnswer, ...]]:
    """(The first card in that order as it answers alone, its answer, a line for every card).
    `noted` gets what cut it short.

    Raises the errors of a command that does not train on the largest of them, DoesNotFit where an
    open batch size fits none.
    """
    groups: list[_Group] = []
    candidates: list[_Candidate] = []
    add_lines = partial(_add_lines, candidates, groups, samples, prices(began.options.home))
    with UntilStopped() as work:
        _add_groups(groups, session, began, noted)
        add_lines()
        return _confirmed(candidates, order, samples, prices(began.options.home))
    assert work.stop is not None
    if not groups:
        raise work.stop
    session.ended_early(work.stop)
    with UntilStopped():
        add_lines()  # as far as they take no trial
    view, answer = _so_far(candidates, groups, order, work.stop, noted)
    lines = [candidate.line for candidate in candidates]
    lines = lines or [_of_answer(_answer(view, answer.verdict), answer, view, samples, {})]
    others = [view.on(device, budget) for device, budget in began.several]
    unknown = [_answer(other, None, groups[0].asked, problem=NOT_LOOKED_AT) for other in others]
    labels = {line.label for line in lines}
    missing = [line for line in unknown if line.label not in labels]
    left_out = "not every card was looked at" if missing else "no trial confirmed the first card"
    noted.append(session.partial(work.stop, left_out))
    return view, answer, (*lines, *missing)


def _add_lines(
    candidates: list[_Candidate],
    groups: Sequence[_Group],
    samples: int | None,
    per_hour: Mapping[str, Estimate],
) -> None:
    """For all cards of the groups that were traced and have none."""
    have_one = [candidate.view.device for candidate in candidates]
    for group in groups:
        for device, budget in group.members:
            if device in have_one:
                continue
            is_first = device is group.view.device
            view = group.view if is_first else group.view.on(device, budget)
            candidates.append(_line(view, group, samples, per_hour))


def _so_far(
    candidates: list[_Candidate],
    groups: Sequence[_Group],
    order: Callable[[CardAnswer], tuple[float, ...]],
    stop: BaseException,
    noted: list[Diagnostic],
) -> tuple[CardView, Answer]:
    """The first of the cards that have a line, by the traces of others; where none has, the first
    that was traced itself. Raises `stop` where nothing is known of that."""
    candidates.sort(key=lambda candidate: order(candidate.line))
    if not candidates:
        traced = next((group for group in groups if group.view.trials.completed()), groups[-1])
        return traced.view, so_far(traced.view, traced.asked, stop, noted)
    first = candidates[0]
    view, line = first.view, first.line
    if view.conclusion is not None:
        answer = concluded(view, view.conclusion, first.group.asked)
        if answer is not None:
            return view, answer
    if first.replayers is None:
        raise stop
    size = line.batch_size if line.solved is None else line.solved
    return view, answer_at(view, size, first.replayers)


def _confirmed(
    candidates: list[_Candidate],
    order: Callable[[CardAnswer], tuple[float, ...]],
    samples: int | None,
    per_hour: Mapping[str, Estimate],
) -> tuple[CardView, Answer, tuple[CardAnswer, ...]]:
    """The first card, once it stays so with its own trace."""
    answered: tuple[CardView, Answer] | None = None
    while True:
        candidates.sort(key=lambda candidate: order(candidate.line))
        best = candidates[0]
        if best.line.verdict not in (Verdict.FITS, Verdict.TIGHT):
            best = max(candidates, key=lambda c: (not c.line.problem, c.line.gpu.total_bytes.value))
        view = best.view
        if answered is None or answered[0] is not view:
            answered = view, by_search(view, best.group.has_a_place, best.group.asked)
        answer = answered[1]
        if best.line.traced or best is not candidates[0]:
            return view, answer, tuple(candidate.line for candidate in candidates)
        best.line = _of_answer(best.line, answer, view, samples, per_hour)


def _add_groups(
    groups: list[_Group], session: Session, began: Start, noted: list[Diagnostic]
) -> None:
    """The largest of the cards that are left is traced, with all that would have done as it did."""
    left, is_first, question = list(began.several), True, None
    while left:
        device, budget = max(
            left, key=lambda pair: (pair[0].cards, _gpu(pair[0]).total_bytes.value)
        )
        # other numbers of cards or ranks around a rank make another trace
        around = (device.cards, device.ranks)
        same = [pair for pair in left if (pair[0].cards, pair[0].ranks) == around]
        capabilities = {_gpu(other).capability for other, _ in same}
        others = tuple(sorted(capabilities - {_gpu(device).capability}))
        view = view_of(
            session,
            replace(began, device=device, budget=budget),
            began.other_values(),
            time_loader=timed_batch(began),
            others=others,
            unknown=began.sets[0],
        )
        group = _Group(view, [])
        groups.append(group)
        try:
            question = question or asked_about(view.trials, began, noted)
            group.has_a_place, group.asked = question
            _trace(group)
        except BrimfulError as error:
            if is_first or session.stop is not None:
                raise  # on the largest card it is the command's own
            group.problem = error.problem
        alike = view.trials.alike
        group.members = [pair for pair in same if _gpu(pair[0]).capability in alike]
        left = [pair for pair in left if pair not in group.members]
        is_first, began = False, replace(began, command=view.trials.command)


def _trace(group: _Group) -> None:
    """The whole search of the largest card; of a requested size its small traces, and one at that
    size where they do not give it."""
    view, trials = group.view, group.view.trials
    if not group.has_a_place:
        trials.result(None)
        return
    first, multiple_of = first_that_trains(trials, group.asked)
    group.multiple_of, limits = multiple_of, trials.limits()
    if group.asked is not None:
        steps = first_traces(
            TracedSizes(view.card, Bracket(limits, multiple_of)), first, group.asked
        )
    else:
        steps = search_largest(view.card, limits, first, multiple_of, unknown=trials.unknown)
    run_search(steps, view.traced)
    group.shown = _shown(view)
    model = extrapolate(view.card, limits, group.shown, multiple_of).size_model
    if model is not None and (not model.exact or has_a_fixed_total(trials.completed())):
        model = None
    if group.asked is not None and (model is None or group.asked < min(model.fitted_at)):
        replayers_of_trial(view, group.asked)
        group.shown = _shown(view)


def _shown(view: CardView) -> dict[int, Traced]:
    sizes = sorted(size for size in view.trials.results if size is not None)
    return {size: view.traced(size) for size in sizes}


def _line(
    view: CardView, group: _Group, samples: int | None, per_hour: Mapping[str, Estimate]
) -> _Candidate:
    """A card by the traces of its group."""
    if group.problem:
        line = _answer(view, None, batch_size=group.asked, problem=group.problem)
        return _Candidate(line, view, group)
    trials, (size, extrapolated, replayers) = view.trials, _read(view, group)
    is_known = extrapolated.largest_batch_size is not None or group.asked is not None
    if group.shown is not None and not is_known:
        return _Candidate(_searched(view, group, samples, per_hour), view, group)
    replayer = None if replayers is None else replayers.all_orders
    verdict = Verdict.DOES_NOT_FIT if replayer is None else view.card.verdict(replayer)
    peak = None if replayer is None else view.card.peak(replayer)
    line = _answer(view, verdict, batch_size=size, peak=peak)
    largest = extrapolated.largest_batch_size
    if group.asked is not None and extrapolated.size_model is None:
        largest = None  # no larger one was looked at
    line = _with_sizes(line, view, size, largest)
    caps = (size, trials.dataset_length(), extrapolated.loader_cap)
    at = min(cap for cap in caps if cap is not None) if size is not None else None
    return _Candidate(_priced(line, view, at, samples, per_hour), view, group, replayers)


def _read(view: CardView, group: _Group) -> tuple[int | None, Extrapolated, Replayers | None]:
    """(The size that a card answers for, the sizes that follow from the traces of its group, the
    replays there)."""
    if group.shown is None:
        return None, Extrapolated(None, None, None), view.traced_replayers(None)
    trials = view.trials
    shown = {
        at: replace(traced, program=traced.program and view.joined(at))
        for at, traced in group.shown.items()
    }
    extrapolated = extrapolate(view.card, trials.limits(), shown, group.multiple_of, trials.unknown)
    if extrapolated.largest_batch_size is not None or trials.in_batches:
        largest = _over_an_epoch(view, extrapolated, group.multiple_of)
        extrapolated = replace(extrapolated, largest_batch_size=largest)
    size = group.asked or extrapolated.largest_batch_size
    return size, extrapolated, _replayers(view, extrapolated, size)


def _searched(
    view: CardView, group: _Group, samples: int | None, per_hour: Mapping[str, Estimate]
) -> CardAnswer:
    """A card that is searched by itself."""
    line = _answer(view, Verdict.DOES_NOT_FIT)
    try:
        answer = by_search(view, group.has_a_place, group.asked)
    except DoesNotFit:
        return _priced(line, view, None, samples, per_hour)
    return _of_answer(line, answer, view, samples, per_hour)


def _with_sizes(
    line: CardAnswer, view: CardView, size: int | None, largest: int | None
) -> CardAnswer:
    """What a line answers for: the batch size asked or the largest, else the command's own with the
    largest other value.
    """
    if view.trials.in_batches:
        return replace(line, batch_size=size, largest_batch_size=largest)
    batch_size = view.trials.settings_at(size).get(BATCH_SIZE)
    batch_size = batch_size if isinstance(batch_size, int) else None
    return replace(line, batch_size=batch_size, solved=largest)


def _over_an_epoch(view: CardView, extrapolated: Extrapolated, multiple_of: int) -> int | None:
    """The largest batch size that fits over an epoch of uneven batches as well, by one that fits
    with the largest samples."""
    largest = extrapolated.largest_batch_size
    if largest is None:
        return None
    learned = max(view.trials.completed(), key=lambda size: size or 0)
    view.learn_epochs(learned)

    def is_too_much(size: int) -> bool:
        card, programs = view.card, view.epochs(size, orders=2)
        return not all(card.fits(partial(card.replay, program)) for program in programs)

    smaller = range(multiple_of, largest + 1, multiple_of)
    if is_too_much(largest):
        return bisect_left(smaller, True, key=is_too_much) * multiple_of or None
    failed = any(result.outcome in SCRIPT_FAILED for result in view.trials.results.values())
    rises = view.trials.in_batches and learned in view.trials.drawn
    rises = rises and extrapolated.loader_cap is None and not failed
    most = MOST_RISE * largest if rises else largest
    ceiling = min(most, upper_limit(view.trials.limits())[0] or most)
    larger = range(largest, ceiling + 1, max(1, int(CLOSE * largest) // multiple_of) * multiple_of)
    return larger[bisect_left(larger, True, key=is_too_much) - 1]


def _replayers(view: CardView, extrapolated: Extrapolated, size: int | None) -> Replayers | None:
    if size is None:
        return None
    at, model = view.trials.effective(size) or size, extrapolated.size_model
    if at in view.trials.results:
        return view.traced_replayers(at)
    return view.extrapolated(model, at) if model is not None else None


def _of_answer(
    line: CardAnswer,
    answer: Answer,
    view: CardView,
    samples: int | None,
    per_hour: Mapping[str, Estimate],
) -> CardAnswer:
    """The line of a card that was asked alone."""
    conclusion = answer.conclusion
    largest = conclusion.estimate.largest_batch_size if conclusion is not None else None
    line = replace(line, verdict=answer.verdict, peak=answer.peak, traced=True)
    line = _with_sizes(line, view, answer.size, largest)
    return _priced(line, view, view.trials.in_force(conclusion, answer.size), samples, per_hour)


def _priced(
    line: CardAnswer,
    view: CardView,
    batch_size: int | None,
    samples: int | None,
    per_hour: Mapping[str, Estimate],
) -> CardAnswer:
    """With its speed at a batch size, the time of an epoch by the card alone, what that costs, and
    the cards it leaves idle.
    """
    trials = view.trials
    if view.device.ranks is None:
        used = {index for _, index in cards_of(trials.representative())}
        line = replace(line, unused=line.cards - len(used) if used else 0)
    hour = per_hour.get(line.gpu.key)
    price = None if hour is None else replace(hour, value=hour.value * line.cards)
    line = replace(line, price_per_h=price)
    if batch_size is None and trials.results.keys() != {None}:
        return line
    speed = speed_of(view, batch_size, None)
    if isinstance(speed, Diagnostic):
        return line
    epoch = epoch_of(trials.representative(), speed, None, samples)
    epoch_s = None if epoch is None else epoch.train_s
    loading, epoch_price = loading_of(trials.session.results, speed), None
    if price is not None and epoch_s is not None:  # its interval is that of the seconds
        of_seconds = epoch_s.with_all(lambda time: price.value * time / _HOUR_S)
        epoch_price = replace(of_seconds, source=Source.ASSUMED, note=price.note)
    return replace(
        line,
        samples_per_s=speed.samples_per_s,
        epoch_s=epoch_s,
        slow_loading=loading is not None and loading.binds,
        epoch_price=epoch_price,
    )


def _answer(
    view: CardView,
    verdict: Verdict | None,
    batch_size: int | None = None,
    peak: PeakEstimate | None = None,
    problem: str = "",
) -> CardAnswer:
    """With all cards of all machines: a machine is paid for as a whole."""
    device, machines = view.device, view.device.machines
    gpu = view.gpu if verdict is not None else _gpu(device)
    count = device.cards * machines
    return CardAnswer(gpu, count, verdict, batch_size, peak, problem=problem, machines=machines)


def _gpu(device: Device) -> Gpu:
    assert device.gpu is not None
    return device.gpu
