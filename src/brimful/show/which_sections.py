"""Several cards of one question: a table with a line for each, and the sentence that names the
cheapest.
"""

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
    idle = ", ".join(f"{answer.gpu.key}:{answer.cards}" for answer in which if answer.unused)
    problems = tuple(
        dict.fromkeys(f"{answer.gpu.key}: {answer.problem}" for answer in which if answer.problem)
    )
    traced = _TRACED if prediction.solved is None else _SOLVED % prediction.solved.name
    slow = (_LOADING,) if any(answer.slow_loading for answer in which) else ()
    notes = (_HOW, traced, *slow, *((_IDLE % idle,) if idle else ()), *problems)
    return Table("Which card", columns, tuple(map(_row, which)), notes)


def _row(answer: CardAnswer) -> tuple[Cell, ...]:
    name = answer.gpu.key if answer.cards == 1 else f"{answer.gpu.key}:{answer.cards}"
    epoch = (
        ABSENT
        if answer.epoch_s is None
        else Cell(seconds_text(answer.epoch_s.value) + ("*" if answer.slow_loading else ""))
    )
    return (
        Cell(name, tone="strong"),
        _FITS[answer.verdict],
        ABSENT if answer.peak is None else Cell(f"{answer.peak.device_bytes / (1 << 30):.3g}"),
        Cell(count_text(answer.largest_batch_size if answer.solved is None else answer.solved)),
        ABSENT if answer.samples_per_s is None else Cell(speed_text(answer.samples_per_s.value)),
        epoch,
        ABSENT if answer.price_per_h is None else Cell(f"{answer.price_per_h.value:.2f}"),
        ABSENT if answer.epoch_price is None else Cell(dollars_text(answer.epoch_price.value)),
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
    fitting = [answer for answer in which if answer.verdict == Verdict.FITS]
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
