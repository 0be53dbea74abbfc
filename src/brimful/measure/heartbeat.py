"""What the ranks report while a command goes on: where a trial is, and of a run steps, speed and memory about once a second."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from brimful import codec
from brimful.measure import gather, host
from brimful.measure.output import tail
from brimful.values import Heartbeat, RunCounters
from brimful_inside.wire import Progress

#: Rates are of the training time within this window: long enough for steps of seconds, short enough to show a change.
WINDOW_S = 20.0
_TAIL_BYTES = 4096


def trial_progress(folder: Path) -> Progress | None:
    """The latest that any process of a trial reported; None before the first."""
    latest: Progress | None = None
    for path in folder.glob("wire-*.jsonl"):
        lines = reversed(tail(path, _TAIL_BYTES).splitlines())
        found = next((one for line in lines if (one := codec.progress_of(line.encode())) is not None), None)
        if found is not None and (latest is None or found.unix_s > latest.unix_s):
            latest = found
    return latest


class Heartbeats:
    """Of the ranks of a run whose wire files are in `folder`."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._seen: dict[str, deque[Progress]] = {}  # by file: those of the window

    def read(self, seconds: float, host_bytes: int | None) -> Heartbeat:
        """`seconds` since the attempt began; `host_bytes`: resident memory of all its processes, None where not known."""
        for path in self._folder.glob("latest-progress-*.jsonl"):
            self._add(path)
        latest = sorted((kept[-1] for kept in self._seen.values()), key=lambda one: (one.rank, -one.steps))
        counters = [one.counters for one in latest if one.counters is not None]
        loss = next(((one.rank, one.counters.loss) for one in latest if one.counters and one.counters.loss is not None), None)
        free, total = host.free_bytes(), host.total_bytes()
        newest = max(latest, key=lambda one: one.unix_s, default=None)
        return Heartbeat(
            phase=newest.phase if newest else None,
            steps=max((one.steps for one in latest), default=0),
            seconds=seconds,
            ranks=len(counters),
            samples_per_s=self._samples_per_s(),
            loading_share=self._loading_share(),
            loss=loss[1] if loss else None,
            loss_rank=loss[0] if loss else None,
            allocated_bytes=gather.most(one.allocated_bytes for one in counters),
            reserved_bytes=gather.most(one.reserved_bytes for one in counters),
            process_tree_host_bytes=host_bytes,
            host_used_share=max(0.0, 1 - free / total) if total else None,
            alloc_retries=gather.most(one.alloc_retries for one in counters),
            retry_streak=max((one.retry_streak for one in counters), default=0),
        )

    def _add(self, path: Path) -> None:
        events, _ = codec.read_wire_leniently(path)
        for event in events:
            kept = self._seen.setdefault(path.name, deque())
            if isinstance(event, Progress) and (not kept or event.unix_s > kept[-1].unix_s):
                kept.append(event)
            while len(kept) > 2 and kept[1].unix_s < kept[-1].unix_s - WINDOW_S:
                kept.popleft()
            if not kept:
                del self._seen[path.name]

    def _spans(self) -> list[tuple[RunCounters | None, RunCounters]]:
        """(the first of the window, the latest) of each rank that trains."""
        found = []
        for kept in self._seen.values():
            last, first = kept[-1].counters, kept[0].counters if len(kept) > 1 else None
            if last is not None and last.train_s > 0:
                found.append((first, last))
        return found

    def _samples_per_s(self) -> float | None:
        rates = [_rate(first, last) for first, last in self._spans()]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known and len(known) == len(rates) else None

    def _loading_share(self) -> float | None:
        shares = []
        for first, last in self._spans():
            seconds = last.train_s - (first.train_s if first else 0.0)
            waited = last.loading_s - (first.loading_s if first else 0.0)
            if seconds > 0:
                shares.append(min(1.0, waited / seconds))
        return max(shares, default=None)


def _rate(first: RunCounters | None, last: RunCounters) -> float | None:
    """Samples per second of training between two counters of one rank; of all of it where the window has no training."""
    if last.samples is None:
        return None
    if first is not None and first.samples is not None and last.train_s > first.train_s:
        return (last.samples - first.samples) / (last.train_s - first.train_s)
    return last.samples / last.train_s
