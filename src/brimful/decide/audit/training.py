"""Findings about the learning rate, memory, and how a training uses its card."""

from brimful.decide.audit.observed import Observed, Texts, replacement
from brimful.decide.loaders_seen import steps_of_an_epoch
from brimful.decide.memory.leaks import growths, memory_that_grows
from brimful.units import counted, format_bytes, format_share
from brimful_inside.simulator.allocator_settings import KEYS_SINCE, NAMES
from brimful_inside.simulator.workspaces import torch_release

IDLE_SHARE = 0.50  # of the budget
RATE_TOLERANCE = 0.01  # learning rates closer than this are the same
# compute capabilities whose tensor cores have bf16 and TF32, and fp16 alone
BF16_FROM, FP16_FROM = [8, 0], [7, 0]
FLOAT32_KINDS = "fp32", "tf32"  # in which a card computes products of float32


def learning_rate(observed: Observed) -> Texts:
    """The requested learning rate is neither what a group of the optimizer was made with, nor where
    its schedule goes.

    A schedule (warm-up, decay, one cycle) is no finding, as the scheduler keeps the constructor's
    rate; nor is a rate that a script moves by hand.
    """
    value = observed.learning_rate
    if (
        value is None
        or not observed.report.optimizers
        or any(optimizer.relative_steps for optimizer in observed.report.optimizers)
    ):
        return None
    in_force: list[float] = []
    for optimizer in observed.report.optimizers:
        meant = optimizer.initial_learning_rates + optimizer.max_learning_rates
        if not meant and optimizer.first_learning_rates != optimizer.learning_rates:
            return None  # set by hand
        in_force += meant or optimizer.first_learning_rates
    same = [r for r in in_force if abs(r - value) <= RATE_TOLERANCE * max(abs(r), abs(value))]
    if not in_force or same:
        return None
    replaced, asked = observed.replaced("lr"), observed.script.get("lr")
    if replaced is not None:
        return replacement(replaced, "learning rate", "the steps are not of the size asked for.")
    if asked is not None and max(in_force) < value:
        return None  # a schedule by hand may be warming up
    # of a cycle, where it goes: it begins anywhere
    goes_to = [r for optimizer in observed.report.optimizers for r in optimizer.max_learning_rates]
    closest = min(goes_to or in_force, key=lambda rate: abs(rate - value))
    where = f" ({asked.place})" if asked is not None and asked.place else ""
    factor = f", {closest / value:.3g} times as much" if value else ""
    return (
        f"You asked for a learning rate of {value:g}{where}, and {closest:g} is in force{factor}.",
        "Something scales or replaces it before the optimizer sees it (by the batch size, or the "
        "number of processes, say).",
        f"Look where the optimizer is made; ask for what gives {value:g}, or note that "
        f"{closest:g} is what you train with.",
    )


def ignored_learning_rate(observed: Observed) -> Texts:
    """A learning rate was asked for, or given to the optimizer, which takes relative steps
    (Adafactor's default in most packages).
    """
    relative = next(
        (optimizer for optimizer in observed.report.optimizers if optimizer.relative_steps), None
    )
    if relative is None:
        return None
    asked = observed.learning_rate
    value = relative.made_with if asked is None else asked
    if value is None:
        return None
    return (
        f"{relative.name} ignores the learning rate of {value:g}: it takes relative steps.",
        "Its steps follow from their number (at most 0.01, falling with 1/√step) and the size of "
        "the parameters; every learning rate that you ask for trains alike.",
        "Make it with relative_step=False for the learning rate to be in force, or leave the "
        "flag out.",
    )


def does_not_fit(observed: Observed) -> Texts:
    """On a card, the peak is over what may be used."""
    peak, budget = observed.sample.peak, observed.budget
    if peak is None or budget is None or budget.memory != "device":
        return None
    device_bytes = peak.device_bytes or 0
    if device_bytes <= budget.bytes:
        return None
    tensors = peak.allocated_bytes or 0
    if device_bytes - (peak.reserved_bytes or 0) + tensors <= budget.bytes:
        return (
            f"Without a limit the peak is {format_bytes(device_bytes)}, of which tensors take "
            f"{format_bytes(tensors)}; {format_bytes(budget.bytes)} may be used.",
            "PyTorch gives back what it reserves beyond tensors before it fails: the command may "
            "still run, in slower steps.",
            "Ask brimful predict whether it fits, and for the largest batch size that does.",
        )
    return (
        f"The peak is {format_bytes(device_bytes)}, {format_bytes(device_bytes - budget.bytes)} "
        f"more than the {format_bytes(budget.bytes)} that may be used.",
        "The command runs out of memory on this card.",
        "Ask brimful predict for the largest batch size that fits.",
    )


def memory_idle(observed: Observed) -> Texts:
    """On a card, the peak is under half of what may be used, and the data set has room for a larger
    batch.
    """
    peak, budget = observed.sample.peak, observed.budget
    device_bytes = (peak.device_bytes if peak else None) or 0
    given, length = observed.given, observed.length
    is_whole = length is not None and given is not None and given >= length
    if (
        budget is None
        or budget.memory != "device"
        or is_whole
        or not 0 < device_bytes < IDLE_SHARE * budget.bytes
    ):
        return None
    return (
        f"The peak is {format_bytes(device_bytes)}, {format_share(device_bytes / budget.bytes)} of "
        f"the {format_bytes(budget.bytes)} that may be used.",
        "There is room for a larger batch. A full card is not a goal in itself: a larger batch "
        "is often no faster.",
        "Measure whether it helps: brimful tune.",
    )


def memory_grows(observed: Observed) -> Texts:
    """On an imaginary card, each step or each batch of the evaluation leaves so much memory behind
    that it matters.
    """
    peak = observed.sample.peak
    if peak is None or not peak.device_bytes:
        return None
    steps = observed.report.steps, steps_of_an_epoch(observed.sample)
    budget = None if observed.budget is None else observed.budget.bytes
    problems = [
        (warning.problem, warning.explanation, warning.suggestion)
        for growth in growths(observed.report.growth, steps)
        if (warning := memory_that_grows(growth, peak.device_bytes, budget))
    ]
    if not problems:
        return None
    problem, explanation, suggestion = (
        f"{text[:1].upper()}{text[1:]}." for text in map("; ".join, zip(*problems, strict=True))
    )
    return problem, explanation, suggestion


def ignored_setting(observed: Observed) -> Texts:
    """The environment has a variable or key for the allocator that this release of PyTorch does not
    read.
    """
    torch = observed.report.torch_version
    for name in observed.report.ignored_settings:
        if since := KEYS_SINCE.get(name):
            newer = f"torch {since // 100}.{since % 100} or newer"
            return (
                f"torch {torch} does not know the allocator's setting {name}.",
                f"It is one of {newer}; this release refuses it when the card is first used.",
                f"Leave it out, or use {newer}.",
            )
        if torch_release(torch) < NAMES[name]:
            return (
                f"torch {torch} ignores {name}.",
                "Its CUDA allocator reads PYTORCH_CUDA_ALLOC_CONF alone, until torch 2.10, though "
                "2.9 warns of that name: what is set is not in force, nor in the peak.",
                "Set PYTORCH_CUDA_ALLOC_CONF, which every release reads.",
            )
        return (
            f"{name} is ignored: PYTORCH_CUDA_ALLOC_CONF is set as well.",
            "PyTorch reads the older name first, and no other then, even where it is empty.",
            "Unset one of the two.",
        )
    return None


def full_precision(observed: Observed) -> Texts:
    """Weights are float32, autocast and TF32 are off, and the card has tensor cores. Convolutions
    and cuDNN's recurrent networks use TF32 by default: where most arithmetic is theirs (on a real
    card: most trained weights are the convolutions'), there is no finding."""
    precision = observed.report.precision
    if (
        precision is None
        or precision.capability < FP16_FROM
        or precision.weights != ["float32"]
        or precision.autocast
        or precision.tf32
    ):
        return None
    bf16 = precision.capability >= BF16_FROM
    flops = {
        kind: sum(k.flops for k in observed.kernels if k.kind == kind) for kind in FLOAT32_KINDS
    }
    in_tf32 = precision.convolutions if bf16 else 0.0
    if sum(flops.values()):
        in_tf32 = flops["tf32"] / sum(flops.values())
    if in_tf32 > 0.5:
        return None
    gpu = observed.sample.trial.device.gpu
    fast = (gpu.bf16_flops if bf16 else gpu.fp16_flops) if gpu is not None else None
    rates = ""
    if gpu is not None and fast is not None:
        rates = (
            f" The card's are {fast.value / gpu.fp32_flops.value:.0f} times as fast as its "
            f"float32 ({fast.source})."
        )
    suggestion = (
        'torch.set_float32_matmul_precision("high") (TF32), or torch.autocast("cuda", '
        "torch.bfloat16)"
    )
    if not bf16:
        suggestion = 'torch.autocast("cuda", torch.float16) with a torch.amp.GradScaler'
    return (
        "Matrix products are computed in float32, without autocast"
        + (" or TF32." if bf16 else "."),
        f"They do not use the card's tensor cores.{rates} Small models, which wait for launches, "
        "gain little.",
        f"Try {suggestion}, and compare the losses.",
    )


def frequent_reads(observed: Observed) -> Texts:
    """The script reads values of the card (`loss.item()`) more than once a step."""
    steps = observed.report.steps
    lines = (
        {where: round(count / steps) for where, count in observed.report.device_reads.items()}
        if steps
        else {}
    )
    lines = {where: count for where, count in lines.items() if count}
    if sum(lines.values()) < 2:
        return None
    shown = ", ".join(
        f"{where} ({count} times)" if count > 1 else where
        for where, count in list(lines.items())[:4]
    )
    return (
        f"Each step reads {counted(sum(lines.values()), 'value')} from the card: {shown}.",
        "Each read (item(), float(), tolist()) waits until the card has done all that came "
        "before, and then the card waits for "
        "the next launches.",
        "Keep sums on the card (total += loss.detach()), and read them every so many steps.",
        next(iter(lines)),
    )
