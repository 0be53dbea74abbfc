"""Pages of a sweep and of a study: tables and plots in one HTML file that opens offline, in the
look of brimful's reports.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from brimful.show.html import render_template
from brimful.show.section import Column, Figure, Section, Sentences, Table
from brimful.show.text import ABSENT, Cell, when
from brimful.units import counted, format_bytes, format_duration
from recipes.ood_dpo.experiments import HEADS, MEASURES, TRIVIAL, Point

Frame = Any  # pandas.DataFrame, or a column of it
FOOTER = (
    "AUROC, AUPR (average precision) and FPR95 count molecules out of distribution as the "
    "positive class. "
    "Mean ± standard deviation over seeds.",
    "trivial: logistic regression on heavy atoms and rings. Where it comes near the others, the "
    "shift is one of size, "
    "and their figures say little about what they have learned.",
)


def sweep_page(frame: Frame) -> str:
    """Of a table as `experiments.table` makes it."""
    own = frame[(frame.tested_on == frame.dataset) & (frame.state == "done")]
    shown: list[Section] = []
    for (dataset, encoder), group in own.groupby(["dataset", "encoder"], sort=False):
        shown += [
            _methods_table(f"{dataset}, {encoder}", group),
            _methods_figure(f"{dataset}, {encoder}: AUROC", group),
        ]
    shown += _cross(frame[frame.state == "done"])
    shown.append(_state(frame))
    experiments = frame.drop_duplicates(["dataset", "encoder", "method", "seed"])
    counts = experiments.state.value_counts()
    headline = f"{counts.get('done', 0):,} of {counted(len(experiments), 'experiment')} done"
    headline += f", {counts['failed']:,} failed" if "failed" in counts else ""
    return _page(shown, headline, "sweep")


def _page(shown: Sequence[Section], headline: str, command: str) -> str:
    typed = f"python -m recipes.ood_dpo {command}"
    return render_template(
        "base.html.j2",
        sections=shown,
        program="brimful, the molecule recipe",
        headline=headline,
        tone="note",
        typed=typed,
        cut_off=[],
        started=when(time.time()),
        footer=FOOTER,
    )


def _methods_table(title: str, group: Frame) -> Table:
    columns = (
        Column("method"),
        *(Column(name.upper(), right=True) for name in MEASURES),
        Column("seeds", right=True),
        Column("samples", right=True),
        Column("seconds a seed", right=True),
    )
    rows = []
    for method, some in _by_method(group):
        measures = [_spread(some[name]) for name in MEASURES]
        samples = some.samples.dropna()
        rows.append(
            (
                Cell(method, tone="strong" if method in HEADS else ""),
                *measures,
                Cell(str(len(some))),
                Cell(f"{samples.mean():,.0f}") if len(samples) else ABSENT,
                Cell(format_duration(float(some.seconds.mean())))
                if some.seconds.notna().any()
                else ABSENT,
            )
        )
    return Table(title, columns, tuple(rows))


def _by_method(group: Frame) -> list[tuple[str, Frame]]:
    """The best AUROC first, trivial last."""
    parts = [(str(method), some) for method, some in group.groupby("method", sort=False)]
    return sorted(parts, key=lambda part: (part[0] == TRIVIAL, -part[1].auroc.mean()))


def _spread(values: Frame) -> Cell:
    std = f" ± {values.std():.4f}" if len(values) > 1 else ""
    return Cell(f"{values.mean():.4f}{std}")


def _methods_figure(title: str, group: Frame) -> Figure:
    rows = [
        (method, float(some.auroc.mean()), float(some.auroc.std()) if len(some) > 1 else None)
        for method, some in _by_method(group)
    ]

    def draw(width: int) -> str:
        from recipes.ood_dpo.charts import spread_chart

        return spread_chart(rows, "AUROC", width)

    return Figure(title, draw, (("dot", "mean and standard deviation over seeds"),), wide=False)


def _cross(done: Frame) -> list[Section]:
    """A table for each encoder and method that was tested on other data sets: trained on a row's,
    tested on a column's.
    """
    shown: list[Section] = []
    names = list(dict.fromkeys([*done.dataset, *done.tested_on]))
    for (encoder, method), group in done.groupby(["encoder", "method"], sort=False):
        if not (group.tested_on != group.dataset).any() or method not in (*HEADS, TRIVIAL):
            continue
        cells = {key: _spread(some.auroc) for key, some in group.groupby(["dataset", "tested_on"])}
        rows = tuple(
            (Cell(trained), *(cells.get((trained, tested), ABSENT) for tested in names))
            for trained in names
            if (trained, trained) in cells
        )
        columns = (Column("trained on"), *(Column(name, right=True) for name in names))
        shown.append(
            Table(f"Tested on other data sets: AUROC of {method}, {encoder}", columns, rows)
        )
    return shown


def _state(frame: Frame) -> Section:
    experiments = frame.drop_duplicates(["dataset", "encoder", "method", "seed"])
    failed = experiments[experiments.state == "failed"]
    if failed.empty:
        left = int((experiments.state == "left").sum())
        return Sentences(
            "State",
            (
                f"{counted(left, 'experiment')} left."
                if left
                else "Nothing is left, nothing failed.",
            ),
        )
    rows = tuple(
        (
            Cell(row.dataset),
            Cell(row.encoder),
            Cell(row.method),
            Cell(str(row.seed)),
            Cell(row.error, tone="bad"),
        )
        for row in failed.itertuples()
    )
    columns = tuple(Column(name) for name in ("data set", "encoder", "method", "seed", "error"))
    return Table("Failed", columns, rows, ("The same command tries these again.",))


def study_page(points: Sequence[Point], dataset: str, encoder: str, pairs: int, device: str) -> str:
    """What the batch size does."""
    shown: list[Section] = []
    for equal in dict.fromkeys(point.equal for point in points):
        shown.append(
            _sizes_table(
                f"At equal {equal}", [point for point in points if point.equal == equal], pairs
            )
        )
    legend = (("line", "equal samples seen"), ("limit", "equal updates"))
    for title, of, log in (
        ("Test AUROC", lambda point: point.auroc, False),
        ("Updates", lambda point: point.updates, True),
        ("Seconds a seed", lambda point: point.seconds, True),
        ("Peak memory of all seeds, MiB", lambda point: (point.peak_bytes or 0) / 2**20, False),
    ):
        shown.append(_size_figure(title, points, of, legend, log))
    headline = (
        f"The batch size and this head: {pairs:,} pairs of {dataset} ({encoder}), on {device}"
    )
    return _page([*_noise(points, pairs), *shown], headline, "study batch-size")


def _noise(points: Sequence[Point], pairs: int) -> Iterable[Section]:
    scales = [point.noise_scale for point in points if point.noise_scale is not None]
    same = ", ".join(
        f"{size:,}" for size in sorted({p.batch_size for p in points if p.batch_size > pairs})
    )
    sentences = [
        f"A batch larger than {pairs:,} pairs is the same batch as {pairs:,}: "
        f"{same or 'none of the sizes'} here."
    ]
    if scales:
        sentences.append(
            f"The gradient noise scale is about {statistics.median(scales):,.0f} pairs (median "
            "over sizes and seeds; "
            "two-batch estimator of McCandlish et al. 2018, arXiv 1812.06162). Below it, "
            "doubling the batch nearly halves the "
            "updates that are needed; far above it, it only doubles the samples."
        )
    yield Sentences("In short", tuple(sentences))


def _sizes_table(title: str, points: Sequence[Point], pairs: int) -> Table:
    names = (
        "batch size",
        "in force",
        "updates",
        "samples",
        "test AUROC",
        "seconds a seed",
        "peak of all seeds",
        "noise scale",
    )
    rows = []
    for size in dict.fromkeys(point.batch_size for point in points):
        some = [point for point in points if point.batch_size == size]
        first, scales = (
            some[0],
            [point.noise_scale for point in some if point.noise_scale is not None],
        )
        mean, std = _mean_and_std([point.auroc for point in some])
        rows.append(
            (
                Cell(f"{size:,}"),
                Cell(f"{first.batch_in_force:,}", tone="warn" if size > pairs else ""),
                Cell(f"{first.updates:,}"),
                Cell(f"{first.samples:,}"),
                Cell(f"{mean:.4f}{f' ± {std:.4f}' if std else ''}"),
                Cell(format_duration(first.seconds)),
                ABSENT if first.peak_bytes is None else Cell(format_bytes(first.peak_bytes)),
                Cell(f"{statistics.median(scales):,.0f}") if scales else ABSENT,
            )
        )
    return Table(title, tuple(Column(name, right=True) for name in names), tuple(rows))


def _mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else None


def _size_figure(
    title: str,
    points: Sequence[Point],
    of: Callable[[Point], Any],
    legend: tuple[tuple[str, str], ...],
    log: bool,
) -> Figure:
    series = {}
    for equal in dict.fromkeys(point.equal for point in points):
        sizes = dict.fromkeys(point.batch_size for point in points if point.equal == equal)
        some = {
            size: [float(of(p)) for p in points if p.equal == equal and p.batch_size == size]
            for size in sizes
        }
        series[f"equal {equal}"] = [(size, *_mean_and_std(values)) for size, values in some.items()]

    @functools.cache
    def draw(width: int) -> str:
        from recipes.ood_dpo.charts import size_chart

        return size_chart(series, title, width, log)

    return Figure(f"{title} against batch size", draw, legend, wide=False)
