"""Samples as trials would give them, for tests of deciding."""

from __future__ import annotations

from brimful.values import Budget, Command, Device, Machine, Outcome, PhasePeak, Report, Trial, TrialKind, TrialResult
from brimful_inside.wire import BatchSeen, LoaderSeen, OptimizerSeen

GIB = 1024**3
COMMAND = Command(("python", "train.py", "--batch-size", "{batch_size}"), given={"batch_size": 64})
CPU = Device("cpu", "cpu")


def machine(cores=8):
    return Machine("host", "Linux", "a cpu", cores, 32 * GIB, 16 * GIB, None, None, "3.12", "0.1")


def device_budget(bytes_=20 * GIB):
    return Budget(bytes_, bytes_, bytes_, "device", "all of it")


def loader(batch_size=64, length=2048, **changes):
    """A loader of a map-style data set that gives whole batches until the end, each of other values."""
    per_epoch = None
    if length is not None and batch_size:
        per_epoch = length // batch_size if changes.get("drop_last") else -(-length // batch_size)
    given = min(batch_size or 0, length or batch_size or 0)
    seen = min(12, per_epoch) if per_epoch is not None else 12
    fields = {
        "role": "train",
        "batch_size": batch_size,
        "dataset_length": length,
        "length": per_epoch,
        "sampler": "RandomSampler",
        "sampler_samples": length,
        "drop_last": False,
        "workers": 0,
        "pin_memory": False,
        "batches_seen": seen,
        "samples_seen": seen * given,
        "wait_s": 0.01,
        "batches": [BatchSeen(given, [[given, 3]], f"{number:08x}") for number in range(seen)],
    }
    return LoaderSeen(**(fields | changes))


def optimizer(rates=(1e-3,), **changes):
    fields = {
        "name": "Adam",
        "steps": 12,
        "parameters": 100,
        "learning_rates": list(rates),
        "first_learning_rates": list(rates),
    }
    return OptimizerSeen(**(fields | changes))


def report(loaders=None, optimizers=None, **changes):
    fields = {
        "rank": 0,
        "world_size": 1,
        "device": "cpu",
        "device_name": None,
        "torch_version": "2.13.0",
        "ended": "steps_done",
        "steps": 12,
        "warmup_steps": 2,
        "step_s": [0.1] * 10,
        "loading_s": [0.005] * 10,
        "micro_batches_per_step": [1] * 12,
        "samples_per_step": [64] * 12,
        "optimizers": [optimizer()] if optimizers is None else optimizers,
        "loaders": [loader()] if loaders is None else loaders,
        "phases": {},
        "losses": [],
        "worst_batch": None,
        "peak_unphased": None,
        "context_bytes": None,
        "trace_file": None,
        "approximations": {},
        "notes": [],
        "wrote": [],
    }
    return Report(**(fields | changes))


def sample(reports=None, settings=None, kind=TrialKind.AUDIT, device=CPU, environment=None, **changes):
    reports = (report(),) if reports is None else tuple(reports)
    fields = {
        "trial": Trial(COMMAND, dict(settings or {"batch_size": 64}), device, kind, environment=dict(environment or {})),
        "outcome": Outcome.COMPLETED,
        "reports": reports,
        "phases": {},
        "peak": None,
        "samples_per_step": 64,
        "step_s": tuple(reports[0].step_s) if reports else (),
        "samples_per_s": 640.0,
        "loading_share": 0.05,
        "duration_s": 3.0,
        "folder": "trial-001",
    }
    return TrialResult(**(fields | changes))


def peak(device_bytes=None, host_bytes=None, host_is_true=False):
    return PhasePeak(device_bytes, device_bytes, device_bytes, host_bytes, host_is_true=host_is_true)


def runs(pairs):
    """Samples of (batch size, samples per second)."""
    return [sample(settings={"batch_size": size}, samples_per_s=rate, step_s=()) for size, rate in pairs]
