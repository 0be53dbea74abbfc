"""What a prediction says beside its verdict, as one list of facts: the brief ones stand on the
first screen, all of them behind --details.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from brimful.show.text import (
    VERDICTS,
    Cell,
    bytes_cell,
    bytes_text,
    count_text,
    epoch_text,
    interval_text,
    limited_text,
    loading_text,
    method_text,
    not_counted_text,
    part_text,
    question_of,
    seconds_cell,
    seconds_text,
    share_text,
    speed_cell,
    uneven_text,
)
from brimful.units import counted
from brimful.values import (
    NextCommand,
    PeakEstimate,
    PredictedSpeed,
    Prediction,
    Remedy,
    Source,
    Verdict,
)

#: What takes the time of a step.
BOUNDS = {
    "compute": "compute",
    "bandwidth": "memory bandwidth",
    "launches": "kernel launches (the GPU waits for Python)",
    "transfer": "copies from the host",
    "links": "communication between GPUs",
    "host": "arithmetic on the host",
}
_UNTIMED = "not timed: the script has no map-style DataLoader"
_NAMED = 3  # operations in a line
_LEAST = 0.02  # of a step: smaller shares are not named
_FEWER_UPDATES = 2  # times as few are worth a word (assumed)
_FRAGMENTED = 1.5  # times what tensors take is reserved (assumed)
_SUGGESTIONS = {
    "audit": "see what the script's loader really gives",
    "tune": "measure on that card which settings are fastest",
    "best-of-table": "train with the fastest settings of the table that fit",
}


@dataclass(frozen=True)
class Fact:
    name: str
    cell: Cell
    brief: bool = False
    line: str = ""  # a command to paste below it


def prediction_facts(prediction: Prediction) -> list[Fact]:
    """The answer first, then what makes it uncertain, speed and time."""
    speed, uneven = prediction.speed, uneven_text(prediction)
    peak, worst_batch = prediction.peak, prediction.worst_batch
    facts = [*_answer(prediction), *_advice(prediction)]
    facts += [
        Fact("budget", Cell(bytes_text(prediction.budget.bytes), note=prediction.budget.why)),
        Fact("CUDA context", bytes_cell(prediction.gpu.context_bytes)),
    ]
    facts += [
        Fact(f"uncertain: {part.name}", Cell(part_text(part), note=part.evidence))
        for part in (peak.interval_parts if peak is not None else ())
    ]
    facts += [Fact("worst batch", Cell(worst_batch.what))] if worst_batch is not None else []
    facts += [Fact("uneven batches", Cell(uneven))] if uneven else []
    facts += speed_facts(speed) if speed is not None else []
    facts += _epoch(prediction)
    return [*facts, Fact("answered in", Cell(seconds_text(prediction.seconds), Source.MEASURED))]


def _answer(prediction: Prediction) -> list[Fact]:
    """The largest that fits, what to type next, and how sure all that is."""
    solved, following = prediction.solved, prediction.next_command
    name = "largest that fits" if solved is None else f"largest {solved.name} that fits"
    facts = [Fact(name, _largest(prediction))]
    if following is not None:
        facts.append(Fact("next", Cell(next_text(prediction, following)), True, following.line))
    if prediction.peak is not None:
        facts.append(Fact("how sure", Cell(sure_text(prediction, prediction.peak)), True))
    return facts


def _largest(prediction: Prediction) -> Cell:
    limited, (_, _, largest) = limited_text(prediction.limited_by), question_of(prediction)
    if largest is not None:
        return Cell(count_text(largest), Source.PREDICTED, note=limited)
    if prediction.limited_by == "not_followed":
        return Cell(f"none: {limited}")
    return Cell("none" if prediction.nothing_fits else "not searched")


def next_text(prediction: Prediction, following: NextCommand) -> str:
    """Why to type it: "batch size 16 with 4 accumulation steps: effective batch 64"."""
    size, parts, solved = following.batch_size, following.accumulation, prediction.solved
    if following.reason == "accumulate":
        todo = "" if following.sets_accumulation else "; set these steps in the script"
        return (
            f"batch size {size:,} with {parts} accumulation steps: effective batch "
            f"{prediction.batch_size:,}{todo}"
        )
    if following.reason == "nearly-fastest":
        return f"batch size {size:,} is already as fast as any"
    if following.reason == "largest":
        with_a_step = " at which an epoch still has a step" * (
            size != prediction.largest_batch_size and prediction.verdict == Verdict.FITS
        )
        return f"batch size {size:,} is the largest that fits{with_a_step}"
    if following.reason == "solved" and solved is not None:
        return (
            f"{solved.name} does not change the memory"
            if solved.largest is None
            else f"{solved.name} {solved.value:,} is the largest that fits"
        )
    return _SUGGESTIONS[following.reason]


def sure_text(prediction: Prediction, peak: PeakEstimate) -> str:
    """ "0.659 to 1.74 GiB (95 % interval), mostly from CUDA context; extrapolated from …"."""
    interval = interval_text(*peak.device_interval_bytes, peak.device_bytes)
    unseen = [f"{name} was not reached and is not counted" for name in prediction.not_seen]
    how = "; ".join([method_text(prediction.method, prediction.exact), *unseen])
    if interval is None:
        return f"the 95 % interval is within rounding; {how}"
    widest = max(
        peak.interval_parts, key=lambda part: part.below_bytes + part.above_bytes, default=None
    )
    by = f", mostly from {widest.name}" if widest is not None else ""
    return f"{interval} (95 % interval){by}; {how}"


def _advice(prediction: Prediction) -> list[Fact]:
    """What only some predictions have; brief where it bears on the verdict or the command."""
    peak, fits = prediction.peak, prediction.verdict == Verdict.FITS
    facts: list[Fact] = []
    if prediction.what_if is not None and prediction.what_if.remedies:
        remedies, following = prediction.what_if.remedies, prediction.next_command
        is_next = len(remedies) == 1 and following and following.reason == "accumulate"
        facts.append(Fact("would help", Cell(_remedies_text(prediction, remedies)), not is_next))
    if not fits and peak is not None and peak.reserved_bytes > _FRAGMENTED * peak.allocated_bytes:
        text = f"tensors take {bytes_text(peak.allocated_bytes)} of the peak"
        facts.append(Fact("fragments", Cell(text), True))
    updates = _fewer_updates_text(prediction)
    facts += [Fact("learning", Cell(updates), True)] if updates else []
    if (loading := prediction.loading) is not None:
        binds = fits and loading.binds
        text = loading_text(loading)
        facts.append(
            Fact("loading", Cell(f"the GPU waits for data: {text}" if binds else text), binds)
        )
    elif prediction.solved is None and not prediction.grid:  # with others no loader is timed
        facts.append(Fact("loading", Cell(_UNTIMED)))
    return facts


def _remedies_text(prediction: Prediction, remedies: Sequence[Remedy]) -> str:
    """ "mixed precision, then 2 accumulation steps: 14.2 GiB (estimate), fits; a step takes 1.1x as
    long"."""
    last, speed = remedies[-1], prediction.speed
    text = (
        f"{', then '.join(remedy.what for remedy in remedies)}: {bytes_text(last.device_bytes)} "
        f"({last.source.value}), {VERDICTS[last.verdict]}"
    )
    if last.step_s is not None and speed is not None and speed.step_s.value:
        times = f"{last.step_s.value / speed.step_s.value:.2g}"
        text += f"; a step takes {times}x as long" if times != "1" else ""
    return text


def _fewer_updates_text(prediction: Prediction) -> str:
    """What a batch size that is larger than the script's own costs; "" where it is not known."""
    following = prediction.next_command
    before, after = (
        row.updates_per_epoch if row is not None else None
        for row in map(
            prediction.row_at, (prediction.batch_size, following and following.batch_size)
        )
    )
    if before is None or after is None or before.value < _FEWER_UPDATES * after.value:
        return ""
    updates = counted(round(after.value), "update")
    return f"{updates} an epoch instead of {before.value:,.0f}; its effect is not predicted"


def speed_facts(speed: PredictedSpeed) -> list[Fact]:
    at = "" if speed.batch_size is None else f" at {speed.batch_size:,}"
    rows: dict[str, Cell] = {}
    if speed.samples_per_s is not None:
        rows[f"speed{at}"] = replace(speed_cell(speed.samples_per_s), note=None)
    rows[f"time of a step{at}"] = replace(seconds_cell(speed.step_s), note=None)
    rows |= _knee(speed)
    if speed.exchange is not None:
        rows["between cards"] = seconds_cell(speed.exchange)
    if speed.exposed is not None:
        rows["not hidden by computation"] = seconds_cell(speed.exposed)
    bounds = [
        f"{BOUNDS.get(name, name)} {share_text(share)}"
        for name, share in largest_first(speed.bound_by)
        if share >= _LEAST
    ]
    rows["time goes to"] = Cell(", ".join(bounds), Source.PREDICTED)
    top = ", ".join(f"{kernel.op} {share_text(kernel.share)}" for kernel in speed.kernels[:_NAMED])
    rows |= {"takes longest": Cell(top, Source.PREDICTED)} if top else {}
    rows["speed's interval"] = Cell(speed.step_s.note or "")
    left_out = ("loading, since the speed of that host is unknown", *speed.notes)
    rows["not in the speed"] = Cell("; ".join(filter(None, (*left_out, not_counted_text(speed)))))
    return [Fact(name, cell) for name, cell in rows.items()]


def _knee(speed: PredictedSpeed) -> dict[str, Cell]:
    """From which batch size on throughput hardly grows; nothing without a curve."""
    knee, ends = speed.knee_batch_size, speed.knee_interval
    if knee is None or speed.best_batch_size is None or len(speed.curve) < 2:
        return {}
    if speed.still_rises:
        text = "throughput still grows at the largest batch size"
        return {"knee": Cell(text, Source.PREDICTED)}
    interval = "{:,} to {:,}".format(*ends) if ends is not None and ends[0] != ends[1] else None
    note = "already as fast as any; interval: with a host twice as fast, and half as fast"
    return {"knee": Cell(f"batch size {knee:,}", Source.PREDICTED, interval, note)}


def _epoch(prediction: Prediction) -> list[Fact]:
    epoch = prediction.epoch
    if epoch is None:
        return []
    times = {
        "time of its training": epoch.train_s,
        "time of its evaluation": epoch.evaluation_s,
        "time before the next epoch": epoch.between_s,
    }
    return [
        Fact("an epoch", Cell(epoch_text(epoch))),
        *(Fact(name, seconds_cell(time)) for name, time in times.items() if time is not None),
    ]


def largest_first(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(parts.items(), key=lambda part: -part[1])
