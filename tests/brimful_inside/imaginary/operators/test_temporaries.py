"""What operations ask for on the card, forward and backward, by hand from PyTorch's CUDA sources.

Each row names the file (under aten/src/ATen/native) that its bytes come from. They are requests, in
their order; a negative number lives no longer than the operation that takes it, and cuBLAS's
workspaces are left out."""

import io
import json
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from brimful.decide.memory.size_model import fit_size_model
from brimful_inside.simulator.program import program_of
from tests.brimful_inside.imaginary.conftest import card, entered, peak_of, rows

N = 64 * 1024 * 4  # bytes of a float32 tensor of 64 x 1024
HALF = N // 2
ROW = 64 * 4  # a number in float32 for each of 64 rows
GATES, STATE = 32 * 4 * 128 * 4, 32 * 128 * 4  # of an LSTM cell with 128 units, for 32 samples
C = 4 * 8 * 4  # a number for each of 8 channels of 4 samples
IMAGE = 4 * 8 * 32 * 32 * 4


def matrix(*shape, dtype=torch.float32, grad=True):
    return torch.randn(shape or (64, 1024), device="cuda", dtype=dtype, requires_grad=grad)


def target():
    return matrix(grad=False).abs()


def longs(*shape):
    return torch.zeros(shape, dtype=torch.long, device="cuda")


class Row(NamedTuple):
    source: str
    make: object  # of a function of the inputs, and the inputs
    forward: list
    backward: list


def _cell(kind, states):
    cell, state = kind(64, 128).cuda(), torch.zeros(32, 128, device="cuda")
    return lambda x: cell(x, (state, state))[0] if states > 1 else cell(x, state), matrix(32, 64)


def _layer_norm():
    inputs = (
        matrix(dtype=torch.half),
        matrix(1024, dtype=torch.half),
        matrix(1024, dtype=torch.half),
    )
    return lambda x, w, b: F.layer_norm(x, (1024,), w, b), *inputs


LSTM_WEIGHTS = [512 * 128 * 4, 512 * 64 * 4, 32 * 64 * 4]
GRU_WEIGHTS = [384 * 128 * 4, 384 * 64 * 4, 32 * 64 * 4]

ROWS = {
    "mish": Row("cuda/ActivationMishKernel.cu", lambda: (F.mish, matrix()), [N], [N]),
    "silu": Row("cuda/ActivationSiluKernel.cu", lambda: (F.silu, matrix()), [N], [N]),
    "logsigmoid": Row(
        "Activation.cpp: no buffer on CUDA", lambda: (F.logsigmoid, matrix()), [N], [N]
    ),
    "softmax": Row(
        "cuda/SoftMax.cu: grad * output", lambda: (lambda x: x.softmax(1), matrix()), [N], [-N, N]
    ),
    "log_softmax": Row("cuda/SoftMax.cu", lambda: (lambda x: x.log_softmax(1), matrix()), [N], [N]),
    "cross_entropy": Row(
        "cuda/NLLLoss.cu", lambda: (F.cross_entropy, matrix(), longs(64)), [N, 4, 4], [N, N]
    ),
    "mse_loss": Row(
        "Loss.cpp, mse_loss_out", lambda: (F.mse_loss, matrix(), target()), [-N, 4], [N]
    ),
    "binary_cross_entropy": Row(
        "cuda/Loss.cu: the loss keeps the memory of the unreduced one",
        lambda: (lambda x, t: F.binary_cross_entropy(x, t), matrix(), target()),
        [N],
        [N],
    ),
    "multi_margin_loss": Row(
        "cuda/MultiMarginLoss.cu", lambda: (F.multi_margin_loss, matrix(), longs(64)), [4], [N]
    ),
    "layer_norm of half": Row(
        "cuda/layer_norm_kernel.cu: statistics in float32",
        _layer_norm,
        [HALF, ROW, ROW],
        [HALF, 2048, 2048],
    ),
    "rms_norm of half": Row(
        "cuda/layer_norm_kernel.cu, _fused_rms_norm_cuda",
        lambda: (
            lambda x, w: F.rms_norm(x, (1024,), w),
            matrix(dtype=torch.half),
            matrix(1024, dtype=torch.half),
        ),
        [HALF, ROW],
        [HALF, 2048],
    ),
    "group_norm": Row(
        "cuda/group_norm_kernel.cu: factors forward; sums, factors for groups and channels "
        "backward",
        lambda: (nn.GroupNorm(4, 8).cuda(), matrix(4, 8, 32, 32)),
        [-C, -C, IMAGE, C // 2, C // 2],
        [-C, -C, -C // 2, -C // 2, -C, IMAGE, 32, 32],
    ),
    "a product's sum": Row(
        "cuda/Blas.cpp: an expanded gradient is copied for cuBLAS",
        lambda: (lambda x, w: (x @ w).sum(), matrix(), torch.ones(1024, 64, device="cuda")),
        [64 * 64 * 4, 4],
        [-64 * 64 * 4, N],
    ),
    "a linear layer's of what is transposed": Row(
        "Linear.cpp: the input in rows, the product, the bias added in its place; a gradient "
        "laid out as its leaf",
        lambda: (nn.Linear(16, 32).cuda(), matrix(4, 16, 8).transpose(1, 2)),
        [4 * 8 * 16 * 4, 4 * 8 * 32 * 4],
        [32 * 4, 32 * 16 * 4, 4 * 8 * 16 * 4, 4 * 8 * 16 * 4],
    ),
    "LSTM cell": Row(
        "cuda/RNN.cu: states and gates; the gates' gradient, its sum for two biases",
        lambda: _cell(nn.LSTMCell, 2),
        [GATES, GATES, STATE, STATE, GATES],
        [GATES, STATE, 2048, 2048, *LSTM_WEIGHTS],
    ),
    "GRU cell": Row(
        "cuda/RNN.cu: five numbers for each unit are kept",
        lambda: _cell(nn.GRUCell, 1),
        [3 * STATE, 3 * STATE, STATE, 5 * STATE],
        [3 * STATE, 3 * STATE, STATE, 1536, 1536, *GRU_WEIGHTS],
    ),
    "embedding bag": Row(
        "cuda/EmbeddingBag.cu, cuda/EmbeddingBackwardKernel.cu: 40 indices sorted, in at most 40 "
        "+ 4 parts",
        lambda: (nn.EmbeddingBag(50, 64).cuda(), longs(10, 4)),
        [80, 10 * 64 * 4, 320, 80],
        [-320, -320, -320, -640, -320, -320, -320, -44 * 8, -44 * 64 * 4, 50 * 64 * 4],
    ),
    "cumsum": Row(
        "cuda/ScanKernels.cpp", lambda: (lambda x: x.cumsum(1), matrix()), [N], [N, N, N]
    ),
    "max_pool2d": Row(
        "cuda/DilatedMaxPool2d.cu: places of 8 bytes",
        lambda: (lambda x: F.max_pool2d(x, 2), matrix(4, 8, 32, 32)),
        [IMAGE // 4, IMAGE // 2],
        [IMAGE],
    ),
    "cdist": Row(
        "Distance.cpp, _euclidean_dist: both with norms and ones beside them",
        lambda: (
            lambda x, y: torch.cdist(x, y),
            matrix(64, 32, grad=False),
            matrix(48, 32, grad=False),
        ),
        [-64 * 34 * 4, -48 * 34 * 4, -64 * 32 * 4, 64 * 48 * 4],
        [],
    ),
}


def requests(lines):
    """Bytes of each malloc but cuBLAS's and those of nothing; negative where its operation ends
    it."""
    mallocs = [
        row
        for row in map(json.loads, lines)
        if row[0] == "malloc" and row[2] and not row[3].startswith("cublas")
    ]
    return [-row[2] if row[3].endswith("(temporary)") else row[2] for row in mallocs]


@pytest.mark.parametrize("name", ROWS)
def test_an_operation_asks_for_what_its_cuda_kernel_asks_for(gpu, trace_file, name):
    if name.startswith("rms_norm") and not hasattr(torch.ops.aten, "_fused_rms_norm"):
        pytest.skip("this release of PyTorch composes it on CUDA as well")
    row = ROWS[name]
    function, *inputs = row.make()

    def asked(work):
        start = len(trace_file.getvalue().splitlines())
        return work(), requests(trace_file.getvalue().splitlines()[start:])

    out, taken = asked(lambda: function(*inputs))
    assert taken == row.forward, row.source
    if row.backward:
        gradient = torch.ones_like(out)
        assert asked(lambda: out.backward(gradient))[1] == row.backward, row.source


def test_a_training_step_holds_two_workspaces_of_cublas(gpu):
    model, data = nn.Linear(8, 8).to("cuda"), torch.randn(2, 8, device="cuda")
    before = torch.cuda.memory_allocated()
    loss = model(data).sum()
    workspace = (8 << 20) + 128 * 1024
    per_operation = gpu.workspaces.release >= 215
    assert torch.cuda.memory_allocated() - before - 512 == (0 if per_operation else workspace)
    loss.backward()
    assert torch.cuda.memory_allocated() - before - 3 * 512 == (
        0 if per_operation else 2 * workspace
    )
    peak = peak_of(lambda: model(data))
    assert peak >= workspace if per_operation else peak < 1 << 20


def test_the_norm_of_gradients_takes_partial_results(gpu):
    tensors = [torch.zeros(1 << 20, device="cuda") for _ in range(4)]
    assert peak_of(lambda: torch._foreach_norm(tensors)) == 4 * 512 + 512


def test_foreach_is_the_default_of_optimizers_and_its_temporaries_count(gpu):
    parameters = [nn.Parameter(torch.randn(1 << 20, device="cuda")) for _ in range(4)]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    peaks = []
    for options in ({}, {"foreach": False}, {"fused": True}):
        optimizer = torch.optim.Adam(parameters, **options)
        optimizer.step()
        peaks.append(peak_of(optimizer.step))
    assert peaks[0] >= 4 * 4 * (1 << 20) and peaks[1] <= 3 * 4 * (1 << 20) and peaks[2] == 0


LENGTH, WIDTH, WORDS = 1024, 64, 500


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        options = {"activation": "gelu", "batch_first": True, "norm_first": True}
        self.blocks = nn.Sequential(
            *(nn.TransformerEncoderLayer(WIDTH, 2, 4 * WIDTH, **options) for _ in range(2))
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(LENGTH, device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def traced_program(work, *arguments):
    """The program of `work` on a card with much memory."""
    file = io.StringIO()
    with entered(card(total_bytes=80 << 30), None, file):
        work(*arguments)
    return program_of(rows(file))


def two_steps(batch_size, lower):
    """A small language model; the card and the tokens are imaginary, so that any batch size is as
    quick."""
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        tokens = torch.zeros(batch_size, LENGTH, dtype=torch.long, device="cuda")
        with torch.autocast("cuda", torch.bfloat16, enabled=lower):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        del loss


@pytest.mark.parametrize("lower", [True, False])
def test_sizes_extrapolated_from_small_batches_match_beyond_every_threshold(lower):
    """2 and 4 samples have less than 3072 tokens and more; 80 have more than 65536 rows for the
    layer norms' gradients."""
    small, large = (
        {size: traced_program(two_steps, size, lower) for size in (2, 4)},
        traced_program(two_steps, 80, lower),
    )
    model = fit_size_model(small)
    assert model is not None, small[2].difference(small[4])
    difference = model.difference_from(large, 80)
    assert difference is None, difference
    mallocs = [event for event in large.events if event[0] == "malloc"]
    partial, sorts = (
        [at for at, event in enumerate(mallocs) if event[2] == formula]
        for formula in ("layer_norm_partial", "embedding_sort")
    )
    assert partial and all(small[4].sizes[at] == 0 < large.sizes[at] for at in partial)
    assert sorts and any(small[2].sizes[at] == 0 < small[4].sizes[at] for at in sorts)


@pytest.mark.parametrize(
    "work",
    [
        lambda batch_size: torch.empty(4096, batch_size, device="cuda").sum(0),
        lambda batch_size: torch.empty(2 * batch_size, 2 * batch_size, device="cuda").mean(0),
        lambda batch_size: torch.empty(batch_size, 1000, device="cuda").sum(0),
        lambda batch_size: torch.empty(batch_size, 64, 30, device="cuda").sum((0, 2)),
    ],
)
def test_a_reductions_buffer_can_be_extrapolated_where_the_batch_decides_how_the_input_is_read(
    work,
):
    model = fit_size_model({size: traced_program(work, size) for size in (5, 12, 20)})
    assert model is not None
    for size in (64, 1001, 4096):
        assert model.difference_from(traced_program(work, size), size) is None
