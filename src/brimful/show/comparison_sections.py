"""Sections of a comparison: both sides, the table of ratios, and their losses as curves."""

from collections.abc import Callable, Sequence

from brimful.show.section import Column, Facts, Figure, Findings, Section, Table, charts
from brimful.show.text import (
    ABSENT,
    ABSENT_TEXT,
    Cell,
    bytes_text,
    count_text,
    seconds_text,
    speed_text,
)
from brimful.values import Comparison, Quantity, Side


def _loss_text(value: float | None) -> str:
    return ABSENT_TEXT if value is None else f"{value:.4g}"


_NAMES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "samples_per_s": ("samples/s", speed_text),
    "step_s": ("time of a step", seconds_text),
    "epoch_s": ("time of an epoch", seconds_text),
    "samples_per_step": ("effective batch", count_text),
    "peak_allocated_bytes": ("peak memory, allocated", bytes_text),
    "peak_reserved_bytes": ("peak memory, reserved", bytes_text),
    "peak_device_bytes": ("peak memory of the device", bytes_text),
    "peak_host_bytes": ("peak memory of the host", bytes_text),
    "largest_batch_size": ("largest batch size that fits", count_text),
    "loss_at_equal_samples": ("loss after {samples} samples", _loss_text),
    "loss_at_equal_time": ("loss after {seconds}", _loss_text),
    "time_to_loss_s": ("time to a loss of {loss}", seconds_text),
}


def comparison_sections(comparison: Comparison) -> list[Section]:
    """What matters most first: the table, then the sides, then their curves."""
    rows = tuple(_row(quantity, comparison) for quantity in comparison.quantities)
    columns = (Column(""), Column("A", True, True), Column("B", True, True), Column("B / A", True))
    note = "~ no clear difference (the 95 % interval includes 1)."
    title = f"{comparison.source.value.capitalize()}: {comparison.basis}"
    table = Table(title, columns, rows, (note,))
    parts: list[Section] = [table, Facts("The two", tuple(map(_fact, comparison.sides)))]
    if comparison.warnings:
        parts.append(Findings("Warnings", comparison.warnings))
    if all(side.curve for side in comparison.sides):
        ends = ", ".join(
            f"{side.name} ends at {side.curve[-1][2]:.4g}" for side in comparison.sides
        )
        for along, title in ((0, "Loss by samples"), (1, "Loss by time")):
            parts.append(_figure(comparison.sides, along, title, f"{ends} (smoothed)."))
    return parts


def _fact(side: Side) -> tuple[str, Cell]:
    rates = [
        f"{first:g}" if first == last else f"{first:g}, at the end {last:g}"
        for first, last in zip(side.first_learning_rates, side.last_learning_rates, strict=False)
    ]
    note = f"learning rate {'; '.join(dict.fromkeys(rates))}" if rates else None
    return side.name, Cell(side.command_line, note=note)


def _row(quantity: Quantity, comparison: Comparison) -> tuple[Cell, ...]:
    name, text = _NAMES.get(quantity.code, (quantity.code, _loss_text))
    name = name.format(
        samples=count_text(comparison.at_samples and round(comparison.at_samples)),
        seconds=seconds_text(comparison.at_s),
        loss=_loss_text(comparison.target_loss),
    )
    return (Cell(name), Cell(text(quantity.a)), Cell(text(quantity.b)), _ratio(quantity))


def _ratio(quantity: Quantity) -> Cell:
    ratio = quantity.ratio
    if ratio is None:
        return ABSENT
    low, high = ratio.low, ratio.high
    if low is None or high is None or f"{low:.3g}" == f"{high:.3g}":
        return Cell(f"{ratio.value:.3g}")
    sign = "" if quantity.differs else "~ "
    return Cell(f"{sign}{ratio.value:.3g}", interval=f"{low:.3g} to {high:.3g}")


def _figure(sides: Sequence[Side], along: int, title: str, sentence: str) -> Figure:
    curves = {side.name: [(point[along], point[2]) for point in side.curve] for side in sides}
    unit = "samples" if along == 0 else None
    return Figure(
        title,
        lambda width: charts().course_chart(curves, "loss", width, from_zero=False, unit=unit),
        (("line", "A"), ("second", "B")),
        (sentence,),
        detail=True,
        wide=False,
    )
