"""What the processes of an attempt told, gathered: worst memory, all samples, which rank fell and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful import codec
from brimful.measure import gather, run_outcome
from brimful.values import Attempt, Report
from brimful_inside import wire

if TYPE_CHECKING:
    from brimful.measure.attempt import Seen, Start


def attempt_of(
    start: Start, seen: Seen, ending: run_outcome.Ending, folder: Path, where: str, began_unix_s: float, cut: str | None
) -> Attempt:
    """The attempt, from what was seen from outside and from the wire files in `folder`; `where` is relative to the record."""
    events, damaged = events_of(folder)
    reports = gather.last_reports(events)
    steps = max((report.steps for report in reports), default=0)
    why = run_outcome.outcome_of(replace(ending, last_step=steps, on_host=_on_host(reports)), _told(events))
    return Attempt(
        number=start.number,
        settings=start.settings,
        argv=start.argv,
        environment=dict(start.environment),
        resumed=start.resumed,
        outcome=why.outcome,
        reports=reports,
        phases=gather.worst_phases(reports),
        peak=gather.whole_peak(reports),
        steps=steps,
        samples=samples_of(reports),
        samples_per_s=samples_per_s(reports),
        loading_share=loading_share(reports),
        started_unix_s=began_unix_s,
        duration_s=seen.duration_s,
        folder=where,
        failure=why.told.failure if why.told else None,
        failed_rank=why.told.rank if why.told and len(reports) > 1 else None,
        exit_code=seen.exit_code,
        process_tree_host_bytes=seen.peak_host_bytes or None,
        output_cut=cut,
        notes=tuple(dict.fromkeys(_notes(seen, why, events, reports, damaged))),
    )


def events_of(folder: Path) -> tuple[list[list[Any]], int]:
    """(the events of each process, how many files were damaged). A process that was killed reports by its last snapshot."""
    found, damaged = [], 0
    for path in sorted(folder.glob("wire-*.jsonl")):
        events, whole = codec.read_wire_leniently(path)
        if not any(isinstance(event, Report) for event in events):
            snapshot = Path(wire.latest_path(str(path), "report"))
            events += codec.read_wire_leniently(snapshot)[0] if snapshot.exists() else []
        found.append(events)
        damaged += not whole
    return found, damaged


def samples_of(reports: Sequence[Report]) -> int | None:
    """Trained on by all ranks together; None where one of them cannot count."""
    counts = [report.counters.samples if report.counters else None for report in reports if report.steps]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def samples_per_s(reports: Sequence[Report]) -> float | None:
    """Of all ranks together, over the whole time of training (evaluations and set-up not counted)."""
    rates = [
        r.counters.samples / r.counters.train_s
        for r in reports
        if r.counters and r.counters.samples is not None and r.counters.train_s > 0
    ]
    return sum(rates) if rates and samples_of(reports) is not None else None


def loading_share(reports: Sequence[Report]) -> float | None:
    """Of the training time of the slowest rank, waited for data."""
    return max(
        (min(1.0, r.counters.loading_s / r.counters.train_s) for r in reports if r.counters and r.counters.train_s > 0),
        default=None,
    )


def _on_host(reports: Sequence[Report]) -> bool:
    return all(report.device == "cpu" for report in reports)


def _told(events: Sequence[Sequence[Any]]) -> list[run_outcome.Told]:
    """All failures, by rank."""
    told = []
    for of_process in events:
        rank = next((e.rank for e in reversed(of_process) if isinstance(e, (Report, wire.ProcessStarted))), 0)
        told += [run_outcome.Told(rank, e) for e in of_process if isinstance(e, wire.Failure)]
    return sorted(told, key=lambda one: one.rank)


def _notes(seen: Seen, why: run_outcome.Why, events: list[list[Any]], reports: Sequence[Report], damaged: int) -> list[str]:
    notes = [why.sentence] if why.sentence else []
    if not any(hello.role == "rank" for hello in gather.hellos(events)):
        notes.append("no Python process of the command said hello: nothing was seen of its steps and memory")
    if damaged:
        notes.append(f"what {damaged} of its processes told is damaged and was read in part")
    if seen.left_behind:
        count = len(seen.left_behind)
        notes.append(
            f"{count} process{'es' if count > 1 else ''} that the command left behind {'were' if count > 1 else 'was'} ended"
        )
    return notes + [note for report in reports for note in report.notes]
