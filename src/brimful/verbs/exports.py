"""The predicted run in a file for PyTorch's memory viewer."""

import os
import pickle
import shlex
from itertools import product
from pathlib import Path

from brimful import files
from brimful.ask.reading import CardView, MemoryAnswer
from brimful.decide.memory.snapshot import Recorded, snapshot_of_cards
from brimful.errors import UsageError
from brimful.units import format_bytes, noun_of
from brimful.values import Diagnostic, PeakEstimate, Written
from brimful.verbs.what_if import origins_of
from brimful_inside.simulator.replay import Peaks, worst_of

# The viewer at pytorch.org reads pickles up to this protocol.
PROTOCOL = 4


def require_writable(path: Path) -> None:
    """Raises UsageError, before trials are run, for a file that cannot be written."""
    was_there = os.path.exists(path)
    try:
        open(path, "ab", opener=files.without_waiting).close()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}",
            "brimful writes this file when the trials are done, and tries it before them",
            "name a file in a folder that is there and that you may write to",
        ) from error
    if not was_there:
        path.unlink()


def write_snapshot(view: CardView, answer: MemoryAnswer, path: Path) -> Written | Diagnostic:
    """The run behind the predicted peak, for PyTorch's memory viewer; or why it is not written.
    Where batches are uneven it is that of batches of the largest samples."""
    peak = answer.alone or answer.peak
    cards = None if peak is None else _recorded(view, answer, peak)
    if peak is None or cards is None:
        return _not_written(path, "no trace gives the predicted peak")
    snapshot = snapshot_of_cards(cards, view.card.settings)
    highest = f"at most {format_bytes(peak.allocated_bytes)} allocated and "
    what = f"{_run(view, answer)}, {highest}{format_bytes(peak.reserved_bytes)} reserved"
    if answer.alone is not None:
        what += ", with batches of the largest samples (those of an epoch are uneven)"
    if len(cards) > 1:
        what += f", on {len(cards)} cards, each a device of the viewer"
    page = path.with_suffix(".html").name
    return _written(
        path,
        pickle.dumps(snapshot, PROTOCOL),
        f"PyTorch's memory snapshot of the predicted run {what}",
        "drop it on https://pytorch.org/memory_viz, or: "
        + shlex.join(
            ("python", "-m", "torch.cuda._memory_viz", "trace_plot", str(path), "-o", page)
        ),
    )


def _recorded(view: CardView, answer: MemoryAnswer, peak: PeakEstimate) -> list[Recorded] | None:
    """The replays of all cards that have this peak, on cards of their capacity or without limit."""
    card, wanted = view.card, Peaks(peak.allocated_bytes, peak.reserved_bytes)
    groups = [
        origins
        for origins in origins_of(view, answer)
        if all(len(origin.annotated.allocations) == len(origin.sizes) for origin in origins)
    ]
    for capacity, origins in product((card.capacity_bytes, None), filter(None, groups)):
        cards = [
            Recorded(origin.program, origin.sizes, origin.annotated, card.settings, capacity)
            for origin in origins
        ]
        if worst_of([card.replayed for card in cards]).peak == wanted:
            return cards
    return None


def _run(view: CardView, answer: MemoryAnswer) -> str:
    """ "at batch size 64 (2 in force) on NVIDIA L4"."""
    trials, size, card = view.trials, answer.size, f"on {view.gpu.name}"
    in_force = trials.in_force(answer.conclusion, size)
    if size is None or in_force is None:
        return f"of the command as it stands {card}"
    less = "" if in_force == size else f" ({in_force:,} in force)"
    return f"at {noun_of(trials.unknown)} {size:,}{less} {card}"


def _written(path: Path, data: bytes, what: str, how: str) -> Written | Diagnostic:
    try:
        files.write_named(path, data)
    except OSError as error:
        return _not_written(path, error.strerror or str(error))
    return Written(str(path), what, how)


def _not_written(path: Path, why: str) -> Diagnostic:
    return Diagnostic("not-written", f"{path} was not written: {why}", "", "")
