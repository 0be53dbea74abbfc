"""What else is used to guess a training's memory, asked of the same jobs: three peers, none of
which needs a GPU.

    naive        fake-tensor arithmetic: parameters, gradients, the optimizer's states, and the
    outputs of all leaf modules mem_tracker  torch.distributed._tools.mem_tracker.MemTracker over
    two steps on fake tensors of the CPU (fake CUDA tensors
                 fail in backward where no GPU is), the optimizer with foreach as on a card
    accelerate   the "Training using Adam" of `accelerate estimate-memory`: it knows no batch

Each answers in bytes of tensors. What the card shows beside them is fitted for each peer apart, so
that none is blamed for a constant. Needs torch; accelerate's row is left out where that is not
installed.
"""

from __future__ import annotations

import copy
import itertools
import random
import statistics
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from bench import accuracy
from bench.harness import MIB, say


@dataclass(frozen=True)
class Job:
    """A training. `states` is how many tensors the optimizer keeps a parameter."""

    model: nn.Module  # on any device; each peer takes a copy of fake tensors
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    states: int
    # inputs and targets for cross-entropy, by batch size
    batch: Callable[[int], tuple[torch.Tensor, torch.Tensor]]


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Of tensors without storage in common."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def faked(model: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers are tensors of the mode in force, on the CPU, and nothing
    of the data is copied.
    """
    made: dict[int, Any] = {}
    for tensor in [*model.parameters(), *model.buffers()]:
        empty = torch.empty_strided(
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu"
        )
        is_parameter = isinstance(tensor, nn.Parameter)
        made[id(tensor)] = (
            nn.Parameter(empty, requires_grad=tensor.requires_grad) if is_parameter else empty
        )
    return copy.deepcopy(model, made)


def naive(job: Job, batch_size: int) -> int:
    """Parameters (2 + states) times, buffers, the batch, and what every leaf module gives in a
    forward pass.
    """
    given: list[int] = []

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        parts = output if isinstance(output, (tuple, list)) else [output]
        given.append(bytes_of(part for part in parts if isinstance(part, torch.Tensor)))

    with FakeTensorMode():
        model, (inputs, targets) = faked(job.model), job.batch(batch_size)
        for module in model.modules():
            if not list(module.children()):
                module.register_forward_hook(note)
        model(inputs)
        weights = (2 + job.states) * bytes_of(p for p in model.parameters() if p.requires_grad)
        return weights + bytes_of(model.buffers()) + bytes_of([inputs, targets]) + sum(given)


def mem_tracker(job: Job, batch_size: int) -> int:
    """The peak of two steps by PyTorch's own tracker."""
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        model = faked(job.model)
        optimizer = job.optimizer(model.parameters())
        for group in optimizer.param_groups:
            group["foreach"] = True
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for step in range(2):
                inputs, targets = job.batch(batch_size)
                nn.functional.cross_entropy(model(inputs), targets).backward()
                optimizer.step()
                optimizer.zero_grad()
                if step == 0:
                    tracker.reset_mod_stats()
        return sum(of["Total"] for of in tracker.get_tracker_snapshot("peak").values())


def accelerate(job: Job, batch_size: int) -> int:
    """What the command's own functions give for fp32. Raises ImportError where accelerate is not
    installed.
    """
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    size, _ = calculate_maximum_sizes(job.model)
    return max(estimate_training_usage(size, "float32").values())


PEERS: dict[str, Callable[[Job, int], int]] = {
    "naive": naive,
    "mem_tracker": mem_tracker,
    "accelerate": accelerate,
}


@dataclass(frozen=True)
class Said:
    """A peer's answer: bytes, or None with its error's words; and the seconds that it took."""

    nbytes: int | None
    seconds: float
    error: str | None = None


def ask(job: Job, batch_size: int, peers: Iterable[str] = tuple(PEERS)) -> dict[str, Said]:
    """What each peer says, and how long it takes for that."""
    return {name: _ask(PEERS[name], job, batch_size) for name in peers}


def _ask(peer: Callable[[Job, int], int], job: Job, batch_size: int) -> Said:
    begun, nbytes, result = time.perf_counter(), None, None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nbytes = peer(job, batch_size)
    except Exception as error:  # in any way, on any model: the row says so, and it is no answer
        result = f"{type(error).__name__}: {error}"[:200]
    return Said(nbytes, time.perf_counter() - begun, result)


def mlp_job(row: Mapping[str, str]) -> Job:
    """The training of bench/scripts/mlp.py for a measured row."""
    from bench.scripts.mlp import widths

    inside, outside, depth = int(row["input_size"]), int(row["output_size"]), int(row["depth"])

    sizes = [inside, *widths(row["architecture"], inside, outside, depth)]
    with torch.device("meta"):
        layers = [
            part for pair in itertools.pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())
        ]
        model = nn.Sequential(*layers, nn.Linear(sizes[-1], outside))

    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(size, inside), torch.randint(0, outside, (size,))

    return Job(model, torch.optim.Adam, 2, batch)


def timm_job(name: str) -> Job:
    """The training of bench/scripts/timm_train.py for a model of timm (made on the host, for many
    cannot be made elsewhere).
    """
    import timm

    model = timm.create_model(name, pretrained=False)
    shape, classes = model.default_cfg["input_size"], max(1, model.num_classes)

    def batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(size, *shape), torch.randint(0, classes, (size,))

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True)

    return Job(model, optimizer, 1, batch)


@dataclass(frozen=True)
class Answer:
    """A measured row and what the peers say of it, in bytes. `fitted`: it is one that constants are
    fitted on.
    """

    measured_device_bytes: int
    said: Mapping[str, Said]
    fitted: bool
    model: str = ""  # rows of one model give a slope
    batch_size: int = 0

    def bytes_by(self, peer: str) -> int | None:
        return self.said[peer].nbytes if peer in self.said else None


def mlp_answers(rows: Sequence[Mapping[str, Any]], fitted: Collection[int]) -> list[Answer]:
    """What the peers say of measured MLPs; `fitted` are the numbers of the rows that constants are
    fitted on.
    """
    return [
        Answer(
            int(row["device_peak_mib"]) * MIB,
            ask(mlp_job(row), int(row["batch_size"])),
            number in fitted,
        )
        for number, row in enumerate(rows)
    ]


def timm_answers(
    measured: Mapping[str, Mapping[int, int]],
    examined: Collection[str],
    models: int = 40,
    tracked: int = 8,
    seed: int = 0,
) -> list[Answer]:
    """What the peers say of measured image models (MiB by model and batch size), half of them from
    `examined`, to fit on.

    MemTracker needs half a minute for a row and is asked of `tracked` models alone, at their
    smallest and largest size.
    """
    draw = random.Random(seed)
    sides = [
        sorted(name for name in measured if (name in examined) is wanted)
        for wanted in (True, False)
    ]
    answers = []
    for names in sides:
        for number, name in enumerate(draw.sample(names, min(models // 2, len(names)))):
            job, sizes = timm_job(name), measured[name]
            for size, mib in sizes.items():
                follow = number < tracked // 2 and size in (min(sizes), max(sizes))
                peers = [peer for peer in PEERS if follow or peer != "mem_tracker"]
                answers.append(
                    Answer(mib * MIB, ask(job, size, peers), name in examined, name, size)
                )
            say(f"peers: {name}")
    return answers


def figures(answers: Sequence[Answer]) -> dict[str, Any]:
    """By peer: accuracy on the rows that judge, under a constant of its own from the rows to fit
    on, and the slopes' error.
    """
    by_peer = {}
    for peer in PEERS:
        pairs = [
            (accuracy.Pair(a.measured_device_bytes, nbytes), a)
            for a in answers
            if (nbytes := a.bytes_by(peer)) is not None
        ]
        to_fit, to_judge = (
            [pair for pair, answer in pairs if answer.fitted is fitted] for fitted in (True, False)
        )
        if to_fit and to_judge:
            constant = accuracy.context_bytes(to_fit)
            slope = slope_error([answer for _, answer in pairs if not answer.fitted], peer)
            by_peer[peer] = {
                "context_bytes": constant,
                **accuracy.accuracy(to_judge, constant),
                "slope_median_absolute": slope,
                "seconds_per_prediction": statistics.median(a.said[peer].seconds for _, a in pairs),
                "failed": sum(peer in a.said and a.bytes_by(peer) is None for a in answers),
            }
    return by_peer


def slope_error(answers: Sequence[Answer], peer: str) -> float | None:
    """The median over models of the absolute error of bytes per added sample."""
    errors = []
    for model in sorted({answer.model for answer in answers if answer.model}):
        of = [
            (a.batch_size, a.measured_device_bytes, n)
            for a in answers
            if a.model == model and (n := a.bytes_by(peer)) is not None
        ]
        (_, measured, said), (_, more_measured, more_said) = (
            (min(of), max(of)) if of else ((0, 0, 0), (0, 0, 0))
        )
        if more_measured > measured:
            errors.append(abs((more_said - said) / (more_measured - measured) - 1))
    return statistics.median(errors) if errors else None
