"""A prediction on a terminal as long as nobody asks for details: what a user needs first, in few
lines.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from brimful.show.prediction_sections import card_groups, speed_sentence
from brimful.show.run_sections import by_weight
from brimful.show.section import Facts
from brimful.show.text import VERDICTS, Cell, bytes_text, epoch_text, loading_text
from brimful.values import Diagnostic, Prediction, Remedy, Verdict

LINES = 15
_MORE, _WARNING, _NOTE = "more", "warning", "note"
_NUMBERS = ("memory", "speed", "would help", "loading", "epoch")


def brief_facts(prediction: Prediction, warnings: tuple[Diagnostic, ...]) -> Facts:
    """What changes the meaning of the numbers, the numbers, then all other warnings: the more
    important, the earlier. Beside a table, which has the numbers, the first alone."""
    first, rest = by_weight(warnings)
    rows = [
        (_WARNING, Cell(warning.problem, tone="warn", note=warning.suggestion or None))
        for warning in first
    ]
    if prediction.which or prediction.grid:
        return Facts("", tuple(rows))
    if memory := _memory(prediction):
        rows.append(("memory", Cell(memory)))
    if prediction.speed is not None:
        rows.append(("speed", Cell(speed_sentence(prediction.speed).removesuffix("."))))
    if prediction.what_if is not None and prediction.what_if.remedies:
        rows.append(("would help", Cell(_remedies(prediction, prediction.what_if.remedies))))
    if prediction.loading is not None and not (
        prediction.loading.binds and prediction.verdict == Verdict.FITS
    ):
        rows.append(("loading", Cell(loading_text(prediction.loading))))
    if prediction.epoch is not None:
        rows.append(("epoch", Cell(epoch_text(prediction.epoch))))
    if prediction.worst_batch is not None and prediction.worst_batch.varies:
        rows.append(("worst batch", Cell(prediction.worst_batch.what)))
    rows += [(_NOTE, Cell(warning.problem)) for warning in rest]
    return Facts("", tuple(rows))


def fitted(facts: Facts, fits: Callable[[Facts], bool]) -> Facts:
    """As many rows as there is room for, the numbers before the warnings, and the others by name in
    one row.
    """
    kept: list[tuple[str, Cell]] = []

    def with_more(kept: list[tuple[str, Cell]]) -> Facts:
        left = Counter(row[0] for row in facts.rows if row not in kept)
        named = ", ".join(
            name if count == 1 else f"{count} {name}s" for name, count in left.items()
        )
        more = ((_MORE, Cell(f"{named}: --details")),) if left else ()
        return Facts("", tuple(row for row in facts.rows if row in kept) + more)

    for row in sorted(facts.rows, key=lambda row: row[0] not in _NUMBERS):
        if fits(with_more([*kept, row])):
            kept.append(row)
    return with_more(kept)


def _memory(prediction: Prediction) -> str:
    """ "train 16.3 GiB, eval 16.3 GiB, setup 862 MiB on the device (predicted)", the fullest phase
    first.
    """
    phases = sorted(prediction.phases.items(), key=lambda phase: -phase[1].device_bytes)
    peaks = [
        *phases,
        *((name.replace("; ", " and "), peak) for name, peak in card_groups(prediction.cards)),
    ]
    parts = [f"{name} {bytes_text(peak.device_bytes)}" for name, peak in peaks]
    text = [f"{', '.join(parts)} on the device (predicted)"] if parts else []
    return "; ".join([*text, *(f"{name} not seen" for name in prediction.not_seen)])


def _remedies(prediction: Prediction, remedies: Sequence[Remedy]) -> str:
    """ "expandable segments, then 2 micro-batches of 64: 14.2 GiB (estimate), fits; a step takes
    1.1 × as long; what to write:
    --details"."""
    last, speed = remedies[-1], prediction.speed
    changes = ", then ".join(remedy.what for remedy in remedies)
    text = (
        f"{changes}: {bytes_text(last.device_bytes)} ({last.source.value}), "
        f"{VERDICTS[last.verdict]}"
    )
    if last.step_s is not None and speed is not None and speed.step_s.value:
        text += f"; a step takes {last.step_s.value / speed.step_s.value:.2g} × as long"
    return f"{text}; what to write: --details"
