"""`compare`: two ways to train beside each other, by speed, memory and how soon they learn. Both
run by turns in trials that leave nothing behind; or two predictions are compared.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from brimful import command as commands
from brimful import masking
from brimful.decide.run import settings as run_settings
from brimful.decide.tune.plan import command_line
from brimful.errors import BrimfulError, UntilStopped, UsageError
from brimful.record import record_home
from brimful.trials import devices
from brimful.trials.results import require_steps, require_whole
from brimful.trials.session import Options, Session, opened
from brimful.trials.start import Start, start
from brimful.units import counted, format_duration
from brimful.values import (
    Command,
    Comparison,
    Device,
    Record,
    Setting,
    Trial,
    TrialKind,
    TrialResult,
)
from brimful.verbs import run_plan
from brimful.verbs.comparisons import (
    NAMES,
    WHOLE,
    Contestant,
    of_predictions,
    of_runs,
)
from brimful.verbs.predict import predict
from brimful_inside.wire import NO_LIMIT, Ends

PAIRS, SECONDS = 2, 120.0
_START_S = 600.0  # beside the time that it trains, for what comes before
_SEED = "seed"


@dataclass(frozen=True)
class Until:
    """How long each run trains; with neither limit to its end."""

    seconds: float | None = SECONDS
    samples: int | None = None

    @property
    def text(self) -> str:
        if self.samples is not None:
            return f"{self.samples:,} samples"
        return WHOLE if self.seconds is None else format_duration(self.seconds)


@dataclass(frozen=True)
class Way:
    """One side: a command with its settings, and where it runs, if not here."""

    command: Command
    settings: dict[str, Setting]
    device: Device

    @property
    def line(self) -> str:
        """To paste."""
        return command_line(self.command, self.settings, with_sets=True)

    def seeded(self) -> tuple["Way", int | None]:
        """With a place for the seed of its command, and the first one; None where it takes none."""
        command = commands.opened(self.command, _SEED)
        if _SEED not in commands.placeholders(command):
            return self, None
        seed = self.settings.get(_SEED, command.given.get(_SEED, 0))
        return replace(self, command=command), seed if isinstance(seed, int) else 0


Ways = tuple[Way, Way]


def compare(
    words: Sequence[str],
    *,
    record: str | None = None,
    plan: bool = False,
    device: str = "auto",
    until: Until | None = None,
    pairs: int = PAIRS,
    settings: Mapping[str, Setting] | None = None,
    options: Options | None = None,
    **card: Unpack[devices.CardNames],
) -> Record:
    """Compares two commands, each one word of `words` (quoted); or the command in `words` with its
    own settings and with its plan (`plan`; `record` may name which). With a `card` predictions are
    compared.

    Returns the record, whose `comparison` is the answer. Raises UsageError for what cannot be
    meant, NoSuchRecord, and the errors of `trials.results` where one side does not train.
    """
    options = options or Options()
    options = replace(options, home=record_home(options.home).absolute())
    is_run = not any(card.values())
    _refuse_what_says_nothing(
        {
            "a record": record is not None and not plan,
            "--plan": plan and not is_run,
            "--minutes, --samples or --to-end": until is not None and not is_run,
            "--steps": options.steps is not None and is_run,
            "--budget": options.budget is not None and is_run,
            "--max-batch-size": options.max_batch_size is not None and is_run,
        }
    )
    if not is_run:
        return _predicted(words, settings, options, card)

    def began(argv: Sequence[str]) -> Start:
        return start(argv, settings, options, device, devices.HERE)

    if plan:
        ways = _own_and_planned(began(words), record or "latest", options)
    else:
        first, second = map(began, _two_commands(words))
        ways = _way(first), _way(second)
    with opened("compare", ways[0].command, ways[0].device, options) as session:
        comparison = _side_by_side(session, ways, until or Until(), pairs)
        if plan:
            verdict = f"Your own settings (A), the plan (B): {comparison.verdict}"
            comparison = replace(comparison, verdict=verdict)
        session.keep(comparison)
    return session.record()


def _side_by_side(session: Session, ways: Ways, until: Until, pairs: int) -> Comparison:
    """Runs both by turns. Raises the errors of `trials.results` of one that does not train."""
    a, b = (Contestant(way.line, way.settings) for way in ways)
    session.message(f"A: {a.line}")
    session.message(f"B: {b.line}")
    stop = _run_by_turns(session, ways, (a, b), until, pairs)
    ended = session.ended_early(stop) if stop is not None else None
    return of_runs((a, b), until.text, ended)


def _refuse_what_says_nothing(given: Mapping[str, bool]) -> None:
    """Raises UsageError for the first that was `given` and would be passed over."""
    for name in (name for name, is_given in given.items() if is_given):
        raise UsageError(
            f"{name} would change nothing here",
            "two commands and a plan are run by turns, for some minutes or samples; predictions "
            "(--gpu) are compared as they are",
            "leave it out, or see `brimful compare --help`",
        )


_EXAMPLES = (
    "for instance:\nbrimful compare -- 'python train.py --batch-size 64' "
    "'python train.py --batch-size 104'\nor, where `brimful tune` left a plan:\n"
    "brimful compare --plan -- python train.py --batch-size 64"
)


# --- what is compared ---


def _way(began: Start) -> Way:
    return Way(began.command, began.values(), began.device)


def _two_commands(words: Sequence[str]) -> list[list[str]]:
    if len(words) != 2 or not all(" " in word.strip() for word in words):
        raise UsageError(
            "compare takes two commands, each in quotes",
            f"{counted(len(words), 'word')} behind the two dashes",
            _EXAMPLES,
        )
    return [shlex.split(word) for word in words]


def _own_and_planned(began: Start, named: str, options: Options) -> Ways:
    """The user's own settings, and those of the newest plan of the command, or of one `named`."""
    chosen = run_plan.choose(began.command, named, False, None, options.home)
    assert chosen.plan is not None  # `choose` raises where the one named has none
    command, plan, device = began.command, chosen.plan, chosen.device
    placed = run_plan.with_places(command, chosen, options)
    asked = {row.name: row.requested for row in plan.settings if row.requested is not None} | dict(
        began.given
    )
    left_open = [name for name in commands.placeholders(command) if name not in asked]
    bare = commands.without(command, left_open) or command
    planned = run_settings.values_in_force(run_settings.settings_of(placed, plan, "", {}))
    if all(asked.get(name, value) == value for name, value in planned.items()):
        raise UsageError(
            f"the plan {chosen.name} keeps your own settings: there is nothing to compare",
            "brimful tune found none that are clearly faster",
            "compare two commands of your own, each in quotes",
        )
    # a number of --set that the script, which has no flag for it, would not take by itself
    places = {
        name: place
        for name, place in placed.places.items()
        if asked.get(name, place.number) != place.number
    }
    taken = [name for name in (*commands.placeholders(bare), *places) if name in asked]
    return (
        Way(replace(bare, places=places), {name: asked[name] for name in taken}, device),
        Way(placed, planned, device),
    )


# --- the runs ---


def _run_by_turns(
    session: Session,
    ways: Ways,
    sides: tuple[Contestant, Contestant],
    until: Until,
    pairs: int,
) -> BaseException | None:
    """A B, B A, A B, ...: each pair side by side, and neither always first. Returns what cut it
    short, where a whole pair had run before.
    """
    seeded = [way.seeded() for way in ways]
    with UntilStopped() as work:
        for pair in range(pairs):
            for number in (0, 1) if pair % 2 == 0 else (1, 0):
                side, (way, seed) = sides[number], seeded[number]
                trial = _trial(way, until, None if seed is None else seed + pair)
                result = session.run(trial, expected_total=2 * pairs)
                _require(session, result, NAMES[number], side, way)
                side.runs.append(result)
    if work.stop is not None and not all(side.runs for side in sides):
        raise work.stop
    return work.stop


def _trial(way: Way, until: Until, seed: int | None) -> Trial:
    seconds = until.seconds if until.samples is None else None
    return Trial(
        way.command,
        way.settings if seed is None else {**way.settings, _SEED: seed},
        way.device,
        TrialKind.SPEED,
        ends=Ends(steps=NO_LIMIT, see_eval=False, after_s=seconds, after_samples=until.samples),
        time_limit_s=float(NO_LIMIT) if seconds is None else _START_S + 2 * seconds,
    )


def _require(session: Session, result: TrialResult, name: str, side: Contestant, way: Way) -> None:
    """Raises the error of a run that did not train, and says whose it is."""
    try:
        require_steps(session, result)
        devices.require_that_card(way.device, result)
    except BrimfulError as error:
        error.problem = f"{name} ({masking.text(side.line)}): {error.problem}"
        raise


def _predicted(
    words: Sequence[str],
    settings: Mapping[str, Setting] | None,
    options: Options,
    card: devices.CardNames,
) -> Record:
    """Memory, a step and an epoch of both on an imaginary card."""
    predictions, lines, first = [], [], None
    for argv in _two_commands(words):
        record = predict(argv, settings=settings, options=options, what_if=False, **card)
        require_whole(record)
        assert record.prediction is not None  # the verb returns no record without one
        predictions.append(record.prediction)
        lines.append(shlex.join(masking.words(argv)))
        first = first or record.opened
    assert first is not None
    with opened("compare", first.command, first.device, options, first.budget) as session:
        session.keep(of_predictions(predictions, lines))
    return session.record()
