"""What a training logs: lines for people on stderr, a line of JSON per event in log.jsonl,
TensorBoard by an extra.

And what it cost: `training_stats.json`, written anew at each evaluation, checkpoint and at the end.
Its fields end in their unit; gb is GiB (1024³ bytes), as in PyTorch's own messages of old. Absent
is null. On a CPU the fields of a card are null, and `peak_host_memory_…_gb` holds the process's own
resident memory.

Only rank 0 writes files. A full disk ends none of it: the log says so once, and each file goes on
when there is room again.
"""

import contextlib
import dataclasses
import errno
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from brimful.errors import DiskFull, UsageError
from brimful.units import GIB, counted, format_bytes, format_duration, format_rate
from brimful.values import Diagnostic, EffectiveSetting
from brimful_inside.script import is_imaginary, report_loss
from brimful_train.distributed.ranks import Ranks
from brimful_train.reporting.peak_memory import TRAIN, Peak, Peaks

PHASES = ("encoding", "train", "eval")  # these have their fields always


class Log:
    """`folder` is the training's own; `writes`: whether this process writes there."""

    def __init__(self, folder: Path, writes: bool, tensorboard: bool, stream: TextIO | None = None):
        self._stream = stream
        self._writes = writes
        self._path = folder / "log.jsonl"
        self._board = _board(folder / "tensorboard") if tensorboard and writes else None
        self._begun = time.time()
        self._not_written: dict[Path, int] = {}  # by file: how many times there was no room

    def say(self, sentence: str) -> None:
        """Something a person ought to know, from whichever rank met it."""
        self._show(sentence)
        self.event("message", sentence=sentence)

    def line(self, text: str) -> None:
        """Progress, once for all ranks."""
        if self._writes:
            self._show(text)

    def _show(self, text: str) -> None:
        # the terminal may be a file there, and what it holds back it writes later
        with _on_full_disk(lambda: None):
            print(text, file=self._stream or sys.stderr, flush=True)

    @contextlib.contextmanager
    def outliving_a_full_disk(self, path: Path) -> Iterator[None]:
        """Around writing `path`: reports once that there is no room for it, and once that there is
        some again.
        """
        missed = self._not_written.pop(path, 0)
        with _on_full_disk(lambda: self._not_written.update({path: missed + 1})):
            yield
        failed = path in self._not_written
        if failed and not missed:
            self._show(
                f"The disk is full: {path} could not be written. The training goes on, and tries "
                "again next time."
            )
        elif missed and not failed:
            self._show(
                f"There is room on the disk again: {path} is written ({counted(missed, 'time')} "
                "it could not be)."
            )

    def event(self, kind: str, **fields: Any) -> None:
        if self._writes:
            row = {"event": kind, "elapsed_s": round(time.time() - self._begun, 3), **fields}
            with self.outliving_a_full_disk(self._path):
                _append(self._path, (json.dumps(finite_or_none(row), default=str) + "\n").encode())

    def scalars(self, values: Mapping[str, float | None], step: int) -> None:
        with _on_full_disk(self._end_board):
            for name, value in values.items():
                if self._board is not None and value is not None:
                    self._board.add_scalar(name, value, step)

    def _end_board(self) -> None:
        """TensorBoard's writer takes nothing after an error: log.jsonl has the same numbers."""
        self._board = None
        self._show("The disk is full: TensorBoard's files end here. The training goes on.")

    def settings(self, rows: Iterable[EffectiveSetting]) -> None:
        """Requested and effective side by side, with the reason."""
        rows = list(rows)
        for line in settings_table(rows):
            self.line(line)
        self.event("settings", rows=[dataclasses.asdict(row) for row in rows])

    def warnings(self, warnings: Iterable[Diagnostic]) -> None:
        """What was given and is kept, though it is more than there is room for."""
        for warning in warnings:
            because = warning.explanation[:1].upper() + warning.explanation[1:]
            self.line(f"Warning: {warning.problem}. {because}. To avoid it: {warning.suggestion}.")
            self.event("warning", **dataclasses.asdict(warning))

    def close(self) -> None:
        with _on_full_disk(self._end_board):
            if self._board is not None:
                self._board.close()


@dataclass(frozen=True)
class Standing:
    """Where a training stands."""

    at_s: float  # by the clock
    epochs: float
    updates: int
    samples: int
    loss_sum: float  # of the epoch under way
    loss_count: float
    noise_scale: float | None  # of the gradient, in samples


class ProgressLog:
    """How a training goes that began at `begun`. `epochs`: where it ends; None where that is not by
    epochs.
    """

    def __init__(self, log: Log, peaks: Peaks, begun: Standing, epochs: float | None):
        self._log, self._peaks, self._begun, self._epochs = log, peaks, begun, epochs
        self.last = begun
        report_loss(None)

    def write(
        self, now: Standing, lr: float, measures: Mapping[str, float], epoch_ends: bool
    ) -> None:
        """The loss is the mean since the last line; at the end of an epoch, that of the epoch.
        `brimful run` shows it too.
        """
        since = (0.0, 0.0) if epoch_ends else (self.last.loss_sum, self.last.loss_count)
        count = now.loss_count - since[1]
        loss = (now.loss_sum - since[0]) / count if count > 0 else None
        why_none = "no update counted since the last line"
        if is_imaginary():  # tensors have shapes and no data: a number read from one says nothing
            loss, measures, why_none = None, {}, "an imaginary card has no data"
        report_loss(loss)
        passed, trained = max(now.at_s - self._begun.at_s, 1e-9), now.epochs - self._begun.epochs
        rate = (now.samples - self.last.samples) / max(now.at_s - self.last.at_s, 1e-9)
        times, left_s = format_duration(passed), None
        if trained > 0 and self._epochs is not None:
            left_s = passed / trained * (self._epochs - now.epochs)
            times += f", {format_duration(left_s)} left"
        shown = f"loss {loss:.4g}" if loss is not None else f"loss – ({why_none})"
        named = "".join(f"  eval {name} {value:.4g}" for name, value in measures.items())
        noise = f"  noise scale {now.noise_scale:.4g}" if now.noise_scale is not None else ""
        self._log.line(
            f"epoch {now.epochs:.4g}  step {now.updates:,}  {shown}{named}{noise}  lr "
            f"{lr:.3g}  {format_rate(rate)}  memory {self._memory()}  {times}"
        )
        values: dict[str, float | None] = {
            "loss": loss,
            "lr": lr,
            "samples_per_s": rate,
            "memory_bytes": self._peaks.now_bytes(),
            "noise_scale": now.noise_scale,
        }
        self._log.scalars(
            {**values, **{f"eval/{name}": value for name, value in measures.items()}}, now.updates
        )
        self._log.event(
            "epoch" if epoch_ends else "progress",
            epoch=now.epochs,
            step=now.updates,
            samples=now.samples,
            left_s=left_s,
            **values,
            measures=measures,
        )
        self.last = dataclasses.replace(now, loss_sum=0.0, loss_count=0.0) if epoch_ends else now

    def _memory(self) -> str:
        """Held now, and the training's peak: of the card, or on the host."""
        peak = self._peaks.read(TRAIN)
        peak_bytes = peak.allocated_bytes if peak.allocated_bytes is not None else peak.host_bytes
        highest = f", peak {format_bytes(peak_bytes)}" if peak_bytes is not None else ""
        return f"{format_bytes(self._peaks.now_bytes())}{highest}"


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

    def content(self, peaks: dict[str, Peak], **others: Any) -> dict[str, Any]:
        """The content of training_stats.json."""
        times = self.epoch_times_s
        return finite_or_none(
            {
                "train_time_seconds": self.train_time_s,
                "eval_time_seconds": self.eval_time_s,
                "checkpoint_time_seconds": self.checkpoint_time_s,
                "avg_epoch_time_seconds": sum(times) / len(times) if times else None,
                "samples_per_second": self.timed_samples / self.train_time_s
                if self.train_time_s
                else None,
                **memory_fields(peaks),
                **others,
                "resumed": self.resumed,
            }
        )


def memory_fields(peaks: dict[str, Peak]) -> dict[str, Any]:
    """Each phase's peaks, as training_stats.json names them."""
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


@contextlib.contextmanager
def _on_full_disk(then: Callable[[], None]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if not DiskFull.caused(error):
            raise
        then()


def settings_table(rows: Iterable[EffectiveSetting]) -> list[str]:
    """Lines: requested and effective side by side, with the reason."""
    cells = [("setting", "requested", "effective", "why")]
    cells += [
        (row.name, _written(row.requested, "–"), _written(row.effective, "none"), row.why)
        for row in rows
    ]
    widths = [*(max(len(row[n]) for row in cells) for n in range(3)), 0]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    ]


def finite_or_none(tree: Any) -> Any:
    """`tree` with None for NaN and infinities, which JSON lacks: strict readers refuse what Python
    writes.
    """
    if isinstance(tree, Mapping):
        return {name: finite_or_none(value) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [finite_or_none(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def _append(path: Path, line: bytes) -> None:
    """The whole line or nothing of it: half a line would spoil the next one too."""
    with path.open("ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        except OSError:
            with contextlib.suppress(OSError):  # of what is no file on a disk
                file.truncate(before)
            raise


def _written(value: object, absent: str) -> str:
    if value is None:
        return absent
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "config.tensorboard is on, and the package tensorboard is not installed",
            "Nothing could be written for it.",
            "pip install 'brimful[tensorboard]', or switch it off: log.jsonl has the same numbers.",
        ) from None
    return SummaryWriter(str(folder))
