"""Several cards of one question: a table with a line for each, and the sentence that names the
cheapest.
"""

from __future__ import annotations

from brimful.show.section import Column, Table
from brimful.show.text import ABSENT, Cell, count_text, question_of, seconds_text, speed_text
from brimful.units import counted
from brimful.values import CardAnswer, Prediction, Verdict

_FITS = {
    None: Cell("fails", tone="bad"),
    Verdict.FITS: Cell("yes", tone="good"),
    Verdict.TIGHT: Cell("tight", tone="warn"),
    Verdict.DOES_NOT_FIT: Cell("no", tone="bad"),
}
_HOW = (
    "GiB: the device peak. All is predicted, an epoch's training too; prices are assumed, in US "
    "dollars (`brimful gpus`)."
)
_TRACED = (
    "Traces at other sizes speak for cards that do all in the same way; only the first line was "
    "traced at its own answer."
)
_SOLVED = (
    "Largest: the %s that fits. Traces of the largest card speak for others where they confirm "
    "how memory grows."
)
_IDLE = (
    "The command leaves cards idle, which are paid for (torchrun starts a process for each "
    "card): %s."
)
_LOADING = "*: this machine loads its samples more slowly than that; the time is the card's alone."


def which_table(prediction: Prediction) -> Table:
    which = prediction.which
    names = ("fits", "GiB", "largest", "samples/s", "epoch", "$/h", "$/epoch")
    columns = (
        Column("card", whole=True),
        *(Column(name, right=True, whole=True) for name in names),
    )
    idle = ", ".join(f"{one.gpu.key}:{one.cards}" for one in which if one.unused)
    problems = tuple(dict.fromkeys(f"{one.gpu.key}: {one.problem}" for one in which if one.problem))
    traced = _TRACED if prediction.solved is None else _SOLVED % prediction.solved.name
    slow = (_LOADING,) if any(one.slow_loading for one in which) else ()
    notes = (_HOW, traced, *slow, *((_IDLE % idle,) if idle else ()), *problems)
    return Table("Which card", columns, tuple(map(_row, which)), notes)


def _row(one: CardAnswer) -> tuple[Cell, ...]:
    name = one.gpu.key if one.cards == 1 else f"{one.gpu.key}:{one.cards}"
    epoch = (
        ABSENT
        if one.epoch_s is None
        else Cell(seconds_text(one.epoch_s.value) + ("*" if one.slow_loading else ""))
    )
    return (
        Cell(name, tone="strong"),
        _FITS[one.verdict],
        ABSENT if one.peak is None else Cell(f"{one.peak.device_bytes / (1 << 30):.3g}"),
        Cell(count_text(one.largest_batch_size if one.solved is None else one.solved)),
        ABSENT if one.samples_per_s is None else Cell(speed_text(one.samples_per_s.value)),
        epoch,
        ABSENT if one.price_per_h is None else Cell(f"{one.price_per_h.value:.2f}"),
        ABSENT if one.epoch_price is None else Cell(dollars_text(one.epoch_price.value)),
    )


def dollars_text(value: float) -> str:
    """Two digits that say something, and cents at least: "12.50", "0.03", "0.00021"."""
    return f"{value:,.2f}" if value >= 0.1 else f"{value:.2g}" if value >= 1e-4 else f"{value:.1e}"


def which_sentence(prediction: Prediction) -> str:
    """ "Of 33 cards 21 fit; the cheapest is NVIDIA L4: 12 min an epoch, for $0.16 (price assumed).
    "; "" for a single card.
    """
    which = prediction.which
    if not which:
        return ""
    fitting = [one for one in which if one.verdict == Verdict.FITS]
    if not fitting:
        return f"Of {counted(len(which), 'card')} none fits for sure. "
    best = which[0]
    name = best.gpu.name if best.cards == 1 else f"{best.cards} x {best.gpu.name}"
    if best.solved is not None:
        return (
            f"Of {counted(len(which), 'card')} {len(fitting)} fit; {name} has the largest "
            f"{question_of(prediction)[0]}. "
        )
    ranks = (
        "the cheapest"
        if best.price_per_h is not None
        else "the fastest"
        if best.samples_per_s is not None
        else "the first"
    )
    about = ""
    if best.epoch_s is not None:
        price = (
            f", for ${dollars_text(best.epoch_price.value)} (price assumed)"
            if best.epoch_price is not None
            else ""
        )
        about = f": {seconds_text(best.epoch_s.value)} an epoch (predicted){price}"
    return f"Of {counted(len(which), 'card')} {len(fitting)} fit; {ranks} is {name}{about}. "
