"""A predicted speed in words: samples per second, the knee, what binds the step, and which operations take longest."""

from __future__ import annotations

from typing import Any

from brimful.show.facts import FactRow
from brimful.show.words import Shown, seconds_text, share_text, speed_text
from brimful.values import Estimate, PredictedSpeed, Prediction, Source

__all__ = ["BOUNDS", "speed_json", "speed_rows", "speed_sentence"]

#: What a step's time is spent on, as a person says it.
BOUNDS = {
    "compute": "arithmetic",
    "bandwidth": "memory bandwidth",
    "launches": "launches (the card waits for the host)",
    "transfer": "copies from the host",
}
NAMED = 3  # operations in a line
KNEE = "the smallest batch size that is nearly as fast; its interval: a host twice as fast, and half as fast"
LEAST = 0.02  # shares below are not named


def speed_sentence(speed: PredictedSpeed) -> str:
    """ "About 410 samples/s at 1,024 (predicted, 290 to 560); the knee is at 256: 97 % of the best; bound by …"."""
    at = "" if speed.batch_size is None else f" at {speed.batch_size:,}"
    parts = []
    if speed.samples_per_s is not None:
        low, high = _interval(speed.samples_per_s)
        parts.append(f"about {speed_text(speed.samples_per_s.value)} samples/s{at} (predicted, {low} to {high}{_alone(speed)})")
    else:
        parts.append(f"about {seconds_text(speed.step_s.value)} a step{at} (predicted{_alone(speed)})")
    knee = _knee(speed)
    if knee:
        parts.append(f"the knee is at {knee}")
    bound = max(speed.bound_by, key=lambda name: speed.bound_by[name], default=None)
    if bound is not None:
        parts.append(f"bound by {BOUNDS.get(bound, bound).split(' (')[0]} ({share_text(speed.bound_by[bound])})")
    sentence = "; ".join(parts) + "."
    return sentence[:1].upper() + sentence[1:]


def _alone(speed: PredictedSpeed) -> str:
    return f"; without the talk between {speed.ranks} ranks" if speed.ranks > 1 else ""


def speed_rows(prediction: Prediction) -> list[FactRow]:
    """What a terminal and a page say of the speed; [] without one."""
    speed = prediction.speed
    if speed is None:
        return []
    at = "" if speed.batch_size is None else f" at {speed.batch_size:,}"
    rows = []
    if speed.samples_per_s is not None:
        low, high = _interval(speed.samples_per_s)
        text = Shown(f"{speed_text(speed.samples_per_s.value)} samples/s", Source.PREDICTED, f"{low} to {high}")
        rows.append(FactRow(f"speed{at}", text))
    rows.append(
        FactRow(f"time of a step{at}", Shown(seconds_text(speed.step_s.value), Source.PREDICTED, _seconds(speed.step_s)))
    )
    knee = _knee(speed)
    if knee:
        rows.append(FactRow("knee", Shown(knee, Source.PREDICTED, _knee_interval(speed), KNEE)))
    named = sorted(((share, BOUNDS.get(name, name)) for name, share in speed.bound_by.items() if share >= LEAST), reverse=True)
    rows.append(FactRow("bound by", Shown(", ".join(f"{name} {share_text(share)}" for share, name in named), Source.PREDICTED)))
    top = ", ".join(f"{kernel.op} {share_text(kernel.share)}" for kernel in speed.kernels[:NAMED])
    if top:
        rows.append(FactRow("takes longest", Shown(top, Source.PREDICTED)))
    rows.append(FactRow("speed's interval", Shown(speed.step_s.note or "")))
    rows.append(
        FactRow(
            "not in the speed", Shown("; ".join(["loading: how fast the host loads there is not known here", *speed.notes]))
        )
    )
    return rows


def speed_json(speed: PredictedSpeed | None) -> dict[str, Any] | None:
    """The speed as `--json` has it. Loading is null: nobody can know it from here."""
    if speed is None:
        return None
    return {
        "batch_size": speed.batch_size,
        "step_s": _estimate(speed.step_s),
        "samples_per_s": None if speed.samples_per_s is None else _estimate(speed.samples_per_s),
        "share_of_best": speed.share_of_best,
        "best_batch_size": speed.best_batch_size,
        "knee_batch_size": speed.knee_batch_size,
        "knee_interval": None if speed.knee_interval is None else list(speed.knee_interval),
        "tolerance": speed.tolerance,
        "bound_by": {**speed.bound_by, "loading": None},
        "kernels": [{"op": one.op, "share": one.share, "bound_by": one.bound_by} for one in speed.kernels],
        "curve": [{"batch_size": point.batch_size, **_estimate(point.value)} for point in speed.curve],
        "exact": speed.exact,
        "notes": list(speed.notes),
    }


def _knee(speed: PredictedSpeed) -> str:
    """ "256: 97 % of the best", "" where there is no curve."""
    rates = {point.batch_size: point.value.value for point in speed.curve}
    knee, best = speed.knee_batch_size, speed.best_batch_size
    if knee is None or best is None or not rates.get(best):
        return ""
    return f"{knee:,}: {share_text(rates[knee] / rates[best])} of the best"


def _knee_interval(speed: PredictedSpeed) -> str | None:
    if speed.knee_interval is None or speed.knee_interval[0] == speed.knee_interval[1]:
        return None
    return "{:,} to {:,}".format(*speed.knee_interval)


def _interval(value: Estimate) -> tuple[str, str]:
    return speed_text(value.low), speed_text(value.high)


def _seconds(value: Estimate) -> str | None:
    return None if value.low is None or value.high is None else f"{seconds_text(value.low)} to {seconds_text(value.high)}"


def _estimate(value: Estimate) -> dict[str, Any]:
    interval = None if value.low is None or value.high is None else [value.low, value.high]
    return {"value": value.value, "interval": interval, "source": value.source.value, "note": value.note}
