"""What few scripts call and some do: sparse products, spectra, flex_attention, scripted modules, pinned buffers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from brimful_inside.imaginary import Unsupported


def graph(nodes: int, edges: int) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.randint(0, nodes, (2, edges)), torch.ones(edges), (nodes, nodes))


@pytest.mark.parametrize(
    "convert", [lambda sparse: sparse, lambda sparse: sparse.coalesce().to_sparse_csr()], ids=["coo", "csr"]
)
@pytest.mark.parametrize("multiply", [torch.spmm, torch.sparse.mm, torch.matmul])
def test_a_graph_convolution_by_a_sparse_matrix_trains(gpu, convert, multiply):
    adjacency = convert(graph(1000, 5000)).cuda()
    layer = nn.Linear(64, 32).cuda()
    before = torch.cuda.memory_allocated()
    out = multiply(adjacency, layer(torch.randn(1000, 64, device="cuda")))
    assert out.shape == (1000, 32) and out.is_cuda and out.layout == torch.strided
    assert torch.cuda.memory_allocated() - before >= 1000 * 32 * 4
    out.sum().backward()
    assert layer.weight.grad.shape == (32, 64)


def test_a_sparse_matrix_holds_its_places_and_numbers(gpu):
    adjacency = graph(1000, 5000).cuda()
    assert torch.cuda.memory_allocated() == (2 * 5000 * 8 + 384) + (5000 * 4 + 480)
    del adjacency
    assert torch.cuda.memory_allocated() == 0


def test_the_product_of_two_sparse_matrices_is_refused(gpu):
    adjacency = graph(10, 20).cuda()
    with pytest.raises(Unsupported, match="two sparse tensors"):
        torch.mm(adjacency, adjacency)


def test_products_of_wrong_shapes_are_refused_by_name(gpu):
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        torch.spmm(graph(10, 20).cuda(), torch.zeros(11, 3, device="cuda"))


@pytest.mark.parametrize(
    "options", [{}, {"length": 15_000}, {"length": 17_000}, {"center": False}, {"win_length": 320}, {"hop_length": 200}]
)
def test_an_inverse_short_time_transform_has_the_shape_it_has_on_the_cpu(gpu, options):
    def there_and_back(device):
        window = torch.ones(options.get("win_length", 400), device=device)
        given = {"n_fft": 400, "window": window, "center": True, "hop_length": 160, "win_length": len(window), **options}
        length = given.pop("length", None)
        spectrum = torch.stft(torch.randn(2, 16_000, device=device), return_complex=True, **given).requires_grad_()
        back = torch.istft(spectrum, length=length, **given)
        back.sum().backward()
        return back.shape, torch.istft(spectrum[0], length=length, **given).shape

    assert there_and_back("cuda") == there_and_back("cpu")


def test_flex_attention_writes_no_scores(gpu):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    shape = (2, 4, 1024, 64)
    query, key, value = (torch.randn(shape, device="cuda", requires_grad=True) for _ in range(3))
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 1024, 1024, device="cuda")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = torch.compile(flex_attention)(query, key, value, block_mask=mask, score_mod=lambda s, b, h, i, j: s + (i - j))
    assert out.shape == shape and torch.cuda.max_memory_allocated() - before < 1024 * 1024 * 4 * 8
    out.sum().backward()
    assert query.grad.shape == key.grad.shape == shape


@pytest.mark.parametrize("script_first", [True, False])
def test_a_scripted_module_trains_wherever_it_was_scripted(gpu, script_first):
    model = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Dropout(0.1))
    scripted = torch.jit.script(model).cuda() if script_first else torch.jit.script(model.cuda())
    optimizer = torch.optim.SGD(scripted.parameters(), 0.1)
    for _ in range(3):
        scripted(torch.randn(2, 8, device="cuda")).sum().backward()
        optimizer.step()
    assert all(parameter.is_cuda and parameter.grad is not None for parameter in scripted.parameters())


def test_activations_can_be_kept_on_the_host(gpu):
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
    inputs = torch.randn(512, 256, device="cuda")
    held = {}
    for kept in (False, True):
        before = torch.cuda.memory_allocated()
        with (
            torch.autograd.graph.save_on_cpu(pin_memory=True)
            if kept
            else torch.autograd.graph.saved_tensors_hooks(*[lambda t: t] * 2)
        ):
            loss = model(inputs).sum()
        held[kept] = torch.cuda.memory_allocated() - before
        loss.backward()
        model.zero_grad()
        del loss
    assert held[True] < held[False]
    assert torch.empty(3, pin_memory=True).is_pinned()


def test_the_default_type_may_be_the_cards(gpu):
    try:
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
        assert torch.zeros(2).is_cuda and nn.Linear(2, 2).weight.is_cuda
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")
    assert not torch.zeros(2).is_cuda


def test_nvtx_marks_may_be_asked_for(gpu):
    with torch.autograd.profiler.emit_nvtx():
        assert torch.randn(2, device="cuda").is_cuda


@pytest.mark.parametrize("make", [torch.nested.nested_tensor, torch.nested.as_nested_tensor])
def test_nested_tensors_are_refused_where_they_are_made(gpu, make):
    name = make.__name__
    parts = [torch.zeros(2, 3), torch.zeros(4, 3)]
    assert getattr(torch.nested, name)(parts).is_nested
    with pytest.raises(Unsupported, match=rf"cannot run torch\.nested\.{name} at test_rare_calls\.py:\d+"):
        getattr(torch.nested, name)(parts, device="cuda")


def test_gradients_of_each_sample_by_functional_transforms(gpu):
    model = nn.Linear(4, 2).cuda()
    parameters = dict(model.named_parameters())

    def loss(parameters, sample):
        return torch.func.functional_call(model, parameters, (sample,)).sum()

    grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, torch.randn(3, 4, device="cuda"))
    assert grads["weight"].shape == (3, 2, 4)
