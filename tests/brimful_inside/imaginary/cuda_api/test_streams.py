import pytest
import torch
from torch import nn

from brimful_inside.imaginary import Unsupported
from brimful_inside.imaginary.state import streams
from brimful_inside.simulator.roofline import BY_GRAPH
from brimful_inside.simulator.trace import EmptyPool, Pool, Ready, ReleasePool, Retire, Stream
from tests.brimful_inside.imaginary.conftest import played, rows

MIB = 1 << 20


def used_by_main(nbytes: int = 30 * MIB) -> torch.Tensor:
    """A tensor of a side stream's pool that the current stream uses as well, as prefetchers make
    them."""
    with torch.cuda.stream(torch.cuda.Stream()):
        made = mebibytes(nbytes // MIB)
    made.record_stream(torch.cuda.current_stream())
    return made


def active() -> int:
    """Bytes of blocks that somebody uses, after those that can return to their pools have: they do
    at an allocation."""
    torch.empty(1, device="cuda")
    return torch.cuda.memory_stats()["active_bytes.all.current"]


def test_streams_are_numbered_by_their_first_allocation(gpu, trace_file):
    idle = [torch.cuda.Stream() for _ in range(3)][-1]
    with torch.cuda.stream(torch.cuda.Stream()):
        side = torch.empty(10, device="cuda")
    main = torch.empty(10, device="cuda")
    with torch.cuda.stream(idle):
        other = torch.empty(10, device="cuda")
    assert [row.number for row in rows(trace_file).rows if isinstance(row, Stream)] == [1, 0, 2]
    del side, main, other


def test_a_block_that_another_stream_uses_returns_when_the_host_has_waited(gpu, trace_file):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        mebibytes(30).record_stream(torch.cuda.default_stream())
        assert torch.cuda.memory_allocated() == 0
        kept = [mebibytes(30)]
        assert reserved() == 60, "the block waits for the default stream"
        for wait in (stream, torch.cuda.default_stream()):  # the first is of no help
            wait.synchronize()
            kept.append(mebibytes(30))
            assert reserved() == 90
    assert [type(row) for row in rows(trace_file).rows if isinstance(row, (Retire, Ready))] == [
        Retire,
        Ready,
    ]


def test_a_storage_that_is_emptied_gives_its_block_back_when_the_other_stream_is_done(gpu):
    """FSDP1 makes its full parameters so: memory of one stream, used by another, in a storage that
    was made on a third."""
    tensor = torch.empty(0, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        tensor.untyped_storage().resize_(30 * MIB)
    tensor.record_stream(torch.cuda.default_stream())
    tensor.untyped_storage().resize_(0)
    assert active() == 30 * MIB and torch.cuda.memory_allocated() == 0
    tensor.untyped_storage().resize_(20 * MIB)  # a new block, which no other stream has used
    tensor.untyped_storage().resize_(0)
    torch.cuda.synchronize()
    assert active() == 0


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
    event = torch.cuda.current_stream().record_event()
    assert active() == 30 * MIB
    wait(event)
    assert active() == (30 * MIB if "without waiting" in request.node.name else 0)


def test_an_event_recorded_before_the_end_of_the_tensor_does_not_let_its_block_return(gpu):
    tensor = used_by_main()
    event = torch.cuda.current_stream().record_event()
    torch.empty(1, device="cuda")
    del tensor
    event.synchronize()
    assert active() == 30 * MIB


def test_an_event_is_not_reached_when_it_is_first_asked_and_what_it_says_is_so(gpu):
    event = torch.cuda.Event()
    assert event.query(), "nobody recorded it"
    used_by_main()
    event.record()
    assert not event.query() and active() == 30 * MIB
    assert event.query() and active() == 0
    event.record()
    torch.cuda.synchronize()
    assert event.query(), "the host has waited for it"


@pytest.mark.parametrize("wait", ["stream", "event"])
def test_the_host_that_waits_for_a_stream_has_waited_for_what_that_one_waited_for(gpu, wait):
    """DeepSpeed's ZeRO-3 waits for events of the stream that reduces gradients, and the blocks of
    parameters for the stream that computes."""
    reducing, main = torch.cuda.Stream(), torch.cuda.default_stream()
    used_by_main()
    if wait == "stream":
        reducing.wait_stream(main)
    else:
        reducing.wait_event(main.record_event())
    torch.zeros(1, device="cuda")
    used_by_main(20 * MIB)
    with torch.cuda.stream(reducing):
        torch.zeros(1, device="cuda")
    reducing.synchronize()
    assert active() == 20 * MIB, "what came later is not known to be done"
    reducing.wait_stream(main)
    reducing.synchronize()
    assert active() == 20 * MIB, "it was given nothing since"


def test_the_host_runs_ahead_no_farther_than_the_launch_queue(gpu, monkeypatch):
    monkeypatch.setattr(streams, "RUN_AHEAD", 20)
    tensor, counter = used_by_main(), torch.zeros(1, device="cuda")
    del tensor
    kept = []
    for _ in range(30):
        kept.append(active() >= 30 * MIB)
        counter += 1
    assert 5 < sum(kept) < 25 and kept == sorted(kept, reverse=True)


# --- CUDA graphs and memory pools ---


def mebibytes(number: int, **options) -> torch.Tensor:
    return torch.empty(number * MIB, dtype=torch.uint8, device="cuda", **options)


def reserved() -> float:
    return torch.cuda.memory_reserved() / MIB


def kept_after_emptying() -> float:
    torch.cuda.empty_cache()
    return reserved()


def captured(work, **options) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        work()
    return graph


def test_the_memory_of_a_capture_serves_nobody_else_and_goes_after_its_graph(gpu, trace_file):
    graph = captured(lambda: mebibytes(100))
    small = 2  # MiB: seed and offset of the generator, in the pool of the capture's stream
    assert reserved() == 100 + small and torch.cuda.memory_allocated() == 1024
    other = mebibytes(100)
    assert reserved() == 200 + small
    del graph, other
    assert reserved() == 200 + small and torch.cuda.memory_allocated() == 0
    assert kept_after_emptying() == 0
    marks = [row for row in rows(trace_file).rows if isinstance(row, (Pool, ReleasePool))]
    assert marks == [Pool(1), Pool(0), ReleasePool(1)]


def test_what_is_left_of_a_capture_outlives_its_graph(gpu):
    kept = []
    graph = captured(lambda: kept.append(mebibytes(100)))
    graph.reset()
    assert kept_after_emptying() == 100
    kept.clear()
    assert reserved() == 100
    assert kept_after_emptying() == 0


def test_graphs_that_share_a_pool_share_its_memory(gpu):
    first = captured(lambda: mebibytes(100))
    second = captured(lambda: mebibytes(90), pool=first.pool())
    assert reserved() == 102
    del first
    assert kept_after_emptying() == 102, "the second graph still needs the pool"
    del second
    assert kept_after_emptying() == 0
    handle = torch.cuda.graph_pool_handle()
    both = [captured(lambda: mebibytes(100), pool=handle) for _ in range(2)]
    apart = [captured(lambda: mebibytes(100)) for _ in range(2)]
    assert reserved() == 302
    del both, apart


def test_streams_that_wait_for_a_capture_take_part_in_it(gpu, trace_file):
    branch, bystander = torch.cuda.Stream(), torch.cuda.Stream()

    def work() -> None:
        branch.wait_event(torch.cuda.current_stream().record_event())
        with torch.cuda.stream(branch):
            assert torch.cuda.is_current_stream_capturing() and branch.is_capturing()
            mebibytes(10)
        torch.cuda.current_stream().wait_stream(branch)
        with torch.cuda.stream(bystander):
            assert not torch.cuda.is_current_stream_capturing()
            mebibytes(30)

    graph = captured(work)
    assert not branch.is_capturing()
    assert kept_after_emptying() == 12
    assert [row.number for row in rows(trace_file).rows if isinstance(row, Pool)] == [1, 0]
    del graph


def test_what_only_a_capture_recorded_needs_no_wait_after_it(gpu):
    kept = [used_by_main(), mebibytes(20)]  # stream 0 uses the first one before the capture
    captured(lambda: (kept[1].record_stream(torch.cuda.current_stream()), kept.clear()))
    assert active() == 30 * MIB


@pytest.mark.parametrize(
    "waits",
    [
        lambda: torch.zeros(1, device="cuda").item(),
        lambda: torch.cuda.synchronize(),
        lambda: torch.cuda.current_stream().synchronize(),
        lambda: torch.zeros(1, device="cuda").cpu(),
    ],
)
def test_waiting_for_the_card_during_a_capture_fails_as_it_does_on_one(gpu, waits):
    with pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"):
        captured(waits)
    assert not torch.cuda.is_current_stream_capturing()
    waits()


def test_mistakes_raise_pytorchs_errors(gpu):
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="replay without a preceding successful capture"):
        graph.replay()
    with pytest.raises(RuntimeError, match="non-default stream"):
        graph.capture_begin()
    done = captured(lambda: mebibytes(1))
    already = pytest.raises(RuntimeError, match="already owns a captured graph")
    with torch.cuda.stream(torch.cuda.Stream()), already:
        done.capture_begin()
    with pytest.raises(RuntimeError, match="same stream"):
        graph.capture_end()


def test_graphed_callables_train_in_static_memory(gpu):
    first = torch.cuda.make_graphed_callables(
        nn.Sequential(nn.Linear(512, 1024), nn.Dropout(0.1)).cuda(),
        (torch.randn(256, 512, device="cuda"),),
    )
    second = nn.Linear(1024, 512).cuda()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.1)
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        second(first(torch.randn(256, 512, device="cuda"))).square().mean().backward()
        optimizer.step()
        if step == 0:
            kept = reserved()
    assert reserved() == kept
    assert all(parameter.grad is not None for parameter in first.parameters())


def test_a_memory_pool_of_the_script_is_kept_apart_and_emptied_at_its_end(gpu, trace_file):
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = mebibytes(100)
        assert pool.use_count() == 2
    assert pool.use_count() == 1
    assert [segment["total_size"] for segment in pool.snapshot()] == [100 * MIB]
    outside = mebibytes(50)
    del inside
    assert kept_after_emptying() == 150
    del pool
    assert reserved() == 50
    assert [
        type(row) for row in rows(trace_file).rows if isinstance(row, (ReleasePool, EmptyPool))
    ] == [ReleasePool, EmptyPool]
    assert played(trace_file).peak.reserved == 150 * MIB
    del outside
    with pytest.raises(
        Unsupported,
        match=r"cannot run torch\.cuda\.MemPool at test_streams\.py:\d+ in test_a_memory",
    ):
        torch.cuda.MemPool(use_on_oom=True)


def test_of_two_pools_in_use_the_later_serves_and_none_keeps_a_block_waiting(gpu):
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(outer), torch.cuda.use_mem_pool(inner):
        mebibytes(100).record_stream(torch.cuda.Stream())
        assert inner.snapshot() and not outer.snapshot()
        torch.cuda.synchronize()
        assert active() == 0


def test_what_was_captured_runs_at_each_replay_and_not_before(gpu):
    clock = gpu.clock
    inputs = torch.randn(64, 64, device="cuda")
    graph = captured(lambda: inputs @ inputs)
    clock.step()
    assert not any("mm" in kernel.op for kernel in clock.last_step())
    for _ in range(2):
        graph.replay()
    clock.step()
    launch, *kernels = [
        kernel for kernel in clock.last_step() if kernel.launches == 0 or "mm" in kernel.op
    ]
    assert [kernel.engine for kernel in (launch, *kernels)] == [0, BY_GRAPH, 0, BY_GRAPH]
