"""Samples as trials would give them, for tests of deciding."""

from dataclasses import replace

from brimful.values import (
    Budget,
    Command,
    Device,
    Machine,
    Outcome,
    PhasePeak,
    Report,
    Trial,
    TrialKind,
    TrialResult,
)
from brimful_inside.wire import BatchSeen, LoaderSeen, OptimizerSeen

GIB = 1024**3
COMMAND = Command(("python", "train.py", "--batch-size", "{batch_size}"), given={"batch_size": 64})
CPU = Device("cpu", "cpu")


def machine(cores=8):
    return Machine("host", "Linux", "a cpu", cores, 32 * GIB, 16 * GIB, None, None, "3.12", "0.1")


def device_budget(bytes_=20 * GIB):
    return Budget(bytes_, bytes_, bytes_, "device", "all of it")


def loader(batch_size=64, length=2048, **changes):
    """A loader of a map-style data set that gives whole batches until the end, each of other
    values.
    """
    per_epoch = length // batch_size if changes.get("drop_last") else -(-length // batch_size)
    given, seen = min(batch_size, length), min(12, per_epoch)
    one = LoaderSeen(
        "train",
        batch_size,
        length,
        per_epoch,
        "RandomSampler",
        length,
        False,
        0,
        False,
        seen,
        seen * given,
        [BatchSeen(given, [[given, 3]], f"{number:08x}") for number in range(seen)],
    )
    return replace(one, **changes)


def optimizer(rates=(1e-3,), **changes):
    return replace(OptimizerSeen("Adam", 12, 100, list(rates), list(rates)), **changes)


def report(loaders=None, optimizers=None, **changes):
    fields = {
        "step_s": [0.1] * 10,
        "loading_s": [0.005] * 10,
        "micro_batches_per_step": [1] * 12,
        "samples_per_step": [64] * 12,
        "optimizers": [optimizer()] if optimizers is None else optimizers,
        "loaders": [loader()] if loaders is None else loaders,
    }
    one = Report(0, 1, "cpu", None, "2.13.0", "steps_done", steps=12, warmup_steps=2)
    return replace(one, **(fields | changes))


def sample(reports=None, settings=None, **changes):
    reports = (report(),) if reports is None else tuple(reports)
    one = TrialResult(
        trial=Trial(COMMAND, dict(settings or {"batch_size": 64}), CPU, TrialKind.AUDIT),
        outcome=Outcome.COMPLETED,
        reports=reports,
        samples_per_step=64,
        step_s=tuple(reports[0].step_s) if reports else (),
        samples_per_s=640.0,
        loading_share=0.05,
        duration_s=3.0,
        folder="trial-001",
    )
    return replace(one, **changes)


def peak(device_bytes=None, host_bytes=None):
    return PhasePeak(device_bytes, device_bytes, device_bytes, host_bytes)


def runs(pairs):
    """Samples of (batch size, samples per second)."""
    return [
        sample(settings={"batch_size": size}, samples_per_s=rate, step_s=()) for size, rate in pairs
    ]
