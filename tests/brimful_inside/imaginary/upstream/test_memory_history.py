"""torch.cuda.memory._record_memory_history() and _snapshot(), as PyTorch 2.6 to 2.15 have them."""

import pytest
import torch

MIB = 1 << 20


def actions(wanted=("alloc", "free_requested", "free_completed")):
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    return [(entry["action"], entry["size"]) for entry in trace if entry["action"] in wanted]


def empty(size, device="cuda"):
    return torch.empty(size, dtype=torch.uint8, device=device)


def test_the_history_has_each_allocation_and_free(gpu):
    """PyTorch 2.6 to 2.15: with addresses, the bytes requested, the stream and Python's stack."""
    torch.cuda.memory._record_memory_history()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        address = empty(3000).data_ptr()
    (trace,) = torch.cuda.memory._snapshot()["device_traces"]
    assert [(entry["action"], entry["size"]) for entry in trace] == [
        ("segment_alloc", 2 * MIB),
        ("alloc", 3000),
        ("free_requested", 3000),
        ("free_completed", 3000),
    ]
    assert {(entry["stream"], entry["addr"]) for entry in trace} == {(side.cuda_stream, address)}
    frames = trace[1]["frames"]
    assert "test_the_history_has_each_allocation_and_free" in [frame["name"] for frame in frames]
    assert all(frame["filename"] and frame["line"] for frame in frames)


def test_nothing_is_recorded_before_and_after(gpu):
    """PyTorch 2.6 to 2.15: switched off, the history is empty."""
    before = empty(1000)
    assert actions() == []
    torch.cuda.memory._record_memory_history()
    del before
    assert actions() == [("free_requested", 1000), ("free_completed", 1000)]
    torch.cuda.memory._record_memory_history(enabled=None)
    empty(1000)
    assert actions() == []


def test_the_history_keeps_its_latest_entries(gpu):
    """PyTorch 2.6 to 2.15: `max_entries` of them, and with "state" no more than the last."""
    torch.cuda.memory._record_memory_history(max_entries=2)
    tensors = [empty(size) for size in (600, 700, 800)]
    assert actions() == [("alloc", 700), ("alloc", 800)]
    torch.cuda.memory._record_memory_history("state")
    tensors.append(empty(900))
    assert actions() == [("alloc", 900)]


def test_living_blocks_name_the_line_that_took_them(gpu):
    """PyTorch 2.6 to 2.15: with the bytes requested, and without frames where context is None."""
    torch.cuda.memory._record_memory_history("state")
    held = empty(1000)
    (segment,) = torch.cuda.memory._snapshot()["segments"]
    block = segment["blocks"][0]
    assert (block["size"], block["requested_size"], segment["requested_size"]) == (1024, 1000, 1000)
    assert any(frame["filename"] == __file__ for frame in block["frames"])
    assert segment["blocks"][1] == {
        "address": held.data_ptr() + 1024,
        "size": 2 * MIB - 1024,
        "requested_size": 0,
        "state": "inactive",
        "frames": [],
    }
    torch.cuda.memory._record_memory_history("state", context=None, clear_history=True)
    more = empty(1000)
    (segment,) = torch.cuda.memory._snapshot()["segments"]
    assert segment["blocks"][1]["frames"] == [] and more.is_cuda


def test_a_block_that_waits_for_another_stream_is_pending(gpu):
    """PyTorch 2.6 to 2.15: it is active, and allocated no more; its free is complete later."""
    torch.cuda.memory._record_memory_history()
    held, side = empty(2 * MIB), torch.cuda.Stream()
    held.record_stream(side)
    del held
    (segment,) = torch.cuda.memory._snapshot()["segments"]
    assert segment["blocks"][0]["state"] == "active_pending_free"
    assert (segment["allocated_size"], segment["active_size"]) == (0, 2 * MIB)
    assert actions() == [("alloc", 2 * MIB), ("free_requested", 2 * MIB)]
    side.synchronize()
    empty(5 * MIB)
    assert actions()[2] == ("free_completed", 2 * MIB)


def test_the_history_has_a_full_card_and_what_it_gives_back(enter):
    """PyTorch 2.6 to 2.15: the cached segment goes first; the free bytes stand in place of an
    address."""
    gpu = enter(capacity_bytes=50 * MIB)
    torch.cuda.memory._record_memory_history()
    empty(30 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        empty(60 * MIB)
    wanted = ("segment_alloc", "segment_free", "oom")
    assert actions(wanted) == list(zip(wanted, (30 * MIB, 30 * MIB, 60 * MIB), strict=True))
    entry = torch.cuda.memory._snapshot()["device_traces"][0][-2]
    free = gpu.card.total_bytes - gpu.card.context_bytes
    assert entry["device_free"] == free and "addr" not in entry


def test_actions_can_be_left_out(gpu):
    """`skip_actions`, PyTorch 2.10 to 2.15."""
    torch._C._cuda_record_memory_history("all", "all", "all", 100, False, False, False, ["alloc"])
    empty(1000)
    assert actions() == [("free_requested", 1000), ("free_completed", 1000)]


def test_the_snapshot_of_a_pool_has_its_segments_alone(gpu):
    """torch.cuda.memory_snapshot(mempool_id), PyTorch 2.7 to 2.15."""
    outside, pool = empty(1000), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = empty(1000)
    both = torch._C._cuda_memorySnapshot(None)["segments"]
    (segment,) = torch._C._cuda_memorySnapshot(pool.id)["segments"]
    assert len(both) == 2 and segment["segment_pool_id"] == pool.id
    assert segment["address"] == inside.data_ptr() != outside.data_ptr()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"enabled": "some"}, "expected state to be 'state', 'all', or None"),
        ({"context": "some"}, "expected context to be 'state', 'alloc', 'all'"),
        ({"stacks": "some"}, "expected stacks to be 'python', or 'all'"),
    ],
)
def test_words_that_are_no_option_are_refused(gpu, options, words):
    """PyTorch 2.6 to 2.15 name what they expect."""
    with pytest.raises(RuntimeError, match=words):
        torch.cuda.memory._record_memory_history(**options)


def test_the_older_form_records_as_well(gpu):
    """_record_memory_history(True, ...), PyTorch 2.6 to 2.15."""
    torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=10)
    empty(1000)
    assert len(actions()) == 3
