from __future__ import annotations

import pytest
import torch

from brimful_inside.imaginary.state import ledger
from brimful_inside.simulator.trace import Ready, Retire, Stream
from tests.brimful_inside.imaginary.conftest import played, rows

MIB = 1 << 20


def used_by_main(nbytes: int = 30 * MIB) -> torch.Tensor:
    """A tensor of a side stream's pool that the current stream uses as well, as prefetchers make
    them."""
    with torch.cuda.stream(torch.cuda.Stream()):
        made = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    made.record_stream(torch.cuda.current_stream())
    return made


def test_streams_are_numbered_by_their_first_allocation(gpu, trace_file):
    for _ in range(3):
        idle = torch.cuda.Stream()
    with torch.cuda.stream(torch.cuda.Stream()):
        side = torch.empty(10, device="cuda")
    main = torch.empty(10, device="cuda")
    with torch.cuda.stream(idle):
        other = torch.empty(10, device="cuda")
    assert [row.number for row in rows(trace_file).rows if isinstance(row, Stream)] == [1, 0, 2]
    del side, main, other


def test_a_replay_of_a_trace_with_streams_shows_the_live_peaks(gpu, trace_file):
    for _ in range(3):
        tensor = used_by_main()
        (tensor.float() * 2).sum().item()
        del tensor
    peak = played(trace_file).peak
    assert (
        peak.reserved == torch.cuda.max_memory_reserved() > 0
        and peak.allocated == torch.cuda.max_memory_allocated()
    )


def test_a_block_that_another_stream_uses_returns_when_the_host_has_waited(gpu, trace_file):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        tensor = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        tensor.record_stream(torch.cuda.default_stream())
        del tensor
        assert torch.cuda.memory_allocated() == 0
        second = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_reserved() == 60 * MIB, "the block waits for the default stream"
        stream.synchronize()  # of no help: the block waits for the other one
        third = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_reserved() == 90 * MIB
        torch.cuda.default_stream().synchronize()
        fourth = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_reserved() == 90 * MIB
    assert [type(row) for row in rows(trace_file).rows if isinstance(row, (Retire, Ready))] == [
        Retire,
        Ready,
    ]
    del second, third, fourth


def test_a_storage_that_is_emptied_gives_its_block_back_when_the_other_stream_is_done(gpu):
    """FSDP1 makes its full parameters so: memory of one stream, used by another, in a storage that
    was made on a third."""
    tensor = torch.empty(0, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        tensor.untyped_storage().resize_(30 * MIB)
    tensor.record_stream(torch.cuda.default_stream())
    tensor.untyped_storage().resize_(0)
    torch.empty(1, device="cuda")
    stats = torch.cuda.memory_stats()
    assert (
        stats["active_bytes.all.current"] == 30 * MIB and stats["allocated_bytes.all.current"] == 0
    )
    tensor.untyped_storage().resize_(20 * MIB)  # a new block, which no other stream has used
    tensor.untyped_storage().resize_(0)
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 0


@pytest.mark.parametrize(
    "wait",
    [
        lambda event: torch.cuda.synchronize(),
        lambda event: event.synchronize(),
        lambda event: torch.zeros(1, device="cuda").item(),
        lambda event: torch.zeros(1, device="cuda").cpu(),
        lambda event: torch.zeros(1).to("cuda"),
        lambda event: torch.zeros(1).pin_memory().to("cuda", non_blocking=True),
    ],
    ids=["synchronize", "event", "item", "to the host", "to the card", "without waiting"],
)
def test_what_makes_the_host_wait_lets_the_block_return_and_a_copy_that_does_not_wait_keeps_it(
    gpu, wait, request
):
    used_by_main()
    event = torch.cuda.Event()
    event.record()
    torch.empty(1, device="cuda")
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 30 * MIB
    wait(event)
    torch.empty(1, device="cuda")
    kept = 30 * MIB if "without waiting" in request.node.name else 0
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == kept


def test_an_event_recorded_before_the_end_of_the_tensor_does_not_let_its_block_return(gpu):
    tensor = used_by_main()
    event = torch.cuda.Event()
    event.record()
    torch.empty(1, device="cuda")
    del tensor
    event.synchronize()
    torch.empty(1, device="cuda")
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 30 * MIB


def test_the_host_runs_ahead_no_farther_than_the_launch_queue(gpu, monkeypatch):
    monkeypatch.setattr(ledger, "RUN_AHEAD", 20)
    tensor, counter = used_by_main(), torch.zeros(1, device="cuda")
    del tensor
    active = []
    for _ in range(30):
        torch.empty(1, device="cuda")
        active.append(torch.cuda.memory_stats()["active_bytes.all.current"] >= 30 * MIB)
        counter += 1
    assert 5 < sum(active) < 25 and active == sorted(active, reverse=True)
