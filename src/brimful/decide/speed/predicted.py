"""Speed on a card where nothing was run: the time of a step at any batch size, the knee, and what
binds it.

Kernels come from traces (`kernels`), their times from the roofline
(`brimful_inside.simulator.roofline`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from brimful.decide.memory.intervals import (
    STEP_TIME,
    STEP_TIME_GROUPED,
    RelativeInterval,
    committed_evidence,
)
from brimful.decide.speed.kernels import KernelModel, ScaledKernels, StepKernels
from brimful.decide.speed.measured import TOLERANCE
from brimful.values import Estimate, Gpu, KernelShare, Point, PredictedSpeed, Source
from brimful_inside.simulator.roofline import (
    COLLECTIVE,
    DEFAULT,
    HOST,
    LINKS,
    PEER,
    SYNC,
    Efficiency,
    Kernel,
    Rates,
    Span,
    Step,
    Timed,
    dispatch_time,
    is_grouped,
    kernel_time,
    step_time,
)
from brimful_inside.simulator.trace import Outside

# How far the host that will dispatch may differ from the assumed one, either way (assumed:
# processors of servers and of desktops differ by that much in a single thread, and so do scripts in
# what they do between operations): 4.4 to 17.4 µs an operation reach over all that was measured
# (`Efficiency.plain_s`), and over one machine's two days.
HOSTS = (0.5, 1.0, 2.0)
# Wider on a card that is not the evidence's: how much of its peak a card reaches differs from one
# to the next (assumed; of five other cards in bench/results/clock-*.json the medians lie within
# this).
OTHER_CARD = 0.25

# What exchange between cards reaches of their links' rate, with each of HOSTS, in their order
# (assumed: NCCL's rings reach 70 to 85 % in large messages; cards that exchange through the host's
# memory, and small messages, half of that and less).
LINKS_REACHED = (0.9, 0.7, 0.3)
# What a network's products reach of what products of 8192 x 8192 do (assumed: 0.70 of the peak
# against 0.80 to 0.85).
OF_LARGE_SQUARES = 0.85
# of a step's time: from here on convolutions by groups decide how far a prediction may be off
GROUPED_SHARE = 0.05
TOP = 10
ROUNDING = 0.01  # of a step's samples: batches at the end of an epoch are smaller


def rates_of(gpu: Gpu) -> Rates | None:
    """The card's peaks at the clock that it holds, or what it reached where that was measured; None
    where only its memory is known."""
    known = gpu.bandwidth_bytes_per_s.source is not Source.ASSUMED
    reached = gpu.reached
    if not known and not ("bandwidth_bytes_per_s" in reached and "fp32_flops" in reached):
        return None

    clock = gpu.sustained_clock.value if gpu.sustained_clock else 1.0

    def rate(name: str, peak: Estimate | None) -> float | None:
        return reached.get(name) or (clock * peak.value if peak is not None and known else None)

    bandwidth = reached.get("bandwidth_bytes_per_s") or gpu.bandwidth_bytes_per_s.value
    fp32 = rate("fp32_flops", gpu.fp32_flops)
    tf32, fp16, bf16 = (rate(f"{kind}_flops", peak) for kind, peak in _tensor_peaks(gpu).items())
    assert bandwidth and fp32
    return Rates(bandwidth, fp32, tf32, fp16, bf16, gpu.multiprocessors, gpu.capability)


def _tensor_peaks(gpu: Gpu) -> dict[str, Estimate | None]:
    return {"tf32": gpu.tf32_flops, "fp16": gpu.fp16_flops, "bf16": gpu.bf16_flops}


def efficiency_of(gpu: Gpu) -> Efficiency:
    """What is reached of `rates_of`: all of what was measured to be reached, the fitted shares of a
    datasheet's peaks.
    """
    efficiency, reached = DEFAULT, gpu.reached
    if "bandwidth_bytes_per_s" in reached:
        efficiency = efficiency._replace(bandwidth=1.0)
    if "fp32_flops" in reached:
        efficiency = efficiency._replace(cuda_cores=1.0)
    if any(f"{kind}_flops" in reached for kind in _tensor_peaks(gpu)):
        efficiency = efficiency._replace(tensor_cores=OF_LARGE_SQUARES, halved=1.0)
    efficiency = efficiency._replace(
        **{name: reached[name] for name in ("kernel_s", "link_bytes_per_s") if name in reached}
    )
    if gpu.peer_bytes_per_s is not None:
        efficiency = efficiency._replace(peer_bytes_per_s=gpu.peer_bytes_per_s.value)
    if gpu.network_bytes_per_s is not None:
        efficiency = efficiency._replace(network_bytes_per_s=gpu.network_bytes_per_s.value)
    if "dispatch_s" in reached:
        efficiency = efficiency.with_host(reached["dispatch_s"] / DEFAULT.plain_s)
    return efficiency


def situation_of(step: StepKernels, times: Sequence[Timed]) -> str:
    """Which evidence speaks for a step."""
    grouped = sum(times[i].seconds for i in step.order if is_grouped(step.kernels[i]))
    return (
        STEP_TIME_GROUPED
        if grouped > GROUPED_SHARE * sum(times[i].seconds for i in step.order)
        else STEP_TIME
    )


def step_interval(gpu: Gpu, situation: str = STEP_TIME) -> RelativeInterval:
    """How far a predicted step time may be off, by the committed evidence."""
    benches = [bench for bench in committed_evidence() if bench.situation == situation]
    of_this_card = [bench for bench in benches if gpu.name in bench.hardware]
    best = max(of_this_card or benches, key=lambda bench: bench.count)
    basis = f"{best.basis} ({best.count} models, {best.hardware}, {best.date})"
    if of_this_card or "bandwidth_bytes_per_s" in gpu.reached:
        basis += "; by rates measured on this card" if gpu.reached else ""
        return RelativeInterval(best.low_error, best.high_error, basis)
    low = (1 + best.low_error) / (1 + OTHER_CARD) - 1
    high = (1 + best.high_error) * (1 + OTHER_CARD) - 1
    basis += f"; widened by {100 * OTHER_CARD:.0f} %: measured on another GPU"
    return RelativeInterval(low, high, basis)


@dataclass
class Clock:
    """Steps at batch sizes on one card, each computed once."""

    model: KernelModel | ScaledKernels
    rates: Rates
    efficiency: Efficiency

    def kernels(self, batch_size: int) -> tuple[StepKernels, list[Timed]]:
        step = self.model.at(batch_size)
        usual = self._reaching(LINKS_REACHED[1])
        return step, [kernel_time(kernel, self.rates, usual) for kernel in step.kernels]

    def steps(self, batch_size: int) -> list[Step]:
        """The step with each of `HOSTS`, and with as much of the links' rate; with the slowest
        nothing hides the exchange.
        """
        step, times = self.kernels(batch_size)
        kernels, ordered = [step.kernels[i] for i in step.order], [times[i] for i in step.order]
        exchange = [n for n, kernel in enumerate(kernels) if kernel.kind in (PEER, COLLECTIVE)]
        timed = []
        for factor, share in zip(HOSTS, LINKS_REACHED, strict=True):
            if exchange and factor > 1:
                kernels = [
                    kernel._replace(kind=PEER) if kernel.kind == COLLECTIVE else kernel
                    for kernel in kernels
                ]
            for n in exchange:
                ordered[n] = kernel_time(kernels[n], self.rates, self._reaching(share))
            timed.append(step_time(kernels, ordered, self.efficiency.with_host(factor)))
        return timed

    def spans(self, batch_size: int) -> tuple[Step, list[tuple[Kernel, Timed, Span]]]:
        """The usual step with all that ran in it, in order."""
        step, times = self.kernels(batch_size)
        kernels, ordered = [step.kernels[i] for i in step.order], [times[i] for i in step.order]
        spans: list[Span] = []
        whole = step_time(kernels, ordered, self.efficiency, spans)
        return whole, list(zip(kernels, ordered, spans, strict=True))

    def _reaching(self, share: float) -> Efficiency:
        return self.efficiency._replace(
            peer_bytes_per_s=self.efficiency.peer_bytes_per_s * share,
            network_bytes_per_s=self.efficiency.network_bytes_per_s * share,
        )


def predict_speed(
    model: KernelModel | ScaledKernels,
    gpu: Gpu,
    batch_size: int | None,
    largest: int | None,
    samples_at: Callable[[int], float] | None,
    notes: tuple[str, ...] = (),
    ranks: int = 1,
    draws: bool = True,
) -> PredictedSpeed | None:
    """The speed at `batch_size` (None: of the command as it stands) and the curve up to `largest`,
    the largest that fits.

    `samples_at`: samples in a step, by batch size; None where nobody knows them. Without `draws` no
    curve shows sizes that were not traced. None for a card without known rates.
    """
    rates = rates_of(gpu)
    if rates is None:
        return None
    clock = Clock(model, rates, efficiency_of(gpu))
    at = batch_size if batch_size is not None else model.fitted_at[0]
    interval = step_interval(gpu, situation_of(*clock.kernels(at)))
    steps = clock.steps(at)
    step, estimate = steps[1], _estimate([step.seconds for step in steps], interval)
    points, best, knees = (), None, []
    if (
        draws
        and largest is not None
        and batch_size is not None
        and samples_at is not None
        and len(model.fitted_at) > 1
    ):
        points, best, knees = _curve(clock, largest, batch_size, samples_at, interval)
    samples_per_s = None if samples_at is None else _rate(samples_at(at), estimate)
    seconds = [step.shares[LINKS] for step in steps]
    return PredictedSpeed(
        batch_size=batch_size,
        step_s=estimate,
        samples_per_s=samples_per_s,
        curve=points,
        best_batch_size=best,
        knee_batch_size=knees[1] if knees else None,
        knee_interval=(min(knees), max(knees)) if knees else None,
        tolerance=TOLERANCE,
        bound_by={name: seconds / step.seconds for name, seconds in step.shares.items()}
        if step.seconds
        else {},
        kernels=_top(clock, at, step.seconds),
        exact=model.exact,
        notes=notes,
        ranks=ranks,
        exchange=_exchange(gpu, steps),
        # a faster host hides less, so either end may come from any of the steps
        exposed=Estimate(seconds[1], Source.PREDICTED, min(seconds), max(seconds))
        if step.links_s
        else None,
    )


def seconds_outside(work: Outside, gpu: Gpu) -> Estimate | None:
    """Seconds of a sample of an evaluation, or from one pass over the training's data to the next,
    by a trace: what the card computes or what the host dispatches, where that is longer. None for a
    card without known rates, and where nothing ran."""
    rates, efficiency = rates_of(gpu), efficiency_of(gpu)
    if rates is None or not work.kernels:
        return None
    device_s = sum(
        times * kernel_time(kernel, rates, efficiency).seconds for times, kernel in work.kernels
    )
    host_s = sum(times * dispatch_time(kernel, efficiency) for times, kernel in work.kernels)
    each = [max(device_s, host_s * factor) / work.amount for factor in HOSTS]
    return replace(_estimate(each, step_interval(gpu)), note=None)


def _exchange(gpu: Gpu, steps: Sequence[Step]) -> Estimate | None:
    """Seconds of a step that its cards exchange bytes, also where other work hides it; None where
    none do.
    """
    fast, middle, slow = (step.links_s for step in steps)
    if not middle:
        return None
    link = (
        (gpu.peer_bytes_per_s.note or "").split(";")[0]
        if gpu.peer_bytes_per_s
        else "PCIe 3.0 x16, assumed"
    )
    if gpu.network_bytes_per_s is not None:
        link += f"; between machines {gpu.network_bytes_per_s.note}"
    return Estimate(middle, Source.PREDICTED, fast, slow, link)


def _curve(
    clock: Clock,
    largest: int,
    batch_size: int,
    samples_at: Callable[[int], float],
    interval: RelativeInterval,
) -> tuple[tuple[Point, ...], int, list[int]]:
    """(Samples per second by batch size, the fastest size, the knee with each of `HOSTS`)."""
    sizes = sizes_up_to(largest, {batch_size} if batch_size <= largest else ())
    samples = {size: samples_at(size) for size in sizes}
    steps = {size: [step.seconds for step in clock.steps(size)] for size in sizes}
    points = tuple(
        Point(size, _rate(samples[size], _estimate(steps[size], interval))) for size in sizes
    )
    rates = [
        {size: samples[size] / steps[size][host] for size in sizes} for host in range(len(HOSTS))
    ]
    best = max(sizes, key=lambda size: (rates[1][size], -size))
    knees = [
        min(size for size in sizes if of[size] >= max(of.values()) * (1 - TOLERANCE))
        for of in rates
    ]
    return points, best, knees


def _estimate(seconds: Sequence[float], interval: RelativeInterval) -> Estimate:
    """Seconds with each of `HOSTS`: what kernels take may be off by the evidence's interval, the
    host as they are.
    """
    fast, middle, slow = seconds
    ends = fast * (1 + interval.low), slow * (1 + interval.high)
    return Estimate(middle, Source.PREDICTED, *ends, interval.basis)


def _rate(samples: float, step: Estimate) -> Estimate:
    low = samples / step.high if step.high else None
    high = samples / step.low if step.low else None
    return Estimate(
        samples / step.value if step.value else 0.0, Source.PREDICTED, low, high, step.note
    )


def sizes_up_to(largest: int, also: Iterable[int] = ()) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, ... : powers of two and what lies half way between them, and the
    largest.
    """
    sizes, power = {1, largest} | set(also), 2
    while power <= largest:
        sizes |= {power, power * 3 // 2}
        power *= 2
    return sorted(size for size in sizes if size <= largest)


def _top(clock: Clock, batch_size: int, step_s: float) -> tuple[KernelShare, ...]:
    """The operations that take the card the longest, all calls of one together."""
    step, times = clock.kernels(batch_size)
    spent: dict[str, dict[str, float]] = {}
    for index in step.order:
        kernel, timed = step.kernels[index], times[index]
        if kernel.kind not in (SYNC, COLLECTIVE, HOST):
            # convolution_backward of aten.convolution_backward.default
            name = kernel.op.split(".")[1] if kernel.op.startswith("aten.") else kernel.op
            by_bound = spent.setdefault(name, {})
            by_bound[timed.bound] = by_bound.get(timed.bound, 0.0) + timed.seconds
    totals = sorted(spent.items(), key=lambda item: -sum(item[1].values()))[:TOP]
    return tuple(
        KernelShare(name, sum(parts.values()) / step_s, max(parts, key=lambda bound: parts[bound]))
        for name, parts in totals
    )


def is_of_a_fixed_total(counted: Mapping[int, float | None], batches: Mapping[int, float]) -> bool:
    """Whether as many batches make a step as come to the same samples at every batch size, up to a
    part of a batch.
    """
    sizes = sorted(
        size for size, samples in counted.items() if size and samples and size in batches
    )[:2]
    if len(sizes) < 2:
        return False
    small, large = sizes
    apart = abs((counted[small] or 0) - (counted[large] or 0))
    # A single batch may be all that the data set has, and no total at all.
    return batches[small] > batches[large] and apart < (large if batches[large] > 1 else large / 2)


def samples_by_size(counted: Mapping[int, float | None]) -> Callable[[int], float] | None:
    """Samples in a step by batch size, from what traces showed; None where they showed none.

    In proportion to the batch size, by the largest trace that shows it (a script may round, which
    is much of a small batch); from there on no more than the next larger trace showed: a script may
    cap its batch, and a data set ends.
    """
    known = {size: float(samples) for size, samples in sorted(counted.items()) if samples}
    if not known:
        return None
    first = min(known)
    each = {size: samples / size for size, samples in known.items() if size}
    last = max(
        (large for small, large in pairwise(each) if each[large] >= each[small] * (1 - ROUNDING)),
        default=first,
    )
    capped = {size: samples for size, samples in known.items() if size > last}

    def samples_at(size: int) -> float:
        if size in known:
            return known[size]
        beyond = [samples for at, samples in capped.items() if at >= size] or list(capped.values())[
            -1:
        ]
        return max(1.0, min([each[last] * size if first else known[first], *beyond[:1]]))

    return samples_at
