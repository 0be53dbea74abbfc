"""Values as text: numbers with their units, outcomes, settings, failures."""

import datetime
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from brimful.units import (
    counted,
    format_bytes,
    format_duration,
    format_interval,
    format_rate,
    format_share,
    noun_of,
)
from brimful.values import (
    Epoch,
    Estimate,
    Execution,
    Failure,
    IntervalPart,
    Loading,
    Outcome,
    PhasePeak,
    PredictedSpeed,
    Prediction,
    Setting,
    Source,
    Verdict,
)

ABSENT_TEXT = "–"

#: Which of the four memories a peak can show, the one that a budget limits first.
_DEVICE_FIRST = ("device", "reserved", "allocated", "host")

#: Of the training's time: less that runs between two epochs is not worth a word.
_MUCH_BETWEEN = 0.01

_LIMITS = {
    "budget": "the budget",
    "dataset": "the length of the dataset",
    "max_batch_size": "the given maximum",
    "loader": "the script, which makes no larger batches",
    "not_followed": "the script, where larger sizes take no more memory",
}

_METHODS = {
    "trace": "the command ran as it is on the imaginary card",
    "peaks": "a curve through the peaks of trials",
}

#: category -> its name; docs/how/one_allocation.md says what each is.
CATEGORIES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations",
    "inputs": "inputs",
    "buffers": "buffers",
    "temporaries": "temporaries",
    "workspaces": "workspaces",
    "other": "other tensors of the script",
    "cache": "cache and fragmentation",
    "context": "CUDA context",
}


@dataclass(frozen=True)
class Cell:
    """A value as people read it: text with its unit, where it comes from, its interval, and what it
    rests on.
    """

    text: str
    source: Source | None = None
    interval: str | None = None
    note: str | None = None
    tone: str = ""  # "", "good", "bad", "warn" or "strong"
    share: float | None = None  # the page draws it as a gauge


ABSENT = Cell(ABSENT_TEXT)


def bytes_text(value: float | None) -> str:
    return ABSENT_TEXT if value is None else format_bytes(int(value))


def part_text(part: IntervalPart) -> str:
    """What is uncertain of a peak: "-120 MiB to +0.4 GiB"."""
    ends = ("-", part.below_bytes), ("+", part.above_bytes)
    return " to ".join(f"{sign}{bytes_text(end)}" if end else "0" for sign, end in ends)


def count_text(value: float | None) -> str:
    """Whole numbers and large ones with thousands separators; others to three significant
    digits."""
    if value is None:
        return ABSENT_TEXT
    is_whole = float(value).is_integer() or abs(value) >= 1000
    return f"{round(value):,}" if is_whole else f"{value:.3g}"


def speed_text(value: float | None) -> str:
    """Samples per second without the unit."""
    return ABSENT_TEXT if value is None else format_rate(value).removesuffix(" samples/s")


VERDICTS = {verdict: verdict.replace("_", " ") for verdict in Verdict}


def seconds_text(value: float | None) -> str:
    return ABSENT_TEXT if value is None else format_duration(value)


def share_text(value: float | None) -> str:
    return ABSENT_TEXT if value is None else format_share(value)


def setting_text(value: Setting | None) -> str:
    if value is None:
        return ABSENT_TEXT
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:{',' if isinstance(value, int) else 'g'}}"


def settings_text(settings: Mapping[str, Setting]) -> str:
    return (
        ", ".join(f"{name} {setting_text(value)}" for name, value in settings.items())
        or ABSENT_TEXT
    )


def environment_text(environment: Mapping[str, str]) -> str:
    """As a shell takes it in front of a command."""
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())


def when(unix_s: float) -> str:
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")


def interval_text(
    low: float | None,
    high: float | None,
    value: float,
    as_text: Callable[[float], str] = format_bytes,
) -> str | None:
    """ "14.5 to 15.2 GiB", or None where there is no interval or both ends read the same."""
    if low is None or high is None:
        return None
    text = format_interval(low, high, value, as_text)
    return text if " to " in text else None


def bytes_cell(value: Estimate | None) -> Cell:
    if value is None:
        return ABSENT
    return Cell(
        bytes_text(value.value),
        value.source,
        interval_text(value.low, value.high, value.value),
        value.note,
    )


def speed_cell(value: Estimate | None) -> Cell:
    if value is None:
        return ABSENT
    low, high = speed_text(value.low), speed_text(value.high)
    interval = None if ABSENT_TEXT in (low, high) or low == high else f"{low} to {high}"
    return Cell(format_rate(value.value), value.source, interval, value.note)


def seconds_cell(value: Estimate) -> Cell:
    interval = interval_text(value.low, value.high, value.value, format_duration)
    return Cell(seconds_text(value.value), value.source, interval, value.note)


def memory_of(peak: PhasePeak | None, memory: str | None = None) -> tuple[str, int] | None:
    """(which memory, bytes) of a peak: `memory` ("device", "reserved" or "host") where it is known,
    else the nearest to it.
    """
    sizes = {name: getattr(peak, f"{name}_bytes", None) for name in _DEVICE_FIRST}
    order = (memory, *_DEVICE_FIRST) if memory is not None else _DEVICE_FIRST
    return next(((name, size) for name in order if (size := sizes[name]) is not None), None)


def worst_memory(execution: Execution, memory: str | None = None) -> tuple[str, int] | None:
    """`memory_of` its worst rank; of host memory what all its processes held together."""
    device, host = memory_of(execution.peak, memory), execution.host_bytes
    return (
        ("host", host) if host is not None and (device is None or device[0] == "host") else device
    )


def method_text(method: str, exact: bool) -> str:
    """How a peak was found."""
    checked = "checked by a run at the answer" if exact else "which a run did not match exactly"
    return _METHODS.get(method, f"extrapolated from small batches, {checked}")


def limited_text(limited_by: str | None) -> str | None:
    """What keeps the batch size from being larger."""
    return f"limited by {_LIMITS.get(limited_by, limited_by)}" if limited_by else None


def failure_text(failure: Failure, rank: int | None = None) -> str:
    """The exception, the first line of its message, the rank and the place."""
    first = failure.message.strip().partition("\n")[0]
    which = f" in rank {rank}" if rank is not None else ""
    where = f" ({failure.where})" if failure.where else ""
    return (f"{failure.type}: {first}" if first else failure.type) + which + where


def reason(execution: Execution) -> str:
    """Why it did not complete: the script's exception, else how it ended; "" where it completed or
    nothing is known.
    """
    if execution.outcome is Outcome.COMPLETED:
        return ""
    if execution.failure is not None:
        return failure_text(execution.failure, execution.failed_rank)
    code = execution.exit_code
    return "" if not code else f"exit code {code}" if code > 0 else f"ended by signal {-code}"


def loading_text(loading: Loading) -> str:
    """ "16,100 samples/s on the card (predicted); one core here loads about 2,900 (measured, 2,600
    to 3,100): about 6 workers needed (6 to 7)". Where one core keeps up and no worker loads, what
    that costs: the card waits while the script's own process loads."""
    if loading.busy is not None:
        return (
            "not measured: this machine is busy (a worker of the loader waited "
            f"{share_text(loading.busy)} of the time for a core)"
        )
    one_worker, card, workers = loading.one_worker.value, loading.card, loading.workers
    unit = "" if card else " samples/s"
    interval = speed_cell(loading.one_worker).interval
    measured = f"measured, {interval}" if interval else "measured"
    text = f"one core here loads about {speed_text(one_worker)}{unit} ({measured})"
    if workers > 1:
        text += f", the {workers} workers asked for about {speed_text(loading.all_workers.value)}"
    if card is None:
        return text if workers else f"{text}, and the script has no worker"
    text = f"{speed_text(card.value)} samples/s on the card (predicted); {text}"
    if not workers and not loading.binds:
        return (
            f"{text}; without a worker the card waits "
            f"{share_text(card.value / (card.value + one_worker))} of the time"
        )
    ends = loading.needed_interval
    needed = f"about {counted(loading.needed or 1, 'worker')} needed"
    if ends is not None and ends[0] < ends[1]:
        needed += " ({:,} to {:,})".format(*ends)
    if (
        loading.binds and (loading.needed or 1) <= workers
    ):  # beside others each is slower than alone
        needed += ", each with a core of its own"
    return f"{text}: {needed}" if workers else f"{text}: {needed}, and the script has none"


def not_counted_text(speed: PredictedSpeed) -> str:
    """ "communication between 3 ranks", "rollouts in its environments (gymnasium)", where that
    takes time that is not in the speed; else ""."""
    parts = {
        f"communication between {speed.ranks} ranks": speed.ranks > 1 and speed.exchange is None,
        f"rollouts in its environments ({speed.environments})": speed.environments,
    }
    return " and ".join(part for part, holds in parts.items() if holds)


def no_speed_text(prediction: Prediction) -> str:
    """ "Only the memory of this card is known, so no speed is predicted; for its speed …"; "" where
    speed is predicted.
    """
    why = next((warning for warning in prediction.warnings if warning.code == "no-clock"), None)
    if why is None:
        return ""
    text = "; ".join(filter(None, (f"{why.problem}, {why.explanation}", why.suggestion)))
    return f"{capitalized(text)}."


def uneven_text(prediction: Prediction) -> str:
    """ "batches of the largest samples alone 2.16 GiB; over an epoch, in the script's order
    2.79 GiB, at most 2.90 GiB with other orders and all that is uncertain"; "" where batches are
    alike.
    """
    alone, peak = prediction.largest_batches_peak, prediction.peak
    if alone is None or peak is None:
        return ""
    largest = f"batches of the largest samples alone {bytes_text(alone.device_bytes)}"
    epoch = (
        f"over an epoch, in the script's order {bytes_text(peak.device_bytes)}, at most "
        f"{bytes_text(peak.device_interval_bytes[1])} with other orders and all that is uncertain "
        "(predicted)"
    )
    drawn = prediction.worst_batch.drawn if prediction.worst_batch is not None else 0
    if not drawn:
        return f"{largest}; {epoch}"
    return f"{epoch}, with the largest of {drawn:,} batches drawn at random; {largest}"


def epoch_text(epoch: Epoch) -> str:
    """ "782 steps of 64: 50,030 samples, each once; 3.20 s (predicted), and 0.4 s to evaluate 5,003
    (predicted)"; "5 or 6 steps of 192: …" where nobody saw whether the script steps at the end.
    """
    drawn = "each once" if epoch.distinct is not None else "how many distinct ones is not known"
    if epoch.samples_given:
        drawn = "by --samples"
    steps = counted(epoch.most_steps or epoch.steps, "step")
    if epoch.most_steps is not None:
        steps = f"{epoch.steps:,} or {steps}"
    steps += f" of {epoch.samples_per_step:,}: {counted(epoch.samples, 'sample')}, {drawn}"
    loaded = ", with loading as it is here" if epoch.waits_for_data else ""
    time = f"{seconds_text(epoch.train_s.value)} ({epoch.train_s.source.value}{loaded})"
    text = f"{steps}; {time}"
    if (evaluation := epoch.evaluation_s) is not None:
        text += (
            f", and {seconds_text(evaluation.value)} to evaluate {epoch.evaluated:,} "
            f"({evaluation.source.value})"
        )
    between = epoch.between_s
    if between is not None and between.value >= _MUCH_BETWEEN * epoch.train_s.value:
        text += (
            f", and {seconds_text(between.value)} of other work on the card before the next epoch "
            f"({between.source.value})"
        )
    return text


def question_of(prediction: Prediction) -> tuple[str, int | None, int | None]:
    """(The name of what was asked about, the value that is answered for, the largest that fits)."""
    solved = prediction.solved
    if solved is not None:
        return noun_of(solved.name), solved.value, solved.largest
    return noun_of("batch_size"), prediction.batch_size, prediction.largest_batch_size


def subject_of(noun: str, value: int) -> str:
    """How a sentence begins: "Batch size 64", "max_length 4,096"."""
    return f"{'Batch size' if noun == noun_of('batch_size') else noun} {value:,}"


def at_text(prediction: Prediction) -> str:
    """ " at batch size 64", " at max_length 4,096", " at batch_size 8, max_length 512"; "" of the
    command as it stands.
    """
    best = next((cell for cell in prediction.grid if cell.best), None)
    if best is not None:
        return f" at {settings_text(best.settings)}"
    noun, value, _ = question_of(prediction)
    value = prediction.in_force or value
    return "" if value is None else f" at {noun} {value:,}"


def cards_text(prediction: Prediction) -> str:
    """What a prediction is for: "NVIDIA A100", "each of 3 x NVIDIA A100", "NVIDIA A100 as one of 64
    ranks".
    """
    name = prediction.gpu.name
    if prediction.alone_of is not None:
        return f"{name} as one of {prediction.alone_of:,} ranks"
    return f"each of {len(prediction.cards)} x {name}" if len(prediction.cards) > 1 else name


def footnotes(noun: str, notes: Sequence[tuple[int, str]]) -> tuple[str, ...]:
    """Notes of numbered rows below their table, equal ones together: "Trials 2, 3: out of
    memory".
    """
    numbers: dict[str, list[str]] = {}
    for number, text in notes:
        if text:
            numbers.setdefault(text, []).append(str(number))
    return tuple(
        f"{noun}{'s' if len(of) > 1 else ''} {', '.join(of)}: {text}"
        for text, of in numbers.items()
    )


def capitalized(sentence: str) -> str:
    """With a capital letter at its start, the rest as it is."""
    return sentence[:1].upper() + sentence[1:]
