"""The command to use after a prediction."""

import shlex
from collections.abc import Callable, Mapping

from brimful.command import fill, placeholders
from brimful.decide.memory.search_traced import NOT_FOLLOWED
from brimful.decide.tune.plan import command_line
from brimful.units import format_share
from brimful.values import Command, NextCommand, Prediction, Setting, Verdict


def after_prediction(
    command: Command,
    prediction: Prediction,
    is_open: bool,
    settings_at: Callable[[int | None], Mapping[str, Setting]],
) -> NextCommand | None:
    """None where nothing fits. `is_open`: nobody asked for a batch size; the prediction's own is
    the largest, or the script's.

    `settings_at`: all settings of the command at a batch size (None: of the command as it stands).
    """
    if prediction.solved is not None or prediction.grid:
        return _after_a_table(command, prediction, settings_at)
    size, largest, speed = prediction.batch_size, prediction.largest_batch_size, prediction.speed
    words = shlex.join(fill(command, settings_at(size)))
    unfollowed = prediction.ignores_batch_size or prediction.limited_by == NOT_FOLLOWED
    if size is None or prediction.in_force is not None or unfollowed:
        return NextCommand(
            f"brimful audit -- {words}",
            "what the loader really gives, and what else the command really does",
        )
    if prediction.verdict != Verdict.FITS:
        line = None if largest is None else _line(command, settings_at(largest), largest)
        return None if line is None else NextCommand(line, "the largest batch size that fits")
    if not is_open:
        return NextCommand(
            f"brimful tune -- {words}",
            "on the machine with that card: which settings train fastest, measured",
        )
    knee = speed.knee_batch_size if speed is not None else None
    if speed is None or knee is None or knee == largest:
        best = largest or size
        return NextCommand(
            _line(command, settings_at(best), best), "the largest batch size that fits"
        )
    return NextCommand(
        _line(command, settings_at(knee), knee),
        f"the smallest batch size within {format_share(speed.tolerance)} of the best predicted "
        "speed",
    )


def _after_a_table(
    command: Command,
    prediction: Prediction,
    settings_at: Callable[[int | None], Mapping[str, Setting]],
) -> NextCommand | None:
    """The command with the value that was solved for, or with the best cell of a grid."""
    solved, best = (
        prediction.solved,
        next((cell.settings for cell in prediction.grid if cell.best), {}),
    )
    if prediction.verdict != Verdict.FITS:
        return None
    if solved is None:
        settings, size = {**settings_at(None), **best}, best.get("batch_size")
        line = (
            _line(command, settings, size)
            if isinstance(size, int)
            else command_line(command, settings)
        )
        return NextCommand(line, "the fastest of the table that fits")
    return NextCommand(
        command_line(command, settings_at(solved.value)),
        f"the largest {solved.name} that fits"
        if solved.largest is not None
        else f"{solved.name} does not change its memory",
    )


def _line(command: Command, settings: Mapping[str, Setting], batch_size: int) -> str:
    """The user's own command; by `brimful run` where nothing in it takes the batch size."""
    if "batch_size" in placeholders(command):
        return command_line(command, settings)
    return f"brimful run --set batch_size={batch_size} -- {shlex.join(fill(command, settings))}"
