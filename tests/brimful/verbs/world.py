"""An invented training command: what a trial of it would show, in place of
`brimful.measure.trial`.
"""

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import strategies as st

from brimful.trials import session as session_module
from brimful.trials.session import Options
from brimful.values import Outcome, PhasePeak, Record, Report, Trial, TrialKind, TrialResult
from brimful_inside.simulator.allocator import CachingAllocator
from brimful_inside.simulator.program import program_of
from brimful_inside.simulator.replay import replay
from brimful_inside.simulator.trace import Free, Malloc, Phase, Row, Step, Uses, decode, encode_row
from brimful_inside.wire import (
    BatchSeen,
    LoaderSeen,
    OptimizerSeen,
    Place,
    WorstBatch,
)

MIB = 1 << 20
GIB = 1 << 30
MOST_STEPS = 400  # of a trial that ends by the clock
COMMAND = ("my-train", "--batch-size", "{batch_size}")


@dataclass
class World:
    """Memory is fixed + linear x B + quadratic x B^2, and `kink_bytes` more for each sample above
    `kink_at`; a batch takes overhead_s + B x sample_s. B is what the loader gives: never more than
    the data set, or than a hidden cap."""

    fixed: int = 50 * MIB
    linear: int = 1 * MIB
    quadratic: int = 0
    kink_at: int | None = None
    kink_bytes: int = 0
    eval_bytes: int = 0
    dataset: int | None = 10_000
    cap: int | None = None
    ignores: bool = False
    own: int = 16  # what the script takes without its flag
    own_workers: int = 0
    overhead_s: float = 0.01
    sample_s: float = 0.001
    # what the (real) device or host can hold before it is out of memory
    device_bytes: int = 80 * GIB
    helps: dict[str, float] = field(
        default_factory=dict
    )  # what-if -> what is left of a batch's memory
    places: tuple[Place, ...] = ()  # where the loader's number stands in the script
    workers_place: Place | None = None  # where its number of workers does
    read_s: float = 0.0  # to read a sample: a worker does it beside the training
    accumulated: int = 1  # batches in a step
    width_follows: bool = False  # the model is as wide as the number in the script's text
    outcome_of: Callable[[Trial, int], Outcome | None] = lambda trial, size: (
        None
    )  # None: as memory says
    launched: list[Trial] = field(default_factory=list)

    def batch(self, trial: Trial) -> int:
        """What the loader gives for what the trial asks."""
        asked = self.own if self.ignores else int(trial.settings.get("batch_size", self.own))
        return min(n for n in (asked, self.dataset, self.cap) if n is not None)

    def batches(self, size: int) -> int:
        """So many make a step."""
        return self.accumulated

    def workers(self, trial: Trial) -> int:
        return int(trial.settings.get("num_workers", self.own_workers))

    def activations(self, size: int) -> int:
        extra = self.kink_bytes * max(0, size - self.kink_at) if self.kink_at is not None else 0
        return self.linear * size + self.quadratic * size * size + extra

    def peak(self, size: int) -> int:
        return self.fixed + max(self.activations(size), self.eval_bytes)

    def rows(self, size: int) -> list[Row]:
        rows: list[Row] = [Malloc(1, self.fixed, "aten.randn"), Phase("train")]
        for step in range(2):
            rows += [
                Malloc(10 + step, self.linear * size, "aten.mm"),
                Malloc(20 + step, self.quadratic * size * size, "aten.mm"),
            ]
            if self.kink_at is not None and size > self.kink_at:
                rows += [
                    Malloc(30 + step, self.kink_bytes * (size - self.kink_at), "aten.cat"),
                    Free(30 + step),
                ]
            rows += [Free(20 + step), Free(10 + step), Step(step + 1)]
        return [*rows, Phase("eval"), Malloc(90, self.eval_bytes, "aten.mm"), Free(90)]

    def launch(
        self,
        trial: Trial,
        folder: Path,
        record_folder: Path,
        heartbeat=None,
        scans=(),
        imports=None,
    ) -> TrialResult:
        self.launched.append(trial)
        trial = replace(trial, ends=replace(trial.ends, steps=min(trial.ends.steps, MOST_STEPS)))
        folder.mkdir(parents=True)
        size = self.batch(trial)
        outcome, imaginary = self.outcome_of(trial, size), trial.device.kind == "imaginary"
        sample = (self._imaginary if imaginary else self._measured)(trial, size, folder)
        if outcome is not None and sample.outcome is Outcome.COMPLETED:
            sample = self._sample(trial, size, folder, outcome, None)
        return sample

    def _imaginary(self, trial: Trial, size: int, folder: Path) -> TrialResult:
        rows = [*_notes(trial), *self.rows(size)]
        for name in trial.what_ifs:
            rows = [_shrunk(row, self.helps.get(name, 1.0)) for row in rows]
        lines = ['{"trace_version": 1}', *map(encode_row, rows)]
        program = program_of(decode(lines))
        played = replay(program, program.sizes, CachingAllocator(trial.capacity_bytes))
        (folder / "trace-0.jsonl").write_text("\n".join(lines) + "\n")
        outcome = Outcome.COMPLETED if played.full is None else Outcome.OUT_OF_DEVICE_MEMORY
        device = played.peak.reserved + int(trial.device.gpu.context_bytes.value)
        return self._sample(
            trial,
            size,
            folder,
            outcome,
            PhasePeak(played.peak.allocated, played.peak.reserved, device, None),
        )

    def _measured(self, trial: Trial, size: int, folder: Path) -> TrialResult:
        peak, on_cpu = self.peak(size), trial.device.kind == "cpu"
        limit = min(n for n in (self.device_bytes, trial.host_limit_bytes) if n is not None)
        result = (
            PhasePeak(None, None, None, peak, host_is_true=True)
            if on_cpu
            else PhasePeak(peak, peak, peak, None)
        )
        full = Outcome.OUT_OF_HOST_MEMORY if on_cpu else Outcome.OUT_OF_DEVICE_MEMORY
        outcome = Outcome.COMPLETED if peak <= limit else full
        return self._sample(trial, size, folder, outcome, result)

    def _sample(
        self, trial: Trial, size: int, folder: Path, outcome: Outcome, peak: PhasePeak | None
    ) -> TrialResult:
        completed = outcome is Outcome.COMPLETED
        clock = completed and trial.device.kind != "imaginary"
        reading = 0.0 if self.workers(trial) else size * self.read_s
        seconds = self.overhead_s + size * self.sample_s + reading
        steps = trial.ends.warmup_steps + trial.ends.steps if completed else 0
        return TrialResult(
            trial=trial,
            outcome=outcome,
            reports=(self._report(trial, size, steps, seconds if clock else None, peak),)
            if completed
            else (),
            phases={"train": peak, "eval": peak} if completed and peak else {},
            peak=peak if completed else None,
            samples_per_step=self.batches(size) * size if completed else None,
            step_s=(seconds,) * trial.ends.steps if clock else (),
            samples_per_s=size / seconds if clock else None,
            loading_share=max(0.01, reading / seconds) if clock else None,
            duration_s=1.0,
            folder=folder.name,
            exit_code=0 if completed else 1,
        )

    def _report(
        self, trial: Trial, size: int, steps: int, step_s: float | None, peak: PhasePeak | None
    ) -> Report:
        batches = [BatchSeen(size, [[size, 8]], f"{n:x}") for n in range(min(steps, 64))]
        loader = LoaderSeen(
            "train",
            self.cap or int(trial.settings.get("batch_size", self.own)),
            self.dataset,
            None,
            "RandomSampler",
            self.dataset,
            False,
            self.workers(trial),
            False,
            steps,
            steps * size,
            batches,
            places=list(self.places) if trial.find_places else [],
            workers_place=self.workers_place if trial.find_places else None,
        )
        place = trial.command.places.get("batch_size")
        wide = self.width_follows and place is not None and place.kind == "script"
        optimizer = OptimizerSeen("Adam", steps, size if wide else 10, [1e-3], [1e-3])
        return Report(
            rank=0,
            world_size=1,
            device=_label(trial),
            device_name=None,
            torch_version="2.13.0",
            ended="steps_done",
            steps=steps,
            warmup_steps=trial.ends.warmup_steps,
            step_s=[step_s] * trial.ends.steps if step_s else [],
            micro_batches_per_step=[self.batches(size)] * steps,
            samples_per_step=[self.batches(size) * size] * steps,
            optimizers=[optimizer],
            loaders=[loader],
            peak_unphased=peak,
            trace_file="trace-0.jsonl" if trial.device.kind == "imaginary" else None,
        )


@dataclass
class Learning(World):
    """Its loss falls with each step: with the learning rate, and with the size of the batch to the
    power of `teaches` (1: each sample as much in a large batch as in a small one, 0: a step as much
    whatever its size)."""

    teaches: float = 0.8

    def launch(self, trial: Trial, *rest, **more) -> TrialResult:
        result = super().launch(trial, *rest, **more)
        steps = result.trial.ends.steps
        rate = float(trial.settings.get("lr", 1e-3)) * 1e3
        learned = rate * self.batch(trial) ** self.teaches / 200
        losses: list[float | None] = [
            4 / (1 + learned * step) ** 0.5 + 0.02 * (-1) ** step for step in range(steps + 1)
        ]
        reports = tuple(replace(report, losses=losses) for report in result.reports)
        return replace(result, reports=reports)


class Ragged(World):
    """A batch is as long as its longest sample: no model gives its sizes, and what fits was found
    by trials.
    """

    def rows(self, size: int) -> list[Row]:
        rows = super().rows(size)
        longest = [
            Malloc(5 + n, size * (45 * MIB - (7919 + n) * size % 1009 * 1_999), "aten.cat")
            for n in (0, 1, 2)
        ]
        return [*rows[:2], *longest, *rows[2:]]


@dataclass
class Uneven(World):
    """Batches are padded to their longest sample, and each number of them takes `linear`. With
    `max_length` samples are so many times as long. Over an epoch `rises` times as much is reserved
    on a real card."""

    linear: int = 64 * 1024
    lengths: tuple[int, ...] = tuple(random.Random(3).choices(range(30, 61), k=19))
    longest: int = 60
    rises: float = 1.0
    trial: Trial | None = None

    def drawn(self) -> list[int]:
        """The length of each batch of a trial."""
        trial = self.trial
        if trial is None or not (trial.as_drawn or trial.kind is TrialKind.SPEED):
            return [self.longest] * 4
        return [*self.lengths[:4], self.longest, self.longest, *self.lengths[4:]]

    def peak(self, size: int) -> int:
        own = super().peak(size * self.longest)
        return int(own * self.rises) if self.trial and self.trial.ends.settles_after else own

    def launch(self, trial: Trial, folder: Path, *rest, **more) -> TrialResult:
        self.trial = trial
        result = super().launch(trial, folder, *rest, **more)
        return replace(result, reports=tuple(map(self._of_lengths, result.reports)))

    def _of_lengths(self, report: Report) -> Report:
        size = report.samples_per_step[0]
        batches = [BatchSeen(size, [[size, length], [size]], None) for length in self.drawn()]
        loaders = [
            replace(loader, batches=batches, batches_seen=len(batches)) for loader in report.loaders
        ]
        worst = WorstBatch(100, 100, True, "samples vary", drawn=10_000)
        return replace(report, loaders=loaders, worst_batch=worst)

    def rows(self, size: int) -> list[Row]:
        rows: list[Row] = [Malloc(1, self.fixed, "aten.randn"), Phase("train")]
        before, each = 1, size * self.linear
        if self.trial is not None and "max_length" in self.trial.settings:
            each = each * int(self.trial.settings["max_length"]) // self.longest
        for step, length in enumerate(self.drawn(), 1):
            batch, *parts = (
                Malloc(10 * step + part, part * length * each, "aten.mm") for part in (4, 1, 2, 3)
            )
            gone = [Free(row.id) for row in reversed(parts)]
            rows += [batch, *([Free(before)] if step > 1 else []), *parts, *gone, Step(step)]
            before = batch.id
        return [*rows, Free(before)]


def reporting(
    change: Callable[[TrialResult], TrialResult] | None = None,
    world: World | None = None,
    **of_report,
) -> World:
    """A world whose completed trials are changed, or the fields `of_report` of their reports."""
    world = world or World()
    launch = world.launch

    def changed(trial: Trial, folder: Path, record_folder: Path, *rest, **more) -> TrialResult:
        result = launch(trial, folder, record_folder, *rest, **more)
        result = replace(
            result, reports=tuple(replace(report, **of_report) for report in result.reports)
        )
        return change(result) if change is not None else result

    world.launch = changed  # type: ignore[method-assign]
    return world


def failing_above(last: int, **more) -> World:
    """Its script raises an error at sizes above that."""
    return World(outcome_of=lambda trial, size: Outcome.CRASHED if size > last else None, **more)


def _shrunk(row, left: float):
    return (
        row._replace(nbytes=int(row.nbytes * left))
        if isinstance(row, Malloc) and row.op == "aten.mm"
        else row
    )


def _notes(trial: Trial) -> list[Uses]:
    """What the child reports of a what-if that it switched."""
    return [Uses("what_if: 3 blocks of layers")] if "checkpointing" in trial.what_ifs else []


def _label(trial: Trial) -> str:
    return trial.device.label if trial.device.kind == "accelerator" else trial.device.kind


def work(
    world: World,
    verb: Callable[..., Record],
    argv=COMMAND,
    max_batch_size: int | None = None,
    budget: str | None = None,
    home: Path | None = None,
    batch_size_from: str = "auto",
    time_limit_s: float | None = None,
    **more,
) -> Record:
    """Calls a verb in that world; without a `home` its record is gone afterwards, but for what is
    answered.
    """
    with (
        tempfile.TemporaryDirectory(prefix="brimful-world-") as passing,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(session_module, "run_trial", world.launch)
        options = Options(
            home or Path(passing),
            budget,
            max_batch_size,
            time_limit_s,
            batch_size_from=batch_size_from,
        )
        return verb(argv, options=options, **more)


WORLDS = st.builds(
    World,
    fixed=st.integers(1 * MIB, 700 * MIB),
    linear=st.sampled_from([64 * 1024, MIB, 7 * MIB, 31 * MIB]),
    quadratic=st.sampled_from([0, 0, 4096, 200_000]),
    kink_at=st.sampled_from([None, None, 10, 40]),
    kink_bytes=st.sampled_from([0, MIB, 20 * MIB]),
    eval_bytes=st.sampled_from([0, 0, 300 * MIB]),
    dataset=st.one_of(st.none(), st.integers(1, 3000)),
    overhead_s=st.sampled_from([0.001, 0.02, 0.3]),
    sample_s=st.sampled_from([0.0001, 0.002]),
)


def chosen(record: Record) -> int:
    """The batch size of the record's plan."""
    (size,) = (row.effective for row in record.plan.settings if row.name == "batch_size")
    return size
