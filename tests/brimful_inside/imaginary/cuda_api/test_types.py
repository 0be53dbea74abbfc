"""Storages: views, resizing, swapping of data; and the ledger keeps up."""

import torch


def allocated():
    return torch.cuda.memory_allocated()


def test_views_hold_the_storage_and_take_nothing(gpu):
    card = torch.zeros(1000, 1000, device="cuda")
    view, storage = card.view(-1)[10:], card.untyped_storage()
    del card
    assert allocated() == 4000256
    del view
    assert allocated() == 4000256
    del storage
    assert allocated() == 0


def test_a_tensor_can_change_its_size_and_its_storage(gpu):
    card = torch.zeros(1000, 1000, device="cuda")
    for nbytes in (0, 4_000_000):
        card.untyped_storage().resize_(nbytes)
        assert allocated() == -(-nbytes // 512) * 512
    for change, nbytes in (
        (lambda: card.resize_(2000, 1000), 8_000_000),
        (lambda: setattr(card, "data", torch.zeros(1, device="cuda")), 512),
        (lambda: card.set_(torch.zeros(1000, device="cuda")), 4096),
    ):
        change()
        assert allocated() == nbytes


def test_a_storage_without_a_tensor_is_on_the_card(gpu):
    storage = torch.UntypedStorage(1000, device="cuda")
    assert storage.device == torch.device("cuda:0") and storage.is_cuda and allocated() == 1024
    del storage
    assert allocated() == 0
    host = torch.UntypedStorage(8)
    assert host.device.type == "cpu" and not host.is_cuda and host.cuda().is_cuda
