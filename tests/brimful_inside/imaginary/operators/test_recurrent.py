"""Recurrent networks run as cuDNN runs them."""

import pytest
import torch
from torch import nn

from brimful_inside.simulator.trace import Malloc
from tests.brimful_inside.imaginary.conftest import peak_of, rows


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_network_runs_as_cudnn_would(gpu, kind):
    model = kind(8, 16, 2, batch_first=True, bidirectional=True, dropout=0.1).to("cuda")
    assert len({weight.untyped_storage()._cdata for weight in model.parameters()}) == 1, (
        "cuDNN wants its weights in one buffer"
    )
    data = torch.randn(4, 10, 8, device="cuda")
    out, _ = model(data)
    out.sum().backward()
    assert out.shape == (4, 10, 32)
    assert model.weight_ih_l0.grad.shape == model.weight_ih_l0.shape
    with torch.autocast("cuda"):
        assert model(data)[0].dtype == torch.half
    packed = nn.utils.rnn.pack_padded_sequence(data, torch.tensor([10, 9, 5, 2]), batch_first=True)
    nn.utils.rnn.pad_packed_sequence(model(packed)[0], batch_first=True)[0].sum().backward()
    assert gpu.approximations["cudnn rnn reserve space"] == 3


# By rows of a packed batch of 512 sequences of at most 120 steps: cuDNN's workspace and reserve
# space on an H200 (cuDNN 9.19, torch 2.11).
SEEN = {
    34_449: (482_160_896, 783_931_648),
    34_893: (487_616_768, 793_934_080),
    36_484: (507_166_976, 829_776_128),
}


@pytest.mark.parametrize("count", SEEN)
def test_a_packed_lstm_takes_what_cudnn_took_on_a_card(gpu, trace_file, count):
    model = nn.LSTM(16, 256, 2, batch_first=True, bidirectional=True, dropout=0.1).to("cuda")
    lengths = torch.full((512,), 120)
    lengths[1:] = count // 512
    lengths[1 : 1 + count - int(lengths.sum())] += 1
    data = torch.randn(512, 120, 16, device="cuda")
    packed = nn.utils.rnn.pack_padded_sequence(data, lengths, batch_first=True)
    nn.utils.rnn.pad_packed_sequence(model(packed)[0], batch_first=True)[0].sum().backward()
    gpu.cards.flush()
    sizes = [row.nbytes for row in rows(trace_file).rows if isinstance(row, Malloc)]
    assert [sizes.count(size) for size in SEEN[count]] == [3, 1], (
        "the workspace forward, and for either gradient"
    )


def test_the_dropout_of_a_recurrent_network_keeps_its_generators_states(gpu):
    """cuDNN's, for 1024 threads of each of 108 multiprocessors; made once, however many networks
    there are."""
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
