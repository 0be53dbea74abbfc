"""Random small trainings, and what they do on an imaginary card in this process."""

import contextlib
import io
from dataclasses import dataclass
from functools import lru_cache

import torch
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from brimful.decide.memory.search_traced import Traced
from brimful.values import Outcome
from brimful_inside import imaginary
from brimful_inside.simulator.program import program_of
from brimful_inside.simulator.trace import Trace, decode
from brimful_inside.wire import Card

GIB, MIB = 1 << 30, 1 << 20
CONTEXT = 500 * MIB
STEPS = 2  # the second has all that later ones have


@dataclass(frozen=True)
class Training:
    """A script, as the choices that its author made."""

    network: str
    width: int  # of hidden layers, a multiple of 8
    depth: int
    optimizer: str
    amp: str  # "none", "float16" or "bfloat16"
    accumulate: int
    checkpointed: bool
    clips: bool
    evaluates: bool
    channels_last: bool
    benchmark: bool
    capability: tuple[int, int]

    def card(self, total_bytes: int = 80 * GIB) -> Card:
        return Card("an imaginary card", total_bytes, CONTEXT, list(self.capability), 108)


TRAININGS = st.builds(
    Training,
    network=st.sampled_from(["perceptron", "convolutions", "transformer", "pairwise", "recurrent"]),
    width=st.integers(2, 24).map(lambda n: 8 * n),
    depth=st.integers(1, 3),
    optimizer=st.sampled_from(
        ["sgd", "momentum", "adamw", "adamw-fused", "adamw-loop", "adagrad", "rmsprop"]
    ),
    amp=st.sampled_from(["none", "none", "float16", "bfloat16"]),
    accumulate=st.sampled_from([1, 1, 2, 3]),
    checkpointed=st.booleans(),
    clips=st.booleans(),
    evaluates=st.booleans(),
    channels_last=st.booleans(),
    benchmark=st.booleans(),
    capability=st.sampled_from([(7, 5), (8, 0), (8, 6), (9, 0)]),
)

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": torch.optim.AdamW,
    "adamw-fused": lambda p: torch.optim.AdamW(p, fused=True),
    "adamw-loop": lambda p: torch.optim.AdamW(p, foreach=False),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.9),
}


class Blocks(nn.Module):
    """Blocks after each other, checkpointed if so wanted, then a head."""

    def __init__(
        self, first: nn.Module, blocks: list[nn.Module], head: nn.Module, checkpointed: bool
    ):
        super().__init__()
        self.first, self.blocks, self.head, self.checkpointed = (
            first,
            nn.ModuleList(blocks),
            head,
            checkpointed,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = (
                checkpoint(block, x, use_reentrant=False)
                if self.checkpointed and self.training
                else block(x)
            )
        return self.head(x)


class Recurrent(nn.Module):
    def __init__(self, width: int, depth: int):
        super().__init__()
        self.recur, self.head = nn.LSTM(16, width, depth, batch_first=True), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.recur(x)[0][:, -1])


def network(t: Training) -> tuple[nn.Module, tuple[int, ...]]:
    """The model, and the shape of one sample."""
    width = t.width
    if t.network == "recurrent":
        return Recurrent(width, t.depth), (12, 16)
    if t.network == "convolutions":
        blocks = [
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(t.depth)
        ]
        head = nn.Sequential(
            nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
        )
        return Blocks(nn.Conv2d(3, width, 3, 2, 1), list(blocks), head, t.checkpointed), (3, 32, 32)
    if t.network == "transformer":
        layers = [
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
            for _ in range(t.depth)
        ]
        head = nn.Sequential(nn.Flatten(), nn.Linear(24 * width, 10))
        return Blocks(nn.Linear(16, width), list(layers), head, t.checkpointed), (24, 16)
    layers = [
        nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.GELU(), nn.Dropout(0.1))
        for _ in range(t.depth)
    ]
    return Blocks(nn.Linear(256, width), list(layers), nn.Linear(width, 10), t.checkpointed), (256,)


def loss_of(t: Training, output: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if t.network == "pairwise":
        z = F.normalize(output, dim=1)
        return F.cross_entropy(z @ z.T / 0.1, torch.arange(len(z), device=z.device))
    return F.cross_entropy(output, labels)


def train(t: Training, batch_size: int, gpu: imaginary.ImaginaryGpu) -> None:
    """What the script does. Samples are on the host, as a loader gives them."""
    model, shape = network(t)
    model = model.cuda()
    if t.channels_last and t.network == "convolutions":
        model = model.to(memory_format=torch.channels_last)
    optimizer = OPTIMIZERS[t.optimizer](model.parameters())
    scaler = torch.amp.GradScaler("cuda", enabled=t.amp == "float16")
    samples, labels = torch.zeros(batch_size, *shape), torch.zeros(batch_size, dtype=torch.long)
    gpu.cards.phase("train")
    for number in range(STEPS):
        for _ in range(t.accumulate):
            x, y = samples.cuda(), labels.cuda()
            with autocast(t):
                loss = loss_of(t, model(x), y) / t.accumulate
            scaler.scale(loss).backward()
        if t.clips:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        gpu.cards.step(number + 1)
    if t.evaluates:
        gpu.cards.phase("eval")
        model.eval()
        with torch.no_grad(), autocast(t):
            model(samples.cuda()).softmax(1).argmax(1).cpu()


def autocast(t: Training) -> contextlib.AbstractContextManager:
    return (
        torch.autocast("cuda", dtype=getattr(torch, t.amp))
        if t.amp != "none"
        else contextlib.nullcontext()
    )


def run(t: Training, batch_size: int, capacity_bytes: int | None = None) -> Traced:
    """What a search is shown of the training on a card with that much room for segments."""
    outcome, shown = _run(t, batch_size, capacity_bytes)
    return Traced(outcome, program_of(shown) if shown.whole else None)


@lru_cache(maxsize=8)
def _run(t: Training, batch_size: int, capacity_bytes: int | None) -> tuple[Outcome, Trace]:
    """How it ended, and its trace."""
    file = io.StringIO()
    before = torch.backends.cudnn.benchmark
    gpu = imaginary.enter(t.card(), capacity_bytes, file)
    try:
        torch.backends.cudnn.benchmark = t.benchmark
        train(t, batch_size, gpu)
        outcome = Outcome.COMPLETED
    except torch.OutOfMemoryError:
        outcome = Outcome.OUT_OF_DEVICE_MEMORY
    finally:
        gpu.leave()
        torch.backends.cudnn.benchmark = before
    return outcome, decode(file.getvalue().splitlines())


def trace(t: Training, batch_size: int) -> Trace:
    """Of a run on a card that is as large as it needs to be."""
    outcome, shown = _run(t, batch_size, None)
    assert outcome is Outcome.COMPLETED
    return shown
