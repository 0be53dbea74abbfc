"""`compare`: two ways to train beside each other, by speed, memory and how soon they learn. Both
run by turns in trials that leave nothing behind; or two records are compared, or two predictions.
"""

import contextlib
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from brimful import command as commands
from brimful import masking
from brimful.decide.run import settings as run_settings
from brimful.decide.tune.plan import command_line
from brimful.errors import CUT_SHORT, BrimfulError, UsageError
from brimful.measure import accelerators
from brimful.measure.output import tail
from brimful.record import read_record, record_home
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
from brimful.verbs import devices, run_plan
from brimful.verbs.comparisons import (
    NAMES,
    WHOLE,
    Contestant,
    Limit,
    limit,
    of_records,
    of_runs,
)
from brimful.verbs.predict import predict
from brimful.verbs.results import require_steps, require_whole
from brimful.verbs.session import Options, Session, opened
from brimful.verbs.start import Start, start
from brimful_inside.wire import NO_LIMIT

PAIRS, SECONDS = 2, 120.0
_OUTPUT_BYTES = 1 << 24  # of a run, in which metrics are looked for
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
    folder: str | None = None

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
    records: Sequence[str] = (),
    plan: bool = False,
    revisions: Sequence[str] = (),
    gpu: str | None = None,
    gpu_memory: str | None = None,
    device: str = "auto",
    until: Until | None = None,
    pairs: int = PAIRS,
    metrics: Sequence[str] = (),
    fail_if: Sequence[str] = (),
    settings: Mapping[str, Setting] | None = None,
    options: Options | None = None,
) -> Record:
    """Compares two commands, each one word of `words` (quoted); the command in `words` with its own
    settings and with its plan (`plan`; `records` may name which), or at two git `revisions`; or
    two `records`, where nothing is run. With a card (`gpu`, `gpu_memory`) predictions are compared.

    `metrics`: regular expressions with one group, whose last match in the output of a run is a
    number to compare. `fail_if`: limits of ratios, as ``step_s > 1.05``. Returns the record, whose
    `comparison` is the answer. Raises UsageError for what cannot be meant, NoSuchRecord, and the
    errors of `verbs.results` where one side does not train.
    """
    options = options or Options()
    options = replace(options, home=record_home(options.home).absolute())
    limits, patterns = [limit(text) for text in fail_if], dict(map(_pattern, metrics))
    is_run = bool(words) and gpu is None and gpu_memory is None
    _refuse_what_says_nothing(
        {
            "two records": bool(records) and bool(words) and not plan,
            "--plan": plan and not is_run,
            "--plan and --revision together": plan and bool(revisions),
            "--revision": bool(revisions) and not words,
            "--set": bool(settings) and not words,
            "--gpu": not is_run and not words and (gpu or gpu_memory) is not None,
            "--metric": bool(metrics) and not is_run,
            "--minutes, --samples or --to-end": until is not None and not is_run,
            "--steps": options.steps is not None and is_run,
            "--budget": options.budget is not None and is_run,
            "--max-batch-size": options.max_batch_size is not None and is_run,
        }
    )
    if not words:
        read = [read_record(name, options.home) for name in _two_records(records)]
        with opened("compare", read[0].opened.command, read[0].opened.device, options) as session:
            session.keep(of_records(read, limits))
        return session.record()
    if gpu is not None or gpu_memory is not None:
        return _predicted(words, revisions, (gpu, gpu_memory), settings, limits, options)
    with contextlib.ExitStack() as stack:
        ways = stack.enter_context(
            _ways(words, records, plan, revisions, device, settings, options)
        )
        session = stack.enter_context(opened("compare", ways[0].command, ways[0].device, options))
        comparison = side_by_side(session, ways, until or Until(), pairs, patterns, limits)
        names = ("Your own settings", "the plan") if plan else tuple(revisions)
        if names:
            which = "{} (A), {} (B)".format(*names)
            comparison = replace(comparison, verdict=f"{which}: {comparison.verdict}")
        session.keep(comparison)
    return session.record()


def side_by_side(
    session: Session,
    ways: Ways,
    until: Until,
    pairs: int = PAIRS,
    patterns: Mapping[str, re.Pattern[str]] | None = None,
    limits: Sequence[Limit] = (),
) -> Comparison:
    """Runs both by turns. Raises the errors of `verbs.results` where one of them does not train."""
    a, b = (Contestant(way.line, way.settings) for way in ways)
    session.message(f"A: {a.line}")
    session.message(f"B: {b.line}")
    stop = _run_by_turns(session, ways, (a, b), until, pairs, patterns or {})
    ended = session.ended_early(stop) if stop is not None else None
    return of_runs((a, b), until.text, limits, list(patterns or ()), ended)


def _refuse_what_says_nothing(given: Mapping[str, bool]) -> None:
    """Raises UsageError for the first that was `given` and would be passed over."""
    for name in (name for name, is_given in given.items() if is_given):
        raise UsageError(
            f"{name} would change nothing here",
            "two commands and a plan are run by turns, for some minutes or samples; records and "
            "predictions (--gpu) are compared as they are",
            "leave it out, or see `brimful compare --help`",
        )


def _pattern(text: str) -> tuple[str, re.Pattern[str]]:
    """The name of a metric, and where its number stands. Raises UsageError."""
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise UsageError(f"--metric {text!r}: {error}", "it takes a regular expression") from None
    if pattern.groups != 1:
        raise UsageError(
            f"--metric {text!r} has {counted(pattern.groups, 'group')}",
            "one group in parentheses shows where the number is",
            r"for instance --metric 'val_acc=([\d.]+)'",
        )
    name = re.sub(r"\W+", "_", text.partition("(")[0]).strip("_")
    return name or text, pattern


def _two_records(records: Sequence[str]) -> Sequence[str]:
    if len(records) == 2:
        return records
    raise UsageError(
        "nothing to compare" if not records else f"{counted(len(records), 'record')} to compare",
        "compare takes two commands behind two dashes, each in quotes, or the names of two records",
        _EXAMPLES,
    )


_EXAMPLES = (
    "for instance:\nbrimful compare -- 'python train.py --batch-size 64' "
    "'python train.py --batch-size 104'\nor, where `brimful tune` left a plan:\n"
    "brimful compare --plan -- python train.py --batch-size 64"
)


# --- what is compared ---


@contextlib.contextmanager
def _ways(
    words: Sequence[str],
    records: Sequence[str],
    plan: bool,
    revisions: Sequence[str],
    device: str,
    settings: Mapping[str, Setting] | None,
    options: Options,
) -> Iterator[Ways]:
    def began(argv: Sequence[str]) -> Start:
        return start(argv, settings, options, device, devices.HERE)

    if plan:
        yield _own_and_planned(began(words), next(iter(records), "latest"), options)
    elif revisions:
        with _checked_out(revisions) as folders:
            start_of_both = began(words)
            a, b = (_way(start_of_both, folder) for folder in folders)
            yield a, b
    else:
        a, b = (_way(began(argv)) for argv in _two_commands(words))
        yield a, b


def _way(began: Start, folder: str | None = None) -> Way:
    return Way(began.command, began.values(), began.device, folder)


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


@contextlib.contextmanager
def _checked_out(revisions: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The working folder at two git revisions, each in a temporary work tree; files that git does
    not keep are linked from here. Raises UsageError where git cannot.
    """
    if len(revisions) != 2:
        raise UsageError(
            f"--revision was given {counted(len(revisions), 'time')}",
            "two git revisions are compared",
            "for instance --revision main --revision HEAD",
        )
    here = Path.cwd().resolve().relative_to(_git("rev-parse", "--show-toplevel"))
    others = _git("ls-files", "--others", "--directory", "--no-empty-directory").splitlines()
    with tempfile.TemporaryDirectory(prefix="brimful-compare-") as folder:
        trees = [Path(folder) / name for name in NAMES]
        try:
            for tree, revision in zip(trees, revisions, strict=True):
                _git("worktree", "add", "--detach", str(tree), revision)
                for name in others:
                    link = tree / here / name.rstrip("/")
                    if not link.exists():
                        link.parent.mkdir(parents=True, exist_ok=True)
                        link.symlink_to(Path(name).absolute())
            yield tuple(str(tree / here) for tree in trees)
        finally:
            for tree in filter(Path.exists, trees):
                _git("worktree", "remove", "--force", str(tree))


def _git(*words: str) -> str:
    try:
        result = subprocess.run(["git", *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise UsageError(
            f"git {' '.join(words[:2])} failed: {said[-1] if said else error}",
            "--revision checks out the files of this folder's git repository",
        ) from error
    return result.stdout.strip()


@contextlib.contextmanager
def _in_folder(folder: str | None) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder or before)
    try:
        yield
    finally:
        os.chdir(before)


# --- the runs ---


def _run_by_turns(
    session: Session,
    ways: Ways,
    sides: tuple[Contestant, Contestant],
    until: Until,
    pairs: int,
    patterns: Mapping[str, re.Pattern[str]],
) -> BaseException | None:
    """A B, B A, A B, ...: each pair side by side, and neither always first. Returns what cut it
    short, where a whole pair had run before.
    """
    seeded, before_runs = [way.seeded() for way in ways], len(session.results)
    try:
        for pair in range(pairs):
            for number in (0, 1) if pair % 2 == 0 else (1, 0):
                side, (way, seed) = sides[number], seeded[number]
                trial = _trial(way, until, None if seed is None else seed + pair, bool(patterns))
                before = accelerators.energy_j()
                with _in_folder(way.folder):
                    result = session.run(trial, expected_total=before_runs + 2 * pairs)
                _require(session, result, NAMES[number], side, way)
                after = accelerators.energy_j()
                side.joules.append(None if before is None or after is None else after - before)
                side.metrics.append(_metrics(session, result, patterns))
                side.runs.append(result)
    except CUT_SHORT as stop:
        if not all(side.runs for side in sides):
            raise
        return stop
    return None


def _trial(way: Way, until: Until, seed: int | None, evaluates: bool) -> Trial:
    seconds = until.seconds if until.samples is None else None
    return Trial(
        way.command,
        way.settings if seed is None else {**way.settings, _SEED: seed},
        way.device,
        TrialKind.SPEED,
        steps=NO_LIMIT,
        see_eval=evaluates and until.samples is not None,
        time_limit_s=float(NO_LIMIT) if seconds is None else _START_S + 2 * seconds,
        stop_after_s=seconds,
        stop_after_samples=until.samples,
    )


def _require(session: Session, result: TrialResult, name: str, side: Contestant, way: Way) -> None:
    """Raises the error of a run that did not train, and says whose it is."""
    try:
        require_steps(session, result)
        devices.require_that_card(way.device, result)
    except BrimfulError as error:
        error.problem = f"{name} ({masking.text(side.line)}): {error.problem}"
        raise


def _metrics(
    session: Session, result: TrialResult, patterns: Mapping[str, re.Pattern[str]]
) -> dict[str, float]:
    """The last value of each in what the run printed."""
    folder, values = session.folder / result.folder, {}
    texts = [tail(folder / f"{stream}.txt", _OUTPUT_BYTES) for stream in ("stdout", "stderr")]
    for name, pattern in patterns.items():
        matches = [match for text in texts for match in pattern.findall(text)]
        with contextlib.suppress(ValueError):
            if matches:
                values[name] = float(matches[-1])
    return values


def _predicted(
    words: Sequence[str],
    revisions: Sequence[str],
    card: tuple[str | None, str | None],
    settings: Mapping[str, Setting] | None,
    limits: Sequence[Limit],
    options: Options,
) -> Record:
    """Memory, a step and an epoch of both on an imaginary card."""
    gpu, gpu_memory = card
    with contextlib.ExitStack() as stack:
        folders: Sequence[str | None] = (None, None)
        argvs = [list(words)] * 2 if revisions else _two_commands(words)
        if revisions:
            folders = stack.enter_context(_checked_out(revisions))
        records = []
        for argv, folder in zip(argvs, folders, strict=True):
            with _in_folder(folder):
                record = predict(
                    argv,
                    gpu=gpu,
                    gpu_memory=gpu_memory,
                    settings=settings,
                    options=options,
                    what_if=False,
                )
                require_whole(record)
                records.append(record)
        first = records[0].opened
        names = revisions or [shlex.join(masking.words(argv)) for argv in argvs]
        with opened("compare", first.command, first.device, options, first.budget) as session:
            session.keep(of_records(records, limits, names))
    return session.record()
