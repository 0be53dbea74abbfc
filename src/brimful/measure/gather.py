"""All that a trial's processes told, gathered into one sample: worst memory, summed samples per second."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from brimful.values import Failure, PhasePeak, Report
from brimful_inside.wire import ProcessStarted


def last_reports(events_by_process: Iterable[Sequence[Any]]) -> tuple[Report, ...]:
    """The last report of each rank, by rank. Of two processes with one rank (a restart), the one with more steps counts."""
    best: dict[int, Report] = {}
    for events in events_by_process:
        reports = [e for e in events if isinstance(e, Report)]
        if reports and (reports[-1].rank not in best or reports[-1].steps >= best[reports[-1].rank].steps):
            best[reports[-1].rank] = reports[-1]
    return tuple(best[rank] for rank in sorted(best))


def failures(events_by_process: Iterable[Sequence[Any]]) -> tuple[Failure, ...]:
    return tuple(e for events in events_by_process for e in events if isinstance(e, Failure))


def hellos(events_by_process: Iterable[Sequence[Any]]) -> tuple[ProcessStarted, ...]:
    return tuple(e for events in events_by_process for e in events if isinstance(e, ProcessStarted))


def worst_phases(reports: Sequence[Report]) -> dict[str, PhasePeak]:
    """By phase: the largest device figures of any rank, and the host memory of all ranks together (they share one host)."""
    names = dict.fromkeys(name for report in reports for name in report.phases)
    return {name: worst([r.phases[name] for r in reports if name in r.phases]) for name in names}


def worst(peaks: Sequence[PhasePeak]) -> PhasePeak:
    return PhasePeak(
        allocated_bytes=_most(p.allocated_bytes for p in peaks),
        reserved_bytes=_most(p.reserved_bytes for p in peaks),
        device_bytes=_most(p.device_bytes for p in peaks),
        host_bytes=sum(known) if (known := [p.host_bytes for p in peaks if p.host_bytes is not None]) else None,
        visits=max(p.visits for p in peaks),
        cached=all(p.cached for p in peaks),
        host_is_true=all(p.host_is_true for p in peaks),
    )


def whole_peak(reports: Sequence[Report]) -> PhasePeak | None:
    """The peak over whole processes, worst rank; None if no rank could tell."""
    peaks = [r.peak_unphased for r in reports if r.peak_unphased is not None]
    return worst(peaks) if peaks else None


def samples_per_step(reports: Sequence[Report], alone_of: int = 1) -> int | None:
    """The effective batch: the median step's samples, summed over the ranks; None if a rank does not know.

    Of `alone_of` ranks of which one was started, the others are taken to do as much.
    """
    total = 0
    for report in reports:
        known = [s for s in _measured(report, report.samples_per_step) if s is not None]
        if not known:
            return None
        total += round(statistics.median(known))
    return total * alone_of if reports else None


def step_times(reports: Sequence[Report]) -> tuple[float, ...]:
    """The measured steps of the slowest rank, in seconds; () on an imaginary card."""
    timed = [r.step_s for r in reports if r.step_s]
    return tuple(max(timed, key=statistics.fmean)) if timed else ()


def samples_per_second(reports: Sequence[Report]) -> float | None:
    """Samples per second of all ranks together, over the measured steps; None without a clock or a count."""
    rates = []
    for report in reports:
        samples = _measured(report, report.samples_per_step)
        pairs = [(s, t) for s, t in zip(samples, report.step_s, strict=False) if s is not None]
        seconds = sum(t for _, t in pairs)
        if not pairs or seconds <= 0:
            return None
        rates.append(sum(s for s, _ in pairs) / seconds)
    return sum(rates) if rates else None


def loading_share(reports: Sequence[Report]) -> float | None:
    """Share of the measured time that the slowest rank waited for data; None where not known (an imaginary card)."""
    shares = [sum(r.loading_s) / sum(r.step_s) for r in reports if r.loading_s and sum(r.step_s) > 0]
    return min(1.0, max(shares)) if shares else None


def _measured(report: Report, by_step: Sequence[Any]) -> Sequence[Any]:
    """Of a list with one entry a step, those after the warm-up."""
    return by_step[report.warmup_steps :] or by_step


def _most(values: Iterable[int | None]) -> int | None:
    return max((v for v in values if v is not None), default=None)
