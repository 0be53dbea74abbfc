"""The script's own threads, its loaders and its forked children."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def test_threads_and_executors_are_followed(gpu):
    class Worker(threading.Thread):
        def run(self):
            with torch.cuda.stream(torch.cuda.Stream()):
                self.made = [torch.zeros(10, device="cuda"), torch.randn(3).cuda(non_blocking=True)]

    worker = Worker()
    worker.start()
    worker.join()
    for tensor in worker.made:
        tensor.record_stream(torch.cuda.current_stream())
        assert tensor.is_cuda
    assert torch.cuda.memory_allocated() == 1024
    with ThreadPoolExecutor(2) as executor:
        made = executor.map(lambda size: torch.zeros(size, device="cuda"), range(1, 5))
        assert all(tensor.is_cuda for tensor in made)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_that_pins_gives_pinned_tensors_of_the_host(gpu, workers):
    dataset = TensorDataset(torch.randn(20, 3), torch.zeros(20))
    batches = list(DataLoader(dataset, batch_size=5, pin_memory=True, num_workers=workers))
    assert len(batches) == 4
    for inputs, targets in batches:
        assert inputs.is_pinned() and not inputs.is_cuda and not torch.zeros(1).is_pinned()
        assert inputs.to("cuda", non_blocking=True).is_cuda and targets.sum().item() == 0


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


class Image(torch.Tensor):
    """A subclass as MONAI's and fastai's: each function goes through its own `__torch_function__`,
    which calls Tensor's."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


OF_AN_IMAGE = {
    "relu": lambda image: F.relu(image),
    "dropout": lambda image: F.dropout(image),
    "softmax": lambda image: F.softmax(image, 1),
    "interpolate": lambda image: F.interpolate(image, scale_factor=2.0),
    "max_pool2d": lambda image: F.max_pool2d(image, 2),
    "max_pool2d with indices": lambda image: F.max_pool2d(image, 2, return_indices=True)[0],
    "instance_norm": lambda image: F.instance_norm(image),
    "group_norm": lambda image: F.group_norm(image, 3),
    "batch_norm": lambda image: torch.nn.BatchNorm2d(3, device=image.device)(image),
    "layer_norm": lambda image: F.layer_norm(image, (8,)),
    "cross_entropy": lambda image: F.cross_entropy(
        image.flatten(1), torch.zeros(2, dtype=torch.long, device=image.device)
    ),
    "functions of torch": lambda image: (
        torch.einsum("bchw,bchw->b", image, image) + torch.norm(image)
    ),
    "methods": lambda image: image.norm() + image.split(1)[0].sum(),
}


@pytest.mark.parametrize("name", OF_AN_IMAGE)
def test_a_subclass_with_its_own_torch_function_goes_through_torchs_functions(gpu, name):
    expected = OF_AN_IMAGE[name](torch.randn(2, 3, 8, 8).as_subclass(Image))
    made = OF_AN_IMAGE[name](torch.randn(2, 3, 8, 8).cuda().as_subclass(Image))
    assert type(made) is type(expected) is Image and made.shape == expected.shape and made.is_cuda


def test_a_subclass_that_answers_itself_is_asked(gpu):
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return (
                "mine"
                if func is F.relu
                else super().__torch_function__(func, types, args, kwargs or {})
            )

    assert F.relu(torch.zeros(2, device="cuda").as_subclass(Loud)) == "mine"
