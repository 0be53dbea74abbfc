import contextlib
import copy

import pytest
import torch
from torch import nn

from brimful_train.model import options
from brimful_train.model.options import checkpoint_blocks
from tests.brimful_inside.imaginary.conftest import gpu, trace_file  # noqa: F401
from tests.brimful_train.ledger import same


class Block(nn.Module):
    """A residual block with all that makes a second computation differ: dropout, and running
    statistics.
    """

    def __init__(self, width: int, norm: type[nn.Module] = nn.BatchNorm1d):
        super().__init__()
        self.norm = norm(width)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.2), nn.Linear(4 * width, width)
        )
        self.calls = 0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.calls += 1
        return x + scale * self.layers(self.norm(x))


class Stack(nn.Module):
    """Blocks in a list, called with a keyword, as transformers are."""

    def __init__(self, depth: int = 6, width: int = 8):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x, scale=0.5)
        return x


def convolutions() -> nn.Module:
    """As the captcha's: blocks that are Sequentials, poolings between, layers that overwrite."""

    def block(inside: int, outside: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(inplace=True)
        )

    features = nn.Sequential(
        block(1, 4), nn.MaxPool2d(2), block(4, 8), block(8, 8), nn.MaxPool2d(2)
    )
    return nn.Sequential(
        features,
        nn.Sequential(nn.Flatten(), nn.Linear(32, 4), nn.ReLU(inplace=True), nn.Dropout(0.25)),
    )


def plain_layers() -> nn.Module:
    """One flat Sequential, whose cut would fall on layers that overwrite their input."""
    layers: list[nn.Module] = []
    for inside, outside in ((1, 4), (4, 8), (8, 8)):
        layers += [
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 4), nn.Dropout(0.25, inplace=True))


MODELS = {
    "list": (Stack, (5, 8), "6 × Block"),
    "convolutions": (convolutions, (5, 1, 8, 8), "3 × Sequential"),
    "plain": (plain_layers, (5, 1, 8, 8), "a Sequential of 12 layers in 3 stretches"),
}


def losses(model: nn.Module, shape: tuple[int, ...], steps: int = 4) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(1)
    losses = []
    for _ in range(steps):
        loss = model(torch.randn(shape)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", MODELS)
def test_losses_weights_and_statistics_are_bit_for_bit_those_without(name: str):
    make, shape, words = MODELS[name]
    torch.manual_seed(0)
    plain = make()
    checkpointed = copy.deepcopy(plain)
    blocks = checkpoint_blocks(checkpointed)
    assert blocks is not None and blocks.startswith(words)
    assert losses(plain, shape) == losses(checkpointed, shape)
    kept, expected = checkpointed.state_dict(), plain.state_dict()
    assert kept.keys() == expected.keys() and same(list(kept.values()), list(expected.values()))


def test_blocks_are_computed_twice_in_training_and_once_else():
    model = Stack()
    checkpoint_blocks(model)
    losses(model, (5, 8), steps=1)
    assert [block.calls for block in model.blocks] == [2] * 6
    model.eval()
    model(torch.randn(5, 8)).sum().backward()
    assert [block.calls for block in model.blocks] == [3] * 6
    with torch.no_grad():
        model.train()(torch.randn(5, 8))
    assert [block.calls for block in model.blocks] == [4] * 6


def test_without_sparing_the_buffers_statistics_would_move_twice(monkeypatch):
    """What `_Sparing` is for."""
    torch.manual_seed(0)
    plain = Stack()
    doubled = copy.deepcopy(plain)
    checkpoint_blocks(doubled)
    monkeypatch.setattr(options, "_Sparing", lambda changed: contextlib.nullcontext())
    assert losses(plain, (5, 8)) == losses(doubled, (5, 8))
    assert not torch.equal(plain.blocks[0].norm.running_mean, doubled.blocks[0].norm.running_mean)


class Counter(nn.Module):
    """A buffer of one's own that a forward changes."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += len(x)
        self.replaced = self.replaced + len(x)
        return self.inner(x)


def test_a_buffer_of_the_models_own_is_changed_once():
    model = nn.Sequential(Counter(), Counter())
    assert (checkpoint_blocks(model) or "").startswith("2 × Counter")
    losses(model, (5, 8), steps=3)
    assert [(block.seen.item(), block.replaced.item()) for block in model] == [(15.0, 15.0)] * 2


def test_all_blocks_of_a_kind_are_found_and_none_within_another():
    class Stage(nn.Module):
        def __init__(self, depth: int):
            super().__init__()
            self.blocks = nn.Sequential(*[Block(8) for _ in range(depth)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks(x)

    model = nn.Module()
    model.stages = nn.ModuleList([Stage(1), Stage(3), Stage(2)])
    blocks = checkpoint_blocks(model)
    assert blocks is not None and "3 × Stage" in blocks, (
        "the stages are the longest list, and hold the blocks"
    )
    resnet = nn.Module()
    resnet.layer1, resnet.layer2 = (
        nn.Sequential(Block(8), Block(8)),
        nn.Sequential(Block(8), Block(8), Block(8)),
    )
    assert (checkpoint_blocks(resnet) or "").startswith("5 × Block")


def test_a_block_that_overwrites_its_input_is_left_as_it_is():
    def block() -> nn.Module:
        return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8))

    model = nn.Sequential(nn.Linear(8, 8), *[block() for _ in range(3)], Block(8), Block(8))
    assert (checkpoint_blocks(model) or "").startswith("2 × Block")
    losses(model, (5, 8), steps=1)


def test_hooks_copies_and_types_are_as_before():
    model = Stack()
    checkpoint_blocks(model)
    calls = []
    model.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    losses(model, (5, 8), steps=1)
    assert calls == [1]
    assert isinstance(model.blocks[0], Block)
    twin = copy.deepcopy(model)
    losses(twin, (5, 8), steps=1)
    assert model.blocks[0].calls == 2 and twin.blocks[0].calls == 4, (
        "the copy computes with its own blocks"
    )


def test_on_a_card_it_takes_less_memory(gpu):  # noqa: F811
    peaks = []
    for checkpointed in (False, True):
        model = Stack(depth=12, width=256).cuda()
        if checkpointed:
            checkpoint_blocks(model)
        batch = torch.randn(4096, 256, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        model(batch).square().mean().backward()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        del model, batch
    assert peaks[1] < peaks[0] / 3, peaks


def test_a_gradient_penalty_goes_backward_twice_and_running_statistics_change_once():
    torch.manual_seed(0)
    plain = nn.Sequential(
        *(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()) for _ in range(3))
    )
    checkpointed = copy.deepcopy(plain)
    assert checkpoint_blocks(checkpointed) is not None
    batch = torch.randn(8, 4)
    for model in (plain, checkpointed):
        x = batch.clone().requires_grad_()
        out = model(x).sum()
        (slope,) = torch.autograd.grad(out, x, create_graph=True)
        (out + slope.pow(2).sum()).backward()
    assert same([p.grad for p in checkpointed.parameters()], [p.grad for p in plain.parameters()])
    assert same(list(checkpointed.buffers()), list(plain.buffers()))
