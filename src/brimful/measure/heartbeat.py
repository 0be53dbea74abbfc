"""What the ranks report while a command goes on: where a trial is, and of a run steps, speed and
memory about once a second.
"""

from collections import deque
from dataclasses import replace
from pathlib import Path

from brimful import codec
from brimful.measure import gather, host
from brimful.measure.output import tail
from brimful.values import Heartbeat, RunCounters
from brimful_inside.wire import Progress

# : Rates are of the training time within this window: long enough for steps of seconds, short
# enough to show a change.
WINDOW_S = 20.0
_TAIL_BYTES = 4096


def trial_progress(folder: Path) -> Progress | None:
    """The latest that any process of a trial reported; None before the first."""
    lines = (
        line
        for path in folder.glob("wire-*.jsonl")
        for line in tail(path, _TAIL_BYTES).splitlines()
    )
    reported = filter(None, (codec.progress_of(line.encode()) for line in lines))
    return max(reported, key=lambda progress: progress.unix_s, default=None)


class Heartbeats:
    """Of the ranks of a run whose wire files are in `folder`."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._seen: dict[str, deque[Progress]] = {}  # by file: those of the window

    def read(self, seconds: float, host_bytes: int | None) -> Heartbeat:
        """`seconds` since the attempt began; `host_bytes`: resident memory of all its processes,
        None where not known.
        """
        for path in self._folder.glob("latest-progress-*.jsonl"):
            self._add(path)
        latest = sorted(
            (kept[-1] for kept in self._seen.values()),
            key=lambda progress: (progress.rank, -progress.steps),
        )
        counters = [progress.counters for progress in latest if progress.counters is not None]
        loss = next(
            (
                (progress.rank, progress.counters)
                for progress in latest
                if progress.counters and progress.counters.loss is not None
            ),
            None,
        )
        lately = self._lately()
        free, total = host.free_bytes(), host.total_bytes()
        newest = max(latest, key=lambda progress: progress.unix_s, default=None)
        return Heartbeat(
            phase=newest.phase if newest else None,
            steps=max((progress.steps for progress in latest), default=0),
            seconds=seconds,
            ranks=len(counters),
            samples_per_s=gather.training_rate(lately),
            loading_share=gather.training_loading_share(lately),
            loss=loss[1].loss if loss else None,
            loss_rank=loss[0] if loss and not loss[1].loss_is_of_all_ranks else None,
            allocated_bytes=gather.most(progress.allocated_bytes for progress in counters),
            reserved_bytes=gather.most(progress.reserved_bytes for progress in counters),
            process_tree_host_bytes=host_bytes,
            host_used_share=max(0.0, 1 - free / total) if total else None,
            alloc_retries=gather.most(progress.alloc_retries for progress in counters),
            retry_streak=max((progress.retry_streak for progress in counters), default=0),
        )

    def _add(self, path: Path) -> None:
        events, _ = codec.read_wire_leniently(path)
        for event in [event for event in events if isinstance(event, Progress)]:
            kept = self._seen.setdefault(path.name, deque())
            if not kept or event.unix_s > kept[-1].unix_s:
                kept.append(event)
            while len(kept) > 2 and kept[1].unix_s < kept[-1].unix_s - WINDOW_S:
                kept.popleft()

    def _lately(self) -> list[RunCounters]:
        """What each rank that trains counted within the window; since it began where it did not
        train in the window.
        """
        pairs = ((kept[0].counters, kept[-1].counters) for kept in self._seen.values())
        return [_since(first, last) for first, last in pairs if last and last.train_s > 0]


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
