"""Memory that CUDA's kernels take beside their results, and roads that only CUDA takes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

MIB = 1 << 20


def peak_of(function):
    """The bytes that `function` takes at its worst, beyond what is there before."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = function()
    del result
    return torch.cuda.max_memory_allocated() - before


def test_dropout_keeps_a_mask_of_one_byte_an_element(gpu):
    card = torch.randn(1000, 1024, device="cuda", requires_grad=True)
    before = torch.cuda.memory_allocated()
    dropped = F.dropout(card, 0.5)
    assert torch.cuda.memory_allocated() - before == 1000 * 1024 * (4 + 1)
    dropped.sum().backward()
    assert F.dropout(card, 0.5, training=False) is card


def test_a_loss_of_squares_writes_each_square_first(gpu):
    card = torch.randn(1000, 1024, device="cuda")
    assert peak_of(lambda: F.mse_loss(card, card)) == 1000 * 1024 * 4 + 512
    assert peak_of(lambda: F.mse_loss(card, card, reduction="none")) == 1000 * 1024 * 4


def test_a_large_embedding_sorts_its_indices_backward(gpu):
    table = nn.Embedding(50_000, 64).to("cuda")
    small, large = (torch.zeros(count, dtype=torch.long, device="cuda") for count in (1000, 8000))

    def extra(indices):
        loss = table(indices).sum()
        peak = peak_of(loss.backward)
        table.weight.grad = None
        return peak

    assert extra(small) < 50_000 * 64 * 4 + MIB < extra(large)


def test_batch_norm_keeps_two_numbers_a_channel_in_float32(gpu):
    norm = nn.BatchNorm2d(512).to("cuda")
    card = torch.randn(4, 512, 8, 8, device="cuda", dtype=torch.half)
    before = torch.cuda.memory_allocated()
    out = norm(card)
    assert torch.cuda.memory_allocated() - before == out.numel() * 2 + 2 * 512 * 4
    assert out.dtype == torch.half


def test_the_norm_of_gradients_takes_partial_results(gpu):
    tensors = [torch.zeros(1 << 20, device="cuda") for _ in range(4)]
    assert peak_of(lambda: torch._foreach_norm(tensors)) == 4 * 512 + 512


def test_a_training_step_holds_two_workspaces_of_cublas(gpu):
    model, data = nn.Linear(8, 8).to("cuda"), torch.randn(2, 8, device="cuda")
    before = torch.cuda.memory_allocated()
    loss = model(data).sum()
    one = 8 * MIB + 128 * 1024
    per_operation = gpu.workspaces.release >= 215
    assert torch.cuda.memory_allocated() - before - 512 == (0 if per_operation else one)
    loss.backward()
    assert torch.cuda.memory_allocated() - before - 3 * 512 == (0 if per_operation else 2 * one)
    peak = peak_of(lambda: model(data))
    assert peak >= one if per_operation else peak < MIB


def test_hoppers_workspace_is_larger(enter):
    gpu = enter(capability=(9, 0))
    peak = peak_of(lambda: torch.randn(8, 8, device="cuda") @ torch.randn(8, 8, device="cuda"))
    assert peak > 32 * MIB and gpu.workspaces.release


CONVOLUTIONS = [
    (nn.Conv1d, (2, 4, 20), {}),
    (nn.Conv2d, (2, 4, 20, 21), {"stride": 2, "padding": 1}),
    (nn.Conv2d, (2, 4, 20, 21), {"groups": 2, "dilation": 2}),
    (nn.Conv3d, (1, 4, 12, 13, 14), {"padding": 1}),
    (nn.ConvTranspose1d, (2, 4, 9), {"stride": 2}),
    (nn.ConvTranspose2d, (2, 4, 9, 8), {"stride": 2, "output_padding": 1}),
]


@pytest.mark.parametrize(("kind", "shape", "options"), CONVOLUTIONS)
def test_a_convolution_has_the_shape_that_the_host_gives(gpu, kind, shape, options):
    convolution = kind(4, 6, 3, **options)
    expected = convolution(torch.randn(shape))
    actual = convolution.cuda()(torch.randn(shape, device="cuda"))
    assert actual.shape == expected.shape
    actual.sum().backward()
    assert convolution.weight.grad.shape == convolution.weight.shape


def test_channels_last_stays_so_and_a_mixture_is_copied(gpu):
    convolution = nn.Conv2d(16, 32, 3).to("cuda", memory_format=torch.channels_last)
    last = torch.randn(2, 16, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    assert convolution(last).is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        plain = torch.randn(2, 16, 64, 64, device="cuda")
        assert peak_of(lambda: convolution(plain)) - peak_of(lambda: convolution(last)) == plain.numel() * 4


def test_wrong_channels_are_refused_in_pytorchs_words(gpu):
    with pytest.raises(RuntimeError, match=r"expected input\[1, 5, 8, 8\] to have 3 channels, but got 5 channels instead"):
        nn.Conv2d(3, 4, 3).cuda()(torch.randn(1, 5, 8, 8, device="cuda"))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_network_runs_as_cudnn_would(gpu, kind):
    model = kind(8, 16, 2, batch_first=True, bidirectional=True, dropout=0.1).to("cuda")
    assert len({weight.untyped_storage()._cdata for weight in model.parameters()}) == 1, "cuDNN wants its weights in one buffer"
    out, _ = model(torch.randn(4, 10, 8, device="cuda"))
    assert out.shape == (4, 10, 32)
    out.sum().backward()
    assert model.weight_ih_l0.grad.shape == model.weight_ih_l0.shape
    with torch.autocast("cuda"):
        out, _ = model(torch.randn(4, 10, 8, device="cuda"))
    assert out.dtype == torch.half
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.randn(4, 10, 8, device="cuda"), torch.tensor([10, 9, 5, 2]), batch_first=True
    )
    out, _ = model(packed)
    nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0].sum().backward()
    assert gpu.approximations["cudnn rnn reserve space"] == 3


def test_the_dropout_of_a_recurrent_network_keeps_its_generators_states(gpu):
    """cuDNN's, for 1024 threads of each of 108 multiprocessors; made once, however many networks there are."""
    models = [nn.LSTM(8, 16, 2, dropout=0.5).to("cuda") for _ in range(2)]
    data = torch.randn(10, 4, 8, device="cuda")
    before = torch.cuda.memory_allocated()
    with torch.no_grad():
        for model in models:
            model(data)
    assert torch.cuda.memory_allocated() - before == 108 * 1024 * 48


def test_a_recurrent_network_with_the_batch_first_copies_its_input_while_it_runs(gpu):
    data = torch.randn(64, 64, 256, device="cuda")
    first, second = (nn.GRU(256, 8, batch_first=order).to("cuda").eval() for order in (True, False))
    with torch.no_grad():
        assert peak_of(lambda: first(data)) - peak_of(lambda: second(data)) == data.numel() * 4


def test_foreach_is_the_default_of_optimizers_and_its_temporaries_count(gpu):
    parameters = [nn.Parameter(torch.randn(1 << 20, device="cuda")) for _ in range(4)]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    peaks = []
    for options in ({}, {"foreach": False}, {"fused": True}):
        optimizer = torch.optim.Adam(parameters, **options)
        optimizer.step()
        peaks.append(peak_of(optimizer.step))
    assert peaks[0] >= 4 * 4 * MIB and peaks[1] <= 3 * 4 * MIB and peaks[2] == 0


def test_silu_has_a_kernel_for_its_gradient(gpu):
    """Elsewhere than on a card it is composed of six operations, each with a result of its own."""
    card = torch.randn(1000, 1024, device="cuda", requires_grad=True)
    out = F.silu(card)
    gradient = torch.ones_like(out)
    assert peak_of(lambda: out.backward(gradient)) == 1000 * 1024 * 4


def test_the_gradient_of_softmax_takes_gradient_times_output(gpu):
    weights = torch.empty(4096, 1024, device="cuda")  # 16 MiB
    alone = peak_of(lambda: torch.ops.aten._softmax_backward_data(weights, weights, -1, torch.float32))
    of_logarithms = peak_of(lambda: torch.ops.aten._log_softmax_backward_data(weights, weights, -1, torch.float32))
    assert (alone, of_logarithms) == (32 * MIB, 16 * MIB)
    turned = torch.empty(1024, 4096, device="cuda").T
    assert peak_of(lambda: torch.ops.aten._softmax_backward_data(turned, weights, -1, torch.float32)) == 48 * MIB
