import copy
import gc

import pytest
import torch

from brimful_inside.simulator.program import program_of
from tests.brimful_inside.imaginary.conftest import GIB, card, entered, played, rows

MIB = 1 << 20
CARD = card()


def test_a_process_sees_all_cards_and_no_more(three):
    assert torch.cuda.device_count() == 3 and torch.accelerator.device_count() == 3
    assert [torch.cuda.get_device_name(index) for index in range(3)] == [CARD.name] * 3
    for use in (lambda: torch.zeros(1, device="cuda:3"), lambda: torch.cuda.set_device(3)):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            use()


def test_a_tensor_takes_memory_of_its_own_card_alone(three, allocated):
    held = torch.zeros(MIB, dtype=torch.uint8, device="cuda:1")
    assert held.device == torch.device("cuda:1") and held.get_device() == 1
    assert allocated() == [0, MIB, 0]
    total = CARD.total_bytes - CARD.context_bytes
    assert [torch.cuda.mem_get_info(index)[0] for index in range(3)] == [
        total,
        total - 2 * MIB,
        total,
    ]
    del held
    assert allocated() == [0, 0, 0] and torch.cuda.max_memory_allocated(1) == MIB


def test_without_a_number_the_current_card_is_meant(three):
    assert torch.zeros(1, device="cuda").device.index == 0
    with torch.cuda.device(2):
        assert torch.zeros(1).cuda().device.index == 2 and torch.cuda.current_device() == 2
    torch.cuda.set_device(1)
    assert torch.cuda.current_device() == 1 and torch.zeros(1).to("cuda").device.index == 1
    assert torch.nn.Linear(2, 2).cuda(2).weight.device.index == 2


def test_tensors_of_two_cards_do_not_meet(three):
    first, second = torch.zeros(3, device="cuda:0"), torch.zeros(3, device="cuda:1")
    with pytest.raises(
        RuntimeError, match="on the same device, but found at least two devices, cuda:0 and cuda:1!"
    ):
        first + second
    assert first.copy_(second) is first  # a copy is how they do


def test_optimizers_keep_states_beside_parameters(three, allocated):
    first, second = (
        torch.nn.Linear(512, 512, bias=False).to("cuda:0"),
        torch.nn.Linear(512, 256, bias=False).to("cuda:1"),
    )
    optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()])
    second(first(torch.ones(4, 512, device="cuda:0")).to("cuda:1")).sum().backward()
    torch.nn.utils.clip_grad_norm_([*first.parameters(), *second.parameters()], 1.0)
    before = allocated()
    optimizer.step()
    grown = [after - was for after, was in zip(allocated(), before, strict=True)]
    assert grown == [2 * 512 * 512 * 4, 2 * 512 * 256 * 4, 0]  # the step counts are on the host


def test_a_full_card_says_which_one_it_is():
    with entered(CARD, GIB, count=2):
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 2.00 GiB. GPU 1 has"):
            torch.zeros(2 * GIB, dtype=torch.uint8, device="cuda:1")
        torch.zeros(GIB // 2, dtype=torch.uint8, device="cuda:0")
    assert not torch.cuda.is_available()


def test_streams_belong_to_cards(three):
    side = torch.cuda.Stream(device="cuda:1")
    assert side.device == torch.device("cuda:1")
    with torch.cuda.stream(side):
        assert torch.cuda.current_device() == 1
        assert torch.cuda.current_stream() == side != torch.cuda.current_stream(0)
    assert torch.cuda.current_device() == 0 and torch.cuda.current_stream(
        1
    ) == torch.cuda.default_stream(1)


def test_copies_keep_the_card(three):
    net = torch.nn.Linear(3, 3).to("cuda:1")
    assert copy.deepcopy(net).weight.device.index == 1 and net.weight.clone().device.index == 1
    assert net.weight.untyped_storage().device == torch.device(
        "cuda:1"
    ) and "device='cuda:1'" in repr(net.weight)


def test_each_card_that_is_used_leaves_a_trace_of_its_own(three, traces):
    three.cards.phase("train")
    kept = torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda:2")
    three.cards.scaler_decides()
    three.cards.step(1)
    three.cards.end_trace()
    assert set(traces) == {2}
    assert played(traces[2]).phases["train"].allocated == kept.nbytes
    events = program_of(rows(traces[2])).events
    assert events.index(("scaler",)) == events.index(("step", 1)) - 1


def test_graphs_of_two_cards_leave_nothing_behind_on_either(three, allocated):
    graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
    for index, graph in enumerate(graphs):
        with torch.cuda.device(index), torch.cuda.graph(graph, stream=torch.cuda.Stream(index)):
            torch.zeros(1024, device="cuda")
    del graph
    assert all(allocated()[:2])  # seed and offset of each card's generator
    graphs.clear()
    gc.collect()
    assert allocated() == [0, 0, 0]


def test_a_pool_may_be_used_on_the_card_that_is_named(three, allocated):
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool, device=1):
        held = torch.zeros(MIB, dtype=torch.uint8, device="cuda:1")
    pools = {
        segment["device"]: segment["segment_pool_id"] for segment in torch.cuda.memory_snapshot()
    }
    assert pools == {1: (0, 1)} and allocated() == [0, held.nbytes, 0]


def test_an_event_reads_the_clock_of_its_own_card(three):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.Stream(1)
    begin.record(stream)
    torch.zeros(2048, 2048, device="cuda:1") @ torch.zeros(2048, 2048, device="cuda:1")
    end.record(stream)  # while card 0 is the current one, which did nothing
    assert begin.elapsed_time(end) > 0.5
