"""Events of the card's streams, as PyTorch 2.6 to 2.15 have them."""

import pytest
import torch


def test_each_event_has_a_handle_once_it_is_recorded(gpu):
    """cuda_event, PyTorch 2.6 to 2.15: 0 before that, then a number of its own that stays."""
    first, second = torch.cuda.Event(), torch.cuda.Event()
    assert first.cuda_event == second.cuda_event == 0
    assert repr(first) == "<torch.cuda.Event uninitialized>"
    first.record()
    second.record()
    handle = first.cuda_event
    assert handle and handle != second.cuda_event
    assert repr(first) == f"<torch.cuda.Event {handle:#x}>"
    first.record()
    assert first.cuda_event == handle


def test_events_around_a_sleep_are_apart_by_its_cycles(gpu):
    """torch.cuda._sleep, PyTorch 2.6 to 2.15: cycles of the card's clock, of an A100 1.41 GHz."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    torch.cuda._sleep(50_000_000)
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) == pytest.approx(50_000_000 / 1.41e9 * 1e3, rel=0.01)


def test_a_sleep_is_a_kernel_of_a_graph(gpu):
    """PyTorch 2.6 to 2.15: a replay takes its time, the capture does not."""
    graph = torch.cuda.CUDAGraph()
    begin, captured, replayed = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    begin.record()
    with torch.cuda.graph(graph):
        torch.cuda._sleep(14_100_000)
    captured.record()
    graph.replay()
    replayed.record()
    assert begin.elapsed_time(captured) < 1 < 10 <= captured.elapsed_time(replayed) < 11
