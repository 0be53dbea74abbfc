"""A grid of settings: the table of its cells, and a heat map for the page."""

from brimful.show.section import Column, Figure, Section, Table
from brimful.show.text import (
    ABSENT,
    VERDICTS,
    Cell,
    bytes_text,
    setting_text,
    settings_text,
    speed_text,
)
from brimful.units import GIB
from brimful.values import GridCell, Prediction, Verdict

_TONES = {Verdict.FITS: "good", Verdict.TIGHT: "warn", Verdict.DOES_NOT_FIT: "bad", None: "bad"}
_TRACED = (
    "Cells were traced at these very settings; * is extrapolated from traces of others, which a "
    "further one confirmed."
)


def grid_sections(prediction: Prediction) -> list[Section]:
    return [grid_table(prediction), *_heat_map(prediction)]


def grid_table(prediction: Prediction) -> Table:
    """Of two settings the one with fewer values goes across."""
    down, across = _sides(prediction.grid)
    cells = {(cell.settings[down], cell.settings.get(across)): cell for cell in prediction.grid}
    columns = list(dict.fromkeys(place[1] for place in cells))
    rows = tuple(
        (
            Cell(setting_text(value), tone="strong"),
            *(_shown(cells[value, other]) for other in columns),
        )
        for value in dict.fromkeys(place[0] for place in cells)
    )
    names = [setting_text(value) if across else "peak, speed" for value in columns]
    first = f"{down} \\ {across}" if across else down
    problems = tuple(
        f"{settings_text(cell.settings)}: {cell.problem}"
        for cell in prediction.grid
        if cell.problem
    )
    traced = (
        (_TRACED,)
        if not all(cell.traced for cell in prediction.grid)
        else ("Every cell was traced.",)
    )
    how = f"The device peak, and {_unit(prediction.grid)} a second; all is predicted."
    heads = (Column(first), *(Column(name, right=True) for name in names))
    return Table("Memory and speed", heads, rows, (how, *traced, *dict.fromkeys(problems)))


def _sides(grid: tuple[GridCell, ...]) -> tuple[str, str]:
    names = list(grid[0].settings)
    counts = {name: len({cell.settings[name] for cell in grid}) for name in names}
    down = max(names, key=lambda name: counts[name])
    return down, next((name for name in names if name != down), "")


def _unit(grid: tuple[GridCell, ...]) -> str:
    return "tokens" if any(cell.tokens_per_s for cell in grid) else "samples"


def _shown(cell: GridCell) -> Cell:
    if cell.peak is None or cell.verdict is None:
        return Cell("fails", tone="bad")
    rate = cell.tokens_per_s or cell.samples_per_s
    if cell.verdict == Verdict.FITS:
        says = ABSENT.text if rate is None else speed_text(rate.value)
    else:
        says = VERDICTS[cell.verdict]
    mark = "" if cell.traced else "*"
    return Cell(
        f"{bytes_text(cell.peak.device_bytes)}{mark}\n{says}",
        tone="strong" if cell.best else _TONES[cell.verdict],
    )


def _heat_map(prediction: Prediction) -> list[Section]:
    down, across = _sides(prediction.grid)

    def draw(width: int) -> str:
        from brimful.show.heat_map import Field, heat_map

        def field(cell: GridCell) -> Field:
            device = cell.peak.device_bytes if cell.peak is not None else prediction.budget.bytes
            label = (
                "fails"
                if cell.peak is None
                else f"{device / GIB:.3g}"
                if device < 999 * GIB
                else f"{device / GIB:,.0f}"
            )
            places = (
                setting_text(cell.settings[down]),
                setting_text(cell.settings[across]) if across else "",
            )
            shown, how = (
                _shown(cell).text.replace("\n", ", "),
                "traced" if cell.traced else "extrapolated",
            )
            tip = f"{settings_text(cell.settings)}: {shown}, {how}"
            share = min(1.0, device / prediction.budget.bytes)
            return Field(*places, share, cell.verdict or "", label, tip, cell.best)

        return heat_map([field(cell) for cell in prediction.grid], down, across, width)

    legend = (
        ("swatch fits", "fits, the fuller the stronger"),
        ("swatch tight", "tight"),
        ("swatch does-not-fit", "does not fit"),
        ("swatch framed", "the cell that this page answers for"),
        *(
            (("swatch fails", "fails"),)
            if any(cell.peak is None for cell in prediction.grid)
            else ()
        ),
    )
    return [Figure("Device peak in GiB, predicted", draw, legend, wide=False)]
