"""A report of a process that trained three steps, for tests of several rooms."""

from brimful_inside.wire import Report

REPORT = Report(
    rank=0,
    world_size=1,
    device="cpu",
    device_name=None,
    torch_version="2.13.0",
    ended="script_ended",
    steps=3,
    warmup_steps=1,
    step_s=[],
    loading_s=[],
    micro_batches_per_step=[1, 1, 1],
    samples_per_step=[4, 4, 4],
    optimizers=[],
    loaders=[],
    phases={},
    losses=[],
    worst_batch=None,
    peak_unphased=None,
    context_bytes=None,
    trace_file=None,
    approximations={},
    notes=[],
    wrote=[],
)
