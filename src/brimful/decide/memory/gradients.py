"""Gradients that nobody reads: those of weights that no optimizer holds."""

from collections import Counter
from collections.abc import Iterator

from brimful.decide.memory.breakdown import GRADIENTS, annotate
from brimful.decide.memory.remedies import WORTH_SHARE
from brimful.units import format_bytes
from brimful.values import Diagnostic, TrialResult
from brimful_inside.simulator.trace import Trace


def unstepped_gradients(result: TrialResult, trace: Trace | None) -> Iterator[Diagnostic]:
    """`trace`: of this trial, which has the lines."""
    peak = result.peak.device_bytes if result.peak is not None else None
    for name, nbytes in result.reports[0].unstepped.items():
        if nbytes < WORTH_SHARE * (peak or 0):
            continue
        rows = annotate(trace).allocations if trace is not None else ()
        made = (row for row in rows if row.category == GRADIENTS and row.model == name)
        lines = Counter(row.site.where.partition(" in ")[0] for row in made).most_common(1)
        at = f" at {lines[0][0]}" if lines else ""
        yield Diagnostic(
            "unstepped-gradients",
            f"gradients of {format_bytes(nbytes)} are made{at} for weights of {name} that no "
            "optimizer steps",
            "its zero_grad does not clear them, and what the forward pass keeps for them is on the "
            "card as well",
            "call the model under torch.no_grad(), or requires_grad_(False) on those weights",
        )
