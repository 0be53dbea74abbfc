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
    same = done[done.tested_on == done.dataset]
    if len(same):
        shown.append(_cost(same))
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
    peaks = [(size, phase) for phase in PHASES if (size := _largest(same, phase)) is not None]
    if peaks:
        size, phase = max(peaks)
        headline += f"; highest peak {_size(size)} {_where(same)}, in {NAMES[phase]}"
    tone = "bad" if len(failed) else "note" if left else "good"
    return _page(shown, headline, words, tone)


def _where(frame: Frame) -> str:
    on_card = frame[[f"peak_gpu_memory_{phase}_gb" for phase in PHASES]].notna().any(axis=None)
    return "of the card" if on_card else "of host memory"


def _largest(frame: Frame, phase: str) -> float | None:
    """GiB: of the card, and without one of the host; None where it was not measured."""
    kind = "gpu" if _where(frame) == "of the card" else "host"
    value = frame[f"peak_{kind}_memory_{phase}_gb"].max()
    return None if isna(value) else value


def _size(gib: float) -> str:
    return format_bytes(int(gib * GIB))


def _text(value: Frame, text: Callable[[Any], str]) -> str | None:
    return None if isna(value) else text(value)


def _cost(frame: Frame) -> Table:
    """What the trainings took: a row for each method and encoder."""
    rows = []
    for (method, encoder), group in frame.groupby(["method", "encoder"], sort=False):
        cached = "cached" if group.encoding_cached.eq(True).any() else None
        sizes = {phase: _text(_largest(group, phase), _size) for phase in PHASES}
        rows.append(
            {
                "method": f"{method}, {encoder}",
                "runs": len(group),
                "a run": _text(group.seconds.mean(), format_duration),
                "an epoch": _text(group.epoch_seconds.mean(), format_duration),
                "samples": _text(group.samples_per_second.mean(), format_rate),
                **{f"peak in {NAMES[phase]}": sizes[phase] for phase in PHASES},
                "peak in encoding": sizes["encoding"] or cached,
                "peak is of": _shared(group.peak_shared_by),
            }
        )
    notes = [f"Measured. The largest peaks of all runs, {_where(frame)}; times are means."]
    if _where(frame) == "of host memory":
        notes.append("Host memory is the process's own, with all data sets that it has loaded.")
    if frame.peak_shared_by.max() > 1:
        notes.append(
            "The members of an ensemble train at once and share one peak; the time of one is its "
            "share, and samples a second are those of all together."
        )
    if frame.encoding_cached.eq(True).any():
        notes.append(
            "cached: the features came from the cache, so that nothing was encoded "
            "(--recompute-features measures it)."
        )
    return _table("Memory by phase, and time", DataFrame(rows), *notes)


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


# --- charts ---


def spread_chart(rows: Sequence[tuple[str, float, float | None]], title: str, width: int) -> str:
    """(name, mean, standard deviation or None) in rows, on an axis from 0 to 1 with a line at 0.5.
    Returns SVG text.
    """
    values = [{"name": name, **_spread_of(name, mean, std)} for name, mean, std in rows]
    room = 7 * max((len(name) for name, _, _ in rows), default=0)
    axis = alt.Axis(domain=False, ticks=False, grid=False, minExtent=room)
    y = alt.Y("name:N", title=None, sort=[name for name, _, _ in rows], axis=axis)
    scale = alt.Scale(domain=[0, 1], nice=False)
    base = alt.Chart(alt.Data(values=values)).encode(y=y)
    spread = base.mark_rule(color=PALETTE["fit"], strokeWidth=1.6, clip=True).encode(
        x=alt.X("low:Q", title=title, scale=scale, axis=alt.Axis(tickCount=width // 80)),
        x2="high:Q",
    )
    points = base.mark_point(
        aria=True, color=PALETTE["fit"], fill=PALETTE["fit"], size=46, opacity=1
    ).encode(x=alt.X("mean:Q", scale=scale), description="tip:N")
    half = (
        alt.Chart(alt.Data(values=[{"at": 0.5}]))
        .mark_rule(color=PALETTE["muted"], strokeDash=[1, 3])
        .encode(x="at:Q")
    )
    chart = alt.layer(half, spread, points).properties(
        width=width, height=ROW * max(1, len(rows)), background="transparent"
    )
    return drawn(chart, title)


def size_chart(
    series: Mapping[str, Sequence[tuple[int, float, float | None]]],
    title: str,
    width: int,
    log: bool = False,
) -> str:
    """At most two curves of (batch size, mean, standard deviation or None) over a logarithmic axis
    of batch sizes. `log`: the other axis too. Returns SVG text.
    """
    layers = []
    for (name, points), color in zip(series.items(), COLOURS, strict=False):
        rows = [
            {"x": size, **_spread_of(f"{name}, batch size {size:,}", mean, std)}
            for size, mean, std in points
        ]
        base = alt.Chart(alt.Data(values=rows)).encode(x="x:Q")
        if not log and any(std for _, _, std in points):
            layers.append(
                base.mark_rule(color=color, strokeWidth=1.5).encode(y="low:Q", y2="high:Q")
            )
        layers.append(base.mark_line(color=color, strokeWidth=1.6).encode(y="mean:Q"))
        style = {"color": color, "fill": color, "size": 46, "opacity": 1}
        layers.append(base.mark_point(aria=True, **style).encode(y="mean:Q", description="tip:N"))
    sizes = sorted({size for points in series.values() for size, _, _ in points})
    x = alt.X(
        "x:Q",
        title="batch size",
        scale=alt.Scale(
            type="log", base=2, domain=[min(sizes) / 1.25, max(sizes) * 1.25], nice=False
        ),
        axis=alt.Axis(values=sizes[:: 1 + len(sizes) * 46 // width], format=",d"),
    )
    y = alt.Y("y:Q", title=title, scale=alt.Scale(type="log" if log else "linear", zero=False))
    return layered(shared_axes(x, y), layers, width, title)


def _spread_of(name: str, mean: float, std: float | None) -> dict[str, Any]:
    """A mean and its standard deviation, where one is known, as a chart's row has them."""
    tip = f"{name}: {mean:.4f}" + ("" if std is None else f" ± {std:.4f}")
    return {"mean": mean, "low": mean - (std or 0), "high": mean + (std or 0), "tip": tip}
