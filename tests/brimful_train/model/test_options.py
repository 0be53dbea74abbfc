import copy
import functools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from brimful.errors import UsageError
from brimful.values import EffectiveSetting
from brimful_train.config import Config
from brimful_train.model import options
from brimful_train.model.options import apply_model_options, checkpoint_blocks
from tests.brimful_inside.imaginary.conftest import gpu, trace_file  # noqa: F401
from tests.brimful_train.ledger import same

CPU, CARD = torch.device("cpu"), torch.device("cuda", 0)
Options = functools.partial(Config, Path("out"))


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())


def blocks() -> nn.Module:
    return nn.Sequential(block(), block(), block())


def applied(model: nn.Module, config: Config, device: torch.device = CPU, **more) -> list:
    return apply_model_options(model, config, device, **more)


def test_gradient_checkpointing_names_its_blocks_or_their_absence():
    (row,) = applied(blocks(), Options(gradient_checkpointing=True))
    assert row == EffectiveSetting(
        "gradient_checkpointing",
        True,
        True,
        "3 × Sequential, each computed again in the backward pass",
    )
    (row,) = applied(nn.Linear(2, 2), Options(gradient_checkpointing=True))
    assert (row.requested, row.effective) == (True, False) and row.why.startswith(
        "no repeated blocks"
    )


class WithItsOwn(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.calls = blocks(), []

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        self.calls.append(gradient_checkpointing_kwargs)


class WithAnOldOne(WithItsOwn):
    def gradient_checkpointing_enable(self):
        self.calls.append("called")


class WithANewOne(WithItsOwn):
    def activation_checkpointing_enable(self, activation_checkpointing_kwargs=None):
        self.calls.append(activation_checkpointing_kwargs)

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs=None):
        raise AssertionError("deprecated")


class ThatRefuses(WithItsOwn):
    def gradient_checkpointing_enable(self):
        raise ValueError("ThatRefuses does not support gradient checkpointing.")


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (WithItsOwn, {"use_reentrant": False}),
        (WithANewOne, {"use_reentrant": False}),
        (WithAnOldOne, "called"),
    ],
)
def test_a_models_own_way_comes_first(kind, call):
    model = kind()
    (row,) = applied(model, Options(gradient_checkpointing=True))
    assert (model.calls, row.effective, row.why) == ([call], True, f"{kind.__name__}'s own")
    assert type(model.layers[0]) is nn.Sequential, "and nothing else is done to it"


def test_where_its_own_way_refuses_the_blocks_are_taken():
    (row,) = applied(ThatRefuses(), Options(gradient_checkpointing=True))
    assert row.effective is True and row.why.endswith(
        "its own way refused: ThatRefuses does not support gradient checkpointing."
    )


def test_channels_last_reaches_convolutions_of_two_and_three_dimensions():
    model = nn.ModuleList([nn.Conv2d(3, 8, 3), nn.Conv3d(3, 8, 3), nn.Linear(3, 3)])
    before = copy.deepcopy(model.state_dict())
    (row,) = applied(model, Options(channels_last=True))
    assert (row.effective, row.why) == (True, "weights of 2 convolutions, which activations follow")
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert model[1].weight.is_contiguous(memory_format=torch.channels_last_3d)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model[0](torch.randn(2, 3, 8, 8)).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("device", "alike", "effective", "why"),
    [
        ("cuda:0", True, True, "searched at its first"),
        ("cuda:0", False, False, "sizes vary"),
        ("cpu", True, False, "this is cpu"),
    ],
)
def test_cudnn_searches_where_a_card_gets_batches_of_one_shape(
    device, alike, effective, why, monkeypatch
):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    options = Options(cudnn_benchmark=True)
    (row,) = applied(nn.Conv2d(3, 8, 3), options, torch.device(device), shapes_alike=alike)
    assert (row.effective, torch.backends.cudnn.benchmark) == (effective, effective)
    assert why in row.why


@pytest.mark.parametrize(
    ("model", "options", "why"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3)), {"parallel": "fsdp2"}, "FSDP2"),
        (nn.Linear(2, 2), {}, "no convolution"),
    ],
)
def test_channels_last_is_left_out_with_a_reason(model, options, why):
    (row,) = applied(model, Options(channels_last=True, **options), ranks=2)
    assert (row.requested, row.effective) == (True, False) and why in row.why
    assert all(p.is_contiguous() for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "device", "problem"),
    [
        ({}, CPU, r"config\.cuda_graphs = True on the device cpu"),
        ({"parallel": "fsdp2"}, CARD, "and config.parallel = 'fsdp2'"),
    ],
)
def test_cuda_graphs_are_refused_without_a_card_and_with_fsdp2_over_several_ranks(
    options, device, problem
):
    with pytest.raises(UsageError, match=problem):
        applied(blocks(), Options(cuda_graphs=True, **options), device, ranks=2)


@pytest.fixture
def compiled_with(monkeypatch) -> list[dict]:
    """The options of each call of torch.compile, which compiles nothing here."""
    calls = []
    monkeypatch.setattr(options, "_check_compiler", lambda device: None)
    monkeypatch.setattr(torch, "compile", lambda f, **options: calls.append(options) or f)
    return calls


def test_cuda_graphs_are_torch_compiles_and_add_to_gradients_that_stand_ready(compiled_with):
    """A graph's own gradient tensors are overwritten by the next replay: they may not become the
    parameters' gradients.
    """
    model = blocks()
    (row,) = applied(model, Options(cuda_graphs=True), CARD)
    assert row.name == "cuda_graphs" and compiled_with == [
        {"dynamic": False, "mode": "reduce-overhead"}
    ]
    with torch.no_grad():
        model(torch.ones(2, 8))
    assert all(p.grad is None for p in model.parameters())
    loss = model(torch.ones(2, 8)).sum()
    gradients = [p.grad for p in model.parameters()]
    loss.backward()
    assert all(
        p.grad is grad and grad is not None
        for p, grad in zip(model.parameters(), gradients, strict=True)
    )


@pytest.mark.parametrize(("alike", "dynamic"), [(True, False), (False, None)])
def test_a_compiled_model_keeps_its_keys_and_its_class(alike, dynamic, compiled_with):
    model = blocks()
    (row,) = applied(model, Options(compile=True), shapes_alike=alike)
    assert row.effective is True and compiled_with == [{"dynamic": dynamic, "mode": None}]
    assert model.state_dict().keys() == blocks().state_dict().keys() and isinstance(
        model, nn.Sequential
    )
    model(torch.ones(2, 8)).sum().backward()
    applied(model, Options(compile=True))
    assert [kind.__name__ for kind in type(model).__mro__[:2]] == [
        "CompiledSequential",
        "Sequential",
    ], "once"


TRAIN = """
    import copy, functools, torch
    from torch import nn
    from torch._dynamo.utils import counters
    from tests.brimful_train.model.test_options import Options, applied

    def block():
        return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.GELU())

    torch.compile = functools.partial(torch.compile, backend="aot_eager")  # no C++: 4 times as fast
    torch.manual_seed(0)
    plain = nn.Sequential(block(), block())
    compiled = copy.deepcopy(plain)
    rows = applied(compiled, Options(compile=True, gradient_checkpointing=True))
    assert [row.effective for row in rows] == [True, True]
    counters.clear()
    for model in (plain, compiled):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        torch.manual_seed(1)
        for _ in range(3):
            model(torch.randn(6, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"], counters
    for key, value in plain.state_dict().items():
        torch.testing.assert_close(compiled.state_dict()[key], value, rtol=1e-5, atol=1e-6)
    print("trained")
"""

REFUSED = """
    from brimful.errors import UsageError
    from tests.brimful_train.model.test_options import Options, applied, blocks
    try:
        applied(blocks(), Options(compile=True))
    except UsageError as error:
        print(error.problem)
        print(error.suggestion)
"""


def run(script: str, tmp_path, **env: str) -> subprocess.CompletedProcess[str]:
    variables = {
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.getcwd(),
        **env,
    }
    command = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **variables}, timeout=280
    )


@pytest.mark.heavy
def test_compiled_blocks_that_are_checkpointed_train_as_they_do_without(tmp_path):
    """One graph, no break, and running statistics moved once."""
    done = run(TRAIN, tmp_path)
    assert done.stdout == "trained\n", done.stderr[-2000:]


@pytest.mark.heavy
def test_a_missing_compiler_is_a_sentence(tmp_path):
    done = run(REFUSED, tmp_path, CXX="/nowhere/g++")
    problem, suggestion = done.stdout.splitlines()
    assert problem.startswith(
        "config.compile = True: torch.compile does not work on this machine: InvalidCxxCompiler"
    )
    assert "apt install g++" in suggestion and "Traceback" not in done.stderr


# --- gradient checkpointing ---


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
    assert (checkpoint_blocks(checkpointed) or "").startswith(words)
    assert losses(plain, shape) == losses(checkpointed, shape)
    kept, expected = checkpointed.state_dict(), plain.state_dict()
    assert kept.keys() == expected.keys() and same(list(kept.values()), list(expected.values()))


def test_blocks_are_computed_twice_in_training_and_once_else():
    model = Stack()
    checkpoint_blocks(model)
    for training, gradients, calls in ((True, True, 2), (False, True, 3), (True, False, 4)):
        with torch.set_grad_enabled(gradients):
            out = model.train(training)(torch.randn(5, 8)).sum()
        if gradients:
            out.backward()
        assert [block.calls for block in model.blocks] == [calls] * 6


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

    model = nn.ModuleDict({"stages": nn.ModuleList([Stage(1), Stage(3), Stage(2)])})
    # the stages are the longest list, and hold the blocks
    assert "3 × Stage" in (checkpoint_blocks(model) or "")
    resnet = nn.ModuleDict(
        {
            "layer1": nn.Sequential(Block(8), Block(8)),
            "layer2": nn.Sequential(Block(8), Block(8), Block(8)),
        }
    )
    assert (checkpoint_blocks(resnet) or "").startswith("5 × Block")


def test_a_block_that_overwrites_its_input_is_left_as_it_is():
    def block() -> nn.Module:
        return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(8, 8))

    model = nn.Sequential(nn.Linear(8, 8), *[block() for _ in range(3)], Block(8), Block(8))
    assert (checkpoint_blocks(model) or "").startswith("2 × Block")
    losses(model, (5, 8), steps=1)


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
