"""What the ranks of a run tell while it goes on, read about once a second: steps, speed, memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from brimful import codec
from brimful.measure.device import host
from brimful.values import Heartbeat, RunCounters
from brimful_inside.wire import Progress

#: Rates are of the training time within this window: long enough for steps of seconds, short enough to show a change.
WINDOW_S = 20.0


class Beats:
    """The ranks whose wire files are in `folder`. `process_tree_bytes` gives the resident memory of all processes, if known."""

    def __init__(self, folder: Path, process_tree_bytes: Callable[[], int | None]):
        self._folder = folder
        self._process_tree_bytes = process_tree_bytes
        self._seen: dict[str, deque[Progress]] = {}  # by file: those of the window

    def read(self, seconds: float) -> Heartbeat:
        """`seconds`: since the attempt began."""
        for path in self._folder.glob("latest-progress-*.jsonl"):
            self._add(path)
        latest = sorted((kept[-1] for kept in self._seen.values()), key=lambda one: (one.rank, -one.steps))
        tallies = [one.counters for one in latest if one.counters is not None]
        told = next(((one.rank, one.counters.loss) for one in latest if one.counters and one.counters.loss is not None), None)
        free, total = host.free_bytes(), host.total_bytes()
        newest = max(latest, key=lambda one: one.unix_s, default=None)
        return Heartbeat(
            phase=newest.phase if newest else None,
            steps=max((one.steps for one in latest), default=0),
            seconds=seconds,
            ranks=len(tallies),
            samples_per_s=self._samples_per_s(),
            loading_share=self._loading_share(),
            loss=told[1] if told else None,
            loss_rank=told[0] if told else None,
            allocated_bytes=_most([tally.allocated_bytes for tally in tallies]),
            reserved_bytes=_most([tally.reserved_bytes for tally in tallies]),
            process_tree_host_bytes=self._process_tree_bytes(),
            host_used_share=max(0.0, 1 - free / total) if total else None,
            alloc_retries=_most([tally.alloc_retries for tally in tallies]),
            retry_streak=max((tally.retry_streak for tally in tallies), default=0),
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
    """Samples per second of training between two tallies of one rank; of all of it where the window has no training."""
    if last.samples is None:
        return None
    if first is not None and first.samples is not None and last.train_s > first.train_s:
        return (last.samples - first.samples) / (last.train_s - first.train_s)
    return last.samples / last.train_s


def _most(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
