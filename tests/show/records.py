"""Realistic records, for tests of what people see. Every factory returns a new frozen value; its parts are in `pieces`."""

from __future__ import annotations

from dataclasses import replace

from brimful.values import (
    Alike,
    Audit,
    Closed,
    Command,
    Device,
    Diagnostic,
    Effective,
    Estimate,
    Gpu,
    ModuleShare,
    Moment,
    NoSaving,
    Objective,
    Outcome,
    Plan,
    PlannedSetting,
    Prediction,
    Record,
    Saving,
    Source,
    TrialKind,
    WhatIf,
)
from tests.show.memory_pieces import explained
from tests.show.pieces import (
    GIB,
    MALLOC,
    STARTED,
    crashed,
    device_budget,
    gpu,
    machine,
    measured_belief,
    memory_belief,
    opened,
    out_of_memory,
    peak_on_card,
    peak_on_host,
    plan,
    prediction,
    sample,
    speed_belief,
)


def tune_on_cpu() -> Record:
    """A finished tune on the CPU: memory trials and timed trials apart, one malloc setting, a measured before and after."""
    memory = [sample(i, TrialKind.MEMORY, b) for i, b in enumerate((64, 8, 16, 512), 1)]
    speed = [sample(i, TrialKind.SPEED, b) for i, b in enumerate((64, 8, 16, 32, 128, 256, 48), 5)]
    speed[0] = replace(speed[0], samples_per_s=218.4, step_s=(0.293, 0.294, 0.292))
    speed[1:] = [replace(s, trial=replace(s.trial, environment=MALLOC)) for s in speed[1:]]
    last = sample(12, TrialKind.SPEED, 48)
    last = replace(
        last,
        trial=replace(last.trial, environment=MALLOC),
        samples_per_s=307.9,
        step_s=(0.156, 0.156, 0.155),
        notes=("confirming",),
    )
    return Record(
        folder=".brimful/20260725-172000-captcha",
        opened=opened(),
        trials=(*memory, *speed, last),
        memory=memory_belief(),
        speed=speed_belief(),
        plan=plan(),
        closed=Closed(0, STARTED + 131.0),
    )


def tune_on_card() -> Record:
    """A finished tune on an imaginary card: traces, no speed."""
    card = gpu()
    device = Device("imaginary", f"{card.key} (imaginary)", card)
    belief = memory_belief(card)
    largest = belief.largest_batch_size or 0
    samples = tuple(sample(i, TrialKind.TRACE, b, device) for i, b in enumerate((8, 16, 24, largest), 1))
    peak = peak_on_card(largest)
    return Record(
        folder=".brimful/20260725-172000-captcha",
        opened=opened(device=device, budget=device_budget(), objective=Objective.LARGEST),
        trials=samples,
        memory=belief,
        plan=Plan(
            objective=Objective.LARGEST,
            settings=(
                PlannedSetting(
                    "batch_size", 64, largest, "the largest whose interval stays within the budget", Source.PREDICTED
                ),
            ),
            environment={},
            command_line=f"python examples/captcha/train.py --batch-size {largest} --workers 2",
            verified=True,
            trials=4,
            out_of_memory_trials=0,
            peak_bytes=Estimate(
                peak.device_bytes or 0, Source.PREDICTED, (peak.device_bytes or 0) * 0.985, (peak.device_bytes or 0) * 1.03
            ),
        ),
        closed=Closed(0, STARTED + 19.0),
    )


def tune_with_failures() -> Record:
    """A tune on a real card that met out-of-memory twice and was interrupted."""
    device = Device("accelerator", "cuda:0")
    samples = (
        sample(1, TrialKind.MEMORY, 64, device),
        out_of_memory(2, 2048, device),
        out_of_memory(3, 1536, device, caught=True),
        sample(4, TrialKind.SPEED, 64, device),
        sample(
            5, TrialKind.SPEED, 512, device, outcome=Outcome.INTERRUPTED, samples_per_s=None, step_s=(), peak=None, exit_code=-2
        ),
    )
    return Record(
        folder=".brimful/20260725-172000-captcha",
        opened=opened(
            device=device, budget=device_budget(), machine=replace(machine(), accelerators=("NVIDIA GeForce RTX 3080",))
        ),
        trials=samples,
        memory=measured_belief(),
        closed=Closed(130, STARTED + 44.0, "interrupted"),
    )


def predict_record(batch_size: int = 1024, card: Gpu | None = None) -> Record:
    value = prediction(batch_size, card)
    device = Device("imaginary", f"{value.gpu.key} (imaginary)", value.gpu)
    return Record(
        folder=".brimful/20260725-172000-predict",
        opened=opened("predict", device, budget=value.budget, objective=None),
        trials=tuple(sample(i, TrialKind.TRACE, b, device) for i, b in enumerate((8, 16, 24), 1)),
        prediction=value,
        memory=memory_belief(value.gpu),
        closed=Closed(0 if value.verdict == "fits" else 3, STARTED + 8.4),
    )


def audit() -> Audit:
    return Audit(
        requested={"batch_size": 64},
        effective=Effective(loader_batch_size=2, batches_per_step=8.0, ranks=1, samples_per_step=16.0),
        findings=(
            Diagnostic(
                "hidden-cap",
                "64 samples were asked for with --batch-size, and the training loader gives 2",
                "Something between the flag and the DataLoader caps the batch size.",
                "Look for min(...) on the batch size; examples/traps/hidden_cap.py:31 is where the DataLoader is made.",
            ),
            Diagnostic(
                "hidden-accumulation",
                "8 batches go into each optimizer step",
                "Gradients are accumulated: a step sees 16 samples, neither 2 nor 64.",
                "Set the accumulation to 1, or count 16 as your batch size when you choose a learning rate.",
            ),
            Diagnostic(
                "loader-bound",
                "41 % of a step is waiting for data",
                "The device idles while one worker reads.",
                "--workers 4 should bring the wait under 5 % (measured: 31 ms a batch and worker).",
            ),
        ),
        loading_share=0.41,
        step_s=0.183,
        peak=peak_on_host(16),
        phases={"train": peak_on_host(16), "eval": peak_on_host(8)},
        not_seen=("encoding",),
    )


def audit_record() -> Record:
    return Record(
        folder=".brimful/20260725-172000-audit",
        opened=opened("audit", objective=None, budget=None),
        trials=(sample(1, TrialKind.AUDIT, 64),),
        audit=audit(),
        closed=Closed(0, STARTED + 12.0),
    )


def clean_audit_record() -> Record:
    clean = replace(
        audit(),
        effective=Effective(64, 1.0, 1, 64.0),
        findings=(),
        loading_share=0.02,
        not_seen=(),
        phases={"train": peak_on_host(64)},
    )
    return replace(audit_record(), audit=clean)


def failed_record() -> Record:
    """The script failed by itself in the first trial."""
    return Record(
        folder=".brimful/20260725-172000-captcha",
        opened=opened(),
        trials=(crashed(),),
        closed=Closed(5, STARTED + 3.1, "the command failed by itself in its first trial"),
    )


def torn_record() -> Record:
    """Killed in the middle: two trials, no end."""
    return Record(
        folder=".brimful/20260725-172000-captcha",
        opened=opened(),
        trials=tune_on_cpu().trials[:2],
        torn=True,
    )


def empty_record() -> Record:
    """Opened and nothing else."""
    return Record(
        folder=".brimful/20260725-172000-captcha",
        opened=opened(command=None, device=None, machine=None, budget=None, objective=None),
    )


HOSTILE = "<script>alert('x')</script>\"'&"


def hostile_record() -> Record:
    """Every string that comes from outside tries to break out of the page."""
    nasty = HOSTILE
    command = Command(argv=("python", nasty, "--batch-size", "{batch_size}"), given={"batch_size": nasty})
    base = tune_on_cpu()
    bad = crashed(1, nasty)
    bad = replace(
        bad,
        trial=replace(bad.trial, command=command, settings={"batch_size": nasty, nasty: nasty}, environment={nasty: nasty}),
        notes=(nasty,),
        phases={nasty: peak_on_host(8)},
    )
    card = replace(gpu(), name=nasty, key=nasty, total_bytes=Estimate(GIB, Source.ASSUMED, note=nasty))
    advice = Diagnostic(nasty, nasty, nasty, nasty)
    return replace(
        base,
        folder=nasty,
        opened=opened(
            device=Device("imaginary", nasty, card),
            command=command,
            brimful_argv=("brimful", "tune", nasty),
            record_id=nasty,
            machine=replace(machine(), hostname=nasty, cpu_name=nasty, accelerators=(nasty,)),
        ),
        trials=(bad, *base.trials),
        audit=replace(
            audit(), requested={nasty: nasty}, findings=(advice,), phases={nasty: peak_on_host(8)}, not_seen=(nasty,)
        ),
        plan=replace(
            plan(),
            command_line=f"python {nasty}",
            environment={nasty: nasty},
            settings=(PlannedSetting(nasty, nasty, nasty, nasty, Source.MEASURED),),
            warnings=(advice,),
        ),
        prediction=hostile_prediction(),
        notes=(advice,),
        closed=Closed(1, STARTED + 1, nasty),
    )


def hostile_prediction() -> Prediction:
    """Paths, lines of source, phases and failures come from the script."""
    nasty, said = HOSTILE, explained()
    assert said.breakdown is not None
    moment = Moment(nasty, nasty, nasty, nasty, nasty)
    share = ModuleShare(nasty, 3, {"activations": 3})
    bad = replace(said.breakdown, phase=nasty, modules=(share,), alike=(Alike(nasty, 2, 3),), moment=moment, grown=moment)
    what_if = WhatIf((Saving(nasty, nasty, nasty, Source.ESTIMATE, 3, 3, True, 3, nasty),), (NoSaving(nasty, nasty, nasty),))
    return replace(said, breakdown=bad, phase_breakdowns={nasty: bad}, what_if=what_if)


ALL = {
    "tune-cpu": tune_on_cpu,
    "tune-card": tune_on_card,
    "tune-failures": tune_with_failures,
    "predict-fits": predict_record,
    "predict-where": lambda: replace(predict_record(1600, gpu()), prediction=explained()),
    "predict-oom": lambda: predict_record(1600, gpu()),
    "audit": audit_record,
    "audit-clean": clean_audit_record,
    "failed": failed_record,
    "torn": torn_record,
    "empty": empty_record,
    "hostile": hostile_record,
}
