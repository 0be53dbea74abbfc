"""What records are made of, for tests of what people see: cards, samples, beliefs, plans. Plausible figures, none measured."""

from __future__ import annotations

from dataclasses import replace

from brimful.values import (
    Budget,
    Calibration,
    Command,
    Device,
    Diagnostic,
    Estimate,
    Failure,
    Gpu,
    KernelShare,
    Machine,
    MemoryEstimate,
    Objective,
    Opened,
    Outcome,
    PeakEstimate,
    PhasePeak,
    Plan,
    PlannedSetting,
    Point,
    PredictedSpeed,
    Prediction,
    Report,
    Source,
    SpeedEstimate,
    Trial,
    TrialKind,
    TrialResult,
    WorstBatch,
)

MIB = 2**20
GIB = 2**30
STARTED = 1_785_000_000.0  # 2026-07-25T17:20:00Z
COMMAND = Command(
    argv=("python", "examples/captcha/train.py", "--batch-size", "{batch_size}", "--workers", "2"),
    found_flags={"batch_size": "--batch-size"},
    given={"batch_size": 64},
)
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_TOP_PAD_": "268435456"}


def datasheet(value: float, note: str = "https://www.nvidia.com/en-us/geforce/graphics-cards/30-series/rtx-3080/") -> Estimate:
    return Estimate(value, Source.DATASHEET, note=note)


def gpu() -> Gpu:
    return Gpu(
        key="rtx3080-20gb",
        name="NVIDIA GeForce RTX 3080",
        total_bytes=Estimate(20_877 * MIB, Source.MEASURED, note="bench/data/gpu_memory: mem_get_info()[1]"),
        context_bytes=Estimate(
            1449 * MIB, Source.MEASURED, low=1440 * MIB, high=1890 * MIB, note="bench/data/gpu_memory, driver 535"
        ),
        capability=(8, 6),
        multiprocessors=68,
        bandwidth_bytes_per_s=datasheet(760e9),
        fp32_flops=datasheet(29.8e12),
        tf32_flops=datasheet(29.8e12),
        fp16_flops=datasheet(59.5e12),
        bf16_flops=datasheet(59.5e12),
    )


def a100() -> Gpu:
    sheet = "https://www.nvidia.com/en-us/data-center/a100/"
    return Gpu(
        key="a100-40gb",
        name="NVIDIA A100-PCIE-40GB",
        total_bytes=Estimate(40_326 * MIB, Source.DATASHEET, note=sheet),
        context_bytes=Estimate(480 * MIB, Source.ASSUMED, low=400 * MIB, high=700 * MIB, note="no one has measured it here"),
        capability=(8, 0),
        multiprocessors=108,
        bandwidth_bytes_per_s=datasheet(1555e9, sheet),
        fp32_flops=datasheet(19.5e12, sheet),
        tf32_flops=datasheet(156e12, sheet),
        fp16_flops=datasheet(312e12, sheet),
        bf16_flops=datasheet(312e12, sheet),
    )


def machine() -> Machine:
    return Machine(
        hostname="anvil",
        system="Linux 6.1.0-18-amd64 x86_64",
        cpu_name="Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
        cores=2,
        host_total_bytes=24 * GIB,
        host_free_bytes=21 * GIB,
        cgroup_limit_bytes=16 * GIB,
        shm_bytes=64 * MIB,
        python_version="3.11.7",
        brimful_version="0.1.0",
        accelerators=(),
    )


def opened(verb: str = "tune", device: Device | None = None, **changes: object) -> Opened:
    value = Opened(
        schema=1,
        record_id="20260725-172000-captcha",
        verb=verb,
        brimful_argv=("brimful", verb, "--", *COMMAND.argv),
        command=COMMAND,
        device=device or Device("cpu", "cpu"),
        machine=machine(),
        started_unix_s=STARTED,
        budget=host_budget(),
        objective=Objective.FASTEST,
    )
    return replace(value, **changes)


def host_budget() -> Budget:
    return Budget(
        bytes=int(0.9 * 15.2 * GIB),
        total_bytes=16 * GIB,
        free_bytes=int(15.2 * GIB),
        memory="host",
        why="90 % of 15.2 GiB free (the cgroup's limit of 16.0 GiB is the smaller)",
    )


def device_budget(card: Gpu | None = None) -> Budget:
    total = int((card or gpu()).total_bytes.value)
    return Budget(int(0.9 * total), total, total, "device", f"90 % of {total / GIB:.1f} GiB free")


def peak_on_card(batch_size: int, context_bytes: int = 1449 * MIB) -> PhasePeak:
    allocated = 310 * MIB + int(13.4 * MIB * batch_size)
    reserved = (allocated * 104 // 100) // (2 * MIB) * (2 * MIB)
    return PhasePeak(allocated, reserved, reserved + context_bytes, None)


def peak_on_host(batch_size: int) -> PhasePeak:
    return PhasePeak(None, None, None, 640 * MIB + int(21.7 * MIB * batch_size), host_is_true=True)


def third_of(peak: PhasePeak) -> PhasePeak:
    """What an evaluation needs of it."""
    numbers = (peak.allocated_bytes, peak.reserved_bytes, peak.device_bytes, peak.host_bytes)
    allocated, reserved, device, host = (None if n is None else n // 3 for n in numbers)
    return replace(peak, allocated_bytes=allocated, reserved_bytes=reserved, device_bytes=device, host_bytes=host)


def report(device: str = "cpu", **changes: object) -> Report:
    value = Report(
        rank=0,
        local_rank=0,
        world_size=1,
        device=device,
        device_name=None,
        device_total_bytes=None,
        torch_version="2.13.0+cpu",
        ended="steps_done",
        steps=4,
        warmup_steps=1,
        step_s=[0.201, 0.203, 0.202],
        loading_s=[0.004, 0.003, 0.004],
        micro_batches_per_step=[1, 1, 1],
        samples_per_step=[64, 64, 64],
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
    return replace(value, **changes)


def sample(number: int, kind: TrialKind, batch_size: int, device: Device | None = None, **changes: object) -> TrialResult:
    """A trial that completed, on the CPU or on an imaginary card."""
    device = device or Device("cpu", "cpu")
    on_card = device.kind != "cpu"
    timed = kind in (TrialKind.SPEED, TrialKind.AUDIT) and device.kind != "imaginary"
    peak = peak_on_card(batch_size) if on_card else replace(peak_on_host(batch_size), host_is_true=kind is not TrialKind.SPEED)
    step_s = (batch_size / 316.0 + 0.012) if timed else 0.0
    value = TrialResult(
        trial=Trial(COMMAND, {"batch_size": batch_size}, device, kind),
        outcome=Outcome.COMPLETED,
        reports=(report("imaginary" if on_card else "cpu"),),
        phases={"train": peak, "eval": third_of(peak)},
        peak=peak,
        samples_per_step=batch_size,
        step_s=(step_s, step_s * 1.01, step_s * 0.99) if timed else (),
        samples_per_s=batch_size / step_s if timed else None,
        loading_share=0.02 if timed else None,
        duration_s=4.2 + 0.03 * batch_size,
        folder=f"trial-{number:03d}",
        exit_code=0,
    )
    return replace(value, **changes)


def out_of_memory(number: int, batch_size: int, device: Device, caught: bool = False) -> TrialResult:
    failure = Failure(
        kind="out_of_device_memory",
        type="torch.OutOfMemoryError",
        message="CUDA out of memory. Tried to allocate 1.17 GiB. GPU 0 has a total capacity of 20.39 GiB, 902 MiB of it free.",
        traceback='Traceback (most recent call last):\n  File "train.py", line 61, in <module>\n    loss.backward()\n',
        where="train.py:61 in <module>",
        phase="train",
        step=0,
        caught=caught,
    )
    return sample(
        number, TrialKind.MEMORY, batch_size, device, outcome=Outcome.OUT_OF_DEVICE_MEMORY, failure=failure, exit_code=1
    )


def crashed(
    number: int = 1, message: str = "mat1 and mat2 shapes cannot be multiplied (64x17920 and 17921x1024)"
) -> TrialResult:
    failure = Failure(
        kind="crashed",
        type="RuntimeError",
        message=message,
        traceback=(
            'Traceback (most recent call last):\n  File "examples/captcha/train.py", line 98, in <module>\n    main()\n'
            f'  File "examples/captcha/train.py", line 77, in main\n    loss = model(images)\nRuntimeError: {message}\n'
        ),
        where="examples/captcha/train.py:77 in main",
        phase="train",
        step=0,
        caught=False,
    )
    return sample(
        number, TrialKind.MEMORY, 64, outcome=Outcome.CRASHED, failure=failure, exit_code=1, peak=None, phases={}, reports=()
    )


def memory_belief(card: Gpu | None = None) -> MemoryEstimate:
    sizes = (1, 16, 64, 256, 512, 640, 800, 1024) if card is None else (1, 64, 256, 512, 1024, 1216, 1500, 2048, 2900)
    if card is not None:
        context = int(card.context_bytes.value)
        limit = device_budget(card).bytes
        curve = tuple(
            Point(
                b, Estimate(p.device_bytes or 0, Source.PREDICTED, (p.device_bytes or 0) * 0.985, (p.device_bytes or 0) * 1.03)
            )
            for b in sizes
            for p in (peak_on_card(b, context),)
        )
        probes = tuple(
            Point(b, Estimate(peak_on_card(b, context).device_bytes or 0, Source.PREDICTED, note="trace"))
            for b in (8, 16, 24, 512)
        )
        largest = max(b for b in range(1, 4000) if (peak_on_card(b, context).device_bytes or 0) * 1.03 <= limit)
        return MemoryEstimate("device", "extrapolated", True, None, None, None, curve, probes, largest, "budget")
    limit = host_budget().bytes
    curve = tuple(
        Point(b, Estimate(v, Source.PREDICTED, v - 8 * MIB - 0.02 * v * b / 512, v + 8 * MIB + 0.02 * v * b / 512))
        for b in sizes
        for v in (float(peak_on_host(b).host_bytes or 0),)
    )
    probes = tuple(Point(b, Estimate(peak_on_host(b).host_bytes or 0, Source.MEASURED)) for b in (8, 16, 64, 512))
    largest = max(b for b in range(1, 1000) if (peak_on_host(b).host_bytes or 0) * (1.0 + 0.02 * b / 512) + 8 * MIB <= limit)
    return MemoryEstimate("host", "peaks", False, 640.0 * MIB, 21.7 * MIB, 0.0, curve, probes, largest, "budget")


def measured_belief() -> MemoryEstimate:
    """Of a real card: a curve through measured peaks, its interval growing beyond them."""
    probes = tuple(Point(b, Estimate(peak_on_card(b).device_bytes or 0, Source.MEASURED)) for b in (8, 16, 64))
    curve = tuple(
        Point(b, Estimate(v, Source.PREDICTED, v * (1 - 0.0001 * b), v * (1 + 0.0001 * b)))
        for b in (1, 64, 256, 512, 1024, 1400)
        for v in (float(peak_on_card(b).device_bytes or 0),)
    )
    largest = max(b for b in range(1, 1400) if (peak_on_card(b).device_bytes or 0) * (1 + 0.0001 * b) <= device_budget().bytes)
    return MemoryEstimate("device", "peaks", False, 1759.0 * MIB, 13.9 * MIB, 0.0, curve, probes, largest, "budget")


def speed_belief() -> SpeedEstimate:
    speeds = {8: 213.2, 16: 261.0, 32: 291.4, 48: 307.9, 64: 309.0, 128: 312.2, 256: 311.5}
    points = tuple(
        Point(b, Estimate(v, Source.MEASURED, v * 0.985, v * 1.015, note="3 steps, 2 repeats")) for b, v in speeds.items()
    )
    return SpeedEstimate(points, best_batch_size=128, knee_batch_size=48, noise=0.012, tolerance=0.03)


def plan() -> Plan:
    return Plan(
        objective=Objective.FASTEST,
        settings=(
            PlannedSetting(
                "batch_size", 64, 48, "the smallest within 3 % of the fastest (128: 312 samples/s)", Source.MEASURED
            ),
            PlannedSetting(
                "environment.malloc", None, "keep freed memory", "1.41 × faster at batch size 48, measured", Source.MEASURED
            ),
            PlannedSetting("num_workers", 2, 2, "left as it was: waiting for data is 2 % of a step", Source.MEASURED),
        ),
        environment=MALLOC,
        command_line=" ".join(f"{k}={v}" for k, v in MALLOC.items())
        + " python examples/captcha/train.py --batch-size 48 --workers 2",
        verified=True,
        trials=12,
        out_of_memory_trials=0,
        peak_bytes=Estimate(peak_on_host(48).host_bytes or 0, Source.MEASURED),
        samples_per_s=Estimate(307.9, Source.MEASURED, 303.3, 312.5, note="3 steps, 2 repeats"),
        baseline_samples_per_s=Estimate(218.4, Source.MEASURED, 214.0, 222.8, note="3 steps, 2 repeats"),
        warnings=(
            Diagnostic(
                "memory-idle",
                "the peak is 1.6 GiB of a budget of 13.7 GiB",
                "Memory is left over. Fullness is not a goal: a larger batch was measured and is not faster.",
                "Nothing, unless you want a larger batch for its gradients; then --objective largest.",
            ),
        ),
    )


def phase_estimate(batch_size: int, card: Gpu, share: float = 1.0) -> PeakEstimate:
    peak = peak_on_card(batch_size, int(card.context_bytes.value))
    allocated, reserved = int((peak.allocated_bytes or 0) * share), int((peak.reserved_bytes or 0) * share)
    device = reserved + int(card.context_bytes.value)
    return PeakEstimate(
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=device,
        device_interval_bytes=(int(device * 0.985), int(device * 1.03)),
        source=Source.PREDICTED,
        interval_basis="bench/results/predict-mlp.json: 60 rows, 95 % of errors within -1.5 % and +3.0 %",
    )


def prediction(batch_size: int = 1024, card: Gpu | None = None) -> Prediction:
    card = card or a100()
    budget = device_budget(card)
    peak = phase_estimate(batch_size, card)
    largest = max(b for b in range(1, 8192) if phase_estimate(b, card).device_interval_bytes[1] <= budget.bytes)
    fits = peak.device_interval_bytes[1] <= budget.bytes
    return Prediction(
        verdict="fits" if fits else "out_of_memory",
        batch_size=batch_size,
        peak=peak,
        phases={
            "train": peak,
            "encoding": phase_estimate(batch_size, card, 0.2),
            "eval": phase_estimate(batch_size, card, 0.31),
        },
        not_seen=("test",),
        largest_batch_size=largest,
        limited_by="budget",
        gpu=card,
        budget=budget,
        method="extrapolated",
        exact=True,
        seconds=8.4,
        approximations={"nonzero": 2},
        worst_batch=WorstBatch(2000, 2000, True, "sentence lengths run from 5 to 500; the 16 longest samples were taken"),
        warnings=(
            Diagnostic(
                "assumed-context",
                f"nobody has measured the CUDA context of {card.name}",
                "The device peak may be off by some 200 MiB either way; the interval contains that.",
                "Run `brimful doctor` on such a card and send the number.",
            ),
        ),
    )


def calibration() -> Calibration:
    stages = {"bare": 480, "tensor": 490, "cublas": 540, "training": 610, "cudnn": 850}
    return Calibration(
        name="NVIDIA H200",
        capability=(9, 0),
        multiprocessors=132,
        total_bytes=150_109_945_856,
        context_bytes=610 << 20,
        cudnn_bytes=240 << 20,
        stages_bytes={name: mib << 20 for name, mib in stages.items()},
        others_bytes=0,
        rates={
            "bandwidth_bytes_per_s": 4.1e12,
            "link_bytes_per_s": 6.3e9,
            "bf16_flops": 7.1e14,
            "kernel_s": 1.9e-6,
            "dispatch_s": 4.4e-6,
        },
        versions={"torch": "2.13.0", "cuda": "13.0", "cudnn": 91300, "driver": "580.65.06"},
        hostname="box",
        date="2026-11-20",
    )


def predicted_speed(batch_size: int | None = 1024, largest: int = 5543) -> PredictedSpeed:
    """A step of 4 ms and 0.9 ms a sample on a card where nothing was run."""

    def rate(size: int) -> Estimate:
        value = size / (0.004 + 0.0009 * size)
        return Estimate(value, Source.PREDICTED, value / 1.4, value * 1.3, "timm's benchmark (64 models, one RTX 3090)")

    sizes = [1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096, largest]
    at = batch_size or 64
    step = 0.004 + 0.0009 * at
    return PredictedSpeed(
        batch_size=batch_size,
        step_s=Estimate(step, Source.PREDICTED, step / 1.3, step * 1.4, "timm's benchmark (64 models, one RTX 3090)"),
        samples_per_s=rate(at),
        share_of_best=0.99,
        curve=tuple(Point(size, rate(size)) for size in sizes) if batch_size else (),
        best_batch_size=largest if batch_size else None,
        knee_batch_size=192 if batch_size else None,
        knee_interval=(96, 256) if batch_size else None,
        tolerance=0.03,
        bound_by={"compute": 0.2, "bandwidth": 0.71, "launches": 0.085, "transfer": 0.005},
        kernels=(KernelShare("convolution_backward", 0.4, "bandwidth"), KernelShare("native_batch_norm", 0.2, "bandwidth")),
        exact=True,
        notes=("the model was run as it is; compiled, it is faster as a rule",),
    )
