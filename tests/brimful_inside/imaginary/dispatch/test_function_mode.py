"""The script's own threads, its loaders and its forked children."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset


def test_a_thread_makes_tensors_on_the_card(gpu):
    tensors = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            tensors.extend([torch.zeros(10, device="cuda"), torch.randn(3).cuda(non_blocking=True)])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    for tensor in tensors:
        tensor.record_stream(torch.cuda.current_stream())
    assert all(tensor.is_cuda for tensor in tensors)
    assert torch.cuda.memory_allocated() == 1024


def test_a_thread_with_a_run_of_its_own_and_an_executor_are_followed(gpu):
    class Worker(threading.Thread):
        def run(self):
            self.made = torch.zeros(2, device="cuda") + 1

    worker = Worker()
    worker.start()
    worker.join()
    assert worker.made.is_cuda
    with ThreadPoolExecutor(2) as executor:
        assert all(tensor.is_cuda for tensor in executor.map(lambda size: torch.zeros(size, device="cuda"), range(1, 5)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_pins_gives_pinned_tensors_of_the_host(gpu, workers):
    dataset = TensorDataset(torch.randn(20, 3), torch.zeros(20))
    count = 0
    for inputs, targets in DataLoader(dataset, batch_size=5, pin_memory=True, num_workers=workers):
        assert inputs.is_pinned() and not inputs.is_cuda and not torch.zeros(1).is_pinned()
        assert inputs.to("cuda", non_blocking=True).is_cuda and targets.sum().item() == 0
        count += 1
    assert count == 4


def test_a_forked_child_may_not_use_the_card_and_writes_no_trace(gpu, trace_file):
    torch.zeros(1, device="cuda")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            torch.zeros(3, device="cuda")
            os.write(write, b"nothing was raised")
        except RuntimeError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(int((torch.zeros(3) + 1).sum().item()))
    _, status = os.waitpid(child, 0)
    assert b"Cannot re-initialize CUDA in forked subprocess" in os.read(read, 1000)
    assert os.waitstatus_to_exitcode(status) == 3
    assert torch.zeros(1, device="cuda").is_cuda
