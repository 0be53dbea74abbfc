"""Every way to name the card, and what tensors say of their device."""

import pytest
import torch
from torch import nn

from brimful_inside.simulator.trace import Malloc
from tests.brimful_inside.imaginary.conftest import rows


@pytest.mark.parametrize(
    "device", ["cuda", "cuda:0", 0, torch.device("cuda"), torch.device("cuda", 0)]
)
def test_the_card_is_known_by_all_its_names(gpu, device):
    for tensor in (
        torch.zeros(3, device=device),
        torch.randn(3).to(device),
        torch.zeros_like(torch.zeros(3), device=device),
    ):
        assert tensor.device == torch.device("cuda:0") and tensor.is_cuda and not tensor.is_meta
        assert tensor.get_device() == 0


def test_tensors_move_to_the_card_and_back(gpu):
    host, card = torch.randn(3), torch.zeros(3, device="cuda")
    assert host.cuda().is_cuda and host.cuda(0, non_blocking=True).is_cuda and host.to(card).is_cuda
    assert host.to("cuda", torch.half).dtype == torch.half
    assert host.to(device="cuda", dtype=torch.bfloat16).is_cuda
    assert not card.cpu().is_cuda and not card.to("cpu").is_cuda and not card.to(host).is_cuda
    assert card.to("cuda") is card and card.to(torch.half).is_cuda
    assert torch.zeros(3).copy_(card).tolist() == [0, 0, 0]


def test_legacy_types_name_the_card(gpu):
    assert torch.cuda.FloatTensor(2, 3).shape == (2, 3)
    assert torch.zeros(2).type(torch.cuda.HalfTensor).dtype == torch.half
    assert torch.zeros(2).type("torch.cuda.LongTensor").is_cuda
    card = torch.zeros(2, device="cuda")
    assert card.type() == "torch.cuda.FloatTensor" and isinstance(card, torch.cuda.FloatTensor)
    assert not isinstance(torch.zeros(2), torch.cuda.FloatTensor)
    assert not card.type(torch.FloatTensor).is_cuda


def test_the_default_device_can_be_the_card(gpu):
    with torch.device("cuda"):
        assert (
            torch.zeros(2).is_cuda
            and nn.Linear(2, 2).weight.is_cuda
            and not torch.zeros(2, device="cpu").is_cuda
        )
    torch.set_default_device("cuda")
    try:
        assert torch.zeros(2).is_cuda and torch.tensor([1.0]).is_cuda and torch.arange(3).is_cuda
        assert str(torch.get_default_device()) == "cuda:0"
        assert torch.zeros(2).cpu().tolist() == [0, 0]
    finally:
        torch.set_default_device(None)
    assert not torch.zeros(2).is_cuda


def test_meta_tensors_of_the_script_are_not_the_cards(gpu):
    mine, card = torch.zeros(1000, device="meta"), torch.zeros(1000, device="cuda")
    assert mine.is_meta and mine.device.type == "meta" and not mine.is_cuda
    assert (
        (mine + mine).is_meta
        and card.is_cuda
        and (card + card).is_cuda
        and torch.tensor([1.0], device="cuda").is_cuda
    )
    before = torch.cuda.memory_allocated()
    with torch.device("meta"):
        model = nn.Linear(10**5, 10**5)
    shaped = torch.zeros_like(card, device="meta"), card.to("meta", torch.half)
    assert torch.cuda.memory_allocated() == before
    assert shaped[0].is_meta and not shaped[0].is_cuda
    small = nn.Linear(3, 3, device="meta").to_empty(device="cuda")
    assert small.weight.is_cuda and model.weight.is_meta


def test_tensors_of_both_sides_do_not_mix(gpu):
    host, card = torch.randn(3, 3), torch.randn(3, 3, device="cuda")
    functions = (
        lambda: nn.functional.linear(card, host),
        lambda: torch.add(card, host),
        lambda: torch.cat((card, host)),
        lambda: nn.functional.cross_entropy(card, host),
        lambda: nn.functional.embedding(torch.zeros(2, dtype=torch.long), card),
    )
    for function in functions:
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            function()
    assert (card * torch.tensor(2.0)).is_cuda, (
        "a number in a tensor without dimensions may stay on the host"
    )
    assert card[torch.tensor([0, 1])].shape == (2, 3), "so may indices"


def test_gradients_move_with_their_parameters(gpu):
    model = nn.Linear(3, 3)
    model(torch.randn(2, 3)).sum().backward()
    for device in ("cuda", "cpu", "cuda"):
        model.to(device)
        assert model.weight.grad.device.type == model.weight.device.type == device


def test_hooks_see_the_card_in_forward_and_backward(gpu):
    types = []
    weight = torch.randn(3, 3, device="cuda", requires_grad=True)
    weight.register_hook(lambda grad: types.append(grad.device.type))
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: types.append(t.device.type) or t, lambda t: t
    ):
        loss = (weight * weight).sum()
    loss.backward()
    assert set(types) == {"cuda"} and len(types) >= 3


def test_generators_of_the_card_are_accepted(gpu):
    generator = torch.Generator(device="cuda").manual_seed(3)
    assert generator.device.type == "cuda" and isinstance(generator, torch.Generator)
    assert torch.randn(3, generator=generator, device="cuda").is_cuda
    assert torch.randperm(5, generator=generator, device="cuda").shape == (5,)
    torch.zeros(3, device="cuda").normal_(generator=generator)
    assert torch.Generator().manual_seed(1).device.type == "cpu"


def test_the_norm_of_all_gradients_is_one_operation_over_a_list_as_on_a_card(gpu, trace_file):
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5))).cuda()
    model(torch.randn(2, 8, device="cuda")).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    taken = [row.op for row in rows(trace_file).rows if isinstance(row, Malloc)]
    assert sum(name.startswith("aten._foreach_norm") for name in taken) == 10, (
        "a result for each of ten gradients"
    )
    assert taken.count("aten.linalg_vector_norm.default") == 1, "and the norm of these"


def test_what_vmap_wraps_is_on_the_card_and_moves_to_where_it_is(gpu):
    """Transformers 4.57 makes masks so: a mask function within four vmaps, moved to the result's
    device.
    """

    def of_one(row, column):
        allowed = column <= row
        assert allowed.is_cuda and not allowed.is_meta
        masks = allowed.new_ones((), dtype=torch.bool) & allowed.to(row.device)
        return masks & (torch.tensor(2, device=row.device) > row).to(masks)

    places = torch.arange(5, device="cuda")
    made = torch.vmap(torch.vmap(of_one, (None, 0)), (0, None))(places, places)
    assert made.is_cuda and made.shape == (5, 5) and made.dtype == torch.bool
    jacobian = torch.func.jacrev(lambda x: (x.to(places.device) ** 2).sum())(torch.ones(3).cuda())
    assert jacobian.is_cuda and jacobian.shape == (3,)
