"""Pages of a sweep and of a study: tables and plots in one HTML file that opens offline, in the
look of brimful's reports.
"""

import time
from collections.abc import Sequence

from pandas import isna

from brimful.show.html import render_template
from brimful.show.section import Column, Figure, Section, Sentences, Table
from brimful.show.text import ABSENT, Cell, when
from brimful.units import counted, format_bytes, format_duration
from recipes.ood_dpo.charts import size_chart, spread_chart
from recipes.ood_dpo.experiments import HEADS, IDENTITY, MEASURES, TRIVIAL, Frame

FOOTER = (
    "AUROC, AUPR (average precision) and FPR95 count molecules out of distribution as the "
    "positive class. Mean ± standard deviation over seeds.",
    "trivial: logistic regression on heavy atoms and rings. Where it comes near the others, the "
    "shift is one of size, and their figures say little about what they have learned.",
)


def sweep_page(frame: Frame) -> str:
    """Of a table as `experiments.table` makes it."""
    done = frame[frame.state == "done"]
    shown: list[Section] = []
    same = done[done.tested_on == done.dataset]
    for (dataset, encoder), group in same.groupby(["dataset", "encoder"], sort=False):
        shown += _methods(f"{dataset}, {encoder}", group)
    for (encoder, method), group in done.groupby(["encoder", "method"], sort=False):
        if method in (*HEADS, TRIVIAL) and (group.tested_on != group.dataset).any():
            title = f"Tested on other data sets: AUROC of {method}, {encoder}"
            cells = group.groupby(["dataset", "tested_on"], sort=False).auroc.agg(_spread).unstack()
            shown.append(_table(title, cells.rename_axis("trained on").reset_index()))
    each = frame.drop_duplicates(IDENTITY)
    failed, left = each[each.state == "failed"], int((each.state == "left").sum())
    if len(failed):
        note = "The same command tries these again."
        shown.append(_table("Failed", failed[[*IDENTITY, "error"]].astype(str), note))
    elif left:
        shown.append(Sentences("State", (f"{counted(left, 'experiment')} left.",)))
    headline = f"{len(each) - len(failed) - left:,} of {counted(len(each), 'experiment')} done"
    headline += f", {len(failed):,} failed" if len(failed) else ""
    return _page(shown, headline, "sweep")


def _page(shown: Sequence[Section], headline: str, command: str) -> str:
    return render_template(
        "base.html.j2",
        sections=shown,
        program="brimful, the molecule recipe",
        headline=headline,
        tone="note",
        cut_off=[],
        typed=f"python -m recipes.ood_dpo {command}",
        started=when(time.time()),
        footer=FOOTER,
    )


def _table(title: str, texts: Frame, *notes: str) -> Table:
    """Of a frame of texts; what is missing is shown as absent."""
    columns = [Column(str(name), right=place > 0) for place, name in enumerate(texts.columns)]
    rows = [
        tuple(ABSENT if isna(text) else Cell(str(text)) for text in row)
        for row in texts.itertuples(index=False)
    ]
    return Table(title, tuple(columns), tuple(rows), notes)


def _spread(values: Frame) -> str:
    std = f" ± {values.std():.4f}" if len(values) > 1 else ""
    return f"{values.mean():.4f}{std}"


def _methods(title: str, group: Frame) -> list[Section]:
    """The best AUROC first, trivial last."""
    by_method = group.groupby("method")
    areas = by_method.auroc.agg(["mean", "std"])
    methods = sorted(areas.index, key=lambda name: (name == TRIVIAL, -areas["mean"][name]))
    texts = by_method[list(MEASURES)].agg(_spread).rename(columns=str.upper)
    texts["seeds"] = by_method.size()
    texts["samples"] = by_method.samples.mean().map("{:,.0f}".format, na_action="ignore")
    texts["seconds a seed"] = by_method.seconds.mean().map(format_duration, na_action="ignore")
    rows = [
        (name, mean, None if isna(std) else std)
        for name, mean, std in areas.loc[methods].itertuples()
    ]
    return [
        _table(title, texts.loc[methods].reset_index()),
        Figure(
            f"{title}: AUROC",
            lambda width: spread_chart(rows, "AUROC", width),
            (("dot", "mean and standard deviation over seeds"),),
            wide=False,
        ),
    ]


def study_page(points: Frame, *, dataset: str, encoder: str, pairs: int, device: str) -> str:
    """What the batch size does. `points` as `study.at_size` makes them."""
    larger = [f"{size:,}" for size in sorted(set(points.batch_size)) if size > pairs]
    sentences = [
        f"A batch larger than {pairs:,} pairs is the same batch as {pairs:,}: "
        f"{', '.join(larger) or 'none of the sizes'} here."
    ]
    if points.noise_scale.notna().any():
        sentences.append(
            f"The gradient noise scale is about {points.noise_scale.median():,.0f} pairs (median "
            "over sizes and seeds; two-batch estimator of McCandlish et al. 2018, arXiv "
            "1812.06162). Below it, doubling the batch nearly halves the updates that are needed; "
            "far above it, it only doubles the samples."
        )
    shown: list[Section] = [Sentences("In short", tuple(sentences))]
    for equal, group in points.groupby("equal", sort=False):
        shown.append(_sizes_table(f"At equal {equal}", group))
    shown += [
        _size_figure("Test AUROC", points.auroc, points),
        _size_figure("Updates", points.updates, points, log=True),
        _size_figure("Seconds a seed", points.seconds, points, log=True),
        _size_figure("Peak memory of all seeds, MiB", points.peak_bytes.fillna(0) / 2**20, points),
    ]
    headline = (
        f"The batch size and this head: {pairs:,} pairs of {dataset} ({encoder}), on {device}"
    )
    return _page(shown, headline, "study batch-size")


def _sizes_table(title: str, points: Frame) -> Table:
    by_size = points.groupby("batch_size")
    first = by_size.first()
    texts = first[["batch_in_force", "updates", "samples"]].map("{:,}".format)
    texts = texts.rename(columns={"batch_in_force": "in force"})
    texts["test AUROC"] = by_size.auroc.agg(_spread)
    texts["seconds a seed"] = first.seconds.map(format_duration)
    texts["peak of all seeds"] = first.peak_bytes.map(
        lambda size: format_bytes(int(size)), na_action="ignore"
    )
    texts["noise scale"] = by_size.noise_scale.median().map("{:,.0f}".format, na_action="ignore")
    return _table(title, texts.rename_axis("batch size").reset_index())


def _size_figure(title: str, values: Frame, points: Frame, log: bool = False) -> Figure:
    series = {}
    for equal, group in values.groupby(points.equal, sort=False):
        by_size = group.groupby(points.batch_size).agg(["mean", "std"])
        series[f"equal {equal}"] = [
            (size, mean, None if isna(std) else std) for size, mean, std in by_size.itertuples()
        ]
    legend = (("line", "equal samples"), ("limit", "equal updates"))
    title_against = f"{title} against batch size"
    return Figure(
        title_against, lambda width: size_chart(series, title, width, log), legend, wide=False
    )
