"""The command to use after a prediction."""

import shlex
from collections.abc import Callable, Mapping

from brimful.command import fill, opened, placeholders
from brimful.decide.memory.search_traced import NOT_FOLLOWED
from brimful.decide.run.settings import ACCUMULATION
from brimful.decide.tune.plan import command_line
from brimful.values import Command, NextCommand, Prediction, Setting, Verdict

SettingsAt = Callable[[int | None], Mapping[str, Setting]]


def recommended(prediction: Prediction, is_open: bool) -> tuple[int | None, int]:
    """(The batch size to train at, how many batches of it stand for one that was asked for.)

    Of what fits: the size that was asked; where it was left open the smallest that is nearly as
    fast, if speed is known, of those at which an epoch has the batches of a step. Else the part
    that was advised, where it fits as the script is, or the largest that does. None where nothing
    fits, and where the script follows no size.
    """
    size, largest, speed = prediction.batch_size, prediction.largest_batch_size, prediction.speed
    if size is None or _follows_none(prediction):
        return None, 1
    if prediction.verdict == Verdict.FITS:
        knee = speed.knee_batch_size if speed is not None else None
        return (knee or _largest(prediction) or size) if is_open else size, 1
    # the micro-batches of the changes that would make it fit; 1 without
    remedies = prediction.what_if.remedies if prediction.what_if is not None else ()
    codes = [remedy.code for remedy in remedies if remedy.code.startswith("accumulation-")]
    parts = int(codes[-1].rpartition("-")[2]) if codes else 1
    if parts > 1 and largest is not None and -(-size // parts) <= largest:
        return -(-size // parts), parts
    return largest, 1


def after_prediction(
    command: Command, prediction: Prediction, is_open: bool, settings_at: SettingsAt
) -> NextCommand | None:
    """None where nothing fits. `is_open`: nobody asked for a batch size; the prediction's own is
    the largest, or the script's. The numbers are those of its `sizes`.

    `settings_at`: all settings of the command at a batch size (None: of the command as it stands).
    """
    if prediction.solved is not None or prediction.grid:
        return _after_a_table(command, prediction, settings_at)
    asked, (size, parts) = prediction.batch_size, recommended(prediction, is_open)
    if asked is None or _follows_none(prediction):
        line = f"brimful audit -- {shlex.join(fill(command, settings_at(asked)))}"
        return NextCommand(line, "audit")
    if size is None:
        return None
    fits = prediction.verdict == Verdict.FITS
    if fits and not is_open:
        return NextCommand(_by("tune", command, settings_at(size)), "tune", size)
    settings = dict(settings_at(size))
    if parts > 1:
        command = opened(command, ACCUMULATION)
        sets = ACCUMULATION in placeholders(command)
        if sets:
            before = settings.get(ACCUMULATION, command.given.get(ACCUMULATION, 1))
            settings[ACCUMULATION] = parts * int(before)
        return NextCommand(_line(command, settings), "accumulate", size, parts, sets)
    is_fast = fits and prediction.speed is not None and size != _largest(prediction)
    reason = "nearly-fastest" if is_fast else "largest"
    return NextCommand(_line(command, settings), reason, size)


def _largest(prediction: Prediction) -> int | None:
    """At which an epoch has the batches of a step, where that is known."""
    return prediction.largest_with_a_step or prediction.largest_batch_size


def _follows_none(prediction: Prediction) -> bool:
    unfollowed = prediction.ignores_batch_size or prediction.limited_by == NOT_FOLLOWED
    return unfollowed or prediction.in_force is not None


def _after_a_table(
    command: Command, prediction: Prediction, settings_at: SettingsAt
) -> NextCommand | None:
    """The command with the value that was solved for, or with the best cell of a grid."""
    solved, best = (
        prediction.solved,
        next((cell.settings for cell in prediction.grid if cell.best), {}),
    )
    unknown = solved is not None and solved.largest is None and not _follows_none(prediction)
    if prediction.verdict != Verdict.FITS or unknown:
        return None
    if solved is None:
        settings = {**settings_at(None), **best}
        return NextCommand(_line(command, settings), "best-of-table")
    return NextCommand(command_line(command, settings_at(solved.value)), "solved")


def _line(command: Command, settings: Mapping[str, Setting]) -> str:
    """The user's own command; by `brimful run` where nothing in it takes the batch size."""
    if "batch_size" in placeholders(command) or "batch_size" not in settings:
        return command_line(command, settings)
    return _by("run", command, settings)


def _by(verb: str, command: Command, settings: Mapping[str, Setting]) -> str:
    """The command behind a verb, with a batch size that nothing in it takes."""
    size, words = settings.get("batch_size"), shlex.join(fill(command, settings))
    is_set = size is not None and "batch_size" not in placeholders(command)
    return f"brimful {verb}{f' --set batch_size={size}' if is_set else ''} -- {words}"
