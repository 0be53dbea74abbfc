"""What a trial cannot see, as it is cut: memory that each step, or each batch of an evaluation,
leaves on the card.
"""

from collections.abc import Mapping

from brimful.units import counted, format_bytes
from brimful.values import Diagnostic

# of the peak, a step (or a batch of an evaluation of unknown length): below, 1,000 of them do not
# double it
STEP_SHARE = 0.001
EVALUATION_SHARE = 0.01  # of the peak, by the end of the evaluation
# kept of a sample: below, it is a prediction, and predictions are not compared with each other
# (assumed)
EMBEDDING_BYTES = 256
PAIR_BYTES = 4  # of a matrix in which each sample meets each: single precision
MANY = 1000  # steps, or batches where nobody knows how many there are


def memory_that_grows(
    growth: Mapping[str, int],
    peak_bytes: int,
    evaluation_bytes: int | None = None,
    budget_bytes: int | None = None,
    evaluation_samples: int | None = None,
) -> list[Diagnostic]:
    """Warnings about what piles up; [] where it is too little to matter.

    `growth`: as in `Report.growth`. `peak_bytes`: device peak of the same trial. `evaluation_bytes`
    (the most that it holds on the card, predicted) and `budget_bytes` show whether it fits in the
    end; `evaluation_samples`: how many there are.
    """
    warnings, per_step = [], growth.get("train", 0)
    if per_step and per_step >= STEP_SHARE * peak_bytes:
        warnings.append(
            Diagnostic(
                "memory-grows",
                f"each step leaves {format_bytes(per_step)} more on the card",
                f"the predicted peak is of the first steps; after {MANY:,} it is about "
                f"{format_bytes(MANY * per_step)} more",
                "keep numbers, not tensors with their graph: loss.item(), output.detach().cpu()",
            )
        )
    # of an evaluation: bytes that a batch leaves, how many it has, how many the trial met
    kept = growth.get("eval", 0), growth.get("eval_length"), growth.get("eval_seen", 0)
    evaluation = _evaluation(kept, peak_bytes, evaluation_bytes, budget_bytes)
    collected = _collected(kept, peak_bytes, evaluation_samples)
    return [*warnings, *filter(None, [evaluation, collected])]


def _evaluation(
    kept: tuple[int, int | None, int],
    peak_bytes: int,
    evaluation_bytes: int | None,
    budget_bytes: int | None,
) -> Diagnostic | None:
    per_batch, length, met = kept
    if length is None:
        total, small = per_batch * MANY, per_batch < STEP_SHARE * peak_bytes
        batches, when = counted(met, "batch", "batches"), f"after {MANY:,} more of them"
    else:
        total = per_batch * max(0, length - met)
        small = total < EVALUATION_SHARE * peak_bytes
        batches, when = f"{met:,} of {length:,} batches", "at its end"
    if not total or small:
        return None
    explanation = (
        f"{when} the evaluation holds about {format_bytes(total)} more than the predicted peak "
        "holds, and what is joined (torch.cat) takes as much again"
    )
    in_all = None if evaluation_bytes is None else evaluation_bytes + total
    if in_all is not None and budget_bytes is not None and in_all > budget_bytes:
        explanation += (
            f"; that does not fit: about {format_bytes(in_all)} in all, and "
            f"{format_bytes(budget_bytes)} may be used"
        )
    return Diagnostic(
        "memory-grows",
        f"each evaluation batch leaves {format_bytes(per_batch)} more on the card; the trial met "
        + batches,
        explanation,
        "move what is kept to the host: .cpu(), or .item() for numbers",
    )


def _collected(
    kept: tuple[int, int | None, int], peak_bytes: int, samples: int | None
) -> Diagnostic | None:
    """What is kept of each sample may meet all the rest in the end, as in a matrix of
    similarities.
    """
    per_batch, length, met = kept
    if not per_batch or not samples or not length or met >= length:
        return None
    pairs_bytes, embedded = PAIR_BYTES * samples**2, EMBEDDING_BYTES * samples
    if per_batch * length < embedded or pairs_bytes < EVALUATION_SHARE * peak_bytes:
        return None
    return Diagnostic(
        "evaluation-collects",
        f"the evaluation keeps {format_bytes(per_batch)} of each batch on the card; the trial "
        f"met {met:,} of {length:,}",
        f"the trial computed its end from {counted(met, 'batch', 'batches')}: where each of the "
        f"{samples:,} samples meets each, as in a matrix of similarities, that takes "
        f"{format_bytes(pairs_bytes)}, "
        "which is not in the predicted peak",
        "compare them in parts, or on the host: .cpu()",
    )
