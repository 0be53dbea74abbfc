"""What the processes of a command reported, gathered over its ranks: worst memory, summed samples,
all failures; and while it goes on, where a trial is, and of a run steps, speed and memory about
once a second.
"""

import contextlib
import json
import os
import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from brimful import codec, files
from brimful.measure import host
from brimful.measure.output import tail
from brimful.measure.wire_files import WireFiles
from brimful.values import Estimate, Failure, Heartbeat, PhasePeak, Report, RunCounters, Source
from brimful_inside import wire

# : Rates are of the training time within this window: long enough for steps of seconds, short
# enough to show a change.
WINDOW_S = 20.0
_LOG_BYTES = 1 << 20  # of the engine's log: its end
_HEAD_BYTES = 4096  # of a wire file: enough for the roles that a process reports first


class RankFailure(NamedTuple):
    """A failure and the rank that reported it."""

    rank: int
    failure: Failure


@dataclass(frozen=True)
class Reported:
    """What all processes of the command reported."""

    reports: tuple[Report, ...]  # the last of each rank, by rank
    failures: tuple[RankFailure, ...]  # by rank, in the order in which each reported them
    roles: tuple[str, ...]  # of each process that reported in
    damaged_files: int = 0
    signals: tuple[int, ...] = ()  # that the command's first process handled, in their order

    @property
    def steps(self) -> int:
        """Of the rank that came furthest."""
        return max((report.steps for report in self.reports), default=0)


def of_trial(folder: Path) -> Reported:
    """Raises WireUnreadable: a trial's numbers hang on every line."""
    files = map(codec.read_wire, sorted(folder.glob("wire-*.jsonl")))
    return gathered([*chain.from_iterable(map(_by_process, files))])


def of_run(folder: Path) -> Reported:
    """Leaves out what it cannot read. A process that was killed reports by its last snapshots, of
    which that of its steps may be the newer one."""
    events_by_process, damaged = [], 0
    for path in sorted(folder.glob("wire-*.jsonl")):
        events, whole = codec.read_wire_leniently(path)
        if not any(isinstance(event, Report) for event in events):
            latest = [wire.latest_path(str(path), event) for event in ("report", "progress")]
            events += [event for newest in latest for event in codec.read_wire_leniently(newest)[0]]
        events_by_process += map(_with_all_steps, _by_process(events))
        damaged += not whole
    signals = tuple(tail(folder / wire.SIGNALS_FILE).encode("latin-1"))
    return replace(gathered(events_by_process, damaged), signals=signals)


def _by_process(events: Sequence[Any]) -> list[list[Any]]:
    """Of a wire file: the events of its process, or of each that has ended (`measure.wire_files`),
    which begin as it began to report."""
    processes, pid = [], None
    for event in events:
        if not processes or (isinstance(event, wire.ProcessStarted) and event.pid != pid):
            processes.append([])
        if isinstance(event, wire.ProcessStarted):
            pid = event.pid
        processes[-1].append(event)
    return processes


def _with_all_steps(events: Sequence[Any]) -> Sequence[Any]:
    """Of a process that was killed, with its last snapshots."""
    steps = max((event.steps for event in events if isinstance(event, wire.Progress)), default=0)
    return [
        replace(event, steps=max(event.steps, steps))
        if isinstance(event, Report) and event.ended == "running"
        else event
        for event in events
    ]


def gathered(events_by_process: Sequence[Sequence[Any]], damaged_files: int = 0) -> Reported:
    failures = []
    for events in events_by_process:
        rank = next(
            (e.rank for e in reversed(events) if isinstance(e, (Report, wire.ProcessStarted))), 0
        )
        failures += [RankFailure(rank, e) for e in events if isinstance(e, Failure)]
    roles = tuple(
        e.role for events in events_by_process for e in events if isinstance(e, wire.ProcessStarted)
    )
    failures.sort(key=lambda failure: failure.rank)
    # of two processes with one rank (a restart), the one with more steps counts
    last = [[e for e in events if isinstance(e, Report)][-1:] for events in events_by_process]
    by_rank = {r.rank: r for r in sorted(chain(*last), key=lambda report: report.steps)}
    reports = tuple(by_rank[rank] for rank in sorted(by_rank))
    return Reported(reports, tuple(failures), roles, damaged_files)


def left_at_once(reports: Sequence[Report]) -> bool:
    """Whether a rank's last report is one of its start or its middle: it was killed, or it ended by
    os._exit.
    """
    return any(report.ended == "running" for report in reports)


def role_of(folder: Path, pid: int | str) -> str | None:
    """ "rank" or "worker", as the process reported it first or since; None where it did not."""
    try:
        with files.opened(folder / f"wire-{pid}.jsonl") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    return next((role for role in ("rank", "worker") if f'"role": "{role}"'.encode() in head), None)


def worst_phases(reports: Sequence[Report]) -> dict[str, PhasePeak]:
    """By phase: the largest device figures of any rank, and the host memory of all ranks together
    (they share one host).
    """
    names = dict.fromkeys(name for report in reports for name in report.phases)
    return {name: worst([r.phases[name] for r in reports if name in r.phases]) for name in names}


def worst(peaks: Sequence[PhasePeak]) -> PhasePeak:
    return PhasePeak(
        allocated_bytes=most(p.allocated_bytes for p in peaks),
        reserved_bytes=most(p.reserved_bytes for p in peaks),
        device_bytes=most(p.device_bytes for p in peaks),
        host_bytes=sum(known)
        if (known := [p.host_bytes for p in peaks if p.host_bytes is not None])
        else None,
        visits=max(p.visits for p in peaks),
        cached=all(p.cached for p in peaks),
        host_is_true=all(p.host_is_true for p in peaks),
    )


def whole_peak(reports: Sequence[Report]) -> PhasePeak | None:
    """The peak over whole processes, worst rank; None if no rank knows it."""
    peaks = [r.peak_unphased for r in reports if r.peak_unphased is not None]
    return worst(peaks) if peaks else None


def samples_per_step(reports: Sequence[Report], alone_of: int = 1) -> int | None:
    """The effective batch: the median step's samples, summed over the ranks; None if a rank does
    not know.

    Of `alone_of` ranks of which one was started, the others are taken to do as much.
    """
    known = [
        [samples for samples in _measured(report, report.samples_per_step) if samples is not None]
        for report in reports
    ]
    if not known or not all(known):
        return None
    return sum(statistics.median_low(samples) for samples in known) * alone_of


def step_times(reports: Sequence[Report]) -> tuple[float, ...]:
    """The measured steps of the slowest rank, in seconds; () on an imaginary card."""
    timed = [r.step_s for r in reports if r.step_s]
    return tuple(max(timed, key=statistics.fmean)) if timed else ()


def samples_per_second(reports: Sequence[Report]) -> float | None:
    """Samples per second of all ranks together, over the measured steps; None without a clock or a
    count.
    """
    sums = [_samples_in(report, report.step_s) for report in reports]
    return (
        sum(samples / seconds for samples, seconds in sums)
        if sums and all(seconds > 0 for _, seconds in sums)
        else None
    )


def samples_per_processor_second(reports: Sequence[Report]) -> float | None:
    """The same for a second of processor time that any of the ranks used; None where it is not
    known.
    """
    sums = [_samples_in(report, report.cpu_s) for report in reports]
    seconds = sum(seconds for _, seconds in sums)
    return (
        sum(samples for samples, _ in sums) / seconds
        if sums and all(s > 0 for _, s in sums)
        else None
    )


def _samples_in(report: Report, seconds: Sequence[float]) -> tuple[int, float]:
    """Samples of the measured steps that are counted, and the sum of `seconds`, one for each step,
    of those.
    """
    pairs = zip(_measured(report, report.samples_per_step), seconds, strict=False)
    counted = [(samples, time_s) for samples, time_s in pairs if samples is not None]
    return sum(samples for samples, _ in counted), sum(time_s for _, time_s in counted)


def loading_share(reports: Sequence[Report]) -> float | None:
    """Share of the measured time that the slowest rank waited for data; None where not known (an
    imaginary card).
    """
    shares = [
        sum(r.loading_s) / sum(r.step_s) for r in reports if r.loading_s and sum(r.step_s) > 0
    ]
    return min(1.0, max(shares)) if shares else None


def samples_trained(reports: Sequence[Report]) -> int | None:
    """Of a run: trained on by all ranks together; None where one of them cannot count."""
    counts = [
        report.counters.samples if report.counters else None for report in reports if report.steps
    ]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def training_rate(counters: Sequence[RunCounters]) -> float | None:
    """Samples per second of all ranks together; None where one of them cannot count."""
    rates = [rank.samples / rank.train_s for rank in counters if rank.samples is not None]
    return sum(rates) if rates and len(rates) == len(counters) else None


def training_loading_share(counters: Sequence[RunCounters]) -> float | None:
    """Share of the training time that the slowest rank waited for data."""
    return max((min(1.0, rank.loading_s / rank.train_s) for rank in counters), default=None)


def _measured(report: Report, by_step: Sequence[Any]) -> Sequence[Any]:
    """Of a list with one entry a step, those after the warm-up."""
    return by_step[report.warmup_steps :] or by_step


def most(values: Iterable[int | None]) -> int | None:
    return max((v for v in values if v is not None), default=None)


# --- while it goes on ---


def silent_s(folder: Path) -> float:
    """How long no process of a trial or a run has printed or reported anything."""
    times = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):  # a snapshot that has just been replaced
                times += [entry.stat().st_mtime] if "." in entry.name else []
    return time.time() - max(times, default=time.time())


ENGINE_LOG = "log.jsonl"


def of_engine(folder: Path) -> tuple[Heartbeat | None, Estimate | None, tuple[str, ...]]:
    """(How far it is by its last line of progress, what time is left, what it had to say) of a
    training on the engine without `brimful run`, by the log in its own folder: of its newest start,
    as it appends to that log when it is resumed."""
    rows: list[dict[str, Any]] = []
    for line in tail(folder / ENGINE_LOG, _LOG_BYTES).splitlines():
        with contextlib.suppress(ValueError):  # a line that is cut off
            row = json.loads(line)
            rows = [row] if row["event"] == "settings" else [*rows, row]
    said = tuple(filter(None, (row.get("sentence") or row.get("problem") for row in rows)))
    for row in reversed(rows):
        if "samples_per_s" in row:
            rate, left_s = row["samples_per_s"], row.get("left_s")
            beat = Heartbeat("train", row["step"], row["elapsed_s"], 0, rate, None, row["loss"])
            left = left_s and Estimate(left_s, Source.ESTIMATE, note="its epochs")
            return beat, left, said
    return None, None, said


class Heartbeats:
    """Of the ranks of a run, or of a trial, whose wire files are in `folder`."""

    def __init__(self, folder: Path, folds: bool = True):
        """`folds`: as in `WireFiles`."""
        self.folder, self.files = folder, WireFiles(folder, folds)
        self._seen: dict[str, deque[wire.Progress]] = {}  # by process: those of the window

    def read(self, seconds: float, host_bytes: int | None) -> Heartbeat:
        """`seconds` since the attempt began; `host_bytes`: resident memory of all its processes,
        None where not known.
        """
        self.files.look()
        newest = self.files.latest(wire.Progress)
        self._seen = {process: self._seen.get(process, deque()) for process in newest}
        for process, progress in newest.items():
            kept = self._seen[process]
            if not kept or progress.unix_s > kept[-1].unix_s:
                kept.append(progress)
            while len(kept) > 2 and kept[1].unix_s < kept[-1].unix_s - WINDOW_S:
                kept.popleft()
        latest = sorted(
            (kept[-1] for kept in self._seen.values()),
            key=lambda progress: (progress.rank, -progress.steps),
        )
        counters = [progress.counters for progress in latest if progress.counters is not None]
        # of the first rank that knows one
        known = [p for p in latest if p.counters and p.counters.loss is not None]
        rank, counted = (known[0].rank, known[0].counters) if known else (None, None)
        # of each rank that trains within the window; since it began where it did not train in it
        pairs = [(kept[0].counters, kept[-1].counters) for kept in self._seen.values()]
        lately = [_since(first, last) for first, last in pairs if last and last.train_s > 0]
        free, total = host.free_bytes(), host.total_bytes()
        newest = max(latest, key=lambda progress: progress.unix_s, default=None)
        return Heartbeat(
            phase=newest.phase if newest else None,
            steps=max((progress.steps for progress in latest), default=0),
            seconds=seconds,
            ranks=len(counters),
            samples_per_s=training_rate(lately),
            loading_share=training_loading_share(lately),
            loss=counted.loss if counted else None,
            loss_rank=None if counted and counted.loss_is_of_all_ranks else rank,
            allocated_bytes=most(progress.allocated_bytes for progress in counters),
            reserved_bytes=most(progress.reserved_bytes for progress in counters),
            process_tree_host_bytes=host_bytes,
            host_used_share=max(0.0, 1 - free / total) if total else None,
            alloc_retries=most(progress.alloc_retries for progress in counters),
            retry_streak=max((progress.retry_streak for progress in counters), default=0),
            rates_over_s=max((rank.train_s for rank in lately), default=None),
        )

    def reports(self) -> tuple[Report, ...]:
        """What the ranks have reported, as of the last `read`."""
        progress = self.files.latest(wire.Progress)
        events = [
            _with_all_steps([report, *filter(None, [progress.get(process)])])
            for process, report in self.files.latest(Report).items()
        ]
        return gathered(events).reports


def _since(first: RunCounters | None, last: RunCounters) -> RunCounters:
    if first is None or first.train_s >= last.train_s:
        return last
    return replace(
        last,
        samples=None
        if first.samples is None or last.samples is None
        else last.samples - first.samples,
        train_s=last.train_s - first.train_s,
        loading_s=last.loading_s - first.loading_s,
    )
