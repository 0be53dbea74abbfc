"""What a training cost: `training_stats.json`, written anew at each evaluation, checkpoint and at
the end.

Fields end in their unit; gb is GiB (1024³ bytes), as in PyTorch's own messages of old. Absent is
null. On a CPU the fields of a card are null, and `peak_host_memory_…_gb` holds the process's own
resident memory.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from brimful.units import GIB
from brimful_train.distributed.ranks import Ranks
from brimful_train.reporting.peak_memory import Peak
from brimful_train.reporting.progress_log import Log, finite_or_none

PHASES = ("encoding", "train", "eval")  # these have their fields always


@dataclass
class Statistics:
    """Times of all runs of this training, those before a resume included."""

    train_time_s: float = 0.0  # without evaluation and checkpoints
    eval_time_s: float = 0.0
    checkpoint_time_s: float = 0.0
    epoch_times_s: list[float] = field(default_factory=list)  # of whole epochs, all of it included
    this_epoch_s: float = 0.0
    timed_samples: int = 0  # that the training time went into
    epoch_loss: float = 0.0  # sums of the epoch under way
    epoch_count: float = 0.0
    resumed: int = 0

    def add(self, name: str, seconds: float) -> None:
        setattr(self, name, getattr(self, name) + seconds)
        self.this_epoch_s += seconds

    def end_epoch(self) -> None:
        self.epoch_times_s.append(self.this_epoch_s)
        self.this_epoch_s = 0.0

    @classmethod
    def from_tree(cls, tree: dict[str, Any]) -> Self:
        return cls(
            **{name: value for name, value in tree.items() if name in cls.__dataclass_fields__}
        )

    def content(self, peaks: dict[str, Peak], **others: Any) -> dict[str, Any]:
        """The content of training_stats.json."""
        times = self.epoch_times_s
        content = {
            "train_time_seconds": self.train_time_s,
            "eval_time_seconds": self.eval_time_s,
            "checkpoint_time_seconds": self.checkpoint_time_s,
            "avg_epoch_time_seconds": sum(times) / len(times) if times else None,
            "samples_per_second": self.timed_samples / self.train_time_s
            if self.train_time_s
            else None,
            **_memory_fields(peaks),
            **others,
            "resumed": self.resumed,
        }
        return finite_or_none(content)


def _memory_fields(peaks: dict[str, Peak]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in (*PHASES, *(name for name in peaks if name not in PHASES)):
        peak = peaks.get(name, Peak())
        known = peak if not peak.cached else Peak()  # the peak of cached work says nothing
        fields[f"peak_gpu_memory_{name}_gb"] = _gib(known.allocated_bytes)
        fields[f"peak_gpu_memory_{name}_reserved_gb"] = _gib(known.reserved_bytes)
        fields[f"peak_host_memory_{name}_gb"] = _gib(known.host_bytes)
        if peak.cached:
            fields[f"{name}_cached"] = True
    return fields


def _gib(value: int | None) -> float | None:
    return None if value is None else value / GIB


def peaks_of_all_ranks(here: dict[str, Peak], ranks: Ranks) -> dict[str, Peak]:
    """The largest of any rank, phase by phase. All ranks take part."""
    merged: dict[str, Peak] = {}
    for peaks in ranks.gather({name: vars(peak) for name, peak in here.items()}):
        for name, values in peaks.items():
            merged.setdefault(name, Peak(**values)).larger(Peak(**values))
    return merged


def write_json(path: Path, content: Any, log: Log) -> None:
    """Whole or not at all: written aside and renamed. Where the disk is full `log` says so, and
    what was there stays.
    """
    aside = path.with_name(f".{path.name}.writing")
    with log.outliving_a_full_disk(path):
        try:
            aside.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
            os.replace(aside, path)
        except OSError:
            aside.unlink(missing_ok=True)  # half of it would take the room that is missing
            raise
