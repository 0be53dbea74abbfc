"""What a trial cannot see, as it is cut: memory that each step, or each batch of an evaluation,
leaves on the card.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from brimful.units import counted, format_bytes
from brimful.values import Diagnostic, PeakEstimate
from brimful_inside.simulator.program import Program

SMALL_SHARE = 0.01  # of the peak: less, by the end of an evaluation or epoch, is not worth a word
# kept of a sample: below, it is a prediction, and predictions are not compared with each other
# (assumed)
EMBEDDING_BYTES = 256
PAIR_BYTES = 4  # of a matrix in which each sample meets each: single precision
LONG_TRAINING = 1_000_000  # steps (assumed): a card that is full later than that is not filled
JOINED_SHARE = 0.5  # of what was kept: a torch.cat of so much joins it
_CHANGES = {
    "train": "keep numbers (loss.item()) or copies on the host (.cpu()); limit buffers, reset "
    "metrics each epoch",
    "cycles": "break the cycle (a weakref, or del of what closes it), or gc.collect() now and then",
    "eval": "keep numbers or copies on the host (.cpu(); Trainer: eval_accumulation_steps)",
}


@dataclass(frozen=True)
class Growth:
    """Memory that each step, or each batch of an evaluation, leaves on the card. What is left in
    cycles was freed at each step of the trial."""

    phase: str  # "train" or "eval"
    each_bytes: int
    met: int  # steps or batches of the trial
    number: float | None  # of an epoch or of a whole evaluation; the last batch counts as a part
    is_joined: bool = False  # all that is kept is copied into one tensor, beside the old ones
    made: int | None = None  # what is in cycles: the largest allocation's number in the trace
    collected: bool = False  # after `number` steps, at the latest

    @property
    def in_cycles(self) -> bool:
        return self.made is not None

    @property
    def kept_bytes(self) -> int | None:
        """By the end of the epoch or evaluation; None where nobody knows how long that is."""
        return None if self.number is None else int(self.number * self.each_bytes)

    @property
    def more_bytes(self) -> int:
        """What the end holds beyond what the trial met."""
        more = max(0.0, (self.number or 0) - self.met)
        return int(more * self.each_bytes * (1 + self.is_joined))

    def last_unit(self, room_bytes: int) -> int:
        """The step, or batch, at which so much room is full."""
        return self.met + room_bytes // (self.each_bytes * (1 + self.is_joined))


def growths(
    growth: Mapping[str, int],
    steps: tuple[int, float | None] = (0, None),
    evaluation_batches: float | None = None,
    programs: Sequence[Program] = (),
) -> list[Growth]:
    """`growth`: as in `Report.growth`. `steps`: (met, in an epoch). `evaluation_batches`: where it
    is known better than by the loader's length."""
    result = []
    if growth.get("train"):
        result.append(Growth("train", growth["train"], *steps))
    if each := growth.get("cycles", 0):
        numbers = [n for n in (growth.get("cycles_alive"), steps[1]) if n is not None]
        number = min(numbers, default=None)
        collected = number is not None and number == growth.get("cycles_alive")
        made = growth["cycles_made"]
        result.append(Growth("train", each, 1, number, made=made, collected=collected))
    if each := growth.get("eval", 0):
        met, length = growth["eval_seen"], growth.get("eval_length")
        number = length if evaluation_batches is None else evaluation_batches
        joins = met > 1 and _largest_join(programs) >= JOINED_SHARE * met * each
        result.append(Growth("eval", each, met, number, joins))
    return result


def _largest_join(programs: Sequence[Program]) -> int:
    """Bytes of the largest tensor that an evaluation made of others (torch.cat, torch.stack)."""
    largest = number = 0
    for program in programs:
        phase, number = "", 0
        for event in program.events:
            if event[0] == "phase":
                phase = event[1]
            elif event[0] == "malloc":
                if phase == "eval" and str(event[1]).startswith(("aten.cat", "aten.stack")):
                    largest = max(largest, program.sizes[number])
                number += 1
    return largest


def matters(growth: Growth, peak_bytes: int, budget_bytes: int | None = None) -> bool:
    """Whether it adds to the peak by the end of the epoch or evaluation, or fills the card in a
    long training."""
    if growth.more_bytes >= SMALL_SHARE * peak_bytes:
        return True
    ends = growth.collected or (growth.phase == "eval" and growth.number is not None)
    room = max(peak_bytes, (budget_bytes or 0) - peak_bytes)
    return not ends and growth.last_unit(room) <= LONG_TRAINING


def with_growth(peak: PeakEstimate, growth: Growth) -> PeakEstimate:
    """The peak at the end of the epoch or evaluation."""
    more, (low, high) = growth.more_bytes, peak.device_interval_bytes
    return replace(
        peak,
        allocated_bytes=peak.allocated_bytes + more,
        reserved_bytes=peak.reserved_bytes + more,
        device_bytes=peak.device_bytes + more,
        # Python may collect before that
        device_interval_bytes=(low + (0 if growth.collected else more), high + more),
    )


def memory_that_grows(
    growth: Growth, peak_bytes: int, budget_bytes: int | None = None, where: str = ""
) -> Diagnostic | None:
    """What piles up and when the card is full; None where it is too little to matter.

    `peak_bytes`: of the device, before anything piled up. `where`: words on the line that makes
    what is kept, and on the trial. What is collected before the card is full has a code of its
    own.
    """
    if not matters(growth, peak_bytes, budget_bytes):
        return None
    trains = growth.phase == "train"
    unit, units = ("step", "steps") if trains else ("batch", "batches")
    each = "each step" if trains else "each evaluation batch"
    problem = f"{each} leaves {format_bytes(growth.each_bytes)} more on the card"
    problem += " in reference cycles" * growth.in_cycles + where
    explanation = f"the trial met {counted(growth.met, unit, units)}"
    if growth.in_cycles:
        explanation = "the trial collected them after each step"
        if not growth.collected:
            problem += ", which Python does not collect"
    if growth.kept_bytes is not None:
        whole = "an epoch" if trains else "the evaluation"
        kept = f"{whole} keeps {format_bytes(growth.kept_bytes)}"
        if growth.collected:
            kept = f"{format_bytes(growth.kept_bytes)} before they are collected"
            explanation += f", the script's own run after {growth.number:,.0f} at the latest"
        else:
            explanation += f" of {growth.number:,.0f}"
        if growth.is_joined:
            kept += f", and {format_bytes(2 * growth.kept_bytes)} are there while they are joined"
        problem += f": {kept}"
        explanation += "; the predicted peak counts all of them"
    else:
        explanation += "; the predicted peak counts no more"
    code = "memory-in-cycles" if growth.collected else "memory-grows"
    room = None if budget_bytes is None else budget_bytes - peak_bytes
    if room is not None and room > 0 and (trains or growth.number is None):
        last = growth.last_unit(room)
        if last <= (growth.number if growth.collected and growth.number else LONG_TRAINING):
            at = f"{unit} {last:,}"
            if growth.number is not None and last > growth.number:
                at += f" (epoch {int(last / growth.number) + 1:,})"
            problem += f"; the card is full at {at} unless it is freed"
            code = "memory-grows"
    change = _CHANGES["cycles" if growth.in_cycles else growth.phase]
    return Diagnostic(code, problem, explanation, change)


def evaluation_collects(growth: Growth, peak_bytes: int, samples: int | None) -> Diagnostic | None:
    """What is kept of each sample may meet all the rest in the end, as in a matrix of
    similarities.
    """
    kept_bytes, met = growth.kept_bytes, growth.met
    if growth.phase != "eval" or not samples or kept_bytes is None or met >= (growth.number or 0):
        return None
    pairs_bytes = PAIR_BYTES * samples**2
    if kept_bytes < EMBEDDING_BYTES * samples or pairs_bytes < SMALL_SHARE * peak_bytes:
        return None
    return Diagnostic(
        "evaluation-collects",
        f"the evaluation keeps {format_bytes(growth.each_bytes)} of each batch on the card; the "
        f"trial met {met:,} of {growth.number:,.0f}",
        f"the trial computed its end from {counted(met, 'batch', 'batches')}: where each of the "
        f"{samples:,} samples meets each, as in a matrix of similarities, that takes "
        f"{format_bytes(pairs_bytes)}, "
        "which is not in the predicted peak",
        "compare them in parts, or on the host: .cpu()",
    )
