"""`tune`, after its plan: does the model learn sooner with it than with the user's own settings?"""

from dataclasses import replace

from brimful import command as commands
from brimful.decide.run.settings import BATCH_SIZE
from brimful.decide.tune.learning import in_batch_sizes
from brimful.decide.tune.learning_rate import scaled_learning_rate
from brimful.errors import CUT_SHORT, BrimfulError
from brimful.values import (
    Comparison,
    Diagnostic,
    EffectiveSetting,
    Objective,
    Plan,
    Source,
    TrialKind,
)
from brimful.verbs.compare import PAIRS, SECONDS, Until, Way, Ways, own_and_planned, side_by_side
from brimful.verbs.session import Session
from brimful.verbs.start import Start

_LEAST_S = 20.0  # of each run: less shows no learning (assumed)
_RATE = "lr"


def seconds_for_each(session: Session, asked: bool | None) -> float | None:
    """How long each of the runs may train; None: they are not run. `asked`: by --compare, or
    --no-compare; None: where the time limit leaves room for it.
    """
    limit_s = session.options.time_limit_s
    if asked is False or (limit_s is None and not asked):
        return None
    if limit_s is None:
        return SECONDS
    timed = [result for result in session.results if result.trial.kind is TrialKind.SPEED]
    start_s = max((run.duration_s - sum(run.step_s) for run in timed), default=0.0)
    each = (limit_s - session.elapsed_s) / (2 * PAIRS) - start_s
    return min(each, SECONDS) if asked or each >= _LEAST_S else None


def compared(session: Session, began: Start, plan: Plan, asked: bool | None) -> None:
    """Keeps a comparison of the plan with the user's own settings, where its batch size is another;
    then with the learning rate that goes with it, where the command takes one and the plan alone is
    not the better. A plan that learns later is not the plan: then the user's own settings are kept
    as one.
    """
    row = next((row for row in plan.settings if row.name == BATCH_SIZE), None)
    seconds = seconds_for_each(session, asked)
    if row is None or row.requested in (None, row.effective) or seconds is None:
        return
    placed = replace(began.command, places=plan.places)
    ways = own_and_planned(began.command, placed, plan, began.device, began.given)
    if ways is None:
        return
    rate = _scaled_rate(session, ways, plan, row)
    if rate is not None and session.options.time_limit_s is not None:
        seconds /= 2
    session.limits_the_whole = False  # the runs have their own time
    until = Until(max(seconds, 1.0))
    comparison = _side_by_side(session, ways, until)
    if comparison is None:
        return
    goes_on = session.stop is None and seconds >= _LEAST_S
    if comparison.better != "B" and rate is not None and goes_on:
        scaled, candidate = _with_rate(ways, plan, rate, row)
        other = _side_by_side(session, scaled, until)
        if other is not None and other.better == "B":
            session.keep(candidate)
            session.keep(other)
            return
    if comparison.better == "A":
        session.keep(_own(plan, ways[0]))
    session.keep(comparison)


def _side_by_side(session: Session, ways: Ways, until: Until) -> Comparison | None:
    """None where one of them does not train for so long, or the user has enough: the plan stands
    without it."""
    try:
        return side_by_side(session, ways, until)
    except CUT_SHORT as stop:
        why, explanation = session.ended_early(stop), ""
    except BrimfulError as error:
        why, explanation = error.problem, error.explanation
    problem = f"learning was not compared: {why}"
    session.note(Diagnostic("not-compared", problem, explanation, ""))
    return None


def _scaled_rate(session: Session, ways: Ways, plan: Plan, row: EffectiveSetting) -> float | None:
    """The learning rate that goes with the plan's batch size, where the command can take it."""
    opened = commands.opened(ways[1].command, _RATE, whole=False)
    given_rate = {**opened.given, **ways[0].settings}.get(_RATE)
    optimizers = next((r.optimizers for t in session.results for r in t.reports), [])
    if (
        not isinstance(given_rate, float)
        or _RATE not in commands.placeholders(opened)
        or not optimizers
    ):
        return None
    before, after = row.requested, row.effective
    assert isinstance(before, int) and isinstance(after, int)
    noise = in_batch_sizes(plan.optima and plan.optima.noise_scale, session.results[0])
    scaled = scaled_learning_rate(given_rate, before, after, optimizers[0].name, noise)
    return scaled and float(f"{scaled[0]:.3g}")


def _with_rate(ways: Ways, plan: Plan, rate: float, row: EffectiveSetting) -> tuple[Ways, Plan]:
    a, b = ways
    opened = commands.opened(b.command, _RATE, whole=False)
    given_rate = {**opened.given, **a.settings}.get(_RATE)
    why = f"scaled with the batch size, from {given_rate} at {row.requested:,}, and compared"
    added = EffectiveSetting(_RATE, given_rate, rate, why, Source.MEASURED)
    rows = tuple(other for other in plan.settings if other.name != _RATE)
    way = replace(b, command=opened, settings={**b.settings, _RATE: rate})
    return (a, way), replace(plan, settings=(*rows, added), command_line=way.line)


def _own(plan: Plan, way: Way) -> Plan:
    """The user's own settings as the plan."""
    size = next(row.effective for row in plan.settings if row.name == BATCH_SIZE)
    was = (
        "was predicted to learn sooner"
        if plan.objective is Objective.LEARNING
        else "processes more samples a second"
    )
    why = {BATCH_SIZE: f"batch size {size} {was} and learns later"}
    rows = tuple(
        replace(
            row,
            effective=way.settings.get(row.name, row.requested),
            why=f"your own: {why[row.name]}" if row.name in why else "your own",
        )
        for row in plan.settings
        if row.name not in plan.environment
    )
    return replace(
        plan,
        settings=rows,
        environment={},
        places=way.command.places,
        command_line=way.line,
        samples_per_s=plan.baseline_samples_per_s,
        gain=None,
        warnings=tuple(w for w in plan.warnings if w.code != "learning-rate-scaling"),
    )
