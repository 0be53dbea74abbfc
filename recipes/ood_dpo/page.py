"""Pages of a sweep and of a study: tables and plots in one HTML file that opens offline, in the
look of brimful's reports.
"""

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair
from pandas import DataFrame, isna

from brimful.show.charts import PALETTE, course_chart, drawn, layered, shared_axes
from brimful.show.html import render_template
from brimful.show.section import Column, Figure, Section, Sentences, Table
from brimful.show.text import ABSENT, Cell, when
from brimful.units import GIB, counted, format_bytes, format_duration, format_rate, format_share
from recipes.ood_dpo.experiments import HEADS, IDENTITY, MEASURES, PHASES, TRIVIAL, Frame

alt: Any = altair
ROW = 24  # pixels a line
# of the style sheet's legend marks "line" and "limit"
COLOURS = (PALETTE["fit"], PALETTE["limit"])
POINT: Any = {"aria": True, "filled": True, "size": 46, "opacity": 1}
NAMES: dict[str, str] = dict(zip(PHASES, ("encoding", "training", "evaluation"), strict=True))
FOOTER = (
    "AUROC, AUPR (average precision) and FPR95 count molecules out of distribution as the "
    "positive class. Mean ± standard deviation over seeds.",
    "trivial: logistic regression on heavy atoms and rings. Where it comes near the others, the "
    "shift is one of size, and their figures say little about what they have learned.",
)


def sweep_page(
    frame: Frame, occupancy: Sequence[Mapping[str, Any]] = (), words: Sequence[str] = ("sweep",)
) -> str:
    """Of a table as `experiments.table` makes it, and of what `watched` gives."""
    done = frame[frame.state == "done"]
    shown: list[Section] = []
    same, where = _with_peaks(done[done.tested_on == done.dataset])
    if len(same):
        shown.append(_cost(same, where))
    for (dataset, encoder), group in same.groupby(["dataset", "encoder"], sort=False):
        shown += _methods(f"{dataset}, {encoder}", group)
    for (encoder, method), group in done.groupby(["encoder", "method"], sort=False):
        if method in HEADS and (group.tested_on != group.dataset).any():
            title = f"Tested on other data sets: AUROC of {method} ({TRIVIAL}), {encoder}"
            by_test = group.groupby(["dataset", "tested_on"], sort=False)
            beside = by_test.trivial_auroc.mean().map(" ({:.4f})".format, na_action="ignore")
            cells = by_test.auroc.agg(_spread).str.cat(beside, na_rep="").unstack()
            shown.append(_table(title, cells.rename_axis("trained on").reset_index()))
    each = frame.drop_duplicates(IDENTITY)
    failed, left = each[each.state == "failed"], int((each.state == "left").sum())
    if len(failed):
        note = "The same command tries these again."
        shown.append(_table("Failed", failed[[*IDENTITY, "error"]].astype(str), note))
    elif left:
        shown.append(Sentences("State", (f"{counted(left, 'experiment')} left.",)))
    shown += [_course(number, start) for number, start in enumerate(occupancy, 1)]
    headline = f"{len(each) - len(failed) - left:,} of {counted(len(each), 'experiment')} done"
    headline += f", {len(failed):,} failed" if len(failed) else ""
    peaks = same[list(PHASES)].max().dropna()
    if len(peaks):
        headline += f"; highest peak {_size(peaks.max())} {where}, in {NAMES[peaks.idxmax()]}"
    tone = "bad" if len(failed) else "note" if left else "good"
    return _page(shown, headline, words, tone)


def _with_peaks(frame: Frame) -> tuple[Frame, str]:
    """The frame with a column for each phase: its peak of the card, in GiB, and without any of the
    host; and whose memory that is.
    """
    of_card, of_host = (
        frame[[f"peak_{kind}_memory_{phase}_gb" for phase in PHASES]].set_axis(PHASES, axis=1)
        for kind in ("gpu", "host")
    )
    is_on_card = of_card.notna().any(axis=None)
    where = "of the card" if is_on_card else "of host memory"
    return frame.join(of_card if is_on_card else of_host), where


def _size(gib: float) -> str:
    return format_bytes(int(gib * GIB))


def _cost(frame: Frame, where: str) -> Table:
    """What the trainings took: a row for each method and encoder."""
    by = frame.groupby(["method", "encoder"], sort=False)

    def texts(values: Frame, text: Callable[[Any], str]) -> Frame:
        return values.astype(object).map(text, na_action="ignore")

    rows = {
        "runs": by.size(),
        "a run": texts(by.seconds.mean(), format_duration),
        "an epoch": texts(by.epoch_seconds.mean(), format_duration),
        "samples": texts(by.samples_per_second.mean(), format_rate),
        **{f"peak in {NAMES[phase]}": texts(by[phase].max(), _size) for phase in PHASES},
        "peak is of": by.peak_shared_by.agg(_shared),
    }
    cached = by.encoding_cached.max().map({True: "cached"})
    rows["peak in encoding"] = rows["peak in encoding"].astype(object).fillna(cached)
    notes = {
        f"Measured. The largest peaks of all runs, {where}; times are means.": True,
        "Host memory is the process's own, with all data sets that it has loaded.": where
        == "of host memory",
        "The members of an ensemble train at once and share one peak; the time of one is its "
        "share, and samples a second are those of all together.": frame.peak_shared_by.max() > 1,
        "cached: the features came from the cache, so that nothing was encoded "
        "(--recompute-features measures it).": cached.notna().any(),
    }
    table = DataFrame(rows)
    table = table.set_axis(table.index.map(", ".join)).rename_axis("method").reset_index()
    said = [note for note, holds in notes.items() if holds]
    return _table("Memory by phase, and time", table, *said)


def _shared(by: Frame) -> str:
    most = int(by.max())
    if most == 1:
        return "each run"
    return f"the ensemble of {most}" if by.min() == most else f"ensembles of up to {most}"


def _course(number: int, start: Mapping[str, Any]) -> Figure:
    """How full and how busy the card was, in percent."""
    points = start["points"]
    what = "card" if start["device"].startswith("cuda") else "machine"
    curves = {"memory": [(at, 100 * used) for at, used, _ in points]}
    legend, sentences = [("line", "memory in use")], []
    busy = [(at, 100 * share) for at, _, share in points if share is not None]
    if busy:
        curves["busy"] = busy
        legend.append(("limit", "busy"))
    for (_, name), of in zip(legend, curves.values(), strict=True):
        shares = [percent / 100 for _, percent in of]
        sentences.append(
            f"{name.capitalize()}: {format_share(sum(shares) / len(shares))} on average, "
            f"{format_share(max(shares))} at most."
        )
    return Figure(
        f"The {what} while the sweep ran (start {number}), whoever used it",
        lambda width: course_chart(curves, "percent", width),
        tuple(legend),
        tuple(sentences),
        wide=False,
    )


def _page(shown: Sequence[Section], headline: str, words: Sequence[str], tone: str = "note") -> str:
    return render_template(
        "base.html.j2",
        sections=shown,
        program="brimful, the molecule recipe",
        headline=headline,
        tone=tone,
        cut_off=[],
        typed=shlex.join(["python", "-m", "recipes.ood_dpo", *words]),
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
    areas = by_method.auroc.mean()
    methods = sorted(areas.index, key=lambda name: (name == TRIVIAL, -areas[name]))
    texts = by_method[list(MEASURES)].agg(_spread).rename(columns=str.upper)
    texts["seeds"] = by_method.size()
    texts["samples"] = by_method.samples.mean().map("{:,.0f}".format, na_action="ignore")
    texts["seconds a seed"] = by_method.seconds.mean().map(format_duration, na_action="ignore")
    rows = _spreads(by_method.auroc, methods)
    return [
        _table(title, texts.loc[methods].reset_index()),
        Figure(
            f"{title}: AUROC",
            lambda width: spread_chart(rows, width),
            (("dot", "mean and standard deviation over seeds"),),
            wide=False,
        ),
    ]


def study_page(
    points: Frame,
    words: Sequence[str],
    *,
    dataset: str,
    encoder: str,
    pairs: int,
    device: str,
    trivial_auroc: float,
) -> str:
    """What the batch size does. `points` as `study.at_size` makes them."""
    larger = [f"{size:,}" for size in sorted(set(points.batch_size)) if size > pairs]
    sentences = [
        f"A batch larger than {pairs:,} pairs is the same batch as {pairs:,}: "
        f"{', '.join(larger) or 'none of the sizes'} here.",
        f"Heavy atoms and rings alone reach a test AUROC of {trivial_auroc:.4f} ({TRIVIAL}).",
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
        shown.append(_sizes_table(f"At equal {equal}", group, trivial_auroc))
    shown += [
        _size_figure("Test AUROC", points.auroc, points),
        _size_figure("Updates", points.updates, points, log=True),
        _size_figure("Seconds a seed", points.seconds, points, log=True),
        _size_figure("Peak memory of all seeds, MiB", points.peak_bytes.fillna(0) / 2**20, points),
    ]
    headline = (
        f"The batch size and this head: {pairs:,} pairs of {dataset} ({encoder}), on {device}"
    )
    return _page(shown, headline, words)


def _sizes_table(title: str, points: Frame, trivial_auroc: float) -> Table:
    by_size = points.groupby("batch_size")
    first = by_size.first()
    texts = first[["batch_in_force", "updates", "samples"]].map("{:,}".format)
    texts = texts.rename(columns={"batch_in_force": "in force"})
    texts["test AUROC"] = by_size.auroc.agg(_spread)
    texts[TRIVIAL] = f"{trivial_auroc:.4f}"
    texts["seconds a seed"] = first.seconds.map(format_duration)
    texts["peak of all seeds"] = first.peak_bytes.map(
        lambda size: format_bytes(int(size)), na_action="ignore"
    )
    texts["noise scale"] = by_size.noise_scale.median().map("{:,.0f}".format, na_action="ignore")
    return _table(title, texts.rename_axis("batch size").reset_index())


def _size_figure(title: str, values: Frame, points: Frame, log: bool = False) -> Figure:
    rows = _spreads(values.groupby([points.equal, points.batch_size], sort=False))
    return Figure(
        f"{title} against batch size",
        lambda width: size_chart(rows, title, width, log),
        (("line", "equal samples"), ("limit", "equal updates")),
        wide=False,
    )


# --- charts ---


def _spreads(groups: Frame, order: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Rows of a chart: the group's name, mean, mean less and plus the standard deviation, and all
    of it as text."""
    mean, std = groups.mean(), groups.std().fillna(0)
    rows = DataFrame({"mean": mean, "low": mean - std, "high": mean + std})
    rows = rows.join(groups.agg(_spread).rename("tip"))
    return (rows if order is None else rows.loc[order]).reset_index().to_dict("records")


def spread_chart(rows: list[dict[str, Any]], width: int) -> str:
    """AUROC of methods, on an axis from 0 to 1 with a line at 0.5. Returns SVG text."""
    names = [row["method"] for row in rows]
    room = 7 * max(map(len, names), default=0)
    axis = alt.Axis(domain=False, ticks=False, grid=False, minExtent=room)
    y = alt.Y("method:N", title=None, sort=names, axis=axis)
    x = alt.X(title="AUROC", scale=alt.Scale(domain=[0, 1], nice=False))
    base = alt.Chart(alt.Data(values=rows)).encode(y=y)
    spread = base.mark_rule(color=PALETTE["fit"], strokeWidth=1.6, clip=True).encode(
        x=x.field("low").type("quantitative").axis(alt.Axis(tickCount=width // 80)), x2="high:Q"
    )
    points = base.mark_point(**POINT, color=PALETTE["fit"]).encode(x="mean:Q", description="tip:N")
    half = (
        alt.Chart(alt.Data(values=[{"at": 0.5}]))
        .mark_rule(color=PALETTE["muted"], strokeDash=[1, 3])
        .encode(x="at:Q")
    )
    chart = alt.layer(half, spread, points).properties(
        width=width, height=ROW * max(1, len(rows)), background="transparent"
    )
    return drawn(chart, "AUROC")


def size_chart(rows: list[dict[str, Any]], title: str, width: int, log: bool = False) -> str:
    """A curve at equal samples and one at equal updates over a logarithmic axis of batch sizes.
    `log`: the other axis too. Returns SVG text.
    """
    colors = alt.Scale(domain=["samples", "updates"], range=COLOURS)
    base = alt.Chart(alt.Data(values=rows)).encode(
        x="batch_size:Q", color=alt.Color("equal:N", scale=colors, legend=None)
    )
    spread = base.mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high:Q")
    curves = base.mark_line(strokeWidth=1.6).encode(y="mean:Q")
    points = base.mark_point(**POINT).encode(y="mean:Q", description="tip:N")
    sizes = sorted({row["batch_size"] for row in rows})
    x = alt.X(
        "x:Q",
        title="batch size",
        scale=alt.Scale(
            type="log", base=2, domain=[min(sizes) / 1.25, max(sizes) * 1.25], nice=False
        ),
        axis=alt.Axis(values=sizes[:: 1 + len(sizes) * 46 // width], format=",d"),
    )
    y = alt.Y("y:Q", title=title, scale=alt.Scale(type="log" if log else "linear", zero=False))
    layers = [curves, points] if log else [spread, curves, points]
    return layered(shared_axes(x, y), layers, width, title)
